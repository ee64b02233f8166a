from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad import Histogram, plan
from nopad.planning.optimal import auto, depth, optimal
from nopad.planning.optimal.budget import Budget

DEPTHS = (1, 2, 3, 4, 8, 16, None)


@pytest.mark.parametrize("algorithm", ["auto", "optimal"])
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60), capacity=st.integers(30, 60))
def test_more_depth_never_costs_packs(algorithm, lengths, capacity):
    packs = [plan(lengths, capacity, depth=most, algorithm=algorithm).packs for most in DEPTHS]
    assert packs == sorted(packs, reverse=True)


def test_a_plan_of_a_smaller_depth_is_taken(monkeypatch):
    """The search at depth 16 alone ends one pack above its bound here, where that at depth 8 meets it."""
    share = np.clip(((np.arange(513) + 0.5) / 512 - 0.1) / 0.3, 0, 1)
    counts = np.random.default_rng([512, 2, 2]).multinomial(10**6, np.diff(share))
    histogram = Histogram(np.flatnonzero(counts) + 1, counts[counts > 0])
    packs = {most: plan(histogram, 512, depth=most).packs for most in (8, 16)}
    assert packs[16] == packs[8]
    for module in (depth, nopad.planning.optimal):
        monkeypatch.setattr(module, "shallower", lambda *_, **__: [])
    assert plan(histogram, 512, depth=16).packs > packs[8]


def test_the_depths_below_are_those_that_could_help():
    histogram = Histogram.from_lengths([2] * 30)
    assert depth.shallower(histogram, 12, None, packs=100) == [2, 3, 4]
    assert depth.shallower(histogram, 12, 4, packs=100) == [2, 3]
    assert depth.shallower(histogram, 12, None, packs=8) == []  # depth 4 needs eight packs


@pytest.mark.parametrize("run", [auto, optimal])
def test_other_depths_keep_to_the_budget(run):
    lengths = np.clip(np.round(np.random.default_rng(0).normal(60, 15, 3000)), 5, 160).astype(np.int64)
    budget = Budget(0.2)
    made = run(Histogram.from_lengths(lengths), 160, 4, effort=0.2, budget=budget)
    assert budget.left > -(2 * 10**8)
    assert sum(count for count, _ in made.strategies) >= -(-int(lengths.sum()) // 160)
