from __future__ import annotations

import time

import pytest
from numba.core.compiler_lock import global_compiler_lock

from nopad import Histogram
from nopad.planning import comparison, front
from nopad.planning.optimal import closing

LENGTHS = [5, 3, 4, 2, 8, 8, 1]
HISTOGRAM = Histogram.from_lengths(LENGTHS)


@pytest.fixture
def asked(monkeypatch):
    """What was planned, in order."""
    seen = []

    def plan(given, capacity, **options):
        seen.append((given, capacity, options["depth"], options["algorithm"]))
        return front.plan(given, capacity, **options)

    monkeypatch.setattr(comparison, "make_plan", plan)
    return seen


def test_nothing_is_planned_twice_and_every_algorithm_is_warm(asked):
    comparison.compare(LENGTHS, HISTOGRAM, 8, ["lpfhp", "greedy"], [2, None])
    real = [(depth, name) for given, capacity, depth, name in asked if capacity == 8]
    assert real == [(2, "lpfhp"), (None, "lpfhp"), (2, "greedy"), (None, "greedy")]
    for name in ("lpfhp", "greedy"):
        kinds = [capacity == 8 for _, capacity, _, planned in asked if planned == name]
        assert kinds == [False, False, True, True]  # tiny inputs first, with a depth limit and without one
    assert all(given.sequences < 200 for given, capacity, _, _ in asked if capacity != 8)
    assert [given for given, capacity, _, name in asked if capacity == 8] == [HISTOGRAM] * 2 + [LENGTHS] * 2


def test_the_tiny_input_reaches_the_linear_program(asked):
    for depth in comparison._TINY_DEPTHS:
        made = front.plan(Histogram.from_counts(comparison._TINY), comparison._TINY_CAPACITY, depth=depth)
        assert made.facts["linear_programs"] > 0


def test_the_tiny_input_does_not_compile_the_search_for_covers(monkeypatch):
    monkeypatch.setattr(closing, "cover", None)
    for name in ("auto", "optimal"):
        comparison._warm_up(name)


def test_seconds_are_without_compilation(monkeypatch):
    def compiles(*given, **options):
        with global_compiler_lock:
            time.sleep(0.3)
        return front.plan(*given, **options)

    monkeypatch.setattr(comparison, "make_plan", compiles)
    begun = time.perf_counter()
    (row,) = comparison.compare(HISTOGRAM, HISTOGRAM, 8, ["lpfhp"], [None])
    assert 0 < row["seconds"] < time.perf_counter() - begun - 0.3  # however slow the machine is


def test_a_bound_that_one_algorithm_proves_is_in_every_row():
    counts = Histogram.from_counts(comparison._TINY)
    rows = comparison.compare(counts, counts, comparison._TINY_CAPACITY, ["lpfhp", "optimal"], [None])
    alone = front.plan(counts, comparison._TINY_CAPACITY, algorithm="lpfhp").lower_bound
    proven = front.plan(counts, comparison._TINY_CAPACITY, algorithm="optimal").lower_bound
    assert [row["lower_bound"] for row in rows] == [max(alone, proven)] * 2


def test_notes_are_told_once_with_their_depths():
    def row(name, depth, *notes):
        return {"algorithm": name, "depth": depth, "notes": list(notes)}

    rows = [row("auto", 2), row("auto", 3, "slow", "late"), row("auto", None, "slow"), row("greedy", None, "drawn")]
    assert comparison.notes_of(rows) == ["auto, depth 3, max: slow", "auto, depth 3: late", "greedy: drawn"]
    assert comparison.notes_of(rows[:1]) == []


def test_notes_of_plans_are_in_the_rows():
    counts = Histogram.from_counts(comparison._TINY)
    rows = comparison.compare(counts, counts, comparison._TINY_CAPACITY, ["auto"], [3, None], options={"effort": 0})
    made = front.plan(counts, comparison._TINY_CAPACITY, depth=3, effort=0)
    assert made.notes
    assert rows[0]["notes"] == list(made.notes)
    assert len(comparison.notes_of(rows)) == len({note for row in rows for note in row["notes"]})
