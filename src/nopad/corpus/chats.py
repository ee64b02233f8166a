"""Turn chats into token ids, and mark the tokens that a model learns: those of the assistant's messages.

Each message of the assistant is a learned turn, with three exceptions: messages of the prompt; messages that the record
excludes (``weight`` 0, or ``train`` false); and with `last_only`, all but the last message of the assistant.

If the chat template has ``{% generation %}`` and the tokenizer is a fast one, the learned tokens are those that the
template marks in the learned turns. Each learned turn must have a marked token; if the message before it is not the
assistant's, the last token of that message must not be marked.

For other templates and tokenizers, the learned tokens of message i are found by comparing two texts. The question is
``template(messages[:i], add_generation_prompt=True)``. The answered text is ``template(messages[:i + 1])``, without an
end-of-sequence token that the template writes only at the end of a chat. The answered text must begin with the
question, and the text of the whole chat must begin with the answered text; the same must be true of their ids. The
learned tokens are those of the answered text after the question, but not white space after the last special token. So
the model is trained on exactly the tokens that it has to write after the question.

A template that rewrites earlier turns (Qwen3 drops their reasoning) breaks this: the chat is refused, or becomes one
example for each of the learned turns (`rewriting`). The template must write everything that the assistant says in a
learned turn. A learned turn must end with a special token, which is learned too; with `end_of_turn` "any" it may end
otherwise.

Cost: the template renders a chat with k assistant turns about 2k times, or 3k times if the chat becomes several
examples. A fast tokenizer tokenises each example once (`nopad.corpus.prefixes`); a slow tokenizer also tokenises 2
prefixes for each learned turn. The caller passes in a tokenizer from transformers; this module imports neither
transformers nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from nopad.corpus.conversations import Conversation, Passage
from nopad.corpus.options import OverLong
from nopad.corpus.prefixes import prefix_lengths, token_ids
from nopad.corpus.records import check_text
from nopad.corpus.templates import Frame, Template
from nopad.errors import LengthError, RecordError
from nopad.options import check_choice
from nopad.properties import cached_property

__all__ = ["Answered", "ChatEncoder", "EndOfTurn", "Rewriting", "fitted"]

Rewriting = Literal["error", "expand"]
EndOfTurn = Literal["require", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A sequence, and which of its tokens are learned.

    Attributes:
        ids: token ids.
        learned: whether each token is learned (its label is its id, not -100); as long as `ids`.
    """

    ids: list[int]
    learned: list[bool]

    @property
    def labels(self) -> list[int]:
        """One label per token: its id if it is learned, else -100."""
        return [one if mine else -100 for one, mine in zip(self.ids, self.learned, strict=True)]

    @property
    def empty(self) -> bool:
        """Whether no token is learned. The first token does not count, since no token comes before it to predict it."""
        return not any(self.learned[1:])


class _RewrittenError(Exception):
    """Raised if the template writes a message differently once other messages follow; ``args[0]`` is a message number.

    The message that is written differently is the one with this number, or one before it.
    """


class ChatEncoder:
    """Turns chats, and prompts with a completion, into token ids, and marks which ids are learned.

    Args:
        tokenizer: a tokenizer from transformers; it needs a chat template if there are chats.
        last_only: whether only the last of the assistant's turns is learned.
        rewriting: what to do if the template writes a turn differently once other turns follow. "error" refuses the
            chat; "expand" makes one example for each learned turn of the assistant, which ends with that turn.
        end_of_turn: "require" refuses a learned turn that does not end with a special token; "any" allows any end.
        options: further arguments of the template, such as ``{"enable_thinking": False}``.

    Raises:
        OptionError: an option has an invalid value.

    In the example, the learned tokens are the completion and the end-of-sequence token.

    >>> from nopad.corpus.chats import ChatEncoder
    >>> from nopad.corpus.conversations import Passage
    >>> from tests.tasks.tiny import tokenizer
    >>> made, = ChatEncoder(tokenizer())(Passage(prompt="is it ?", completion="yes"), 0)
    >>> tokenizer().decode([one for one in made.labels if one != -100]), len(made.ids)
    ('yes [EOS]', 6)
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        last_only: bool = False,
        rewriting: Rewriting = "error",
        end_of_turn: EndOfTurn = "require",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        check_choice("rewriting", rewriting, Rewriting)
        check_choice("end_of_turn", end_of_turn, EndOfTurn)
        self.tokenizer, self.last_only, self.rewriting = tokenizer, last_only, rewriting
        self.end_of_turn = end_of_turn
        self.template = Template(tokenizer, options)

    @cached_property
    def frame(self) -> Frame:
        """The special tokens that the tokenizer puts around a text.

        Raises OptionError if these cannot be found.
        """
        return Frame(self.tokenizer)

    def check_tokenizer(self, given: Conversation | Passage) -> None:
        """Refuse a tokenizer that cannot encode `given`, a chat or a prompt with its completion.

        Raises:
            OptionError: `given` is a chat, and the tokenizer has no chat template; or `given` is a prompt with a
                completion, and the special tokens around a text are unknown or there is no end-of-sequence token.
        """
        if isinstance(given, Passage):
            self.frame.ended([])
        else:
            self.template.check_there(given)

    def __call__(self, given: Conversation | Passage, number: int) -> list[Answered]:
        """Return the examples that a record gives: one, or several if `rewriting` "expand" divides a chat.

        `given` is the chat, or the prompt with its completion, that the record holds. `number` is the record's number,
        for messages.

        Raises:
            RecordError: one of these:

                * no message is left to learn from
                * the template refuses the chat, or leaves out a part of it
                * the chat has an argument for the template that nopad sets itself
                * the template writes a turn differently once other turns follow, and `rewriting` is "error"
                * the template writes what precedes a turn differently once the turn follows
                * the learned tokens cannot be determined for certain
                * a learned turn does not end as `end_of_turn` says
                * a text has a lone surrogate
            OptionError: the record is a chat and the tokenizer has no chat template; or the record is a prompt with a
                completion, and the special tokens around a text are unknown or there is no end-of-sequence token.
        """
        if isinstance(given, Passage):
            return [self._passage(given, number)]
        answers = given.answers
        if not answers:
            raise RecordError(
                f"record {number} has no assistant's turn{' in its completion' if given.begin else ''}, so there is "
                "nothing to learn; leave it out"
            )
        answers = [turn for turn in (answers[-1:] if self.last_only else answers) if turn not in given.silent]
        if not answers:
            raise RecordError(
                f"record {number} has the weight 0, or train false, for all that would be learned; leave it out"
            )
        try:
            return [self._chat(given, answers, number)]
        except _RewrittenError as rewritten:
            turn = rewritten.args[0]
            if self.rewriting == "error":
                raise RecordError(
                    f"record {number}: the chat template rewrites message {turn} (assistant) once others follow, so "
                    "the chat is not what the model was asked to answer then. Make one example of each of the "
                    "assistant's turns (of nopad.tasks.Chat, rewriting='expand'), or learn from the last one only "
                    "(last_only=True, and no message behind it), or set tokenizer.chat_template to one that keeps "
                    "earlier turns"
                ) from None
        return [self._until(given, turn, number) for turn in answers]

    def ids(self, given: Conversation | Passage, number: int) -> list[int]:
        """Return all token ids of a record, including those that are not learned, as a reward model reads them.

        For a `Passage`, these are the ids of the prompt and completion as one text, with the tokenizer's special tokens
        around it. If the tokenizer puts no special token after a text, but has an end-of-sequence token, the ids end
        with this token. A chat has only the special tokens that its template writes. `number` is the record's number,
        for messages.

        Raises:
            RecordError: the template refuses the chat or leaves out a part of it; the chat has an argument for the
                template that nopad sets itself; the text of a `Passage` has no token; or a text has a lone surrogate.
            OptionError: the tokenizer has no chat template, or the special tokens that it puts around a text cannot be
                found.
        """
        if isinstance(given, Passage):
            check_text(given.prompt + given.completion, f"record {number}")
            found = token_ids(self.tokenizer, [given.prompt + given.completion])[0]
            if not found:
                raise RecordError(f"record {number} has a text without any token; leave it out")
            return self.frame.closed(found)
        whole = self.template.text(given, number)
        self.template.check(given, number, whole)
        return token_ids(self.tokenizer, [whole])[0]

    def _passage(self, given: Passage, number: int) -> Answered:
        check_text(given.prompt + given.completion, f"record {number}")
        whole, prompt = token_ids(self.tokenizer, [given.prompt + given.completion, given.prompt])
        if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
            raise RecordError(
                f"record {number}: the end of the prompt and the beginning of its completion share a token "
                f"({given.prompt[-12:]!r} + {given.completion[:12]!r}), so the prompt alone is other tokens; begin the "
                "completion with the space that ends the prompt, or end the prompt with a line break"
            )
        ids, given_tokens = self.frame.ended(whole), len(self.frame.front) + len(prompt)
        return Answered(ids=ids, learned=[False] * given_tokens + [True] * (len(ids) - given_tokens))

    def _until(self, chat: Conversation, turn: int, number: int) -> Answered:
        """Return the example that ends with message number `turn` of a chat; only this message is learned.

        `number` is the record's number, for messages.

        Raises:
            RecordError: the template refuses the chat, leaves out a part of it, or writes a message before the turn
                differently once the turn follows; the learned tokens of the turn cannot be determined for certain; or
                the turn does not end as `end_of_turn` says.
            OptionError: the tokenizer has no chat template.
        """
        try:
            return self._chat(replace(chat, messages=chat.messages[: turn + 1]), [turn], number)
        except _RewrittenError:
            raise RecordError(
                f"record {number}: the chat template rewrites what precedes message {turn} (assistant) even where the "
                "chat ends with it; set tokenizer.chat_template to one that does not"
            ) from None

    def _chat(self, chat: Conversation, turns: list[int], number: int) -> Answered:
        """Return a chat as one example; the messages with the numbers `turns` are learned.

        `number` is the record's number, for messages.

        Raises:
            _RewrittenError: the template writes one of these turns, or a message before it, differently than if the
                chat ended with this turn.
            RecordError: the template refuses the chat or leaves out a part of it; the learned tokens of a turn cannot
                be determined for certain; or a turn does not end as `end_of_turn` says.
            OptionError: the tokenizer has no chat template.
        """
        whole = self.template.text(chat, number)
        self.template.check(chat, number, whole)
        ends = {}
        for turn in turns:
            ends[turn] = self._before(chat, turn + 1, whole, number, turn)
        return (self._marked if self.template.marked(chat) else self._prefixed)(chat, whole, ends, number)

    def _before(self, chat: Conversation, until: int, whole: str, number: int, turn: int) -> str:
        """Return the text that the template writes for the messages before number `until`.

        `whole`, the text of the chat, must begin with the returned text. Some templates write an end-of-sequence token
        after these messages that `whole` does not have there; it is removed. `number`, the record's number, and `turn`,
        the number of a message, are for errors.

        Raises:
            _RewrittenError: `whole` does not begin with the text; the error holds `turn`.
            RecordError: the template refuses these messages.
        """
        if not 0 < until < len(chat.messages):
            return whole if until else ""
        text, closing = self.template.text(chat, number, until), self.tokenizer.eos_token
        if not whole.startswith(text) and closing and text.endswith(closing):
            text = text[: -len(closing)]  # Phi-3 ends a whole chat, and none of its turns, with this token
        if not whole.startswith(text):
            raise _RewrittenError(turn)
        return text

    def _prefixed(self, chat: Conversation, whole: str, ends: Mapping[int, str], number: int) -> Answered:
        """Return a chat as one example; the learned tokens are those that each turn in `ends` adds to its prompt.

        The prompt of a turn is the text of the messages before it, with what asks for the turn. White space after the
        last special token of a turn is not learned.

        `whole` is the text of the chat. `ends` maps the number of each learned turn to the text of the chat up to the
        turn's end. `number` is the record's number, for messages.

        Raises:
            RecordError: one of these:

                * a turn is the first message, or its text in `ends` does not begin with the prompt that asks for it
                * a turn shares a token with what stands before or after it, or has no token
                * a turn is not written completely, or does not end as `end_of_turn` says
                * the template refuses the messages before a turn
        """
        prompts = {turn: self._prompt(chat, turn, end, number) for turn, end in ends.items()}
        prefixes = [*prompts.values(), *ends.values()]
        ids, lengths = prefix_lengths(self.tokenizer, whole, prefixes, self.template.stops)
        learned = [False] * len(ids)
        for turn, begin, after in zip(ends, lengths[: len(ends)], lengths[len(ends) :], strict=True):
            if begin is None or after is None or after <= begin:
                raise RecordError(
                    f"record {number}: message {turn} (assistant) shares a token with what stands before or behind "
                    "it, so the prompt alone is other tokens; use a chat template that separates turns by special "
                    "tokens, or one with {% generation %}"
                )
            end = self._end(ids, begin, after)
            learned[begin:end] = [True] * (end - begin)
            self._check_turn(chat, turn, whole[len(prompts[turn]) : len(ends[turn])], number)
            self._check_end(ids[end - 1], turn, number)
        return Answered(ids=ids, learned=learned)

    def _prompt(self, chat: Conversation, turn: int, end: str, number: int) -> str:
        """Return the text of the messages before a turn, followed by the prompt that asks for the turn.

        `end`, the text of the chat up to the turn's end, must begin with the returned text. `turn` is the turn's number
        in the chat, and `number` the record's, for messages.

        Raises:
            RecordError: `end` does not begin with this text, the turn is the first message, or the template refuses the
                messages.
        """
        if not turn:
            raise RecordError(
                f"record {number} begins with the assistant, and what asks for it is not known; remove this message, "
                "begin with a system message, or use a chat template with {% generation %}"
            )
        found = self.template.text(chat, number, turn, prompt=True)
        if not end.startswith(found):
            raise RecordError(
                f"record {number}: the chat template asks for message {turn} (assistant) by {found[-40:]!r}, and then "
                "writes it otherwise, so the model would learn another beginning than it will be asked for; set its "
                "options (template={'enable_thinking': ...}), or use a chat template with {% generation %}"
            )
        return found

    def _end(self, ids: list[int], begin: int, end: int) -> int:
        """Return the index in `ids` at which the learned part of a turn ends.

        The turn has the tokens `begin` to `end` (exclusive). If only white space follows its last special token, the
        learned part ends right after this token. Otherwise, it ends at `end`.
        """
        last = next((at for at in range(end - 1, begin - 1, -1) if ids[at] in self.template.stops), None)
        if last is None or str(self.tokenizer.decode(ids[last + 1 : end])).strip():
            return end
        return last + 1

    def _marked(self, chat: Conversation, whole: str, ends: Mapping[int, str], number: int) -> Answered:
        """Return a chat as one example; the learned tokens are those that its template marks in the turns of `ends`.

        `whole` is the text of the chat. `ends` maps the number of each learned turn to the text of the chat up to the
        turn's end. `number` is the record's number, for messages.

        Raises:
            RecordError: the message before a turn is not the assistant's, and marks reach into it; no token of a turn
                is marked; a turn is not written completely, or does not end as `end_of_turn` says; or the template
                refuses the messages before a turn.
            _RewrittenError: the template writes a message before a turn differently once the turn follows.
        """
        ids, mask, places = self.template.marks(chat, number)
        learned = [False] * len(ids)
        for turn, end in ends.items():
            begin, until = len(self._before(chat, turn, end, number, turn)), len(end)
            ahead = next((at for at in range(len(ids) - 1, -1, -1) if places[at][1] <= begin), None)
            if turn and chat.messages[turn - 1]["role"] != "assistant" and ahead is not None and mask[ahead]:
                # transformers marks all that follows where the tokenizer has no token for the last marked character.
                raise RecordError(
                    f"record {number}: what the chat template marks by {{% generation %}} reaches into message "
                    f"{turn - 1} ({chat.messages[turn - 1]['role']}); let marks end with what the tokenizer has a "
                    "token for, not with white space"
                )
            mine = [at for at, (low, high) in enumerate(places) if mask[at] and low < until and high > begin]
            if not mine:
                raise RecordError(
                    f"record {number}: the chat template marks nothing of message {turn} (assistant) by "
                    "{% generation %} that the tokenizer has a token for; let the mark begin with what is written"
                )
            for at in mine:
                learned[at] = True
            self._check_turn(chat, turn, whole[begin:until], number)
            stop = next((at for at in reversed(mine) if str(self.tokenizer.decode([ids[at]])).strip()), mine[-1])
            self._check_end(ids[stop], turn, number)
        return Answered(ids=ids, learned=learned)

    def _check_turn(self, chat: Conversation, turn: int, written: str, number: int) -> None:
        """Refuse a turn if `written`, the text that the template writes for it, does not contain the turn's content.

        White space is ignored. `turn` is the turn's number in the chat, and `number` the record's, for messages.

        Raises:
            RecordError: the content is not in `written`.
        """
        said = "".join((chat.messages[turn].get("content") or "").split())
        if said not in "".join(written.split()):
            raise RecordError(
                f"record {number}: the chat template does not write all that message {turn} (assistant) says (what "
                "was thought, mostly); remove that from the records, or set tokenizer.chat_template to one that keeps "
                "it"
            )

    def _check_end(self, last: int, turn: int, number: int) -> None:
        if self.end_of_turn == "require" and last not in self.template.stops:
            raise RecordError(
                f"record {number}: message {turn} (assistant) does not end with a special token that is learned, so "
                "the model would never learn to stop; let the chat template end turns, inside of {% generation %} "
                "where it has that, or take any end: end_of_turn='any'"
            )


def fitted(
    given: Answered, number: int, counts: dict[str, int], max_length: int | None, over_long: OverLong
) -> Answered | None:
    """Return the example `given`, cut to at most `max_length` tokens; return None if it is dropped.

    If `max_length` is None, the length is not limited. If `over_long` is "truncate", the end of a longer example is cut
    off. Such an example is dropped instead if no learned token would be left after its first token, which nothing
    predicts. If `over_long` is neither "truncate" nor "error", every longer example is dropped. When an example is cut
    or dropped, ``counts["truncated"]`` or ``counts["dropped"]`` is increased by one. `number` is the record's number,
    for messages.

    Raises:
        LengthError: the example is longer than `max_length`, and `over_long` is "error".
    """
    if max_length is None or len(given.ids) <= max_length:
        return given
    if over_long == "error":
        raise LengthError(
            f"record {number} has {len(given.ids)} tokens, and max_length is {max_length}; raise it, or choose "
            'over_long="truncate" or "drop"'
        )
    cut = Answered(ids=given.ids[:max_length], learned=given.learned[:max_length])
    kept = over_long == "truncate" and not cut.empty
    name = "truncated" if kept else "dropped"
    counts[name] = counts.get(name, 0) + 1
    return cut if kept else None
