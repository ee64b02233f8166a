from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopad import Histogram, plan
from nopad.planning.optimal import master, units
from nopad.planning.optimal.solver import SolverError

DEPTH = st.none() | st.integers(1, 4)


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples * 4)
@given(st.integers(2, 12), st.lists(st.integers(1, 12), min_size=1, max_size=10), DEPTH)
def test_optimal_is_the_optimum(fewest, capacity, lengths, depth):
    lengths = [min(length, capacity) for length in lengths]
    possible = fewest(lengths, capacity, depth)
    made = plan(lengths, capacity, depth=depth, algorithm="optimal")
    assert made.lower_bound <= possible == made.packs
    assert made.problems() == []
    quick = plan(lengths, capacity, depth=depth, algorithm="auto")
    assert quick.lower_bound <= possible <= quick.packs <= possible + 1


def test_where_column_generation_alone_misses_the_optimum():
    assert plan([9, 2, 5, 4, 3, 10, 2, 4], 10, algorithm="optimal").packs == 4


@pytest.mark.parametrize("algorithm", ["auto", "optimal"])
@settings(max_examples=settings.default.max_examples * 2 // 5)  # each takes long
@given(histogram=st.from_type(Histogram), capacity=st.integers(40, 70), depth=st.none() | st.integers(1, 8))
def test_never_worse_than_best_fit(algorithm, histogram, capacity, depth):
    made = plan(histogram, capacity, depth=depth, algorithm=algorithm)
    assert made.histogram == histogram
    assert made.packs <= plan(histogram, capacity, depth=depth, algorithm="lpfhp").packs
    assert made.problems() == []


REAL = [
    ("wikipedia", 512, 2, 10_099_081, 10_099_081),
    ("wikipedia", 512, 3, 8_143_829, 8_143_829),
    ("wikipedia", 512, 4, 8_135_727, 8_135_727),
    ("wikipedia", 512, 8, 8_135_727, 8_135_727),
    ("wikipedia", 512, 16, 8_135_727, 8_135_727),
    ("wikipedia", 512, None, 8_135_727, 8_135_727),
    ("squad", 384, 2, 45_335, 45_335),
    ("squad", 384, 3, 40_195, 40_195),
    ("squad", 384, None, 40_195, 40_195),
]


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(("name", "capacity", "depth", "packs", "bound"), REAL)
def test_published_histograms(request, name, capacity, depth, packs, bound):
    histogram = request.getfixturevalue(name)
    made = plan(histogram, capacity, depth=depth)
    assert made.histogram == histogram
    assert made.packs <= packs
    assert made.lower_bound == bound
    assert made.problems() == []
    assert made.notes == ()


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(("depth", "packs"), [(3, 8_143_829), (4, 8_135_727), (None, 8_135_727)])
def test_wikipedia_to_the_last_pack(wikipedia, depth, packs):
    made = plan(wikipedia, 512, depth=depth, algorithm="optimal")
    assert made.packs == made.lower_bound == packs
    assert made.problems() == []


def drawn(n, median, sigma, most, seed=0):
    lengths = np.random.default_rng(seed).lognormal(np.log(median), sigma, n)
    return np.clip(np.round(lengths), 1, most).astype(np.int64)


def around_a_third():
    """Lengths around a third of 160, where best-fit needs 4 % more packs than possible."""
    return np.clip(np.round(np.random.default_rng(0).normal(60, 15, 3000)), 5, 160).astype(np.int64)


@pytest.mark.slow
class TestLargeCapacities:
    @pytest.mark.parametrize(
        ("lengths", "capacity", "depth", "gap"),
        [
            (drawn(50_000, 350, 1.1, 8192), 8192, 8, 0.001),
            (drawn(50_000, 350, 1.1, 8192), 8192, 16, 0.006),
            (drawn(5_000, 2500, 0.7, 8192), 8192, 3, 0.01),
            (drawn(5_000, 2500, 0.7, 8192), 8192, None, 0.005),
            (drawn(20_000, 3000, 1.3, 131_072), 131_072, 8, 0.001),
            (np.random.default_rng(0).integers(2000, 6001, 20_000), 9216, 3, 0.005),
        ],
    )
    def test_near_the_bound(self, lengths, capacity, depth, gap):
        made = plan(lengths, capacity, depth=depth, effort=1)
        assert made.histogram == Histogram.from_lengths(lengths)
        assert made.problems() == []
        assert made.packs <= plan(lengths, capacity, depth=depth, algorithm="lpfhp").packs
        assert made.packs - made.lower_bound <= max(1, gap * made.lower_bound)
        assert plan(lengths, capacity, depth=depth, effort=1).to_json() == made.to_json()

    def test_many_sequences_are_copies_of_a_part_and_a_rest(self, monkeypatch):
        histogram = Histogram.from_lengths(drawn(20_000, 350, 1.1, 8192))
        monkeypatch.setattr(units, "_MOST_FILLED", 5_000)
        made = plan(histogram, 8192, depth=16)
        assert made.histogram == histogram
        assert made.problems() == []
        assert made.packs - made.lower_bound <= 0.02 * made.lower_bound


class TestHardInput:
    def test_a_budget_too_small_for_one_program(self):
        made = plan(around_a_third(), 160, depth=3, algorithm="optimal", effort=0)
        assert made.notes == ("the budget allowed no linear program: best-fit, and the cheap bounds",)
        assert made.problems() == []
        assert dict(made.facts) == {"linear_programs": 0}
        assert "the budget allowed no linear program" in str(made)

    @pytest.mark.slow
    def test_the_budget_is_kept(self):
        histogram = Histogram.from_lengths(drawn(20_000, 2500, 0.7, 8192))
        used = []
        for effort in (0, 1, 2):
            made = plan(histogram, 8192, depth=4, algorithm="optimal", effort=effort)
            used.append(made.facts["linear_programs"])
            assert made.problems() == []
            assert made.packs == made.lower_bound or f"after {used[-1]} linear programs" in made.notes[0] or not effort
        assert used == sorted(set(used))

    def test_a_limit_in_seconds_is_recorded(self):
        histogram = Histogram.from_lengths(around_a_third())
        made = plan(histogram, 160, depth=4, algorithm="optimal", seconds=1)
        assert made.options["seconds"] == 1
        assert made.problems() == []

    @pytest.mark.parametrize("algorithm", ["auto", "optimal"])
    @pytest.mark.parametrize(
        ("counts", "capacity", "depth", "packs"),
        [
            ({}, 8, None, 0),
            ({5: 1}, 8, None, 1),
            ({8: 7}, 8, 3, 7),
            ({3: 10}, 8, None, 5),
            ({3: 10}, 8, 1, 10),
            ({8: 3, 3: 5}, 8, 2, 6),
            ({5: 2**40, 3: 2**40}, 8, None, 2**40),
            ({5: 2**62, 3: 2**62}, 8, 2, 2**62),
        ],
    )
    def test_extremes(self, algorithm, counts, capacity, depth, packs):
        made = plan(Histogram.from_counts(counts), capacity, depth=depth, algorithm=algorithm)
        assert (made.packs, made.problems(), made.notes) == (packs, [], ())
        assert packs - (algorithm == "auto") <= made.lower_bound <= packs  # `auto` may stop within a pack of its bound

    @pytest.mark.parametrize("power", [20, 40])
    def test_large_counts_are_exact(self, power):
        histogram = Histogram.from_counts({5: 2**power, 3: 2 ** (power - 1) + 1, 7: 3, 2: 1})
        made = plan(histogram, 11, algorithm="optimal")
        assert made.histogram == histogram
        assert made.packs == made.lower_bound

    @pytest.mark.parametrize("power", [50, 62])
    def test_counts_that_no_float_holds(self, power):
        histogram = Histogram.from_counts({5: 2**power, 3: 2 ** (power - 1) + 1, 7: 3, 2: 1})
        made = plan(histogram, 11, algorithm="optimal")
        assert made.histogram == histogram
        assert made.packs - made.lower_bound <= 2
        assert made.problems() == []

    @pytest.mark.parametrize("after", [0, 1, 3])
    def test_a_solver_that_gives_up_is_told(self, monkeypatch, after):
        solve, solved = master.Master.solve, []

        def failing(self, budget):
            solved.append(1)
            if len(solved) > after:
                raise SolverError("Unknown")
            return solve(self, budget)

        monkeypatch.setattr(master.Master, "solve", failing)
        histogram = Histogram.from_lengths(around_a_third())
        made = plan(histogram, 160, depth=4)
        assert made.notes == ("the linear-program solver gave up (Unknown): the best plan until then",)
        assert made.notes[0] in str(made)
        assert made.histogram == histogram
        assert made.packs <= plan(histogram, 160, depth=4, algorithm="lpfhp").packs
        assert made.problems() == []


@pytest.mark.parametrize("depth", [None, 5])
@pytest.mark.parametrize("algorithm", ["auto", "optimal"])
def test_a_capacity_of_which_no_table_fits_into_memory(algorithm, depth):
    lengths = np.random.default_rng(0).integers(1, 2**26, 20)
    made = plan(Histogram.from_counts({int(n): 100 for n in lengths}), 2**27, depth=depth, algorithm=algorithm)
    assert made.notes == ("best-fit, and the cheap bounds: the capacity is above 16,777,216",)
    assert made.problems() == []
