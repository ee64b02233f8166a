"""Pairs for pre-training, against BERT's recipe written out in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.corpus.test_pretraining import tokenizer

from nopad import random
from nopad.corpus import _mask_kernels, _pair_kernels
from nopad.corpus.masks import Masks, default_predictions
from nopad.corpus.pairs import COLUMNS, PairOptions, Sentences, Vocabulary, pairs_of, too_long
from nopad.errors import OptionError, RecordError

START, MIDDLE = 2, 3


def documents_of(sizes):
    """Documents of sentences of these lengths; every token has an id of its own, from 100 on."""
    lengths = np.array([size for one in sizes for size in one], np.int64)
    document = np.repeat(np.arange(len(sizes)), [len(one) for one in sizes])
    return Sentences(np.arange(100, 100 + lengths.sum(), dtype=np.int32), lengths, document)


class Draws:
    """The draws of one document, in order."""

    def __init__(self, seed, copy, number):
        self.key, self.at = random.key(seed, random.STREAM_PAIRS, copy, number), 0

    def next(self):
        self.at += 1
        return random.draw(self.key, self.at - 1)

    def below(self, share):
        return self.next() < int(share * 2**64)

    def between(self, low, high):
        return low + random.bounded(self.next(), high - low + 1)


def recipe(documents, number, draws, room, short, share):
    """create_instances_from_document of BERT's create_pretraining_data.py, with our draws, as (A, B, is random)."""
    document, found = documents[number], []
    is_short = draws.below(short)
    drawn = draws.between(2, room)
    target = drawn if is_short else room
    at, chunk = 0, []
    while at < len(document):
        chunk.append(document[at])
        if at == len(document) - 1 or sum(map(len, chunk)) >= target:
            end = draws.between(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:end] for token in sentence]
            other = len(chunk) == 1 or draws.below(share)
            b = []
            if other:
                which = draws.between(0, len(documents) - 2)
                theirs = documents[which + (which >= number)]
                for sentence in theirs[draws.between(0, len(theirs) - 1) :]:
                    b += sentence
                    if len(b) >= target - len(a):
                        break
                at -= len(chunk) - end
            else:
                b = [token for sentence in chunk[end:] for token in sentence]
            while len(a) + len(b) > room:
                longer = a if len(a) > len(b) else b
                longer.pop(0 if draws.between(0, 1) else -1)
            found.append((a, b, other))
            chunk = []
        at += 1
    return found


def vocabulary():
    masks = Masks(mask_id=4, special=np.arange(5), ordinary=np.arange(5, 100), max_predictions=20)
    return Vocabulary(start=START, middle=MIDDLE, masks=masks)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.lists(st.integers(1, 11), min_size=1, max_size=7), min_size=2, max_size=6),
    max_length=st.integers(15, 40),
    short=st.sampled_from([0.0, 0.1, 0.7]),
    share=st.sampled_from([0.0, 0.5, 0.9]),
    seed=st.integers(0, 2**64 - 1),
)
def test_pairs_are_those_of_the_recipe(sizes, max_length, short, share, seed):
    assume(any(len(one) > 1 for one in sizes))
    given = documents_of(sizes)
    options = PairOptions(max_length=max_length, copies=2, short=short, random_next=share, seed=seed)
    numbers = np.arange(7, 7 + len(sizes)).astype(np.uint64)
    made = pairs_of(given, len(sizes), numbers, vocabulary(), options)
    tokens = iter(given.tokens.tolist())
    documents = [[[next(tokens) for _ in range(size)] for size in one] for one in sizes]
    wanted = [
        (number, *pair)
        for number in range(len(sizes))
        for copy in range(2)
        for pair in recipe(documents, number, Draws(seed, copy, 7 + number), max_length - 3, short, share)
    ]
    ids, types = (
        [part.tolist() for part in np.split(made.sequences.tokens[name], np.cumsum(made.sequences.seq_lengths)[:-1])]
        for name in ("input_ids", "token_type_ids")
    )
    assert ids == [[START, *a, MIDDLE, *b, MIDDLE] for _, a, b, _ in wanted]
    assert types == [[0] * (len(a) + 2) + [1] * (len(b) + 1) for _, a, b, _ in wanted]
    assert made.sequences.values["next_sentence_label"].tolist() == [int(other) for *_, other in wanted]
    assert made.document.tolist() == [number for number, *_ in wanted]
    assert made.counts["random_next"] == sum(other for *_, other in wanted)


def test_shares_are_those_asked_for():
    sizes = [[5] * 12] * 3000
    made = pairs_of(
        documents_of(sizes), 3000, np.arange(3000).astype(np.uint64), vocabulary(), PairOptions(max_length=33)
    )
    firsts = np.searchsorted(made.document, np.arange(3000))
    forced = np.add.reduceat(made.sequences.values["next_sentence_label"], firsts).sum() / len(made.document)
    assert 0.5 < forced < 0.62  # a last sentence alone has no next
    longest = np.maximum.reduceat(made.sequences.seq_lengths, firsts)
    assert abs((longest < 33).mean() - 0.1) < 0.03


@pytest.mark.parametrize(("over_long", "left"), [("truncate", [4, 12]), ("split", [4, 12, 12, 6]), ("drop", [4])])
def test_sentences_that_do_not_fit(over_long, left):
    given = documents_of([[4, 30], [2, 2, 2]])
    options = PairOptions(max_length=16, over_long=over_long, random_next=0.0, short=0.0)
    assert too_long(given, options) == 1
    made = pairs_of(given, 2, np.arange(2).astype(np.uint64), vocabulary(), options)
    seen = {int(token) for token in made.sequences.tokens["input_ids"]} & set(range(100, 134))
    assert len(seen) <= sum(left)
    lost = {"truncate": 18, "split": 0, "drop": 30}[over_long]
    assert (made.counts["long_sentences"], made.counts["long_sentences_tokens"]) == (1, lost)
    assert made.sequences.seq_lengths.max() <= 16


def test_what_is_left_must_be_of_two_documents():
    """What a policy drops is no partner either."""
    numbers, options = np.arange(2).astype(np.uint64), PairOptions(max_length=16, over_long="drop")
    with pytest.raises(RecordError, match="the documents: 1 with a sentence that fits, and a random next sentence"):
        pairs_of(documents_of([[4, 4], [30]]), 2, numbers, vocabulary(), options)
    with pytest.raises(RecordError, match="the documents: none with a sentence that fits"):
        pairs_of(documents_of([[30, 30], [30]]), 2, numbers, vocabulary(), options)
    with pytest.raises(RecordError, match="the documents: none has two sentences, so no sentence follows another"):
        pairs_of(documents_of([[4, 30], [4]]), 2, numbers, vocabulary(), options)


def test_a_document_without_a_sentence_is_counted():
    given = documents_of([[4, 3], [2, 2]])
    moved = given._replace(document=given.document * 2)
    made = pairs_of(moved, 4, np.arange(4).astype(np.uint64), vocabulary(), PairOptions(max_length=32))
    assert (made.counts["documents"], made.counts["documents_empty"]) == (2, 2)
    assert set(made.document.tolist()) == {0, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 4}, "max_length must be an integer from 5"),
        ({"copies": 0}, "copies must be an integer from 1"),
        ({"short": 1.5}, "short is 1.5; it is a share, from 0 to 1"),
        ({"random_next": True}, "random_next is True; it is a share"),
        ({"sentences": "page"}, "sentences is 'page'; it is 'rules' or 'line'"),
        ({"over_long": "cut"}, "over_long is 'cut'"),
        ({"static": 1}, "static must be one of True, False"),
        ({"static": True, "max_length": 16, "max_predictions": 14}, "a pair of 16 tokens has 13 that can be predicted"),
        ({"rate": 0.2}, r"of masks that are drawn now \(static=True\)"),
    ],
)
def test_options(options, message):
    with pytest.raises(OptionError, match=message):
        PairOptions(**options)


def test_most_predictions():
    assert [default_predictions(n) for n in (5, 64, 128, 384, 512, 1024)] == [1, 10, 20, 56, 76, 154]
    assert PairOptions(static=True, max_predictions=3).predictions == 3


def masked(count, kinds, lengths, rate=0.15, seed=0):
    masks = Masks(
        mask_id=4, special=np.arange(5), ordinary=np.arange(5, 90), rate=rate, seed=seed, max_predictions=count
    )
    ids = np.random.default_rng(0).integers(5, 90, len(kinds))
    names = np.arange(3 * len(lengths)).reshape(-1, 3)
    return ids, *masks.drawn(ids, kinds.astype(np.int8), np.array(lengths, np.int32), names)


def test_as_many_are_predicted_as_in_bert():
    lengths = [5, 20, 100, 512, 384, 128]
    kinds = np.full(sum(lengths), 2)
    ids, after, labels = masked(56, kinds, lengths)
    parts = np.split(labels >= 0, np.cumsum(lengths)[:-1])
    assert [int(part.sum()) for part in parts] == [1, 3, 15, 56, 56, 19]
    np.testing.assert_array_equal(labels[labels >= 0], ids[labels >= 0])
    np.testing.assert_array_equal(after[labels < 0], ids[labels < 0])
    # every place is as likely: of 4,000 sequences of 20 tokens, 3 each
    _, _, labels = masked(20, np.full(80_000, 2), [20] * 4000)
    counts = (labels.reshape(4000, 20) >= 0).sum(0)
    assert abs(counts - 600).max() < 5 * (600 * 0.85) ** 0.5


def test_whole_words_that_do_not_fit_are_passed_over():
    kinds = np.array([0, 2, 1, 1, 1, 1, 2, 2, 1, 0] * 300)
    _, _, labels = masked(2, kinds, [10] * 300, rate=0.2)
    rows = (labels >= 0).reshape(300, 10)
    assert not rows[:, 1:6].any()
    assert (rows.sum(1) <= 2).all()
    assert (rows[:, 7] == rows[:, 8]).all()
    assert {tuple(np.flatnonzero(row)) for row in rows} == {(6,), (7, 8)}


def test_words_begin_behind_special_tokens():
    masks = Masks(mask_id=4, special=np.arange(5), ordinary=np.arange(5, 9))
    goes_on = np.array([False] * 7 + [True, True])
    ids = np.array([2, 7, 7, 5, 8, 3, 8, 3, 2, 5, 7, 7, 3])
    assert masks.words(ids, np.array([0, 8]), goes_on).tolist() == [0, 2, 1, 2, 1, 0, 2, 0, 0, 2, 1, 1, 0]
    assert masks.words(ids[1:3], np.array([0, 1]), goes_on).tolist() == [2, 2]


def test_the_loops_are_the_readable_ones(check_twins):
    from types import FunctionType

    from nopad import _kernels

    space = {**vars(_kernels), **vars(_mask_kernels), **vars(_pair_kernels)}
    names = ("mix", "bounded", "mark", "by_draw", "choose", "mask", "drawn", "happens", "pairs", "all_pairs", "write")
    for name in names:
        space[name] = FunctionType(space[name].py_func.__code__, space)
    first, ends = np.array([0, 2, 5, 6]), np.concatenate([[0], np.cumsum([3, 4, 9, 2, 2, 5])])
    keys = np.array([[11, 12], [13, 14], [15, 16]], np.uint64)
    out = np.zeros((12, COLUMNS), np.int64)
    half = np.uint64(2**63)
    check_twins(_pair_kernels.all_pairs, space["all_pairs"], [first, ends, keys, 9, half, half, out])
    count = _pair_kernels.all_pairs(first, ends, keys, 9, half, half, out)
    made, total = out[:count], int((out[:count, 3] - out[:count, 2] + out[:count, 5] - out[:count, 4] + 3).sum())
    tokens = np.arange(25, dtype=np.int32)
    check_twins(
        _pair_kernels.write, space["write"], [made, tokens, 2, 3, np.zeros(total, np.int32), np.zeros(total, np.int8)]
    )
    draws = np.random.default_rng(0).integers(0, 2**64 - 1, 500, np.uint64)
    np.testing.assert_array_equal(_mask_kernels.by_draw(draws), np.argsort(draws))
    kinds = np.random.default_rng(0).integers(0, 3, 40).astype(np.int8)
    for count in (-1, 0, 6, 40):
        check_twins(_mask_kernels.choose, space["choose"], [kinds, np.uint64(7), half, count, np.zeros(40, bool)])


def test_a_vocabulary_must_have_the_tokens():
    for gone in ("[CLS]", "[SEP]", "[MASK]"):
        with pytest.raises(OptionError, match=rf"has no \{gone[:-1]}\], and pairs for pre-training are made with"):
            Vocabulary.of(tokenizer(without=gone), PairOptions())
    with pytest.raises(OptionError, match="whole_words needs a vocabulary of WordPiece"):
        Vocabulary.of(tokenizer(), PairOptions(whole_words=True))
