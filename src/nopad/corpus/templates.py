"""Apply a tokenizer's chat template to messages, and find the special tokens that a tokenizer puts around a text.

Any error that a template raises becomes a `RecordError` with the record's number.

Templates silently ignore what they do not support, such as a role or tools. So each of these is tried when it first
occurs: tools, calls of tools, and the messages of each role. The chat is rendered once more without it. If the text
stays the same, the chat is refused. If the text differs, or if the template refuses the changed chat, the template
reads what was left out, and later chats are not checked for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nopad.corpus.conversations import Conversation
from nopad.corpus.prefixes import token_ids
from nopad.corpus.records import check_text
from nopad.errors import OptionError, RecordError
from nopad.options import shown
from nopad.properties import cached_property

__all__ = ["Frame", "Template"]

_MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")  # as transformers looks for them
# Arguments of `apply_chat_template` that nopad sets, or that would change what is tokenised; users must not set them
_OURS = frozenset(
    [
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    ]
)


class Frame:
    """The special tokens that a tokenizer puts around every text, and its end-of-sequence token.

    Attributes:
        front, back: ids of the special tokens before and after a text.
        eos: id of the end-of-sequence token; None: the tokenizer has none.

    Raises:
        OptionError: the places of the special tokens cannot be found. They are looked for with the text "a", but the
            tokenizer makes no token of it, or makes other tokens of it when special tokens are added.
    """

    def __init__(self, tokenizer: Any) -> None:
        probe = "a"
        bare, framed = token_ids(tokenizer, [probe])[0], list(tokenizer(probe)["input_ids"])
        spare = len(framed) - len(bare)
        at = next((n for n in range(spare + 1) if bare and framed[n : n + len(bare)] == bare), None)
        if at is None:
            raise OptionError(
                f"{type(tokenizer).__name__} gives a text other tokens when it adds special tokens, so nopad cannot "
                "tell where these go; give another tokenizer"
            )
        self.front, self.back = framed[:at], framed[at + len(bare) :]
        self.eos: int | None = tokenizer.eos_token_id

    def ended(self, ids: Sequence[int]) -> list[int]:
        """Return a text's ids with the special tokens before it, and the end-of-sequence token after it.

        If the ids end with this token already, it is not added again.

        Raises:
            OptionError: the tokenizer has no end-of-sequence token.
        """
        if self.eos is None:
            raise OptionError("the tokenizer has no end-of-sequence token; set it: tokenizer.eos_token = '</s>'")
        return [*self.front, *ids, *([] if ids and ids[-1] == self.eos else [self.eos])]

    def closed(self, ids: Sequence[int]) -> list[int]:
        """Return a text's ids with the special tokens that the tokenizer puts around a text.

        If the tokenizer puts no special token after a text, the end-of-sequence token is added at the end. It is not
        added if the ids end with it already, or if the tokenizer has none.
        """
        back = self.back or ([] if self.eos is None or (ids and ids[-1] == self.eos) else [self.eos])
        return [*self.front, *ids, *back]


def _changed(chat: Conversation, at: int, changed: Mapping[str, Any]) -> Conversation:
    """Return a copy of a chat in which message number `at` is changed.

    `changed` has the new values of the message by key. Keys of the message whose value is then None are removed.
    """
    messages = [*chat.messages]
    messages[at] = {name: one for name, one in {**messages[at], **changed}.items() if one is not None}
    return replace(chat, messages=messages)


class Template:
    """The chat template of a tokenizer, with arguments for it.

    Args:
        tokenizer: a tokenizer from transformers.
        options: arguments that the template reads, by name, such as ``{"enable_thinking": False}``; None: there are
            none.

    Raises:
        OptionError: `options` is not a dict, or has an argument that `apply_chat_template` does not pass to the
            template, or that nopad sets, such as ``tokenize`` or ``tools``.
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any] | None = None) -> None:
        if options is not None and not isinstance(options, Mapping):
            raise OptionError(f"template is {shown(options)}; give a dict of what the chat template reads")
        if odd := _OURS.intersection(options or {}):
            raise OptionError(f"template has {min(odd)!r}, which is no argument of a chat template; leave it out")
        self.tokenizer, self.options = tokenizer, dict(options or {})
        self._read: set[str] = set()  # what the template is known to read

    @cached_property
    def stops(self) -> frozenset[int]:
        """Ids of the tokens that can end a turn: the tokenizer's special and added tokens."""
        added = self.tokenizer.get_added_vocab().values()
        return frozenset([*self.tokenizer.all_special_ids, *added])

    def marked(self, chat: Conversation) -> bool:
        """Return whether the template marks the assistant's words with ``{% generation %}``, and the tokenizer is fast.

        Both are needed by `marks`: slow tokenizers cannot say which tokens are marked.

        Raises:
            OptionError: the tokenizer is fast, and has no chat template.
        """
        return bool(self.tokenizer.is_fast and _MARKERS.search(self._source(chat)))

    def text(
        self, chat: Conversation, number: int, until: int | None = None, *, prompt: bool = False, tools: bool = True
    ) -> str:
        """Return the text that the template writes for a chat.

        Args:
            chat: the chat.
            number: the record's number, for messages of errors.
            until: only the first `until` messages are written; None: all messages are.
            prompt: whether the text that asks for the assistant's answer is added.
            tools: whether the chat's tools are passed to the template.

        Raises:
            RecordError: the template refuses these messages, the text has a lone surrogate, or the chat's own options
                have an argument that `Template` does not allow in its `options`.
            OptionError: the tokenizer has no chat template.
        """
        found = self._applied(chat, number, until, tokenize=False, add_generation_prompt=prompt, with_tools=tools)
        text = str(found)
        check_text(text, f"record {number}: its chat")
        return text

    def marks(self, chat: Conversation, number: int) -> tuple[list[int], list[bool], list[tuple[int, int]]]:
        """Return three lists with one entry per token of a chat: its id, whether the template marks it, and its place.

        Templates mark the assistant's words with ``{% generation %}``. The place of a token is (begin, end) in
        characters of the text that the template writes. The tokenizer must be a fast one. `number` is the record's
        number, for messages of errors.

        Raises:
            RecordError: the template refuses the chat, or the chat's own options have an argument that `Template` does
                not allow in its `options`.
            OptionError: the tokenizer has no chat template.
        """
        found = self._applied(
            chat,
            number,
            None,
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"return_offsets_mapping": True, "verbose": False},
        )
        mask = [bool(one) for one in found["assistant_masks"]]
        return list(found["input_ids"]), mask, list(found["offset_mapping"])

    def check(self, chat: Conversation, number: int, whole: str) -> None:
        """Refuse a chat if the template ignores its tools, its tool calls, or what one of its roles says.

        Each of these parts is left out of the chat in turn. `whole` is the text of the complete chat. The template
        ignores a part if the text without the part equals `whole`. What the template is known to read is not checked
        again. `number` is the record's number, for messages of errors.

        Raises:
            RecordError: the template ignores one of these parts.
            OptionError: the tokenizer has no chat template.
        """
        if chat.tools is not None and not self._reads("tools", chat, number, whole, tools=False):
            raise RecordError(f"record {number} has tools, and the chat template leaves them out; remove them")
        for at, message in enumerate(chat.messages):
            content = message.get("content") or ""
            changes: dict[str, dict[str, Any]] = {}
            if content.strip():
                changes[f"what {message['role']!r} says"] = {"content": ""}
            if message.get("tool_calls") is not None:
                changes["calls of tools"] = {"content": content, "tool_calls": None}
            for what, changed in changes.items():
                if what not in self._read and not self._reads(what, _changed(chat, at, changed), number, whole):
                    raise RecordError(
                        f"record {number}: the chat template leaves out {what}; give another role, remove such "
                        "messages, or set tokenizer.chat_template to one that writes them"
                    )

    def _reads(self, what: str, changed: Conversation, number: int, whole: str, *, tools: bool = True) -> bool:
        """Return whether the template reads a part of a chat, which `what` names, such as "tools".

        `changed` is the chat without the part. If the part is the tools, `changed` is the whole chat, and `tools` is
        False. `whole` is the text of the complete chat. The template reads the part if it refuses `changed`, or writes
        another text than `whole` for it. `number` is the record's number, for messages of errors. If the answer is
        True, it is remembered, and the same `what` is not tried again.
        """
        if what not in self._read:
            try:
                if self.text(changed, number, tools=tools) == whole:
                    return False
            except RecordError:
                pass
            self._read.add(what)
        return True

    def _applied(self, chat: Conversation, number: int, until: int | None, **options: Any) -> Any:
        self._source(chat)
        if odd := _OURS.intersection(chat.options):
            raise RecordError(
                f"record {number}: chat_template_kwargs has {min(odd)!r}, which is no argument of a chat template"
            )
        tools = chat.tools if options.pop("with_tools", True) else None
        messages = [dict(message) for message in chat.messages[:until]]
        try:
            return self.tokenizer.apply_chat_template(
                messages, tools=tools, **{**self.options, **chat.options, **options}
            )
        except Exception as error:  # a template is foreign code, which can raise anything
            raise RecordError(
                f"record {number}: the chat template refuses it: {type(error).__name__}: {error}"
            ) from error

    def check_there(self, chat: Conversation) -> None:
        """Refuse a tokenizer that has no chat template for this chat.

        A tokenizer may have one template for chats with tools and another for chats without.

        Raises:
            OptionError: the tokenizer has no chat template.
        """
        self._source(chat)

    def _source(self, chat: Conversation) -> str:
        try:
            return str(self.tokenizer.get_chat_template(None, chat.tools))
        except ValueError as error:
            raise OptionError(
                "the tokenizer has no chat template; take the tokenizer of a chat model, or set it: "
                "tokenizer.chat_template = open('template.jinja').read()"
            ) from error
