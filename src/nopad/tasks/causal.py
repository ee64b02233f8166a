"""Causal language models on texts, and on chats, where only the assistant's turns are learned.

`CausalLM` puts the tokenizer's special tokens before each text and the end-of-sequence token behind it. The result is
one sequence, or several (``over_long="split"``). `Chat` takes the formats of `nopad.corpus.conversations`;
`nopad.corpus.chats` decides which tokens are learned. A prediction is the log-probability of those tokens of a record
that training would learn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from nopad.batch import PackedBatch
from nopad.corpus.chats import Answered, ChatEncoder, EndOfTurn, Rewriting, fitted
from nopad.corpus.conversations import conversation_of, roles_of
from nopad.corpus.framing import leave_out
from nopad.corpus.options import OverLong
from nopad.corpus.prefixes import token_ids
from nopad.corpus.templates import Frame
from nopad.loading import causal
from nopad.loading.supply import Collate
from nopad.losses import label_logprobs
from nopad.tasks.examples import Examples, field_of, numbered, stacked
from nopad.tasks.objectives import OfTokens
from nopad.tasks.task import Task
from nopad.tasks.texts import OfTexts

__all__ = ["CausalLM", "Chat", "Likely"]

_AT_ONCE = 1000  # texts; the tokenizer works on them in parallel


class Likely(Task):
    """Base class of the tasks for causal language models; predictions are log-probabilities."""

    auto: ClassVar[str] = "AutoModelForCausalLM"

    @property
    def collate(self) -> Collate:
        """The function that makes the labels of a batch, `nopad.loading.causal`.

        It copies ``input_ids`` to ``labels`` if there are no labels, and sets the first label of each sequence to -100.
        """
        return causal

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return a dict for each sequence, with its log-probability (natural logarithm) under the model.

        ``logprob`` is the sum of the log-probabilities of the sequence's labelled tokens, or of all its tokens if the
        batch has no labels; the first token of a sequence never counts, since nothing predicts it. ``tokens`` is the
        number of tokens that count. ``mean_logprob`` is ``logprob / tokens``; None if no token counts.
        """
        labels = batch["labels"] if "labels" in batch else batch["input_ids"]
        sums, counts = label_logprobs(outputs["logits"], labels, batch)
        return [_likely(one, int(count)) for one, count in zip(sums.tolist(), counts.tolist(), strict=True)]

    def merged(self, results: Sequence[dict[str, Any]], examples: Examples) -> list[dict[str, Any] | None]:
        """Return one prediction per record; None if the task left the record out.

        If a record has several sequences, ``logprob``, ``mean_logprob`` and ``tokens`` are computed over all of them.
        """
        found: list[dict[str, Any] | None] = [None] * examples.records
        for record, result in zip(examples.record.tolist(), results, strict=True):
            before = found[record]
            found[record] = (
                result
                if before is None
                else _likely(before["logprob"] + result["logprob"], before["tokens"] + result["tokens"])
            )
        return found


def _likely(logprob: float, tokens: int) -> dict[str, Any]:
    return {"logprob": logprob, "mean_logprob": logprob / tokens if tokens else None, "tokens": tokens}


class CausalLM(OfTexts, Likely):
    """Causal language modelling on texts: each token of a text is predicted from the tokens before it.

    Args:
        tokenizer: the model's tokenizer, with an end-of-sequence token.
        text: column of the text.
        max_length: most tokens of a sequence; None, the default: unlimited.
        over_long: what happens to a text that is longer: "error" (the default), "truncate", "drop" or "split", which
            makes several sequences, each of `max_length` tokens except the last. Truncated texts, and all parts of a
            split text except the last, have no end-of-sequence token.
        empty: what happens to a text without a token: "skip" (the default) leaves it out and counts it; "error" raises
            LengthError.

    Raises:
        OptionError: an option has an invalid value.

    >>> import nopad
    >>> task = nopad.tasks.CausalLM(tokenizer, max_length=4, over_long="split")
    >>> made = task.encode([{"text": "why not"}, {"text": "one two three four five"}])
    >>> made.sequences.seq_lengths.tolist(), made.record.tolist(), str(made)
    ([4, 4, 3], [0, 1, 1], '2 records: 3 sequences, 11 tokens, 1 split')

    The second text has 7 tokens, special tokens included, so it becomes two sequences, of 4 and 3 tokens.
    """

    name = "causal"
    texts_by: ClassVar[tuple[str, ...]] = ("text",)
    policies: ClassVar[tuple[OverLong, ...]] = ("error", "truncate", "drop", "split")

    def __init__(self, tokenizer: Any, *, text: str = "text", **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.text, self.objective = text, OfTokens(causal=True)

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn records (dicts of columns) with texts into sequences.

        The sequences have no column of labels: `collate` makes it. So `labels` has no effect.

        Raises:
            RecordError: a record has no text; the message gives its number.
            LengthError: a text is longer than `max_length` and `over_long` is "error"; a text has no token and `empty`
                is "error"; or there is no record.
            OptionError: the tokenizer has no end-of-sequence token, or it is not known where its special tokens go.
        """
        texts = [field_of(record, self.text, number) for number, record in numbered(records)]
        frame, counts = Frame(self.tokenizer), dict[str, int]()
        ids: list[list[int]] = []
        record: list[int] = []
        for number, one in enumerate(_tokenised(self.tokenizer, texts)):
            if not one:
                leave_out(number, texts[number], counts, self.empty)
                continue
            for part in self._parts(frame.ended(one), number, counts):
                ids.append(part)
                record.append(number)
        return Examples(
            sequences=stacked(ids, record), record=np.array(record, np.int64), records=len(texts), counts=counts
        )

    def _parts(self, ids: list[int], number: int, counts: dict[str, int]) -> list[list[int]]:
        if self.over_long != "split" or self.max_length is None or len(ids) <= self.max_length:
            whole = Answered(ids=ids, learned=[True] * len(ids))
            kept = fitted(whole, number, counts, self.max_length, self.over_long)
            return [] if kept is None else [kept.ids]
        counts["split"] = counts.get("split", 0) + 1
        return [ids[first : first + self.max_length] for first in range(0, len(ids), self.max_length)]


class Chat(Likely):
    """Causal language modelling on chats, of which only the assistant's turns are learned.

    A record has ``messages``, ``conversations``, or ``prompt`` and ``completion`` (`nopad.corpus.conversations`).

    Args:
        tokenizer: the model's tokenizer; with a chat template, unless all records are a prompt with a completion, both
            as strings.
        last_only: learn only the last of the assistant's turns.
        rewriting: what happens if the chat template writes a turn differently once other turns follow. (Qwen3's drops
            the reasoning of earlier turns.) "error" refuses such a chat; "expand" makes one sequence for each learned
            turn of the assistant, which ends with that turn.
        end_of_turn: "require" refuses a learned turn that does not end with a special or added token; "any" accepts
            every end.
        template: arguments of the chat template, such as ``{"enable_thinking": False}``.
        roles: dict from the records' own names of roles to the usual ones, such as ``{"bot": "assistant"}``.
        max_length: most tokens of a sequence; None, the default: unlimited.
        over_long: what happens to a chat that is longer: "error" (the default), "truncate" or "drop". A truncated chat
            loses its end; if no learned token is left after its first token, it is dropped, and counted as dropped.

    Raises:
        OptionError: an option has an invalid value.

    >>> import nopad
    >>> tokenizer.chat_template = "{% for one in messages %}<|{{ one.role }}|> {{ one.content }} [EOS]{% endfor %}"
    >>> tokenizer.chat_template += "{% if add_generation_prompt %}<|assistant|> {% endif %}"
    >>> chat = [{"role": "user", "content": "is it ?"}, {"role": "assistant", "content": "yes"}]
    >>> made = nopad.tasks.Chat(tokenizer).encode([{"messages": chat}])
    >>> tokenizer.decode([label for label in made.sequences.tokens["labels"] if label != -100])
    'yes [EOS]'
    """

    name = "chat"
    texts_always: ClassVar[tuple[str, ...]] = ("prompt", "completion")

    def __init__(
        self,
        tokenizer: Any,
        *,
        last_only: bool = False,
        rewriting: Rewriting = "error",
        end_of_turn: EndOfTurn = "require",
        template: Mapping[str, Any] | None = None,
        roles: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        self.objective, self.roles = OfTokens(causal=True), roles_of(roles)
        self.choices: dict[str, Any] = {"last_only": last_only, "rewriting": rewriting, "end_of_turn": end_of_turn}
        self.choices["options"] = template
        ChatEncoder(tokenizer, **self.choices)

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn records with chats into sequences, with the column ``labels`` (-100 for tokens that are not learned).

        Labels come from the chat itself, so `labels` has no effect: also for predictions, the sequences are
        labelled, and a prediction is the log-probability of the tokens that training would learn.

        Raises:
            RecordError: a record is no chat in a known form, the chat template refuses it, nothing in it is learned, or
                it is not certain which tokens are. The message gives the record's number.
            LengthError: a chat is longer than `max_length` and `over_long` is "error"; or there is no record.
            OptionError: a record is a chat, and the tokenizer has no chat template; or a record is a prompt with a
                completion, and the special tokens around a text are unknown or there is no end-of-sequence token.
        """
        encoder = ChatEncoder(self.tokenizer, **self.choices)
        found: list[Answered] = []
        record: list[int] = []
        counts: dict[str, int] = {}
        number = -1
        for number, one in numbered(records):
            made = encoder(conversation_of(one, number, self.roles), number)
            if len(made) > 1:
                counts["expanded"] = counts.get("expanded", 0) + 1
            before: dict[str, int] = {}
            fit = [fitted(part, number, before, self.max_length, self.over_long) for part in made]
            left = counted_once([one for one in fit if one is not None] or None, before, counts) or []
            found += left
            record += [number] * len(left)
        return answered(found, record, number + 1, counts)


def counted_once(
    made: list[Answered] | None, happened: Mapping[str, int], counts: dict[str, int]
) -> list[Answered] | None:
    """Return `made`, the sequences of one record; add 1 to `counts` if the record was dropped or truncated.

    If `made` is None, the record counts as "dropped". Else, if `happened` is not empty, it counts as "truncated".
    `happened` says how many of the record's sequences were truncated or dropped; the record counts only once.
    """
    name = "dropped" if made is None else "truncated" if happened else None
    if name is not None:
        counts[name] = counts.get(name, 0) + 1
    return made


def answered(
    found: Sequence[Answered], record: Sequence[int], records: int, counts: Mapping[str, int], **options: Any
) -> Examples:
    """Return sequences as `Examples` with the column ``labels``, which is -100 where a token is not learned.

    Args:
        found: ids of each sequence, and which of its tokens are learned.
        record: index of each sequence's record, ascending.
        records: number of records.
        counts: counts for the result, such as "truncated" and "dropped", by name.
        options: further arguments of `Examples`.
    """
    made = stacked([one.ids for one in found], record, tokens={"labels": [one.labels for one in found]})
    return Examples(sequences=made, record=np.array(record, np.int64), records=records, counts=dict(counts), **options)


def _tokenised(tokenizer: Any, texts: Sequence[str]) -> Iterator[list[int]]:
    for first in range(0, len(texts), _AT_ONCE):
        yield from token_ids(tokenizer, texts[first : first + _AT_ONCE])
