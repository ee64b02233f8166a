from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nopad
from nopad import ALGORITHMS, Histogram, pack, plan
from nopad.errors import FormatError, LengthError, OptionError
from nopad.planning import Plan
from nopad.planning.conditions import bound_under, cut_packs, cut_strategies, within_squares

LISTING = {"ennlshp", "nnlshp"}  # they list all strategies and refuse deep ones


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=settings.default.max_examples * 2 // 5)  # each takes long
@given(
    lengths=st.lists(st.integers(1, 12), min_size=4, max_size=30),
    depth=st.integers(2, 3) | st.none(),
    align=st.sampled_from([1, 2, 3, 4]),
    squares=st.none() | st.integers(144, 300),
    multiple=st.integers(1, 4),
)
def test_every_condition_holds_with_every_algorithm(algorithm, lengths, depth, align, squares, multiple):
    if algorithm in LISTING:
        depth = min(depth or 3, 3)
    conditions = {"align": align, "max_squares": squares, "pack_multiple": multiple}
    free = plan(lengths, 12, depth=depth, algorithm=algorithm, align=align, max_squares=squares)
    if -(-free.packs // multiple) * multiple > len(lengths):  # nearly one sequence per pack
        with pytest.raises(OptionError, match="without empty ones"):
            plan(lengths, 12, depth=depth, algorithm=algorithm, **conditions)
        return
    made = plan(lengths, 12, depth=depth, algorithm=algorithm, **conditions)
    assert made.histogram == Histogram.from_lengths(lengths)
    assert made.packs % multiple == 0
    for count, held in made.strategies:
        assert count >= 1
        assert list(held) == sorted(held, reverse=True)
        assert sum(-(-n // align) * align for n in held) <= 12
        assert len(held) <= (depth or 12)
        assert squares is None or sum(n * n for n in held) <= squares
    assert made.problems() == []
    assert made.lower_bound <= made.packs
    assert Plan.from_json(made.to_json()) == made
    packs = pack(lengths, 12, depth=depth, algorithm=algorithm, **conditions)
    packs.check(lengths)
    assert len(packs) == made.packs


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=7),
    depth=st.none() | st.integers(1, 3),
    align=st.sampled_from([1, 2, 4]),
    squares=st.none() | st.integers(64, 120),
    multiple=st.integers(1, 3),
)
def test_the_bound_is_never_above_what_is_possible(fewest, lengths, depth, align, squares, multiple):
    options = {"align": align, "max_squares": squares, "pack_multiple": multiple}
    bound = bound_under(options, Histogram.from_lengths(lengths), 8, depth).packs
    possible = fewest(lengths, 8, depth, squares, align)
    assert bound <= -(-possible // multiple) * multiple


def test_conditions_stand_in_the_plan_when_asked_for():
    assert "align" not in plan([3, 3], 8).options
    assert plan([3, 3], 8, align=4, pack_multiple=2).options == {
        **plan([3, 3], 8).options,
        "align": 4,
        "pack_multiple": 2,
    }


@pytest.mark.parametrize(
    ("lengths", "conditions", "error", "message"),
    [
        ([5, 3], {"align": 3}, OptionError, "align=3 needs a capacity that is a multiple of it; 8 is not: take 6 or 9"),
        ([5, 3], {"align": 16}, OptionError, "align=16 needs a capacity that is a multiple of it; 8 is not: take 16"),
        (
            [5, 3],
            {"max_squares": 24},
            LengthError,
            "a sequence of 5 tokens has a squared length of 25, above max_squares=24; raise it, or truncate or split "
            "the sequence",
        ),
        (
            [5, 3],
            {"pack_multiple": 3},
            OptionError,
            "2 sequences cannot make a multiple of 3 packs without empty ones; take a pack_multiple of at most 2",
        ),
        (
            [5, 5, 5],
            {"pack_multiple": 2},
            OptionError,
            "3 packs of 3 sequences cannot become 4, the next multiple of 2, without empty ones; "
            "take a smaller pack_multiple or another algorithm",
        ),
        ([5, 3], {"align": 0}, OptionError, "align must be an integer from 1 to 2147483647, got 0"),
        ([5, 3], {"align": 2.0}, OptionError, "align must be an integer from 1 to 2147483647, got 2.0"),
        (
            [5, 3],
            {"max_squares": "a"},
            OptionError,
            f"max_squares must be an integer from 1 to {2**62} or None, got 'a'",
        ),
        (
            [5, 3],
            {"alig": 2},
            OptionError,
            "algorithm 'auto' has no option 'alig'; did you mean align? "
            "(it has: effort, seconds; every algorithm has: align, even, max_squares, pack_multiple)",
        ),
    ],
)
def test_refused_before_work(refuses, lengths, conditions, error, message):
    for call in (plan, pack):
        with refuses(error, message):
            call(lengths, 8, **conditions)


def test_nothing_to_pack_meets_every_condition():
    for algorithm in ALGORITHMS:
        made = plan([], 8, depth=2, algorithm=algorithm, align=4, max_squares=10, pack_multiple=3)
        assert (made.packs, made.lower_bound, made.problems()) == (0, 0, [])


def test_squares_beyond_64_bits_are_exact():
    long = 2**31 - 1
    made = plan(Histogram.from_counts({long: 2**40}), long, max_squares=long**2)
    assert (made.packs, made.lower_bound) == (2**40, 2**40)


def test_evicted_sequences_are_packed_again():
    assert within_squares([(4, (4, 2, 2))], 8, 3, 20) == [(4, (4, 2)), (1, (2, 2, 2)), (1, (2,))]
    assert within_squares([(4, (3, 2, 2))], 8, 3, 13, align=4) == [(4, (3, 2)), (2, (2, 2))]


def test_cutting():
    assert sum(count for count, _ in cut_strategies([(5, (1, 1, 1))], 4)) == 8
    packs = pack([4, 4, 4, 4], 8, algorithm="greedy", order="source")
    cut = cut_packs(packs, np.array([4, 4, 4, 4], dtype=np.int32), 31, 1)
    assert [p.tolist() for p in cut] == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"align": 8}, "strategy 1 sums to 16 tokens with align=8, above the capacity of 8"),
        ({"max_squares": 20}, "strategy 0 has squared lengths that sum to 64, above max_squares=20"),
        ({"pack_multiple": 5}, "4 packs are not a multiple of pack_multiple=5"),
    ],
)
def test_a_plan_that_does_not_meet_what_it_states(tmp_path, change, problem):
    path = tmp_path / "p.plan.json"
    plan([5, 3, 4, 2, 8, 3], 8).save(path)
    document = json.loads(path.read_text())
    document["options"] |= change
    path.write_text(json.dumps(document))
    assert problem in nopad.verify(path)


def test_a_condition_that_means_nothing_in_a_plan_file(tmp_path):
    path = tmp_path / "p.plan.json"
    plan([5, 3], 8).save(path)
    document = json.loads(path.read_text())
    document["options"]["align"] = "four"
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match="align must be an integer"):
        Plan.load(path)


def test_several_capacities_in_a_plan_file(tmp_path):
    path = tmp_path / "p.plan.json"
    plan([5, 3], 8).save(path)
    document = json.loads(path.read_text())
    document["strategies"][0]["capacity"] = 8
    path.write_text(json.dumps(document))
    assert nopad.verify(path) == []
    document["strategies"][0]["capacity"] = 16
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match=r"strategy 0 names a capacity of 16; this nopad reads plans of one capacity"):
        Plan.load(path)


def test_many_different_packs_are_cut_and_packed_again():
    rng = np.random.default_rng(0)
    histogram = Histogram.from_lengths(rng.integers(1, 30_000, 150_000))
    assert plan(histogram, 65_536, algorithm="lpfhp", pack_multiple=60_013).packs == 60_013
    dear = Histogram(np.arange(1, 20_001), np.full(20_000, 5))
    made = plan(dear, 2**17, algorithm="lpfhp", max_squares=2 * 20_000**2)
    assert made.packs == 17_476  # as first-fit, which is what was done before
