from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram
from nopad.planning.costs import bound_of, load_of
from nopad.planning.costs.few import few
from nopad.planning.costs.gathering import gather
from nopad.planning.costs.knots import Knots, prove
from nopad.planning.costs.liquid import liquid
from nopad.planning.costs.spread import is_few, spread
from nopad.planning.optimal.budget import Budget

LOADS = {
    "lengths": st.lists(st.integers(1, 60), min_size=1, max_size=120),
    "depth": st.none() | st.integers(1, 8),
    "squares": st.integers(3600, 9000),
    "align": st.sampled_from([1, 4]),
}


def total(strategies):
    return sum(count for count, _ in strategies)


@given(**LOADS, values=st.sampled_from(["tokens", "cost", "equal"]))
def test_gathering_keeps_every_sequence_and_limit(judge, lengths, depth, squares, align, values):
    load = load_of(Histogram.from_lengths(lengths), 120, depth, squares, align)
    worth = {"tokens": load.sizes / 120, "cost": load.costs / squares, "equal": np.full(load.sizes.size, 0.1)}[values]
    one_each = [(count, (length,)) for length, count in zip(load.lengths.tolist(), load.counts.tolist(), strict=True)]
    for start in (one_each, spread(load, bound_of(load), 0, Budget(1)).strategies(load.lengths)):
        found = gather(start, load, worth, bound_of(load), Budget(1))
        judge(found, lengths, 120, squares, depth, align)
        assert bound_of(load) <= total(found) <= total(start)
        assert found == gather(start, load, worth, bound_of(load), Budget(1))
        assert gather(start, load, worth, bound_of(load), Budget(0)) == start


def test_gathering_needs_both_limits():
    """Four of 5 and four of 3: a pack has room for 5 + 3, by tokens; by cost for 5 + 3 too, but not for 5 + 5."""
    load = load_of(Histogram.from_lengths([5] * 4 + [3] * 4), 10, None, 34)
    start = [(4, (5,)), (2, (3, 3))]
    assert gather(start, load, load.lengths / 8, 4, Budget(1)) == [(4, (5, 3))]


@given(**LOADS)
def test_a_plan_of_few_has_every_sequence(judge, lengths, depth, squares, align):
    load = load_of(Histogram.from_lengths(lengths), 120, depth, squares, align)
    made = few(load, align, Budget(2))
    assert made is not None
    judge(made.strategies, lengths, 120, squares, depth, align)
    assert made.values.shape == load.lengths.shape
    assert (np.diff(made.values) >= 0).all()


@pytest.mark.slow
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=9),
    depth=st.none() | st.integers(1, 4),
    squares=st.integers(144, 260),
    align=st.sampled_from([1, 2, 4]),
    by_depth=st.booleans(),
)
def test_values_prove_no_more_than_the_truth(fewest, lengths, depth, squares, align, by_depth):
    load = load_of(Histogram.from_lengths(lengths), 24, depth, squares, align)
    possible = fewest(lengths, 24, depth, squares, align)
    made, rest = few(load, align, Budget(2)), liquid(load, Budget(2), exact=True)
    assert made is not None
    assert rest is not None
    for values in (made.values, rest):
        for units in (None, (24, 64), (7, 5)):
            bound, proof = prove(load, align, values, units, by_depth, Budget(30))
            assert bound <= possible
            assert proof is None or proof.problem(24, squares, align, depth) is None


def test_knots_share_each_length():
    load = load_of(Histogram.from_lengths(np.random.default_rng(0).integers(1, 5000, 20_000)), 8192, None, 30_000_000)
    knots = Knots.of(load, 50)
    assert 20 <= knots.lengths.size <= 53
    assert knots.lengths[0] == load.lengths[0]
    assert knots.lengths[-2:].tolist() == load.lengths[-2:].tolist()
    demand = knots.demand(load.lengths, load.counts)
    assert demand.sum() == pytest.approx(load.counts.sum())
    assert demand @ knots.lengths == pytest.approx(load.counts @ load.lengths)
    assert knots.values(knots.lengths / 5000, load.lengths) == pytest.approx(load.lengths / 5000)
    even = Knots.of(load, 50, bends=False)
    assert np.diff(even.lengths).max() < np.diff(knots.lengths).max()  # no knots are spent on the ends


def test_a_budget_that_is_too_small_begins_nothing():
    load = load_of(Histogram.from_lengths(np.random.default_rng(0).integers(1, 5000, 20_000)), 8192, None, 30_000_000)
    budget = Budget(0.0001)
    assert few(load, 1, budget) is None
    assert liquid(load, budget, exact=True) is None
    assert prove(load, 1, load.lengths / 8192, None, False, budget) == (0, None)
    assert budget.left == 100_000
    assert not is_few(load_of(Histogram.from_lengths([1] * 60), 60, None, 3600))
    assert is_few(load_of(Histogram.from_lengths([20] * 60), 60, None, 3600))


def test_values_of_which_nothing_is_left_prove_nothing():
    """Two lengths of 4 fit into a pack, and each is worth a whole one; corrected, they are worth nothing."""
    load = load_of(Histogram.from_lengths([4, 4, 4]), 8, None, 1000)
    assert prove(load, 1, np.ones(1), None, False, Budget(1)) == (0, None)
    bound, proof = prove(load, 1, np.full(1, 0.5), None, False, Budget(1))
    assert bound == 2
    assert proof.bound(Histogram.from_lengths([4, 4, 4]), 8, 1000) == 2
