from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram, plan
from nopad.planning.optimal import auto, closing, depth, optimal
from nopad.planning.optimal.budget import Budget

DEPTHS = (1, 2, 3, 4, 8, 16, None)


@pytest.mark.parametrize("algorithm", ["auto", "optimal"])
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60), capacity=st.integers(30, 60))
def test_more_depth_never_costs_packs(algorithm, lengths, capacity):
    packs = [plan(lengths, capacity, depth=most, algorithm=algorithm).packs for most in DEPTHS]
    assert packs == sorted(packs, reverse=True)


def test_a_plan_of_a_smaller_depth_is_taken(monkeypatch):
    """With a search at depth 16 that finds nothing, its plan is that of the best search below."""
    histogram = Histogram.from_lengths(np.clip(np.random.default_rng(0).normal(60, 15, 3000), 5, 160).astype(np.int64))
    run = depth.Search.run
    monkeypatch.setattr(depth.Search, "run", lambda self: None if self.depth == 16 else run(self))
    below = min(plan(histogram, 160, depth=most).packs for most in (3, 4, 8))
    assert plan(histogram, 160, depth=16).packs == below < plan(histogram, 160, depth=16, algorithm="lpfhp").packs


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


def test_a_plan_that_could_not_be_closed_is_not_closed_again(monkeypatch):
    tried = []
    monkeypatch.setattr(closing, "pack_again", lambda packs, *rest: tried.append(packs))
    histogram = Histogram.from_lengths([6, 6, 6, 4, 4, 4, 3, 3, 3])
    search = depth.Search(histogram, 10, None, Budget(1), within=0)
    search.best, search.bound = search.best, search.best.packs - 1
    for _ in range(3):
        search._close()
    assert len(tried) == 1
    with search.budget.at_most(10**8):
        search._close()
    assert len(tried) == 1
    search.budget = Budget(4)  # four times as much may find what was missed
    search._close()
    assert len(tried) == 2


def test_a_proof_whose_check_takes_too_long_is_not_begun():
    histogram = Histogram(np.arange(1000, 3000), np.full(2000, 3))
    search = depth.Search(histogram, 2**16, 5, Budget(1), within=0)
    search._exact()  # 2,000 lengths x 65,536 tokens x 5 sequences, and half a second
    assert search.master is None
    assert search.budget.left == 10**9
    search.budget = Budget(2)
    search._exact()
    assert search.master is not None
