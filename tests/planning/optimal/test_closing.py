from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram, plan
from nopad.planning.optimal import optimal
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.closing import close, patterns_above, residuals
from nopad.planning.optimal.listed import Listed
from nopad.planning.optimal.pricing import SCALE, Items


def items_of(lengths, capacity, depth=None):
    histogram = Histogram.from_lengths(lengths)
    return Items.of(histogram.lengths, histogram.counts, capacity, depth)


ITEMS = st.builds(
    items_of,
    st.lists(st.integers(1, 12), min_size=1, max_size=12),
    st.integers(12, 24),
    st.none() | st.integers(1, 4),
)


@given(
    st.builds(
        items_of, st.lists(st.integers(2, 9), min_size=1, max_size=8), st.integers(9, 16), st.none() | st.integers(1, 4)
    ),
    st.floats(0.3, 1.0),
    st.randoms(use_true_random=False),
)
def test_every_pattern_that_is_worth_enough_is_listed(items, share, random):
    values = np.array(sorted(int(random.random() * SCALE) for _ in items.sizes), dtype=np.int64)
    least = max(1, int(share * SCALE))
    expected = set()
    for used in range(1, min(items.depth, items.capacity) + 1):
        for pattern in combinations_with_replacement(range(items.sizes.size - 1, -1, -1), used):
            fits = items.sizes[list(pattern)].sum() <= items.capacity
            demanded = all(pattern.count(item) <= items.demand[item] for item in set(pattern))
            if fits and demanded and values[list(pattern)].sum() >= least:
                expected.add(pattern)
        if items.sizes[0] * used > items.capacity:
            break
    found = patterns_above(items, values, least, Budget(2))
    assert found is not None
    assert len(found) == len(set(found))
    assert set(found) == expected


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=10), capacity=st.integers(12, 20))
def test_the_target_is_met_where_it_can_be(lengths, capacity):
    items = items_of(lengths, capacity)
    best = plan(lengths, capacity, algorithm="optimal")
    packing = close(items, best.packs, Budget(2))
    assert packing is not None
    held = np.zeros_like(items.demand)
    for pattern, count in packing.items():
        assert items.sizes[list(pattern)].sum() <= capacity
        np.add.at(held, list(pattern), count)
    assert np.array_equal(held, items.demand)
    assert packing.total() <= best.packs
    assert close(items, best.lower_bound - 1, Budget(2)) is None


def triplets(seed, packs, capacity):
    """Lengths of which each pack takes exactly three, in a random order (Falkenauer's recipe)."""
    rng = np.random.default_rng(seed)
    first = rng.integers(capacity * 38 // 100, capacity * 49 // 100 + 1, packs)
    second = np.array([rng.integers(capacity // 4, (capacity - a) // 2 + 1) for a in first])
    return rng.permutation(np.concatenate([first, second, capacity - first - second]))


@pytest.mark.parametrize(("seed", "packs", "capacity"), [(0, 20, 1000), (1, 40, 1000), (2, 83, 1000), (3, 40, 10_000)])
def test_triplets_are_solved_to_the_last_pack(seed, packs, capacity):
    lengths = triplets(seed, packs, capacity)
    made = plan(lengths, capacity, algorithm="optimal")
    assert made.packs == made.lower_bound == packs
    assert made.problems() == []
    assert plan(lengths, capacity, algorithm="lpfhp").packs > packs


def test_a_plan_is_divided_without_loss():
    packs = Listed.of([(3, (5, 5)), (2, (4, 4)), (2**62, (7, 3)), (1, (9,))])
    for inside, outside in residuals(packs, 10):
        assert Listed.joined([inside, outside]).packs == packs.packs
        assert (inside.packs - inside.copies[inside.tokens == 10].sum()) == 3  # those with free space


def test_the_integer_program_keeps_to_the_budget():
    """With a fixed price for it, an effort of one second took fifty here."""
    rng = np.random.default_rng(0)
    first = rng.integers(2048, 4096, 125)
    second = rng.integers(2048, 8192 - first - 1638)
    lengths = np.concatenate([first, second, 8191 - first - second]).repeat(7)
    budget = Budget(1)
    made = optimal(Histogram.from_lengths(lengths), 8191, None, budget=budget)
    assert -(10**9) < budget.left < 10**9
    assert sum(count for count, _ in made.strategies) <= -(-int(lengths.sum()) // 8191) + 2
