from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.corpus import Counts
from nopad.errors import OptionError, RecordError
from nopad.random import STREAM_HELD_OUT, STREAM_MIXTURE, key
from nopad.store.choice import LEFT, TRAIN, VALIDATION, check_shares, choose


def slow_fates(record, lengths, records, weights, validation, seed):
    """{record: fate}, one record after the other with Python's integers."""
    bounds = {}
    first = 0
    for name, number in records.items():
        bounds[name] = range(first, first + number)
        first += number
    tokens: dict[int, int] = {}
    for number, length in zip(record.tolist(), lengths.tolist(), strict=True):
        tokens[number] = tokens.get(number, 0) + length

    def keyed(number, stream):
        name = next(name for name, numbers in bounds.items() if number in numbers)
        named = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        return key(seed, stream, named, number - bounds[name].start)

    fates = dict.fromkeys(tokens, TRAIN)
    if validation:
        held = [n for n in tokens if keyed(n, STREAM_HELD_OUT) < int(validation * 2**64)]
        held.append(min(tokens, key=lambda n: (keyed(n, STREAM_HELD_OUT), n)))
        fates |= dict.fromkeys(held, VALIDATION)
    if weights:
        left = {name: [n for n in numbers if fates.get(n) == TRAIN] for name, numbers in bounds.items()}
        scale = min(sum(tokens[n] for n in left[name]) / weights[name] for name in records)
        for name, numbers in left.items():
            total = 0
            for at, n in enumerate(sorted(numbers, key=lambda n: keyed(n, STREAM_MIXTURE))):
                total += tokens[n]
                if at and total > scale * weights[name] * (1 + 1e-12):
                    total = float("inf")
                    fates[n] = LEFT
    return fates


def made(sizes, seed):
    """Records of 0 to 3 pieces each."""
    rng = np.random.default_rng(seed)
    pieces = rng.integers(0, 4, sum(sizes))
    record = np.repeat(np.arange(pieces.size), pieces)
    return record, rng.integers(1, 100, record.size).astype(np.int32)


@given(
    sizes=st.lists(st.integers(30, 60), min_size=1, max_size=4),
    validation=st.sampled_from([0, 0.05, 0.3]),
    weigh=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_equal_to_the_slow_way(sizes, validation, weigh, seed):
    record, lengths = made(sizes, seed)
    records = {f"s{i}": size for i, size in enumerate(sizes)}
    weights = {name: i + 1 for i, name in enumerate(records)} if weigh else None
    choice = choose(record, lengths, records, weights=weights, validation=validation, seed=seed)
    slow = slow_fates(record, lengths, records, weights, validation, seed)
    assert dict(zip(record.tolist(), choice.fate.tolist(), strict=True)) == slow
    np.testing.assert_array_equal(choice.source, np.searchsorted(np.cumsum(sizes), record, side="right"))


def test_shares_of_tokens_are_the_weights():
    record, lengths = made([5000, 20_000, 4000], 0)
    records, weights = {"a": 5000, "b": 20_000, "c": 4000}, {"a": 1, "b": 2, "c": 0.5}
    choice = choose(record, lengths, records, weights=weights, validation=0.01, seed=3)
    train = choice.of("train")
    tokens = np.bincount(choice.source[train], weights=lengths[train])
    np.testing.assert_allclose(tokens / tokens.sum(), np.array([2, 4, 1]) / 7, rtol=1e-3)
    whole = np.flatnonzero((choice.source == 0) & (choice.fate != VALIDATION))
    assert (choice.fate[whole] == TRAIN).all()  # the shortest for its weight is taken whole
    held = np.unique(record[choice.of("validation")]).size / np.unique(record).size
    assert held == pytest.approx(0.01, rel=0.2)


def test_a_smaller_weight_takes_a_part_of_what_a_larger_one_takes():
    record, lengths = made([500, 500], 1)
    taken = []
    for weight in (0.2, 0.5, 0.9):
        choice = choose(record, lengths, {"a": 500, "b": 500}, weights={"a": 1, "b": weight}, validation=0, seed=0).of(
            None
        )
        taken.append(set(record[choice][record[choice] >= 500].tolist()))
    assert taken[0] < taken[1] < taken[2]


def test_what_is_held_out_stays_so_when_sources_grow():
    record, lengths = np.arange(300), np.full(300, 5, dtype=np.int32)
    small = choose(record[:200], lengths[:200], {"b": 200}, weights=None, validation=0.1, seed=0)
    large = choose(record, lengths, {"a": 50, "b": 250}, weights=None, validation=0.1, seed=0)
    np.testing.assert_array_equal(large.fate[50:250], small.fate)
    assert large.fate[250:].any()


def test_seeds_differ_and_repeat():
    record, lengths = np.arange(1000), np.full(1000, 5, dtype=np.int32)
    first, again, other = (
        choose(record, lengths, {"": 1000}, weights=None, validation=0.1, seed=seed).fate for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_at_least_one_record_is_held_out_and_one_of_each_source_is_taken():
    record, lengths = np.array([0, 0, 1, 2, 2]), np.array([9, 9, 9, 9, 9], dtype=np.int32)
    choice = choose(record, lengths, {"": 3}, weights=None, validation=1e-9, seed=0)
    assert np.unique(record[choice.fate == VALIDATION]).size == 1
    records, weights = {"a": 1, "b": 2}, {"a": 1, "b": 1e-9}
    choice = choose(record, lengths, records, weights=weights, validation=0, seed=0)
    assert sorted(np.unique(record[choice.fate == TRAIN]).tolist())[0] == 0
    assert np.unique(record[choice.fate == TRAIN]).size == 2


def test_counts_of_both_sides_add_up():
    record, lengths = made([400, 300], 5)
    parts = {"a": Counts(records=400), "b": Counts(records=300)}
    choice = choose(record, lengths, {"a": 400, "b": 300}, weights={"a": 1, "b": 3}, validation=0.1, seed=0)
    train, held = (choice.counts(parts, record, lengths, split) for split in ("train", "validation"))
    for number, name in enumerate(parts):
        here = choice.source == number
        total = int(lengths[here].sum())
        for mine, other in ((train[name], held[name]), (held[name], train[name])):
            assert mine.tokens + mine.other_split_tokens + mine.left_by_weight_tokens == total
            assert mine.other_split_tokens == other.tokens
            assert mine.left_by_weight == other.left_by_weight
        assert train[name].sequences + held[name].sequences == np.count_nonzero(here & (choice.fate != LEFT))
        whole = np.unique(record[here]).size
        assert held[name].other_split + train[name].other_split + train[name].left_by_weight == whole
    assert train["a"].left_by_weight + train["b"].left_by_weight > 0


def test_nothing_left_to_train_on():
    with pytest.raises(RecordError, match=r"holding out 50\.000% of 1 records leaves none to train on"):
        choose(np.zeros(2, int), np.ones(2, np.int32), {"": 1}, weights=None, validation=0.5, seed=0)
    with pytest.raises(RecordError, match="'b' has a weight, and no token to train on"):
        choose(np.zeros(2, int), np.ones(2, np.int32), {"a": 1, "b": 4}, weights={"a": 1, "b": 1}, validation=0, seed=0)


@pytest.mark.parametrize(
    ("weights", "validation", "parts", "says"),
    [
        (None, 1, ("",), "the share to hold out is 1; it must be at least 0 and below 1"),
        (None, -0.1, ("",), "the share to hold out is -0.1;"),
        (None, float("nan"), ("",), "the share to hold out is nan;"),
        (None, "1%", ("",), "the share to hold out is '1%';"),
        ({"a": 1}, 0, ("",), "weights need named sources"),
        ({"a": 1, "c": 1}, 0, ("a", "b"), "there is a weight for 'c', and no such source; there are a, b"),
        ({"a": 1}, 0, ("a", "b"), "there is no weight for 'b'"),
        ({"a": 0, "b": 1}, 0, ("a", "b"), "the weight of 'a' is 0; it must be above 0"),
        ({"a": float("nan"), "b": 1}, 0, ("a", "b"), "the weight of 'a' is nan;"),
        ({"a": "1", "b": 1}, 0, ("a", "b"), "the weight of 'a' is '1';"),
    ],
)
def test_shares_that_mean_nothing(weights, validation, parts, says):
    with pytest.raises(OptionError) as caught:
        check_shares(weights, validation, parts)
    assert str(caught.value).startswith(says)
