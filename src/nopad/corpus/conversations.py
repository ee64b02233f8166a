"""Read chats, prompts with completions, and preference pairs from records in the common formats.

A chat has the column ``messages``, a list of ``{"role", "content"}``, or ``conversations``, a list of ``{"from",
"value"}`` (ShareGPT). A prompt with its completion has ``prompt`` and ``completion``, both strings, or both lists of
messages. A preference pair has ``chosen`` and ``rejected``, both strings, or both lists of messages, with or without a
``prompt`` of the same kind. ``tools`` (a list, or its JSON) and ``chat_template_kwargs`` are passed to the chat
template. A column that is None counts as missing. An assistant's message with ``weight`` 0, or ``train`` false, is not
learned. This module imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nopad.corpus.records import columns_in, listed
from nopad.errors import OptionError, RecordError
from nopad.notation import from_json
from nopad.options import shown

__all__ = ["ROLES", "Conversation", "Passage", "conversation_of", "pair_of", "roles_of"]

_WEIGHTS = ("weight", "train")  # keys with which other trainers mark whether a message is learned
_SILENT = "nopad: not learned"
CHATS = ("messages", "conversations")
# Maps the names of roles in data sets to the names in chat templates
ROLES: Mapping[str, str] = {
    **{name: name for name in ("system", "developer", "user", "assistant", "tool")},
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "observation": "tool",
}
KNOWN = frozenset(ROLES.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A chat that was read from a record.

    Attributes:
        messages: dicts with a ``role`` (system, developer, user, assistant or tool), ``content`` (which an assistant's
            message with ``tool_calls`` may lack), and any other keys that the template reads.
        begin: index in `messages` of the first message after the prompt; nothing is learned from the prompt.
        silent: indices in `messages` of the messages that the record excludes from learning.
        tools: the tools that the template receives; None: the chat has no tools.
        options: further arguments of the chat template.
    """

    messages: Sequence[Mapping[str, Any]]
    begin: int = 0
    silent: frozenset[int] = frozenset()
    tools: Sequence[Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answers(self) -> list[int]:
        """Indices in `messages` of the assistant's messages after the prompt, including those in `silent`."""
        each = enumerate(self.messages)
        return [number for number, message in each if number >= self.begin and message["role"] == "assistant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text in two parts, a prompt and its completion; only the completion is learned."""

    prompt: str
    completion: str


def roles_of(further: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return `ROLES`, extended by `further` unless this is None.

    A key of these dicts is the name of a role in a data set; its value is the name of this role in chat templates.

    Raises:
        OptionError: `further` is not a dict of strings, or maps a name to a role other than system, developer, user,
            assistant and tool.
    """
    if further is None:
        return ROLES
    if not isinstance(further, Mapping) or not all(
        isinstance(name, str) and isinstance(role, str) and role in KNOWN for name, role in further.items()
    ):
        raise OptionError(f"roles are {shown(further)}; give a dict of a data set's names to {_listed(sorted(KNOWN))}")
    return {**ROLES, **further}


def conversation_of(record: Mapping[str, Any], number: int, roles: Mapping[str, str] = ROLES) -> Conversation | Passage:
    """Return the chat, or the prompt with its completion, that a record holds.

    Args:
        record: the record's values by column.
        number: the record's number, for messages.
        roles: maps names of roles in the record to the names that chat templates know.

    Raises:
        RecordError: the record holds no chat, or more than one; the prompt and the completion are of different kinds
            (string and list), or the completion is ""; what should be a list of messages is no list, or is empty; or a
            message, ``tools`` or ``chat_template_kwargs`` is malformed.

    >>> from nopad.corpus.conversations import conversation_of
    >>> messages = [{"from": "human", "value": "why"}, {"from": "gpt", "value": "so"}]
    >>> chat = conversation_of({"conversations": messages}, 0)
    >>> [message["role"] for message in chat.messages], chat.answers
    (['user', 'assistant'], [1])
    """
    chats = [name for name in CHATS if record.get(name) is not None]
    sides = [name for name in ("prompt", "completion") if record.get(name) is not None]
    if len(chats) + (len(sides) == 2) > 1:
        raise RecordError(f"record {number} has {_listed([*chats, *sides])}, which are two chats; remove one")
    if chats:
        return _conversation([], messages_of(record[chats[0]], chats[0], number, roles), record, number)
    if len(sides) < 2:
        raise RecordError(
            f"record {number} has {columns_in(record)}; a chat is 'messages', 'conversations', or "
            "'prompt' and 'completion'"
        )
    return _answered(record, "completion", number, roles)


def pair_of(
    record: Mapping[str, Any], number: int, roles: Mapping[str, str] = ROLES, *, prompted: bool = False
) -> tuple[Conversation | Passage, Conversation | Passage]:
    """Return the chosen and the rejected answer of a preference pair, each with the prompt in front.

    If the record has no ``prompt`` and the answers are chats, the messages with which both begin are the prompt; but
    the last message of the shorter chat always belongs to the answer. If it has no ``prompt`` and the answers are
    strings, the prompt is "".

    Args:
        record: the record's values by column.
        number: the record's number, for messages.
        roles: maps names of roles in the record to the names that chat templates know.
        prompted: whether the caller must know where the answers begin. If True, two strings need a ``prompt``, since
            nothing else tells their prompt from their answers.

    Raises:
        RecordError: an answer is missing, or is "" beside a ``prompt``; ``chosen``, ``rejected`` and ``prompt`` are not
            all of one kind (string or list); what should be a list of messages is no list, or is empty; a message,
            ``tools`` or ``chat_template_kwargs`` is malformed; or two strings have no ``prompt`` although `prompted` is
            True.

    >>> from nopad.corpus.conversations import pair_of
    >>> pair_of({"prompt": "is it ?", "chosen": " yes", "rejected": " no"}, 0)[1]
    Passage(prompt='is it ?', completion=' no')
    """
    missing = [name for name in ("chosen", "rejected") if record.get(name) is None]
    if missing:
        raise RecordError(
            f"record {number} has no {_listed(missing)}, only {columns_in(record)}; a pair is "
            "'chosen' and 'rejected', both strings or both lists of messages, with or without a 'prompt'"
        )
    if isinstance(record["chosen"], str) != isinstance(record["rejected"], str):
        raise RecordError(f"record {number}: chosen and rejected are a string and a chat; expected both of one kind")
    if record.get("prompt") is not None:
        return (_answered(record, "chosen", number, roles), _answered(record, "rejected", number, roles))
    if isinstance(record["chosen"], str):
        if prompted:
            raise RecordError(
                f"record {number} has no prompt, and chosen and rejected are strings, so where the answers begin is "
                "not known; give the column 'prompt', and the answers without it"
            )
        return Passage(prompt="", completion=record["chosen"]), Passage(prompt="", completion=record["rejected"])
    chosen, rejected = (messages_of(record[name], name, number, roles) for name in ("chosen", "rejected"))
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    first, second = (_conversation(one[:shared], one[shared:], record, number) for one in (chosen, rejected))
    return first, second


def messages_of(value: Any, name: str, number: int, roles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the messages in column `name` as dicts with ``content`` and a ``role`` that chat templates know.

    `value` is the column's value; `number` is the record's number, for messages of errors; `roles` maps the names of
    roles in the record to known ones. Only a message of the assistant with ``tool_calls`` may lack ``content``. In a
    message without ``role``, the key ``from`` becomes ``role``; in one without ``content``, ``value`` becomes
    ``content``. Keys whose value is None are left out. ``weight`` and ``train`` are removed; a message that they
    exclude from learning gets the key ``nopad: not learned`` instead.

    Raises:
        RecordError: `value` is no list or is empty; or a message is not a dict, lacks its role or content, has an
            unknown role, has a content that is not a string, or has an invalid ``weight`` or ``train``.
    """
    entries = listed(value)
    if entries is None:
        raise RecordError(f"record {number}: {name} is a {type(value).__name__}; expected a list of messages")
    if not entries:
        raise RecordError(f"record {number}: {name} has no message; leave empty chats out")
    return [_message(one, f"record {number}: message {at} of {name}", roles) for at, one in enumerate(entries)]


def _message(given: Any, what: str, roles: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise RecordError(f"{what} is a {type(given).__name__}; expected a dict of 'role' and 'content'")
    # Tables fill what a message does not have with None, which templates would print.
    message = {name: _plain(entry, what) for name, entry in given.items() if entry is not None}
    if "from" in message and "role" not in message:
        message["role"] = message.pop("from")
    if "value" in message and "content" not in message:
        message["content"] = message.pop("value")
    role = message.get("role")
    if not isinstance(role, str) or role not in roles:
        raise RecordError(
            f"{what} has the role {shown(role)}; known are {_listed(roles)}; say what others stand for, such as "
            "roles={'bot': 'assistant'}"
        )
    message["role"] = roles[role]
    content = message.get("content")
    if content is None and not (message["role"] == "assistant" and _filled(message.get("tool_calls"))):
        raise RecordError(f"{what} ({role}) has no content; only an assistant's message with tool_calls may lack it")
    if content is not None and not isinstance(content, str):
        raise RecordError(
            f"{what} has a {type(content).__name__} as content; expected a string: parts (images, audio) are not "
            "packed, and parts of text are to be joined"
        )
    return _weighted(message, what)


def _weighted(message: dict[str, Any], what: str) -> dict[str, Any]:
    """Return a message without the keys ``weight`` and ``train``, which say whether it is learned.

    The result is a new dict. If the keys say that the message is not learned, it has the key ``nopad: not learned``
    (`_SILENT`) instead. The two keys are also removed from `message` itself. `what` names the message in errors.

    Raises:
        RecordError: ``weight`` or ``train`` is neither 0 nor 1, the two contradict each other, or one is 1 for a
            message that is not the assistant's.
    """
    given = {name: message.pop(name) for name in _WEIGHTS if name in message}
    for name, value in given.items():
        if not isinstance(value, bool | int | float | np.bool_ | np.number) or value not in (0, 1):
            raise RecordError(
                f"{what} has the {name} {shown(value)}; a message is learned or not: 0 or 1, false or true"
            )
        if value and message["role"] != "assistant":
            raise RecordError(
                f"{what} ({message['role']}) has the {name} {value!r}, and only what the assistant says is learned; "
                f"remove the {name}"
            )
    if len({bool(value) for value in given.values()}) > 1:
        raise RecordError(f"{what} has {' and '.join(f'{n} {v!r}' for n, v in given.items())}; remove one of them")
    return message | ({_SILENT: True} if given and not any(given.values()) else {})


def _answered(record: Mapping[str, Any], name: str, number: int, roles: Mapping[str, str]) -> Conversation | Passage:
    """Return the prompt of a record together with the answer in column `name`.

    The result is a `Passage` if both are strings, and a `Conversation` if both are lists of messages. `number` is the
    record's number, for messages of errors; `roles` maps names of roles in the record to known ones.

    Raises:
        RecordError: either the prompt or the answer is a string, and the other is not; the answer is ""; what should be
            a list of messages is no list, or is empty; or a message, ``tools`` or ``chat_template_kwargs`` is
            malformed.
    """
    prompt, answer = record["prompt"], record[name]
    if isinstance(prompt, str) != isinstance(answer, str):
        kinds = [f"{one} is a {type(record[one]).__name__}" for one in ("prompt", name)]
        raise RecordError(f"record {number}: {' and '.join(kinds)}; expected two strings, or two lists of messages")
    if not isinstance(prompt, str):
        before, after = (messages_of(record[one], one, number, roles) for one in ("prompt", name))
        return _conversation(before, after, record, number)
    if not answer:
        raise RecordError(f"record {number}: {name} is empty, so there is nothing to learn; leave it out")
    return Passage(prompt=prompt, completion=answer)


def _conversation(
    before: list[dict[str, Any]], after: list[dict[str, Any]], record: Mapping[str, Any], number: int
) -> Conversation:
    tools, options = record.get("tools"), record.get("chat_template_kwargs")
    if isinstance(tools, str):
        try:
            tools = from_json(tools) if tools.strip() else None
        except ValueError as error:
            raise RecordError(f"record {number}: tools are no JSON ({error}); give a list, or its JSON") from error
    functions = listed(_plain(tools, f"record {number}: tools"))
    if tools is not None and functions is None:
        raise RecordError(f"record {number}: tools are a {type(tools).__name__}; expected a list of functions")
    if options is not None and not isinstance(options, Mapping):
        raise RecordError(f"record {number}: chat_template_kwargs is a {type(options).__name__}; expected a dict")
    what = f"record {number}: chat_template_kwargs"
    given = {name: _plain(entry, what) for name, entry in (options or {}).items() if entry is not None}
    messages = [*before, *after]
    return Conversation(
        messages=[{name: entry for name, entry in one.items() if name != _SILENT} for one in messages],
        begin=len(before),
        silent=frozenset(at for at, one in enumerate(messages) if _SILENT in one),
        tools=functions or None,
        options=given,
    )


def _plain(value: Any, what: str) -> Any:
    """Return a value in which arrays and numbers of NumPy, at any depth, are lists and numbers of Python.

    A template can neither test an array nor write it as JSON. `what` names the value in errors.

    Raises:
        RecordError: the value is nested too deeply, or holds itself.
    """
    try:
        return _of_python(value)
    except RecursionError as error:
        raise RecordError(f"{what}: a list or dict is nested too deeply, or holds itself; flatten it") from error


def _of_python(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.number | np.bool_):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: _of_python(one) for name, one in value.items()}
    return list(map(_of_python, value)) if isinstance(value, list) else value


def _filled(value: Any) -> bool:
    return isinstance(value, Sequence | np.ndarray) and len(value) > 0


def _listed(names: Any) -> str:
    return ", ".join(names)
