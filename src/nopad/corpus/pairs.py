"""Make pairs ``[CLS] A [SEP] B [SEP]`` from documents, for next-sentence prediction as in BERT.

The two texts of a pair are called side A and side B. Sentences of a document are taken until they reach a target
number of tokens, or the document ends. The room of a pair is the number of tokens that it may have beside the three
special ones. The target is this room; for one document in ten (`short`), it is a random number from 2 to the room. The
sentences that were taken are divided at a random point: the first ones become side A, the others side B. If only one
sentence was taken, and for half of the other pairs (`random_next`), side B comes from another document instead, and
begins at a random sentence. The sentences that were to become side B are then used in the next pair. A pair that is too
long loses tokens one by one: the side that is longer loses its first or its last token, at random. Unlike in BERT's
code, a random side B never comes from the document of side A.

The pairs of a document depend on the options, the tokenizer, the number of the copy, the document's number, and the
documents that are read with it (a pool of `nopad.corpus.pretraining`), and on nothing else. One core makes some 350,000
pairs of 128 tokens a second, or 100,000 with static masks; tokenising takes extra time. Source:
``create_pretraining_data.py`` of BERT.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.corpus.masks import MASKABLE, Masks, default_predictions
from nopad.corpus.options import Empty, OverLong
from nopad.corpus.policy import cut
from nopad.corpus.sentences import SentenceUnit, sentences_of
from nopad.corpus.tokenizer import Tokenizer
from nopad.errors import OptionError, RecordError
from nopad.options import BOOLEAN, MAX_LENGTH, Option, check_choice, is_number, shown
from nopad.sequences import Sequences, gather_runs

__all__ = ["NEXT", "TYPES", "PairOptions", "Pairs", "Sentences", "Vocabulary", "pairs_of", "sentences_in", "too_long"]

NEXT = "next_sentence_label"  # column: 0: B follows A; 1: B is of another document, as transformers has it
TYPES = "token_type_ids"
FRAME = 3  # [CLS], [SEP], [SEP]
TOKENISED_AT_ONCE = 1 << 20  # characters
# Columns of a pair: its document, which of the document's pairs it is, where its sides begin and end in the tokens of
# all documents, whether the second side is of another document, and how many tokens were cut off
DOCUMENT, NUMBER, A, A_END, B, B_END, RANDOM, CUT = range(8)
COLUMNS = 8
_RATE = 0.15

_LENGTH = Option(default=128, low=FRAME + 2, high=MAX_LENGTH, help="most tokens of a pair")
_COPIES = Option(default=1, high=2**16, help="how many times pairs are made of each document")
_MOST = Option(default=None, none=True, help="most predictions of a pair")
_SEED = Option(default=0, low=0, high=2**64 - 1, help="random seed of pairs and masks")
_POOL = Option(default=8 << 20, high=2**40, help="bytes of documents among which second sides are drawn")
_BOOLEAN = Option(default=False, choices=BOOLEAN, help="")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """The rules by which pairs are made.

    Attributes:
        max_length: maximum number of tokens in a pair, ``[CLS]`` and two ``[SEP]`` included.
        copies: how many times pairs are made from every document, different ones each time (BERT's ``dupe_factor``).
        short: the share of documents, from 0 to 1, whose pairs are shorter. For each of these documents, a number of
            tokens is drawn at random, and its pairs have about that many.
        random_next: the share of pairs, from 0 to 1, that get side B from another document. A pair for which only one
            sentence was taken does not count here: its side B always comes from another document.
        sentences: how documents are divided: "rules" (`nopad.corpus.sentences`), or "line" if each line is a sentence.
        over_long: what to do with a sentence that leaves no room for one more token in a pair: "error" raises
            RecordError, "truncate" keeps its beginning, "split" cuts it into pieces, "drop" leaves it out.
        empty: what to do with a document without a sentence: "skip" leaves it out, "error" raises RecordError.
        static: whether masks are drawn now and stored in a column ``labels``; otherwise they are drawn for each batch.
        rate, max_predictions: only for static masks: the share of tokens to predict, and the maximum number of
            predictions in a pair (`nopad.corpus.masks`). `max_predictions` None: 20, 56 or 76 for a `max_length` of
            128, 384 or 512, else 15 % of `max_length`, rounded.
        whole_words: whether the tokens of a word are chosen for prediction all together or not at all; needs a
            WordPiece vocabulary (``##s``).
        seed: random seed of the pairs and of static masks.
        pool_bytes: about how many characters of documents are read at a time (for ASCII text, a character is a byte).
            A random side B is drawn from these documents.

    Raises:
        OptionError: an option has an invalid value, or `rate` or `max_predictions` is given without `static`. Whether
            `rate` is above 0 and at most 1 is only checked by `Vocabulary.of`.

    >>> from nopad.corpus import PairOptions
    >>> options = PairOptions(max_length=64, copies=2)
    >>> options.max_length, options.random_next
    (64, 0.5)
    """

    max_length: int = 128
    copies: int = 1
    short: float = 0.1
    random_next: float = 0.5
    sentences: SentenceUnit = "rules"
    over_long: OverLong = "error"
    empty: Empty = "skip"
    static: bool = False
    rate: float = _RATE
    max_predictions: int | None = None
    whole_words: bool = False
    seed: int = 0
    pool_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        checks = {"max_length": _LENGTH, "copies": _COPIES, "seed": _SEED, "pool_bytes": _POOL}
        for name, option in {**checks, "static": _BOOLEAN, "whole_words": _BOOLEAN, "max_predictions": _MOST}.items():
            option.check(name, getattr(self, name))
        for name, kind in (("sentences", SentenceUnit), ("over_long", OverLong), ("empty", Empty)):
            check_choice(name, getattr(self, name), kind)
        for name in ("short", "random_next"):
            share = getattr(self, name)
            if not is_number(share) or not 0 <= share <= 1:
                raise OptionError(f"{name} is {shown(share)}; it is a share, from 0 to 1")
        if not is_number(self.rate):
            raise OptionError(
                f"rate is {shown(self.rate)}; it is the share of tokens to be predicted, above 0, at most 1"
            )
        most, room = self.max_predictions, self.max_length - FRAME
        if most is not None and most > room:
            raise OptionError(
                f"max_predictions is {most}, and a pair of {self.max_length} tokens has {room} that can be predicted; "
                f"give at most {room}, or a larger max_length"
            )
        if not self.static and (most is not None or self.rate != _RATE):
            raise OptionError(
                "rate and max_predictions are of masks that are drawn now (static=True); give them to the task that "
                "trains where masks are drawn then"
            )

    def settings(self) -> dict[str, Any]:
        """Return all options by name as JSON values."""
        return asdict(self)

    @property
    def predictions(self) -> int:
        """Maximum number of tokens to predict in a pair: `max_predictions`, or its default if that is None."""
        return self.max_predictions or default_predictions(self.max_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The token ids that are needed to make pairs.

    Attributes:
        start, middle: ids of ``[CLS]`` and ``[SEP]``.
        masks: the rules by which masks are drawn.
        goes_on: bool array; ``goes_on[id]`` says whether the token with this id continues a word. None: every token
            counts as a word.
    """

    start: int
    middle: int
    masks: Masks
    goes_on: NDArray[np.bool_] | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, options: PairOptions, names: Sequence[str | None] = ("[CLS]", "[SEP]", "[MASK]")
    ) -> Vocabulary:
        """Return the ids that are needed to make pairs, and the rules of masks, for a tokenizer's vocabulary.

        Args:
            tokenizer: the tokenizer of the documents.
            options: how pairs are made.
            names: the token that begins a pair, the token that ends each of its two texts, and the mask token.

        Raises:
            OptionError: the vocabulary lacks one of these tokens, or has only special tokens, or has no word parts
                (``##s``) although `options` ask for whole words; or `options.rate` is invalid.
        """
        known = tokenizer.vocabulary()
        missing = [usual for usual, name in zip(("[CLS]", "[SEP]", "[MASK]"), names, strict=True) if name not in known]
        if missing:
            raise OptionError(
                f"{tokenizer.name} has no {' and no '.join(missing)}, and pairs for pre-training are made with [CLS], "
                "[SEP] and [MASK]; give a vocabulary that has them, such as that of a BERT"
            )
        start, middle, mask = (known[str(name)] for name in names)
        special = tokenizer.special_ids() | {start, middle, mask}
        special |= {known[name] for name in ("[PAD]", "[UNK]") if name in known}
        every = np.array(sorted(known.values()), np.int64)
        named = np.array(sorted(special), np.int64)
        ordinary = np.setdiff1d(every, named)
        if not ordinary.size:
            raise OptionError(f"{tokenizer.name} has no token that is not special, so there is nothing to mask")
        most = options.predictions if options.static else None
        masks = Masks(
            mask_id=mask, special=named, ordinary=ordinary, rate=options.rate, seed=options.seed, max_predictions=most
        )
        goes_on = _goes_on(known, tokenizer.name) if options.whole_words else None
        return cls(start=start, middle=middle, masks=masks, goes_on=goes_on)


def _goes_on(known: Mapping[str, int], name: str) -> NDArray[np.bool_]:
    found = [number for token, number in known.items() if token.startswith("##") and len(token) > 2]
    if not found:
        raise OptionError(
            f"whole_words needs a vocabulary of WordPiece, whose tokens within words begin with ##, and {name} has "
            "none; leave it out"
        )
    goes_on = np.zeros(max(known.values()) + 1, bool)
    goes_on[found] = True
    return goes_on


class Sentences(NamedTuple):
    """Tokenised documents.

    Attributes:
        tokens: token ids of all sentences, one after the other; int32 ``[T]``.
        lengths: number of tokens in each sentence; int64 ``[S]``.
        document: number of each sentence's document, from 0, ascending; int64 ``[S]``.
    """

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int64]
    document: NDArray[np.int64]


def sentences_in(texts: Sequence[str], tokenizer: Tokenizer, unit: SentenceUnit) -> Sentences:
    """Divide documents into sentences, as `sentences_of` does with `unit`; return the sentences as token ids.

    Sentences without a token are left out. The name of a special token in a text, such as "[SEP]", is text like any
    other, as in BERT's own code.

    Raises:
        FormatError: the tokenizer cannot encode a text.
    """
    split = [sentences_of(text, unit) for text in texts]
    document = np.repeat(np.arange(len(split)), np.fromiter(map(len, split), np.int64, len(split)))
    tokens, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    part: list[str] = []
    size = 0
    for number, sentences in enumerate(split, 1):
        part += sentences
        size += sum(map(len, sentences))
        if part and (size >= TOKENISED_AT_ONCE or number == len(split)):
            ids, counts = tokenizer.flatten(tokenizer.plain_encodings(part))
            tokens.append(ids)
            lengths.append(counts)
            part, size = [], 0
    every = np.concatenate(lengths)
    return Sentences(np.concatenate(tokens), every[every > 0], document[every > 0])


class Pairs(NamedTuple):
    """Pairs, in the order of their documents; all copies of a document come before the next document.

    Attributes:
        sequences: the pairs. Columns per token: ``input_ids``, ``token_type_ids``, and ``labels`` if masks are static,
            else ``maskable``; per pair: ``next_sentence_label``.
        document: number of each pair's document among those given, from 0, ascending; int64 ``[n]``.
        counts: numbers of documents, of random sides B and so on, by name; the names are fields of
            `nopad.corpus.options.Counts`, such as "random_next".
    """

    sequences: Sequences
    document: NDArray[np.int64]
    counts: dict[str, int]


def pairs_of(
    given: Sentences,
    documents: int,
    numbers: NDArray[np.uint64],
    words: Vocabulary,
    options: PairOptions,
    where: str = "the documents",
) -> Pairs:
    """Make pairs from tokenised documents, and return them.

    Args:
        given: the documents' sentences. Those that are too long are handled as `options.over_long` says; if that is
            "error", the caller must have checked that there are none (`too_long`).
        documents: number of documents, D; some may have no sentence.
        numbers: a number per document on which its random choices depend, such as its number in the corpus; uint64
            ``[D]``.
        words: the token ids that are needed to make pairs.
        options: how pairs are made.
        where: a name for the documents in messages.

    Raises:
        RecordError: fewer than two documents have a sentence that fits, or no document has two such sentences, so there
            is no next sentence to learn; or a sentence contains the token ``[CLS]``, ``[SEP]`` or ``[MASK]``.
    """
    _check_plain(given, words, where)
    fitting, counts = _fitting(given, options)
    there, first, sizes = np.unique(fitting.document, return_index=True, return_counts=True)
    _check_next(sizes, where)
    counts |= {"documents": there.size, "documents_empty": documents - there.size}
    made = _made(fitting, np.append(first, fitting.document.size), numbers[there], options)
    sequences = _written(made, fitting.tokens, words)
    document = made[:, DOCUMENT]
    names = np.stack([numbers[there].view(np.int64)[document], made[:, NUMBER], np.zeros_like(document)], axis=1)
    counts |= {"random_next": int(made[:, RANDOM].sum()), "trimmed_tokens": int(made[:, CUT].sum())}
    return Pairs(_for_masks(sequences, names, words, options), there[document], counts)


def _check_plain(given: Sentences, words: Vocabulary, where: str) -> None:
    """Refuse texts whose tokens include ``[CLS]``, ``[SEP]`` or ``[MASK]``, since these tokens mark parts of pairs.

    `where` names the documents in messages.

    Raises:
        RecordError: a text has one of these tokens; the message names the token and the document.
    """
    for name, number in (("[CLS]", words.start), ("[SEP]", words.middle), ("[MASK]", words.masks.mask_id)):
        at = np.flatnonzero(given.tokens == number)
        if at.size:
            sentence = int(np.searchsorted(np.cumsum(given.lengths), at[0], side="right"))
            raise RecordError(
                f"{where}: document {given.document[sentence]} of these, from 0, has a text of which the tokenizer "
                f"makes {name} (id {number}), of which pairs are made; take it out, or choose another tokenizer"
            )


def _check_next(sizes: NDArray[np.int64], where: str) -> None:
    """Refuse documents from which no next sentence can be learned.

    `sizes` has the number of sentences of each document that has any; `where` names the documents in messages.

    Raises:
        RecordError: fewer than two documents have sentences, or no document has two.
    """
    if sizes.size < 2:
        raise RecordError(
            f"{where}: {sizes.size or 'none'} with a sentence that fits, and a random next sentence comes from another "
            "document; give at least two"
        )
    if sizes.max() < 2:
        raise RecordError(
            f"{where}: none has two sentences, so no sentence follows another; look at what a document is "
            '(text_unit="file" or "paragraph"), or train a masked language model without next sentences (task mask)'
        )


def too_long(given: Sentences, options: PairOptions) -> int | None:
    """Return the index of the first sentence that is too long for a pair; None: all fit.

    A sentence fits if it leaves room for at least one more token in a pair, beside the special ones.
    """
    over = given.lengths > _room(options) - 1
    return int(over.argmax()) if over.any() else None


def _room(options: PairOptions) -> int:
    return options.max_length - FRAME


def _fitting(given: Sentences, options: PairOptions) -> tuple[Sentences, dict[str, int]]:
    """Handle sentences that are too long for a pair as `options.over_long` says; return ``(sentences, counts)``.

    `sentences` are those that remain, the truncated ones and the pieces of split ones included. The keys of `counts`
    are field names of `nopad.corpus.options.Counts`; it is empty if no sentence is too long.
    """
    most = _room(options) - 1
    over = int(np.count_nonzero(given.lengths > most))
    if not over:
        return given, {}
    row, start, length = cut(given.lengths, most, options.over_long)
    begins = np.cumsum(given.lengths) - given.lengths
    tokens = gather_runs(given.tokens, begins[row] + start, length)[0]
    counts = {"long_sentences": over, "long_sentences_tokens": int(given.lengths.sum() - length.sum())}
    return Sentences(tokens, length, given.document[row]), counts


def _made(
    given: Sentences, first: NDArray[Any], numbers: NDArray[np.uint64], options: PairOptions
) -> NDArray[np.int64]:
    """Make pairs of the sentences `given`; return eight integers for each of n pairs, int64 ``[n, COLUMNS]``.

    The integers of a pair are, in this order: the index of its document among those that have sentences; the number of
    the pair among all pairs of this document, from 0, through all copies; where side A begins and ends in
    `given.tokens`; where side B begins and ends there; 1 if side B is from another document, else 0; and how many
    tokens were cut off from both sides together.

    All sentences must fit into a pair. `first` has the index of the first sentence of each document that has sentences,
    and, as its last value, the number of all sentences. `numbers` has a number for each of these documents, on which
    its random choices depend.
    """
    from nopad.corpus import _pair_kernels

    keys = np.stack(
        [random.keys(numbers, options.seed, random.STREAM_PAIRS, copy) for copy in range(options.copies)], axis=1
    )
    ends = np.concatenate([[0], np.cumsum(given.lengths)])
    out = np.empty((given.lengths.size * options.copies, COLUMNS), np.int64)
    short, other = (np.uint64(min(math.floor(n * 2**64), 2**64 - 1)) for n in (options.short, options.random_next))
    count = _pair_kernels.all_pairs(first.astype(np.int64), ends, keys, _room(options), short, other, out)
    made = out[:count]
    begins = np.flatnonzero(np.diff(made[:, DOCUMENT], prepend=-1))
    made[:, NUMBER] = np.arange(count) - np.repeat(begins, np.diff(begins, append=count))
    return made


def _written(made: NDArray[np.int64], tokens: NDArray[np.int32], words: Vocabulary) -> Sequences:
    """Return pairs as sequences, with the columns ``input_ids``, ``token_type_ids`` and ``next_sentence_label``.

    A pair's ``next_sentence_label`` is 0 if side B follows side A in their document, and 1 if side B is from another
    document. `made` has a row of integers for each pair, from `_made`. `tokens` are the tokens of all sentences.
    """
    from nopad.corpus import _pair_kernels

    lengths = (made[:, A_END] - made[:, A] + made[:, B_END] - made[:, B] + FRAME).astype(np.int32)
    total = int(lengths.sum(dtype=np.int64))
    ids, types = np.empty(total, np.int32), np.empty(total, np.int8)
    _pair_kernels.write(made, tokens, words.start, words.middle, ids, types)
    values = {NEXT: made[:, RANDOM].copy()}
    return Sequences(seq_lengths=lengths, tokens={"input_ids": ids, TYPES: types}, values=values)


def _for_masks(made: Sequences, names: NDArray[np.int64], words: Vocabulary, options: PairOptions) -> Sequences:
    """Return the pairs `made` with masks and the column ``labels``, or without masks and with the column ``maskable``.

    If `options.static` is True, masks are drawn now: some ids are replaced, and ``labels`` has the original ids to
    predict. Otherwise, the column ``maskable`` says which tokens may be masked, and masks are drawn from it later.
    `names` has three integers for each of n pairs, int64 ``[n, 3]``. They identify the pair, and its random draws
    depend on them.
    """
    ids = made.tokens["input_ids"]
    masks, goes_on = words.masks, words.goes_on
    kinds = masks.maskable(ids) if goes_on is None else masks.words(ids, made.begins, goes_on)
    tokens = {**made.tokens, MASKABLE: kinds}
    if options.static:
        masked, labels = words.masks.drawn(ids, kinds, made.seq_lengths, names)
        tokens = {**made.tokens, "input_ids": masked.astype(np.int32), "labels": labels.astype(np.int32)}
    return Sequences(seq_lengths=made.seq_lengths, tokens=tokens, values=made.values)
