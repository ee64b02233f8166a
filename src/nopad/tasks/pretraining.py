"""Pre-training like BERT's, from raw documents: masked language modelling and next-sentence prediction.

`Pretraining` turns documents into pairs of texts, some with a random second text (`nopad.corpus.pairs`). Masks are
drawn anew in every epoch, or once. Packed datasets of ``nopad pack --pretrain bert`` hold pairs that are made by the
same rules. The objective, `OfPretraining`, is the sum of two means, each with a denominator of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from nopad.batch import PackedBatch
from nopad.corpus.framing import tokenised
from nopad.corpus.masks import default_predictions
from nopad.corpus.options import OverLong, TextUnit
from nopad.corpus.pairs import PairOptions, Vocabulary, pairs_of, sentences_in, too_long
from nopad.corpus.sentences import SentenceUnit
from nopad.corpus.tokenizer import load_tokenizer
from nopad.errors import LengthError, OptionError
from nopad.loading.supply import Collate
from nopad.losses.means import Per
from nopad.options import BOOLEAN, Option
from nopad.properties import cached_property
from nopad.tasks.examples import Examples, field_of, numbered, stacked
from nopad.tasks.masked import filled
from nopad.tasks.masking import Masking
from nopad.tasks.next_sentence import OfPretraining
from nopad.tasks.task import Task

__all__ = ["Pretraining"]

_NEXT_SENTENCE = Option(default=True, choices=BOOLEAN, help="next sentences are learned")
_TOP = Option(default=5, help="tokens to fill in")


class Pretraining(Task):
    r"""Masked language modelling and next-sentence prediction; a record is a document.

    Args:
        tokenizer: the model's tokenizer, with ``[CLS]``, ``[SEP]`` and ``[MASK]``.
        text: column that holds a document; for predictions, the column of a pair's first text.
        pair: column of a pair's second text; used by predictions only.
        sentences: how documents are split into sentences: by "rules" (`nopad.corpus.sentences`), or with "line" at line
            ends.
        copies: how many times pairs are made from each document, with other random choices each time.
        short: share of the documents, from 0 to 1, that give shorter pairs: the length they should have is drawn at
            random, instead of being `max_length`.
        random_next: share of the pairs of several sentences, from 0 to 1, whose second text comes from another
            document. A pair for which only one sentence was taken always gets such a text (`nopad.corpus.pairs`).
        static: draw masks once and keep them; if False, they are drawn anew in every epoch.
        rate: share of a sequence's tokens that are predicted, above 0 and at most 1 (`nopad.corpus.masks`).
        max_predictions: most predicted tokens per sequence. None: 20, 56 or 76 if `max_length` is 128, 384 or 512, else
            15 % of `max_length`.
        whole_words: True: the tokens of a word are chosen to be predicted all together, or not at all; this needs a
            WordPiece vocabulary (``##s``). False: tokens are chosen one by one.
        per: how the loss of masked tokens is averaged: over all masked tokens of a step ("token"), or first within
            each sequence and then over sequences ("sequence"), as in the packing paper.
        next_sentence: whether next-sentence prediction is learned too.
        seed: random seed of pairs and masks.
        top: how many candidate tokens a prediction lists for each ``[MASK]``.
        max_length: most tokens of a pair, special tokens included; needed for training.
        over_long: what happens to a sentence that is so long that no token of a second text fits into its pair:
            "error", "truncate", "split" or "drop".

    For predictions, a record is a pair of texts. A prediction has ``next``, the probability that the second text
    follows the first, and ``fill``, as in `nopad.tasks.MaskedLM`.

    Raises:
        OptionError: an option has an invalid value; or the tokenizer lacks ``[CLS]``, ``[SEP]`` or ``[MASK]``, or, with
            `whole_words`, ``##`` tokens.
        FormatError: `nopad.load_tokenizer` refuses the tokenizer.

    >>> from nopad.tasks import Pretraining
    >>> task = Pretraining(tokenizer, max_length=16, sentences="line", seed=3)
    >>> print(task.encode([{"text": "why not ?\nyes .\nno ."}, {"text": "one two .\nthree four .\nfive ."}]))
    2 records: 3 sequences, 34 tokens, 2 random next

    Each sequence is a pair of texts; two of the three pairs got a second text from the other document.
    """

    name = "pretrain"
    auto: ClassVar[str] = "AutoModelForPreTraining"
    texts_by: ClassVar[tuple[str, ...]] = ("text", "pair")
    policies: ClassVar[tuple[OverLong, ...]] = ("error", "truncate", "drop", "split")
    fewest = 512
    text_unit: ClassVar[TextUnit] = "paragraph"

    def __init__(
        self,
        tokenizer: Any,
        *,
        text: str = "text",
        pair: str = "pair",
        sentences: SentenceUnit = "rules",
        copies: int = 1,
        short: float = 0.1,
        random_next: float = 0.5,
        static: bool = False,
        rate: float = 0.15,
        max_predictions: int | None = None,
        whole_words: bool = False,
        per: Per = "token",
        next_sentence: bool = True,
        seed: int = 0,
        top: int = 5,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        self.text, self.pair = text, pair
        self.top: int = _TOP.check("top", top)
        self._how: dict[str, Any] = {
            "sentences": sentences,
            "copies": copies,
            "short": short,
            "random_next": random_next,
            "static": static,
            "whole_words": whole_words,
            "seed": seed,
            "over_long": self.over_long,
        }
        masks: dict[str, Any] = {"rate": rate, "max_predictions": max_predictions}
        PairOptions(max_length=self.max_length or 2**30, **{**self._how, **masks, "static": True})
        if static:
            self._how |= masks
        elif max_predictions is None and self.max_length is not None:
            masks["max_predictions"] = default_predictions(self.max_length)
        self.masking = Masking(self.tokenizer, seed=seed, marked=True, **masks)
        _ = self._words  # a vocabulary that lacks a token is refused now
        self.objective = OfPretraining(per, next_sentence=_NEXT_SENTENCE.check("next_sentence", next_sentence))

    @property
    def collate(self) -> Collate:
        """The `Masking` that masks sequences when batches are made, unless `encode` has masked them already."""
        return self.masking

    @property
    def _pairs(self) -> PairOptions:
        if self.max_length is None:
            raise OptionError("max_length is missing: the most tokens of a pair, such as 128")
        return PairOptions(max_length=self.max_length, **self._how)

    @cached_property
    def _words(self) -> Vocabulary:
        given = self.tokenizer
        names = (given.cls_token, given.sep_token, given.mask_token)
        options = PairOptions(max_length=self.max_length or 2**30, **self._how)
        return Vocabulary.of(load_tokenizer(given), options, names)

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn documents into pairs of texts, of one or more sentences each, for training; see `Task.encode`.

        The pairs have the columns ``token_type_ids`` and ``next_sentence_label``. With static masks they also have
        ``labels``; otherwise ``maskable``, which tells `collate` where it may mask. The result's counts say how many
        documents were empty, how many sentences were too long, and how many pairs have a random second text.

        If `labels` is False, the records are pairs of texts instead, for predictions. Each becomes one sequence,
        without ``next_sentence_label``, ``labels`` and ``maskable``. For pairs that are too long, "split" as
        `over_long` has the same effect as "truncate".

        Raises:
            RecordError: a record has no text; fewer than two documents have a sentence that fits; no document has two
                such sentences, so that no next sentence can be learned; or a text contains ``[CLS]``, ``[SEP]`` or
                ``[MASK]`` as a token.
            LengthError: a sentence (without `labels`: a pair) is too long, and `over_long` is "error"; special tokens
                leave no room for a pair that is to be truncated; or there is no record.
            OptionError: `labels` is True, and the task has no `max_length`.
            FormatError: `labels` is True, and the tokenizer cannot encode a text.
        """
        if not labels:
            return self._asked(list(numbered(records)))
        options = self._pairs
        texts = [field_of(record, self.text, number) for number, record in numbered(records)]
        given = sentences_in(texts, load_tokenizer(self.tokenizer), options.sentences)
        at = too_long(given, options) if options.over_long == "error" else None
        if at is not None:
            raise LengthError(
                f"record {given.document[at]} has a sentence of {given.lengths[at]} tokens, and of the "
                f'{options.max_length} of a pair it may have {options.max_length - 4}; choose over_long="truncate", '
                '"split" or "drop" (of sentences), or a larger max_length'
            )
        numbers = [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) for text in texts]
        where = f"{len(texts):,} documents"
        made = pairs_of(given, len(texts), np.array(numbers, np.uint64), self._words, options, where)
        counts = {name: made.counts.get(name, 0) for name in ("documents_empty", "long_sentences", "random_next")}
        return Examples(sequences=made.sequences, record=made.document, records=len(texts), counts=counts)

    def _asked(self, records: list[tuple[int, Mapping[str, Any]]]) -> Examples:
        """Turn records with two texts into one sequence each, for predictions; see `encode`."""
        sides = [
            [field_of(record, getattr(self, side), number, option=side) for number, record in records]
            for side in self.texts_by
        ]
        over_long: OverLong = "truncate" if self.over_long == "split" else self.over_long
        found = tokenised(self.tokenizer, *sides, max_length=self.max_length, over_long=over_long)
        made = stacked(found.ids, found.kept, tokens=found.columns)
        return Examples(
            sequences=made, record=np.array(found.kept, np.int64), records=len(records), counts=found.counts
        )

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return a dict for each sequence, with ``next`` and ``fill``.

        ``next`` is the probability that the second text follows the first. ``fill`` has the most likely tokens for each
        ``[MASK]``, as in `nopad.tasks.MaskedLM`.
        """
        follows = torch.softmax(outputs["seq_relationship_logits"].double(), -1)[:, 0].tolist()
        masks = filled(outputs["prediction_logits"], batch, self.masking.mask_id, self.top, self.tokenizer)
        return [{"next": share, "fill": fill} for share, fill in zip(follows, masks, strict=True)]
