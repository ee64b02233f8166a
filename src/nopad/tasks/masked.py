"""Masked language modelling on texts, with masks that are drawn anew in every epoch or stay the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from nopad.batch import PackedBatch
from nopad.corpus.framing import leave_out
from nopad.corpus.masks import BEGINS, GOES_ON, MASKABLE, NEVER
from nopad.corpus.options import OverLong
from nopad.loading.supply import Collate
from nopad.options import BOOLEAN, Option
from nopad.sequences import Sequences
from nopad.tasks.examples import Examples, field_of, numbered, stacked
from nopad.tasks.masking import Masking
from nopad.tasks.objectives import OfTokens
from nopad.tasks.pieces import aligned, check_offsets, cut, framed, words_in
from nopad.tasks.texts import OfTexts

__all__ = ["MaskedLM", "filled"]

_WORDS = Option(default=False, choices=BOOLEAN, help="mask whole words")
_COPIES = Option(default=None, none=True, high=2**16, help="masks of a sequence")
_TOP = Option(default=5, help="tokens to fill in")


class MaskedLM(OfTexts):
    """Masked language modelling: predict masked tokens of texts. `nopad.tasks.Masking` draws the masks.

    Args:
        tokenizer: the model's tokenizer; it must have a mask token, and be a fast one, which gives offsets.
        text: column of the text.
        rate: share of the tokens that are predicted, above 0 and at most 1.
        whole_words: True: the tokens of a word (`nopad.tasks.pieces.words_in`) are chosen all together, or not at all;
            False: tokens are chosen one by one.
        copies: None: draw masks anew in every epoch, when batches are made. A number k: `encode` returns every sequence
            k times, with fixed masks: those that the first k epochs would have drawn. Fixed masks make evaluations
            comparable. Sequences for predictions are returned once, and not masked.
        seed: the seed of the masks.
        top: number of candidate tokens that a prediction lists for each ``[MASK]`` of its text.
        max_length, over_long: see `Task`; "split" makes several sequences of a long record.
        empty: what happens to a text that has no token besides special ones: "skip" leaves it out and counts it;
            "error" raises LengthError.

    A prediction has ``fill``: for each ``[MASK]`` in the record's text, a list of dicts with ``token``, ``id`` and
    ``score`` (the probability, from 0 to 1), best first.

    Raises:
        OptionError: an option has an invalid value; or the tokenizer has no mask token, has only special tokens, or is
            not a fast one.

    >>> from nopad.tasks import MaskedLM
    >>> task = MaskedLM(tokenizer, max_length=6, over_long="split", copies=2)
    >>> print(task.encode([{"text": "the cat sleeps in the house ."}, {"text": "hello"}]))
    2 records: 6 sequences, 28 tokens, 1 split

    The first text is split into two sequences, the second is one; `encode` returns each of the three twice.
    """

    name = "mask"
    auto: ClassVar[str] = "AutoModelForMaskedLM"
    texts_by: ClassVar[tuple[str, ...]] = ("text",)
    policies: ClassVar[tuple[OverLong, ...]] = ("error", "truncate", "drop", "split")
    draws: ClassVar[bool] = True

    def __init__(
        self,
        tokenizer: Any,
        *,
        text: str = "text",
        rate: float = 0.15,
        whole_words: bool = False,
        copies: int | None = None,
        seed: int = 0,
        top: int = 5,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        check_offsets(self.tokenizer, self.name)
        self.text, self.masking = text, Masking(self.tokenizer, rate=rate, seed=seed, marked=True)
        self.whole_words = _WORDS.check("whole_words", whole_words)
        self.copies: int | None = _COPIES.check("copies", copies)
        self.top: int = _TOP.check("top", top)
        self.objective = OfTokens()

    @property
    def collate(self) -> Collate:
        """The `Masking` that masks sequences when batches are made, unless `encode` has masked them already."""
        return self.masking

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True, before: int = 0) -> Examples:
        """Turn records into sequences; see `Task.encode`.

        If `labels` is True, the result depends on the task's option `copies`. If that is a number, the sequences are
        masked and have a column ``labels``. If it is None, they have a column ``maskable`` instead, which tells
        `collate` which tokens it may mask. If `labels` is False, nothing is masked: the sequences are for predictions,
        which fill in each ``[MASK]`` of a text.

        If a set of records is encoded in parts, `before` is the number of sequences that `encode` returned for the
        earlier parts, copies included. Fixed masks are then the same as when all records are encoded in one call.

        Raises:
            RecordError: a record lacks the column, or the column holds no text.
            LengthError: a text is too long, and `over_long` is "error"; it has no token, and `empty` is "error"; it is
                to be cut, and special tokens leave no room for it; or there is no record.
        """
        texts = [field_of(record, self.text, number) for number, record in numbered(records)]
        ids: list[list[int]] = []
        types: list[list[int]] = []
        kinds: list[NDArray[np.int8]] = []
        record: list[int] = []
        counts: dict[str, int] = {}
        for number, piece in enumerate(framed(self.tokenizer, texts)):
            if not len(piece.offsets):
                leave_out(number, texts[number], counts, self.empty)
                continue
            of_words = aligned(words_in(texts[number]), piece.offsets)[0] if labels and self.whole_words else None
            for begin, end in cut(self, piece, number, counts):
                part, kind = piece.part(begin, end)
                ids.append(part)
                types += [kind] if kind else []
                record.append(number)
                words = None if of_words is None else of_words[begin:end]
                kinds.append(self._maskable(np.array(part), words, piece.first))
        made = stacked(ids, record, tokens={"token_type_ids": types} if types else {})
        numbers = np.array(record, np.int64)
        if labels:
            made = replace(made, tokens={**made.tokens, MASKABLE: np.concatenate([np.zeros(0, np.int8), *kinds])})
        if labels and self.copies is not None:
            first = before // self.copies
            made, numbers = self._masked(made, self.copies, first), np.repeat(numbers, self.copies)
        return Examples(sequences=made, record=numbers, records=len(texts), counts=counts)

    def _maskable(self, ids: NDArray[Any], words: NDArray[np.int64] | None, first: int) -> NDArray[np.int8]:
        """Return the column ``maskable`` of a sequence, int8 ``[tokens]``.

        Its values are 0 for a special token, 2 for a token that begins a word, and 1 for a token that continues the
        word of the token before.

        Args:
            ids: the sequence's token ids.
            words: for each token of the text, the number of its word; -1: it is in no word, and counts as a word by
                itself. None: each token is a word by itself.
            first: position of the text's first token in the sequence, after the special tokens.
        """
        kinds = self.masking.maskable(ids)
        if words is not None:
            open_word = -1
            for at, word in enumerate(words.tolist(), first):
                if kinds[at] != NEVER:
                    kinds[at] = GOES_ON if word == open_word >= 0 else BEGINS
                    open_word = word
        return kinds

    def _masked(self, made: Sequences, copies: int, first: int) -> Sequences:
        """Return each sequence `copies` times, one after the other, with the masks of epochs 0, 1, and so on.

        `first` is the number of sequences in earlier parts of the data, without their copies. Masks depend on it, since
        sequence i of `made` has the number ``first + i``.
        """
        number = np.arange(len(made))
        named = replace(made, values={"seq_index": first + number})
        epochs = [self.masking.masked(named, copy) for copy in range(copies)]
        every = (
            Sequences.joined(epochs).take((number[:, None] + number.size * np.arange(copies)).reshape(-1)).gathered()
        )
        return replace(every, values={})

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return a dict for each sequence; ``fill`` has the likeliest tokens for each ``[MASK]`` (see the class)."""
        found = filled(outputs["logits"], batch, self.masking.mask_id, self.top, self.tokenizer)
        return [{"fill": fill} for fill in found]

    def merged(self, results: Sequence[dict[str, Any]], examples: Examples) -> list[dict[str, Any] | None]:
        """Return a dict for each record, with ``fill`` of all its sequences in order; None: the record was left out."""
        found: list[dict[str, Any] | None] = [None] * examples.records
        for number, result in zip(examples.record.tolist(), results, strict=True):
            mine = found[number] or {"fill": []}
            found[number] = {"fill": [*mine["fill"], *result["fill"]]}
        return found


def filled(logits: torch.Tensor, batch: PackedBatch, mask_id: int, top: int, tokenizer: Any) -> list[list[Any]]:
    """Return a list for each sequence of a batch, with one entry for each ``[MASK]`` of the sequence.

    The entry is a list of the `top` most likely tokens, best first. A token is a dict with ``token`` (its text), ``id``
    and ``score`` (its probability). `logits` are ``[R, L, V]``.
    """
    ids, owner = batch["input_ids"].reshape(-1), batch.sequence_ids.reshape(-1) - 1
    slots = ((ids == mask_id) & torch.from_numpy(owner >= 0).to(ids.device)).nonzero()[:, 0]  # padding has any id
    shares = torch.softmax(logits.reshape(-1, logits.shape[-1])[slots.to(logits.device)].double(), -1)
    scores, best_ids = (side.tolist() for side in shares.topk(min(top, shares.shape[-1]), -1))
    found: list[list[Any]] = [[] for _ in range(batch.layout.sequences)]
    for number, best, share in zip(owner[slots.cpu().numpy()].tolist(), best_ids, scores, strict=True):
        found[number].append(
            [
                {"token": tokenizer.decode([token]), "id": token, "score": score}
                for token, score in zip(best, share, strict=True)
            ]
        )
    return found
