from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import ALGORITHMS, Histogram, plan
from nopad.planning import Bound, lower_bound

TINY = st.integers(1, 12).flatmap(
    lambda capacity: st.tuples(st.lists(st.integers(1, capacity), max_size=8), st.just(capacity))
)


def optimum(lengths, capacity, depth):
    """Fewest packs, by trying every set of companions for the first sequence."""

    @cache
    def fewest(left):
        if not left:
            return 0
        others = range(1, len(left))
        best = len(left)
        for size in range(min(len(left), depth or len(left))):
            for chosen in combinations(others, size):
                if left[0] + sum(left[i] for i in chosen) <= capacity:
                    best = min(best, 1 + fewest(tuple(left[i] for i in others if i not in chosen)))
        return best

    return fewest(tuple(sorted(lengths, reverse=True)))


@given(TINY, st.none() | st.integers(1, 9))
def test_never_above_the_optimum_nor_any_plan_below_it(tiny, depth):
    lengths, capacity = tiny
    best = optimum(lengths, capacity, depth)
    assert lower_bound(Histogram.from_lengths(lengths), capacity, depth).packs <= best
    for algorithm in ALGORITHMS:
        made = plan(lengths, capacity, depth=depth, algorithm=algorithm)
        assert made.lower_bound <= best <= made.packs


@given(TINY)
def test_is_the_optimum_at_depth_two(tiny):
    lengths, capacity = tiny
    assert lower_bound(Histogram.from_lengths(lengths), capacity, 2).packs == optimum(lengths, capacity, 2)


@given(st.from_type(Histogram), st.integers(40, 90), st.integers(1, 9))
def test_a_depth_never_lowers_the_bound(histogram, capacity, depth):
    unlimited = lower_bound(histogram, capacity, None).packs
    assert lower_bound(histogram, capacity, depth + 1).packs <= lower_bound(histogram, capacity, depth).packs
    assert unlimited <= lower_bound(histogram, capacity, depth).packs <= histogram.sequences
    assert lower_bound(histogram, capacity, 1).packs == histogram.sequences


@pytest.mark.parametrize(
    ("counts", "depth", "bound"),
    [
        ({}, None, Bound(0, "tokens")),
        ({}, 2, Bound(0, "tokens")),
        ({8: 5}, None, Bound(5, "tokens")),
        ({2: 9}, None, Bound(3, "tokens")),  # 18 tokens
        ({5: 3}, None, Bound(3, "big lengths")),  # two halves never meet
        ({5: 3, 4: 3}, None, Bound(5, "big lengths")),  # no 4 fits beside a 5; two 4s share
        ({6: 4, 3: 3}, None, Bound(6, "big lengths")),
        ({1: 9}, 3, Bound(3, "depth")),
        ({8: 2, 1: 9}, 3, Bound(5, "depth")),  # nothing fits beside an 8
        ({4: 1, 3: 4, 1: 1}, 2, Bound(3, "tokens")),
        ({7: 1, 3: 2, 2: 2}, 2, Bound(3, "tokens")),
        ({7: 2, 6: 1, 2: 1, 1: 1}, 2, Bound(3, "tokens")),
        ({6: 1, 3: 3, 2: 1}, 2, Bound(3, "tokens")),
        ({5: 1, 2: 1, 4: 2, 6: 1}, 2, Bound(3, "tokens")),
        ({5: 2**40, 3: 2**40}, None, Bound(2**40, "tokens")),
        ({5: 2**62, 4: 2**62, 1: 2**62}, None, Bound(2**62 + 2**61, "big lengths")),
    ],
)
def test_examples_at_capacity_eight(counts, depth, bound):
    assert lower_bound(Histogram.from_counts(counts), 8, depth) == bound


@pytest.mark.parametrize(("depth", "packs", "proof"), [(1, 16_279_552, "depth"), (2, 10_099_081, "pairs")])
@pytest.mark.shared
def test_wikipedia_with_a_depth(wikipedia, depth, packs, proof):
    assert lower_bound(wikipedia, 512, depth) == Bound(packs, proof)


@pytest.mark.shared
def test_wikipedia_without_a_depth(wikipedia):
    assert lower_bound(wikipedia, 512, None) == Bound(8_135_727, "big lengths")


@pytest.mark.shared
def test_squad(squad):
    assert lower_bound(squad, 384, 2) == Bound(45_335, "pairs")
    assert lower_bound(squad, 384, None) == Bound(39_775, "big lengths")
