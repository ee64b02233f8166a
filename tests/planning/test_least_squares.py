"""What holds for NNLSHP and ENNLSHP alike."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram, pack, plan
from nopad.errors import OptionError
from nopad.planning import least_squares
from nopad.planning.bounds import lower_bound
from nopad.planning.ennlshp import ENNLSHP_OPTIONS
from nopad.planning.nnlshp import NNLSHP_OPTIONS

BOTH = pytest.mark.parametrize("algorithm", ["nnlshp", "ennlshp"])


@st.composite
def problems(draw, **fixed):
    capacity = draw(st.integers(1, 20))
    counts = draw(st.dictionaries(st.integers(1, capacity), st.integers(1, 50) | st.just(10**6), max_size=capacity))
    options = {
        "rounding": draw(st.sampled_from(["nearest", "ceil", "floor"])),
        "remainder": draw(st.sampled_from(["pad", "best_fit"])),
        "granularity": draw(st.integers(1, 4) | st.just(30)),
    } | fixed
    return Histogram.from_counts(counts), capacity, draw(st.none() | st.integers(1, 5)), options


@BOTH
@given(problem=problems(), weighting=st.sampled_from(["fixed", "capacity"]))
def test_every_option_keeps_the_cover_exact(algorithm, problem, weighting):
    histogram, capacity, depth, options = problem
    if algorithm == "nnlshp":
        options = options | {"weighting": weighting}
    made = plan(histogram, capacity, depth=depth, algorithm=algorithm, **options)
    assert made.histogram == histogram
    assert made.problems() == []
    assert made.bound == lower_bound(histogram, capacity, depth)
    assert made.to_json() == plan(histogram, capacity, depth=depth, algorithm=algorithm, **options).to_json()
    assert made.options == options
    assert made.packs == made.facts["packs_after_repair"] <= histogram.sequences
    if options["remainder"] == "pad":
        assert made.packs <= made.facts["packs_before_repair"]
    if options["granularity"] == 1 and capacity > 1 and depth != 1 and histogram.sequences:
        before = made.facts["packs_before_repair"] * capacity
        phantoms = made.facts["over_cover"]
        assert phantoms <= before - histogram.tokens <= phantoms * capacity


@given(problem=problems(rounding="ceil"))
def test_ennlshp_leaves_no_sequence_without_a_slot(problem):
    """The identity block of equation 24 has a minus; with listing 9's block of ones this fails at once."""
    histogram, capacity, depth, options = problem
    made = plan(histogram, capacity, depth=depth, algorithm="ennlshp", **options)
    if depth != 1 and capacity >= 2 * options["granularity"]:
        assert made.facts["sequences_without_slot"] == 0


@BOTH
@pytest.mark.parametrize("remainder", ["pad", "best_fit"])
def test_a_histogram_of_full_packs_comes_back_as_such(algorithm, remainder):
    histogram = Histogram.from_lengths([11, 5] * 700 + [9, 7] * 31 + [8, 8] * 40 + [16] * 3)
    made = plan(histogram, 16, depth=2, algorithm=algorithm, remainder=remainder)
    assert made.strategies == [(3, (16,)), (700, (11, 5)), (31, (9, 7)), (40, (8, 8))]
    facts = {key: made.facts[key] for key in ("strategies_listed", "sequences_without_slot", "over_cover")}
    assert facts == {"strategies_listed": 9, "sequences_without_slot": 0, "over_cover": 0}
    assert made.facts["packs_before_repair"] == made.packs == made.lower_bound


@BOTH
@pytest.mark.parametrize("depth", [1, 2, None])
def test_leftovers_of_full_length_and_depth_one(algorithm, depth):
    made = plan([8, 8, 8, 5], 8, depth=depth, algorithm=algorithm, rounding="floor")
    assert made.strategies == [(3, (8,)), (1, (5,))]


@BOTH
def test_packs_can_be_dealt_from_it(algorithm):
    lengths = [7, 3, 3, 5, 2, 6, 4, 4, 8, 1] * 5
    packs = pack(lengths, 8, depth=3, algorithm=algorithm, remainder="best_fit")
    packs.check(lengths)


@BOTH
@pytest.mark.parametrize("remainder", ["pad", "best_fit"])
@pytest.mark.parametrize("error", [RuntimeError, np.linalg.LinAlgError])
def test_a_solver_that_gives_up(monkeypatch, algorithm, remainder, error):
    def nnls(matrix, target, maxiter):
        raise error("Maximum number of iterations reached.")

    monkeypatch.setattr(least_squares, "nnls", nnls)
    made = plan([5, 3, 3, 2], 8, depth=3, algorithm=algorithm, remainder=remainder)
    assert made.notes == (
        f"{algorithm}: the solver gave up (Maximum number of iterations reached); every sequence is packed as "
        "remainder",
    )
    assert made.histogram == Histogram.from_lengths([5, 3, 3, 2])
    assert made.packs == {"pad": 3, "best_fit": 2}[remainder]


@BOTH
@pytest.mark.parametrize(
    ("rounding", "mixture", "expected"),
    [
        ("nearest", 2.5, 3),
        ("nearest", 2.5 - 1e-9, 3),
        ("nearest", 2.4999, 2),
        ("ceil", 2.0, 2),
        ("ceil", 2.0 + 1e-9, 2),
        ("ceil", 2.001, 3),
        ("floor", 2.0, 2),
        ("floor", 2.0 - 1e-9, 2),
        ("floor", 1.999, 1),
    ],
)
def test_the_last_digits_do_not_decide(monkeypatch, algorithm, rounding, mixture, expected):
    def nnls(matrix, target, maxiter):
        return np.where(np.arange(matrix.shape[1]) == 3, mixture, 0.0), 0.0

    monkeypatch.setattr(least_squares, "nnls", nnls)
    made = plan([8] * 3, 8, depth=2, algorithm=algorithm, rounding=rounding)
    assert made.facts["strategies_used"] == 1
    assert made.facts["packs_before_repair"] == expected + 3  # all of (4, 4): nobody has a slot


def test_only_nnlshp_has_a_weighting(refuses):
    assert NNLSHP_OPTIONS.keys() - ENNLSHP_OPTIONS.keys() == {"weighting"}
    with refuses(
        OptionError,
        "algorithm 'ennlshp' has no option 'weighting' (it has: granularity, remainder, rounding; "
        "every algorithm has: align, even, max_squares, pack_multiple)",
    ):
        plan([1], 8, algorithm="ennlshp", weighting="fixed")


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("rounding", "up", "one of 'nearest', 'ceil', 'floor'"),
        ("remainder", None, "one of 'pad', 'best_fit'"),
        ("granularity", 0, "an integer from 1 to 2147483647"),
        ("weighting", 0.09, "one of 'fixed', 'capacity'"),
    ],
)
def test_options_are_checked(refuses, option, value, allowed):
    with refuses(OptionError, f"{option} must be {allowed}, got {value!r}"):
        plan([1], 8, algorithm="nnlshp", **{option: value})


@BOTH
def test_counts_that_only_python_can_hold(algorithm):
    counts = {3: 2**62 - 1, 5: 2**62, 8: 2**62}
    made = plan(Histogram.from_counts(counts), 8, depth=2, algorithm=algorithm)
    assert Counter(made.histogram.to_dict()) == counts
    assert made.packs >= 2 * 2**62
