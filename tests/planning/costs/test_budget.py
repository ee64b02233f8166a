from __future__ import annotations

import time

import numpy as np
import pytest

from nopad import Histogram, plan
from nopad.planning.costs import load_of, within
from nopad.planning.optimal.budget import Budget


@pytest.fixture(scope="module")
def lengths():
    """Few sequences share a pack, and nearly all lengths differ: every method would take long."""
    return np.clip(np.random.default_rng(0).normal(2800, 700, 30_000), 1, 4200).astype(np.int64)


def planned(lengths, **options):
    plan(lengths[:50], 8192, **options)  # compile before the clock starts
    began = time.process_time()
    made = plan(lengths, 8192, **options)
    return made, time.process_time() - began


CONDITIONS = pytest.mark.parametrize("condition", [{"max_squares": 21_000_000}, {"even": True}], ids=str)


@CONDITIONS
@pytest.mark.parametrize(("algorithm", "effort", "most"), [("auto", 0, 2), ("auto", 1, 4), ("optimal", 0, 2)])
def test_an_effort_is_kept(lengths, condition, algorithm, effort, most):
    made, seconds = planned(lengths, algorithm=algorithm, effort=effort, **condition)
    assert seconds < most
    assert any("its budget" in note or "the budget allowed" in note for note in made.notes)
    assert made.problems() == []
    assert made == plan(lengths, 8192, algorithm=algorithm, effort=effort, **condition)


@CONDITIONS
def test_seconds_are_kept_and_said(lengths, condition):
    made, seconds = planned(lengths, algorithm="optimal", seconds=1, **condition)
    assert seconds < 4
    assert made.notes.count("stopped by the limit in seconds: another run may find another plan") == 1
    assert made.problems() == []


def test_more_effort_is_used(lengths):
    least = {effort: planned(lengths, max_squares=21_000_000, effort=effort)[0].packs for effort in (0, 3)}
    assert least[3] < least[0]


def test_a_part_of_a_budget_comes_back():
    budget = Budget(1)
    with budget.at_most(300):
        budget.charge(200)
        with budget.at_most(10**12):
            assert budget.left == 100
    assert budget.left == 10**9 - 200
    with budget.at_most(300):
        budget.charge(400)
        assert budget.spent()
    assert budget.left == 10**9 - 600


def test_one_budget_for_every_method():
    lengths = np.random.default_rng(1).integers(2000, 4000, 3000)
    budget = Budget(1)
    histogram = Histogram.from_lengths(lengths)
    within(histogram, 8192, 2, 25_000_000, budget=budget, exact=True)
    assert budget.left < 10**9
    assert load_of(histogram, 8192, 2, 25_000_000).counts.sum() == 3000
