from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram, plan
from nopad.planning.costs import bound_of, load_of, within
from nopad.planning.costs.guide import fill, guide
from nopad.planning.costs.spread import spread
from nopad.planning.optimal.budget import Budget


def total(strategies):
    return sum(count for count, _ in strategies)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=9),
    depth=st.none() | st.integers(1, 4),
    squares=st.integers(144, 260),
    align=st.sampled_from([1, 2, 4]),
)
def test_between_the_bound_and_the_truth(judge, fewest, lengths, depth, squares, align):
    capacity = 24
    possible = fewest(lengths, capacity, depth, squares, align)
    histogram = Histogram.from_lengths(lengths)
    assert bound_of(load_of(histogram, capacity, depth, squares, align)) <= possible
    made = within(histogram, capacity, depth, squares, align, budget=Budget(1), exact=True)
    judge(made.strategies, lengths, capacity, squares, depth, align)
    assert possible <= total(made.strategies) <= possible + 1
    for algorithm in ("auto", "optimal"):
        planned = plan(lengths, capacity, depth=depth, algorithm=algorithm, max_squares=squares, align=align)
        judge(planned.strategies, lengths, capacity, squares, depth, align)
        assert planned.lower_bound <= possible <= planned.packs <= possible + 1
        assert planned.problems() == []


@pytest.mark.slow
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=200),
    depth=st.none() | st.integers(1, 8),
    squares=st.integers(3600, 9000),
    align=st.sampled_from([1, 4]),
)
def test_slots_of_a_guide_get_real_lengths(judge, lengths, depth, squares, align):
    load = load_of(Histogram.from_lengths(lengths), 120, depth, squares, align)
    made = guide(load, Budget(2))
    assert made is not None
    judge(fill(made, load, align, Budget(1)).strategies(load.lengths), lengths, 120, squares, depth, align)


@pytest.mark.slow
def test_near_the_bound_where_both_limits_bind():
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(350), 1.1, 100_000), 1, 2048).astype(np.int64)
    mean = int((lengths**2).sum()) / -(-int(lengths.sum()) // 8192)
    for share in (1.05, 1.25, 1.5, 2):
        made = plan(lengths, 8192, max_squares=max(int(share * mean), 2048**2))
        assert made.packs - made.lower_bound <= 0.001 * made.lower_bound
        assert made.facts["method"] == "spread"


@pytest.mark.slow
def test_real_lengths_where_few_sequences_share_a_pack():
    lengths = np.clip(np.random.default_rng(0).normal(2800, 700, 20_000), 1, 4200).astype(np.int64)
    mean = int((lengths**2).sum()) / -(-int(lengths.sum()) // 8192)
    made = plan(lengths, 8192, max_squares=int(1.05 * mean))
    assert made.facts["method"] in ("few", "few, then gathered")
    assert made.bound.proof == "cost certificate"
    assert made.lower_bound > 1.01 * (int(lengths.sum()) / 8192)
    assert made.packs <= 1.002 * made.lower_bound
    assert made.problems() == []


@pytest.mark.slow
@pytest.mark.parametrize("depth", [None, 16])
def test_a_liquid_rest_proves_more_where_one_sequence_takes_most_of_the_cost(depth):
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(350), 1.1, 40_000), 1, 4096).astype(np.int64)
    made = plan(lengths, 8192, max_squares=int(1.01 * 4096**2), depth=depth)
    histogram = Histogram.from_lengths(lengths)
    assert made.bound.proof == "cost certificate"
    assert made.lower_bound > bound_of(load_of(histogram, 8192, depth, int(1.01 * 4096**2)))
    assert made.packs <= 1.02 * made.lower_bound
    assert made.problems() == []


def test_the_bound_sees_who_can_share_a_pack():
    load = load_of(Histogram.from_counts({40: 5, 10: 30}), 80, None, 1600)
    assert bound_of(load) == 5 + 4  # nothing fits beside 40; 300 tokens are left
    assert bound_of(load_of(Histogram.from_counts({40: 5, 10: 30}), 80, 2, 1600)) == 5 + 15
    assert bound_of(load_of(Histogram.from_counts({40: 5, 10: 30}), 80, 1, 1600)) == 35


@pytest.mark.slow
def test_the_same_plan_again_and_less_work_gives_a_plan_too():
    lengths = np.random.default_rng(1).integers(1, 500, 3000)
    first = plan(lengths, 1000, max_squares=300_000)
    assert plan(lengths, 1000, max_squares=300_000) == first
    load = load_of(Histogram.from_lengths(lengths), 1000, None, 300_000)
    assert spread(load, bound_of(load), 0, Budget(0)).packs >= first.packs


@pytest.mark.parametrize("depth", [None, 2, 3])
def test_counts_and_squares_near_64_bits(depth):
    long = 2**31 - 1
    histogram = Histogram.from_counts({long // 2: 2**60, long // 3: 2**60})
    squares = (long // 2) ** 2 + (long // 3) ** 2
    made = plan(histogram, long, depth=depth, max_squares=squares)
    assert made.histogram == histogram
    assert made.packs == made.lower_bound == 2**60
    for _, pack in made.strategies:
        assert sum(length**2 for length in pack) <= squares


def test_a_limit_that_never_binds_changes_nothing():
    lengths = np.random.default_rng(2).integers(1, 100, 500)
    assert plan(lengths, 100, max_squares=10_000).strategies == plan(lengths, 100).strategies
