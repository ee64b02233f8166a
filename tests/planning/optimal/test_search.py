from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.master import Master
from nopad.planning.optimal.pricing import SCALE, Items
from nopad.planning.optimal.rounding import as_values, best_fit, fill_demand
from nopad.planning.optimal.search import relax, solve
from nopad.planning.optimal.spread import spread
from nopad.planning.optimal.units import Units, divide, fill


def items_of(lengths, capacity, depth=None):
    histogram = Histogram.from_lengths(lengths)
    return Items.of(histogram.lengths, histogram.counts, capacity, depth)


def check(packing, items):
    """Every item as often as demanded, every pattern within the pack."""
    held = np.zeros_like(items.demand)
    for pattern, count in packing.items():
        assert count >= 1
        assert items.sizes[list(pattern)].sum() <= items.capacity
        assert len(pattern) <= items.depth
        for item in pattern:
            held[item] += count
    assert np.array_equal(held, items.demand)


ITEMS = st.builds(
    items_of,
    st.lists(st.integers(1, 20), min_size=1, max_size=60),
    st.integers(20, 40),
    st.none() | st.integers(1, 5),
)


@given(ITEMS)
def test_everything_is_packed_and_no_bound_is_above_it(items):
    solved = solve(items, Budget(1))
    assert solved is not None
    check(solved.packing, items)
    check(best_fit(items, items.demand), items)
    assert solved.bound <= solved.packing.total() <= best_fit(items, items.demand).total()


def test_a_program_ends_as_soon_as_its_bound_is_hopeless():
    items = items_of(np.clip(np.random.default_rng(0).normal(60, 15, 3000), 5, 160).astype(int).tolist(), 160)
    programs = [Master(items), Master(items)]
    for master in programs:
        master.add(best_fit(items, items.demand))
    whole = relax(programs[0], Budget(5))
    assert whole is not None
    least = -(-int(items.sizes @ items.demand) // 160) - 20
    soon = relax(programs[1], Budget(5), hopeless=least)
    assert soon is not None
    assert least <= soon.bound <= whole.bound
    assert not soon.converged
    assert len(programs[1].patterns) < len(programs[0].patterns)


def test_no_pricing_begins_that_the_budget_does_not_allow():
    items = items_of(np.arange(20, 400).tolist(), 1000, 3)
    master = Master(items)
    master.add(best_fit(items, items.demand))
    assert relax(master, Budget(master.pricing / 10**9 / 2)) is None
    worthless = np.zeros(380, dtype=np.int64)  # so pricing finds nothing without the depth, and would observe it next
    assert master.improve(worthless, 10, Budget(master.pricing * 1.5 / 10**9)) == (0, -1)
    assert master.improve(worthless, 10, Budget(1)) == (0, 0)
    assert master.pricing == items.steps()


@given(ITEMS)
def test_the_bound_meets_the_program(items):
    master = Master(items)
    master.add(best_fit(items, items.demand))
    relaxed = relax(master, Budget(1))
    solved = master.solve(Budget(1))
    assert relaxed is not None
    assert solved is not None
    assert relaxed.converged
    assert relaxed.bound == math.ceil(solved.packs - 1e-6)
    assert solved.times.sum() == pytest.approx(solved.packs)
    assert np.all(np.diff(as_values(solved.duals)) >= 0)


def test_exchange_columns_keep_duals_rising():
    master = Master(items_of([3, 3, 4, 4, 4, 5], 9))
    master.add([(2, 1), (1, 1), (0, 0, 0)])
    solved = master.solve(Budget(1))
    assert solved is not None
    assert np.all(np.diff(solved.duals) >= -1e-9)


def test_patterns_are_known_once():
    master = Master(items_of([3, 4], 9))
    assert master.add([(1, 0), (1, 1), (1, 0)]) == 2
    assert master.add([(1, 1), (0, 0, 0)]) == 1


def test_without_a_budget_there_is_nothing():
    items = items_of([3, 4, 5], 9)
    assert solve(items, Budget(0)) is None
    assert solve(items, Budget(5, seconds=-1)) is None


def test_a_program_ends_where_the_budget_does():
    items = items_of(np.random.default_rng(0).integers(200, 700, 3000), 1024)
    master = Master(items)
    master.add(best_fit(items, items.demand))
    budget = Budget(0.001)
    assert relax(master, budget) is None or budget.spent()
    assert budget.left > -items.sizes.size * 50 * 300  # no more than the iterations that are always allowed


def test_a_budget():
    budget = Budget(2)
    assert (budget.left, budget.spent()) == (2 * 10**9, False)
    with budget.part(0.25):
        assert budget.left == 500_000_000
        budget.charge(600_000_000)
        assert budget.spent()
    assert (budget.left, budget.spent()) == (1_400_000_000, False)
    late = Budget(9, seconds=-1)
    assert (late.spent(), late.out_of_time) == (True, True)


def test_duals_become_values_that_rise():
    assert as_values(np.array([0.5, 0.25, -1e-12, 1 + 1e-12])).tolist() == [SCALE // 2] * 3 + [SCALE]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.none() | st.integers(1, 5), st.integers(1, 40))
def test_spreading_covers(lengths, depth, packs):
    histogram = Histogram.from_lengths(lengths)
    strategies = spread(histogram, 30, depth, packs).strategies()
    held = Histogram.from_lengths([n for count, strategy in strategies for n in strategy * count])
    assert held == histogram
    assert all(sum(s) <= 30 and len(s) <= (depth or 30) and list(s) == sorted(s, reverse=True) for _, s in strategies)


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=300), st.integers(4000, 9000), st.none() | st.integers(1, 6))
def test_slots_filled_with_real_lengths_cover(lengths, capacity, depth):
    histogram = Histogram.from_lengths(lengths)
    units = Units.of(histogram, capacity, depth)
    assert units.items.demand.sum() == len(lengths)
    solved = solve(units.items, Budget(1))
    assert solved is not None
    strategies = fill(solved.packing, units, histogram, capacity, depth).strategies()
    assert Histogram.from_lengths([n for count, strategy in strategies for n in strategy * count]) == histogram
    assert all(sum(s) <= capacity and len(s) <= (depth or len(s)) for _, s in strategies)


def test_a_part_and_a_rest_are_the_whole():
    histogram = Histogram.from_counts({3: 2**40 + 5, 7: 2**22, 9: 1})
    copies, part, rest = divide(histogram)
    assert part.sequences <= 2**19
    assert Histogram(part.lengths, part.counts * copies) + rest == histogram
    assert divide(Histogram.from_counts({3: 5})) == (1, Histogram.from_counts({3: 5}), Histogram.from_counts({}))


def test_a_time_just_below_nothing_takes_no_packs_away(monkeypatch):
    master = Master(items_of([3, 3, 3, 5], 8))
    master.add([(1, 0), (0, 0)])

    class Solution:
        col_value = (0.0, -1e-9, 2.0)  # an exchange, then the patterns
        row_dual = (0.5, 0.5)

    monkeypatch.setattr(master, "_scale", 1e-9)
    monkeypatch.setattr("highspy.Highs.getSolution", lambda _: Solution)
    solved = master.solve(Budget(1))
    assert solved is not None
    assert (solved.times >= 0).all()
    assert not fill_demand([(0,)], np.array([-1]), np.array([3]))
