from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad.corpus import Counts
from nopad.errors import OptionError, RecordError
from nopad.random import STREAM_HELD_OUT, key
from nopad.store.choice import check_share, choose


def slow_choice(record, records, validation, seed):
    """{record: whether it is held out}, one record after the other with Python's integers."""
    bounds = {}
    first = 0
    for name, number in records.items():
        bounds[name] = range(first, first + number)
        first += number

    def keyed(number):
        name = next(name for name, numbers in bounds.items() if number in numbers)
        named = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        return key(seed, STREAM_HELD_OUT, named, number - bounds[name].start)

    keys = {number: keyed(number) for number in record.tolist()}
    held = {number: bool(validation) and drawn < int(validation * 2**64) for number, drawn in keys.items()}
    if validation:
        held[min(keys, key=lambda number: (keys[number], number))] = True
    return held


def made(sizes, seed):
    """Records of 0 to 3 pieces each."""
    rng = np.random.default_rng(seed)
    pieces = rng.integers(0, 4, sum(sizes))
    record = np.repeat(np.arange(pieces.size), pieces)
    return record, rng.integers(1, 100, record.size).astype(np.int32)


@given(
    sizes=st.lists(st.integers(30, 60), min_size=1, max_size=4),
    validation=st.sampled_from([0, 1e-9, 0.05, 0.3]),
    seed=st.integers(0, 2**32),
)
def test_equal_to_the_slow_way(sizes, validation, seed):
    record, _ = made(sizes, seed)
    records = {f"s{i}": size for i, size in enumerate(sizes)}
    choice = choose(record, records, validation=validation, seed=seed)
    slow = slow_choice(record, records, validation, seed)
    assert [slow[number] for number in record.tolist()] == choice.held_out.tolist()
    np.testing.assert_array_equal(choice.source, np.searchsorted(np.cumsum(sizes), record, side="right"))


def test_a_share_of_each_source_is_held_out():
    record, _ = made([5000, 20_000, 4000], 0)
    choice = choose(record, {"a": 5000, "b": 20_000, "c": 4000}, validation=0.1, seed=3)
    train, held = choice.of("train"), choice.of("validation")
    np.testing.assert_array_equal(np.sort(np.concatenate([train, held])), np.arange(record.size))
    for source in range(3):
        here = np.unique(record[choice.source == source]).size
        assert np.unique(record[held[choice.source[held] == source]]).size / here == pytest.approx(0.1, rel=0.2)


def test_what_is_held_out_stays_so_when_sources_grow():
    record = np.arange(300)
    small = choose(record[:200], {"b": 200}, validation=0.1, seed=0)
    large = choose(record, {"a": 50, "b": 250}, validation=0.1, seed=0)
    np.testing.assert_array_equal(large.held_out[50:250], small.held_out)
    assert large.held_out[250:].any()


def test_seeds_differ_and_repeat():
    record = np.arange(1000)
    first, again, other = (choose(record, {"": 1000}, validation=0.1, seed=seed).held_out for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_at_least_one_record_is_held_out():
    record = np.array([0, 0, 1, 2, 2])
    choice = choose(record, {"": 3}, validation=1e-9, seed=0)
    assert np.unique(record[choice.held_out]).size == 1
    assert np.unique(record[choice.of("train")]).size == 2


def test_counts_of_both_sides_add_up():
    record, lengths = made([400, 300], 5)
    parts = {"a": Counts(records=400), "b": Counts(records=300)}
    choice = choose(record, {"a": 400, "b": 300}, validation=0.1, seed=0)
    train, held = (choice.counts(parts, record, lengths, split) for split in ("train", "validation"))
    for number, name in enumerate(parts):
        here = choice.source == number
        total = int(lengths[here].sum())
        for mine, other in ((train[name], held[name]), (held[name], train[name])):
            assert mine.tokens + mine.other_split_tokens == total
            assert mine.other_split_tokens == other.tokens > 0
        assert train[name].sequences + held[name].sequences == np.count_nonzero(here)
        assert held[name].other_split + train[name].other_split == np.unique(record[here]).size


def test_no_records_at_all():
    assert choose(np.zeros(0, np.int64), {"": 0}, validation=0.1, seed=0).of("train").size == 0


def test_nothing_left_to_train_on():
    with pytest.raises(RecordError, match=r"holding out 50\.000% of 1 records leaves none to train on"):
        choose(np.zeros(2, int), {"": 1}, validation=0.5, seed=0)


@pytest.mark.parametrize(
    ("validation", "says"),
    [
        (1, "the share to hold out is 1; it must be at least 0 and below 1"),
        (-0.1, "the share to hold out is -0.1;"),
        (False, "the share to hold out is False;"),
        (float("nan"), "the share to hold out is nan;"),
        ("1%", "the share to hold out is '1%';"),
    ],
)
@pytest.mark.parametrize("check", [check_share, lambda share: nopad.PackOptions(validation=share)])
def test_shares_that_mean_nothing(check, validation, says):
    with pytest.raises(OptionError) as caught:
        check(validation)
    assert str(caught.value).startswith(says)
