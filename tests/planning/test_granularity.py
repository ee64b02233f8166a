from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram
from nopad.planning.granularity import real_strategies, rounded_histogram, whole_capacity
from nopad.planning.lpfhp import lpfhp
from nopad.planning.spfhp import spfhp

GRANULARITY = st.integers(1, 12) | st.just(1000)


def covered(strategies):
    total = Counter()
    for count, lengths in strategies:
        for length in lengths:
            total[length] += count
    return dict(total)


def up(length, granularity):
    return -(-length // granularity) * granularity


@given(st.from_type(Histogram), st.integers(40, 70), GRANULARITY)
def test_rounded_lengths_are_multiples_and_lose_no_sequence(histogram, capacity, granularity):
    rounded = rounded_histogram(histogram, granularity, capacity)
    whole = whole_capacity(granularity, capacity)
    expected = Counter()
    for length, count in histogram.to_dict().items():
        expected[min(up(length, granularity), whole)] += count
    assert rounded.to_dict() == dict(expected)
    assert not (rounded.lengths % granularity).any()
    assert whole % granularity == 0
    assert rounded.max_length <= whole


@pytest.mark.parametrize("algorithm", [lpfhp, spfhp])
@given(st.from_type(Histogram), st.integers(40, 70), st.none() | st.integers(1, 6), GRANULARITY)
def test_a_plan_of_rounded_lengths_is_a_plan_of_the_real_ones(algorithm, histogram, capacity, depth, granularity):
    rounded = rounded_histogram(histogram, granularity, capacity)
    strategies = algorithm(rounded, whole_capacity(granularity, capacity), depth)
    real = real_strategies(strategies, histogram, granularity, capacity)
    assert covered(real) == histogram.to_dict()
    assert sum(count for count, _ in real) == sum(count for count, _ in strategies)
    assert all(count > 0 and sum(lengths) <= capacity for count, lengths in real)
    assert all(list(lengths) == sorted(lengths, reverse=True) for _, lengths in real)
    assert max((len(lengths) for _, lengths in real), default=0) <= (depth or capacity)
    assert len(real) <= len(strategies) + 2 * histogram.lengths.size
    for _, lengths in real:  # each may begin at a multiple, and the pack still holds them all
        starts = sum(up(length, granularity) for length in lengths[:0:-1])
        assert starts + lengths[0] <= capacity


@given(st.from_type(Histogram), st.integers(40, 70))
def test_a_granularity_of_one_changes_nothing(histogram, capacity):
    assert rounded_histogram(histogram, 1, capacity) == histogram
    strategies = lpfhp(histogram, capacity, None)
    assert real_strategies(strategies, histogram, 1, capacity) == strategies


def test_the_longest_are_dealt_first_and_some_may_stay():
    histogram = Histogram.from_counts({5: 2, 7: 1, 8: 1})
    assert real_strategies([(1, (8, 8)), (1, (8,))], histogram, 8, 16) == [(1, (8, 7)), (1, (5,))]


@pytest.mark.parametrize("strategies", [[(3, (8,))], [(1, (8, 8, 8))], [(1, (16,))]])
def test_more_slots_than_sequences(strategies):
    with pytest.raises(ValueError, match=r"^strategies need length \d+ more often than the histogram has it$"):
        real_strategies(strategies, Histogram.from_counts({5: 1, 7: 1}), 8, 24)


def test_counts_beyond_memory():
    histogram = Histogram.from_counts({3: 2**40, 4: 2**41})
    rounded = rounded_histogram(histogram, 4, 8)
    real = real_strategies([(rounded.sequences // 2, (4, 4))], histogram, 4, 8)
    assert real == [(2**40, (4, 4)), (2**39, (3, 3))]
