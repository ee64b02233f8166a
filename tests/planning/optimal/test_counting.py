from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.optimal.test_cover import held_by, least_loss, tasks

import nopad
from nopad.planning.optimal import auto
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.counting import times_of


@given(tasks())
def test_it_finds_a_packing_or_there_is_none(task):
    patterns, losses, demand, most = task
    packing, decided = times_of(patterns, losses, demand, most, Budget(10))
    assert decided
    least = least_loss(patterns, losses, demand)
    assert (packing is not None) == (least is not None and least <= most)
    if packing is not None:
        assert (held_by(packing, demand.size) == demand).all()
        loss = dict(zip(patterns, losses.tolist(), strict=True))
        assert sum(loss[pattern] * count for pattern, count in packing.items()) <= most
        assert min(packing.values()) > 0


@given(tasks(), st.sampled_from([1, 1000, 10**5]))
def test_nothing_is_said_without_a_budget(task, most):
    patterns, losses, demand, loss = task
    budget = Budget(1)
    budget.left = most
    packing, decided = times_of(patterns, losses, demand, loss, budget)
    if not decided:
        assert packing is None
    assert budget.left >= 0


def test_a_large_program_is_left_to_the_other_search():
    patterns = [(i,) for i in range(80)]
    assert times_of(patterns, np.zeros(80, dtype=np.int64), np.ones(80, dtype=np.int64), 0, Budget(10)) == (None, False)


def test_few_lengths_do_not_take_the_whole_budget():
    """The bound of none of these is reached; a search that proves nothing would take what the budget allows."""
    for counts, capacity in (
        ({30: 54, 5: 20, 1: 45, 28: 38, 19: 42}, 64),
        ({22: 54, 14: 9, 37: 9, 27: 19, 11: 28, 24: 10, 4: 55}, 44),
        ({24: 36, 18: 54, 32: 17, 19: 22, 12: 38}, 67),
    ):
        budget = Budget(3)
        auto(nopad.Histogram.from_counts(counts), capacity, 5, budget=budget)
        assert budget.left > 2.8e9
