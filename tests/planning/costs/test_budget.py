from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from nopad import Histogram, plan
from nopad.planning import front
from nopad.planning.costs import load_of, within
from nopad.planning.optimal import budget
from nopad.planning.optimal.budget import Budget


@pytest.fixture(scope="module")
def lengths():
    """Few sequences share a pack, and nearly all lengths differ: every method would take long."""
    return np.clip(np.random.default_rng(0).normal(2800, 700, 30_000), 1, 4200).astype(np.int64)


@pytest.fixture
def budgets(monkeypatch):
    """The budgets of the plans made in a test, in order."""
    made = []

    def recorded(*arguments):
        made.append(Budget(*arguments))
        return made[-1]

    monkeypatch.setattr(front, "Budget", recorded)
    return made


CONDITIONS = pytest.mark.parametrize("condition", [{"max_squares": 21_000_000}, {"even": True}], ids=str)


@pytest.mark.slow
@CONDITIONS
@pytest.mark.parametrize(("algorithm", "effort"), [("auto", 0), ("auto", 1), ("optimal", 0)])
def test_an_effort_is_kept(lengths, budgets, condition, algorithm, effort):
    made = plan(lengths, 8192, algorithm=algorithm, effort=effort, **condition)
    assert budgets[0].left > -(10**9)  # the last step may take a little more than was left
    assert any("its budget" in note or "the budget allowed" in note for note in made.notes)
    assert made.problems() == []
    assert made == plan(lengths, 8192, algorithm=algorithm, effort=effort, **condition)


@CONDITIONS
def test_seconds_are_kept_and_said(lengths, budgets, monkeypatch, condition):
    looks = []

    def clock():
        """A clock on which 50 ms pass between two looks at it."""
        looks.append(len(looks) / 20)
        return looks[-1]

    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=clock))
    made = plan(lengths, 8192, algorithm="optimal", seconds=1, **condition)
    assert 1 < looks[-1] < 3  # after the first second there are some more looks, and no further step
    assert budgets[0].left > 20 * 10**9
    assert made.notes.count("stopped by the limit in seconds: another run may find another plan") == 1
    assert made.problems() == []


@pytest.mark.slow
def test_more_effort_is_used(lengths):
    least = {effort: plan(lengths, 8192, max_squares=21_000_000, effort=effort).packs for effort in (0, 3)}
    assert least[3] < least[0]


def test_a_part_of_a_budget_comes_back():
    whole = Budget(1)
    with whole.at_most(300):
        whole.charge(200)
        with whole.at_most(10**12):
            assert whole.left == 100
    assert whole.left == 10**9 - 200
    with whole.at_most(300):
        whole.charge(400)
        assert whole.spent()
    assert whole.left == 10**9 - 600


def test_a_child_is_a_fresh_budget_that_ends_with_its_parent():
    parent = Budget(1)
    parent.charge(4 * 10**8)
    child = parent.child(1)
    assert (child.left, child.most) == (10**9, 6 * 10**8)
    child.charge(5 * 10**8)
    child.begin_program()
    assert (child.left, parent.left, parent.programs) == (5 * 10**8, 10**8, 1)
    assert not child.spent()
    child.charge(10**8)
    assert child.left == 4 * 10**8
    assert child.spent()


def test_one_budget_for_every_method():
    lengths = np.random.default_rng(1).integers(2000, 4000, 3000)
    shared = Budget(1)
    histogram = Histogram.from_lengths(lengths)
    within(histogram, 8192, 2, 25_000_000, budget=shared, exact=True)
    assert shared.left < 10**9
    assert load_of(histogram, 8192, 2, 25_000_000).counts.sum() == 3000
