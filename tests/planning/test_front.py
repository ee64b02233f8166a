from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopad import ALGORITHMS, Histogram, plan
from nopad.errors import LengthError, OptionError
from nopad.histogram import MAX_LENGTH
from nopad.planning import lower_bound
from nopad.planning.algorithm import Algorithm
from nopad.planning.greedy import greedy
from nopad.planning.registry import ARRIVAL_ALGORITHMS, HISTOGRAM_ALGORITHMS
from nopad.planning.summary import summarise

DEPTH = st.none() | st.integers(1, 6) | st.just(1000)  # a depth far above the capacity means nothing
ALL_ALGORITHMS = pytest.mark.parametrize("algorithm", ALGORITHMS)
SOLVERS = {"auto", "ennlshp", "nnlshp", "optimal"}  # these solve for all packs at once; no sequence comes first
LISTING = {"ennlshp", "nnlshp"}  # these list all strategies, and refuse where that takes too much memory


def not_too_deep(algorithm, depth):
    """At capacities up to 70 all strategies of depth 3 are few; without a limit they would be millions."""
    return min(depth or 3, 3) if algorithm in LISTING else depth


def test_the_algorithms_are_listed_sorted():
    names = "auto best_fit bfd ennlshp ffd first_fit greedy harmonic lpfhp mffd nnlshp none optimal sort spfhp"
    assert " ".join(ALGORITHMS) == names


@pytest.mark.slow
@ALL_ALGORITHMS
@settings(max_examples=settings.default.max_examples * 2 // 5)  # each takes long
@given(histogram=st.from_type(Histogram), capacity=st.integers(40, 70), depth=DEPTH, seed=st.integers(0, 3))
def test_what_every_plan_keeps(algorithm, histogram, capacity, depth, seed):
    depth = not_too_deep(algorithm, depth)
    made = plan(histogram, capacity, depth=depth, algorithm=algorithm, seed=seed)
    assert made.histogram == histogram  # every sequence, and no phantom
    assert (made.capacity, made.depth, made.algorithm) == (capacity, depth, algorithm)
    assert all(count >= 1 and sum(lengths) <= capacity for count, lengths in made.strategies)
    assert all(lengths == tuple(sorted(lengths, reverse=True)) for _, lengths in made.strategies)
    assert len({lengths for _, lengths in made.strategies}) == len(made.strategies)
    assert made.max_depth_used <= (depth or capacity)
    assert lower_bound(histogram, capacity, depth, made.bound.certificate) == made.bound
    assert made.lower_bound <= made.packs <= histogram.sequences
    assert made.problems() == []
    assert made.to_json() == plan(histogram, capacity, depth=depth, algorithm=algorithm, seed=seed).to_json()


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in SOLVERS])
@given(
    lengths=st.lists(st.integers(1, 6) | st.integers(1, 16), max_size=40),
    capacity=st.integers(16, 30),
    depth=st.none() | st.integers(1, 6),
)
def test_equals_placing_one_by_one(one_by_one, algorithm, lengths, capacity, depth):
    made = plan(lengths, capacity, depth=depth, algorithm=algorithm)
    assert {strategy: count for count, strategy in made.strategies} == one_by_one(algorithm, lengths, capacity, depth)


@given(st.lists(st.integers(1, 20), max_size=40), st.sampled_from(list(HISTOGRAM_ALGORITHMS)), st.randoms())
def test_histogram_algorithms_do_not_see_the_order(lengths, algorithm, random):
    shuffled = random.sample(lengths, len(lengths))
    made = plan(lengths, 20, algorithm=algorithm)
    assert made == plan(shuffled, 20, algorithm=algorithm)
    assert made == plan(Histogram.from_lengths(lengths), 20, algorithm=algorithm)


@ALL_ALGORITHMS
@pytest.mark.parametrize("empty", [[], np.empty(0, np.uint8), Histogram.from_counts({})])
@pytest.mark.parametrize("depth", [None, 1, 2, 3])
def test_nothing_to_pack(algorithm, empty, depth):
    made = plan(empty, 8, depth=depth, algorithm=algorithm)
    assert (made.packs, made.sequences, made.tokens, made.lower_bound, made.strategies) == (0, 0, 0, 0, [])
    assert (made.efficiency, made.packing_factor, made.limit, made.max_depth_used) == (1.0, 1.0, 1.0, 0)
    assert made.problems() == []


@ALL_ALGORITHMS
@pytest.mark.parametrize(
    ("lengths", "strategies"),
    [([3], [(1, (3,))]), ([8], [(1, (8,))]), ([8] * 5, [(5, (8,))]), ([5] * 5, [(5, (5,))])],
)
@pytest.mark.parametrize("depth", [None, 1, 2, 100])
def test_one_way_only(algorithm, lengths, strategies, depth):
    made = plan(lengths, 8, depth=depth, algorithm=algorithm)
    assert made.strategies == strategies
    assert made.lower_bound == made.packs


@ALL_ALGORITHMS
def test_the_smallest_and_the_largest_capacity(algorithm):
    assert plan([1, 1], 1, algorithm=algorithm).strategies == [(2, (1,))]
    depth = 1 if algorithm in LISTING else None
    assert plan([MAX_LENGTH, 1, MAX_LENGTH - 1], MAX_LENGTH, depth=depth, algorithm=algorithm).packs >= 2


@pytest.mark.parametrize("algorithm", HISTOGRAM_ALGORITHMS)
def test_counts_beyond_memory(algorithm):
    counts = {7: 2**40, 5: 2**40 + 1, 3: 2**41, 1: 2**39}
    made = plan(Histogram.from_counts(counts), 8, algorithm=algorithm)
    assert made.histogram.to_dict() == counts
    assert made.packs >= made.lower_bound > 2**40


@ALL_ALGORITHMS
def test_numpy_integers_are_integers(algorithm):
    options = {"depth": np.int32(2), "seed": np.uint64(2**64 - 1), "algorithm": algorithm}
    made = plan([5, 3, 4], np.int64(8), **options)
    assert made == plan([5, 3, 4], 8, depth=2, seed=2**64 - 1, algorithm=algorithm)
    assert (type(made.capacity), type(made.depth)) == (int, int)


def test_the_default_is_auto_without_a_depth():
    made = plan([5, 3, 4, 2, 8], 8)
    assert (made.algorithm, made.depth, made.notes) == ("auto", None, ())
    assert dict(made.options) == {"effort": 3, "seconds": None}
    assert dict(made.facts) == {"linear_programs": 0}


class TestArrivalOrder:
    @given(st.lists(st.integers(1, 12), max_size=40), st.integers(12, 30), DEPTH)
    def test_the_summary_counts_the_packs(self, lengths, capacity, depth):
        array = np.array(lengths, dtype=np.int32)
        packs = greedy(array, capacity, depth)
        made = summarise(packs, array, algorithm="greedy", notes=("a note",))
        strategies = Counter(tuple(sorted(array[pack].tolist(), reverse=True)) for pack in packs)
        assert {strategy: count for count, strategy in made.strategies} == strategies
        first_three = [(*strategy, 0, 0)[:3] for _, strategy in made.strategies]
        assert first_three == sorted(first_three, reverse=True)
        assert (made.packs, made.notes) == (len(packs), ("a note",))
        assert made.strategies == plan(lengths, capacity, depth=depth, algorithm="greedy").strategies

    def test_lengths_keep_their_order_and_a_histogram_is_drawn(self):
        lengths = [5, 3] * 50
        assert plan(lengths, 8, algorithm="greedy").strategies == [(50, (5, 3))]
        assert plan(lengths, 8, algorithm="greedy").notes == ()
        drawn = plan(Histogram.from_lengths(lengths), 8, algorithm="greedy", seed=3)
        assert drawn.packs > 50
        assert drawn.notes == ("arrival order drawn from the histogram with seed 3",)

    def test_the_drawn_order_depends_on_the_seed_only(self):
        histogram = Histogram.from_counts(dict.fromkeys(range(1, 21), 20))
        made = {plan(histogram, 30, algorithm="greedy", seed=seed).packs for seed in range(12)}
        assert len(made) > 3
        assert plan(histogram, 30, algorithm="greedy").packs == 182  # for ever

    def test_too_many_to_draw(self, refuses):
        with refuses(
            OptionError,
            "greedy places sequences one by one; 2,147,483,648 in a histogram are too many to draw "
            "(limit 268,435,456): take a histogram algorithm (" + ", ".join(HISTOGRAM_ALGORITHMS) + ")",
        ):
            plan(Histogram.from_counts({1: 2**31}), 8, algorithm="greedy")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", None, 2**31, float("nan")])
def test_bad_capacity(refuses, value):
    with refuses(OptionError, f"capacity must be an integer from 1 to 2147483647, got {value!r}"):
        plan([1], value)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "max", 2**31])
def test_bad_depth(refuses, value):
    message = f"depth must be an integer from 1 to 2147483647 (None for unlimited), got {value!r}"
    with refuses(OptionError, message):
        plan([1], 8, depth=value)


@pytest.mark.parametrize("value", [-1, 2**64, 0.0, False, "0", None])
def test_bad_seed(refuses, value):
    with refuses(OptionError, f"seed must be an integer from 0 to 18446744073709551615, got {value!r}"):
        plan([1], 8, seed=value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lpfph", "; did you mean lpfhp or spfhp?"),
        ("LPFHP", "; did you mean lpfhp or spfhp?"),
        ("ffdd", "; did you mean ffd or mffd?"),
        ("gredy", "; did you mean greedy?"),
        ("", ""),
        (None, "; did you mean none?"),
        (7, ""),
    ],
)
def test_unknown_algorithm(refuses, name, meant):
    with refuses(OptionError, f"unknown algorithm {name!r}{meant} (there are: {', '.join(ALGORITHMS)})"):
        plan([1], 8, algorithm=name)


@ALL_ALGORITHMS
def test_lengths_above_the_capacity(refuses, algorithm):
    way_out = "cut or remove {}, or take a capacity of at least"
    with refuses(
        LengthError, f"length 9 at index 1 is above the capacity of 8 (and 1 more); {way_out.format('it')} 12"
    ):
        plan([8, 9, 12], 8, algorithm=algorithm)
    with refuses(
        LengthError,
        f"3 sequences are above the capacity of 8 (the longest has 12 tokens); {way_out.format('them')} 12",
    ):
        plan(Histogram.from_counts({8: 7, 9: 1, 12: 2}), 8, algorithm=algorithm)


def test_counting_what_is_above_the_capacity_is_exact(refuses):
    most = 2**63 - 1
    with refuses(
        LengthError,
        f"{2 * most:,} sequences are above the capacity of 8 (the longest has 10 tokens); "
        "cut or remove them, or take a capacity of at least 10",
    ):
        plan(Histogram.from_counts({9: most, 10: most}), 8)


@pytest.mark.parametrize("lengths", [[0], [-1], [1.5], [float("nan")], [True], ["3"], [[1, 2]]])
def test_options_and_lengths_are_checked_before_any_work(monkeypatch, lengths):
    monkeypatch.setitem(HISTOGRAM_ALGORITHMS, "lpfhp", Algorithm(run=None, help="calling it would be a TypeError"))
    with pytest.raises(LengthError):
        plan(lengths, 8)
    with pytest.raises(OptionError):
        plan(lengths, 0)


CHOSEN = [
    (algorithm, {name: value})
    for algorithm, known in {**HISTOGRAM_ALGORITHMS, **ARRIVAL_ALGORITHMS}.items()
    for name, option in known.options.items()
    for value in option.choices
    or {"granularity": (2, 3), "effort": (0, 1, 2), "seconds": (None, 1)}.get(name, (1, 2, 5))
]


@pytest.mark.parametrize(("algorithm", "options"), [*((name, {}) for name in ALGORITHMS), *CHOSEN], ids=str)
@settings(max_examples=settings.default.max_examples * 3 // 10)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=10),
    capacity=st.integers(4, 12),
    depth=st.integers(1, 4) | st.none(),
)
def test_no_option_beats_the_optimum_or_proves_too_much(fewest, algorithm, options, lengths, capacity, depth):
    lengths = [min(length, capacity) for length in lengths]
    possible = fewest(lengths, capacity, depth)
    made = plan(lengths, capacity, depth=depth, algorithm=algorithm, **options)
    assert made.histogram == Histogram.from_lengths(lengths)
    assert made.lower_bound <= possible <= made.packs
    assert made.problems() == []


class TestEveryPlanIsHeldAgainstItsHistogram:
    """Whichever algorithm made it: a plan that loses a sequence, or fills a pack too far, is never handed out."""

    @pytest.mark.parametrize(
        "made",
        [
            [(1, (5, 3))],
            [(2, (5, 3)), (1, (4,))],
            [(1, (5, 4)), (1, (3,))],
            [(1, (4, 3, 1))],
            [(1, (5, 3)), (1, (5,))],
            [(2, (5, 3)), (1, (4,)), (-1, (5,)), (-1, (3,))],
            [(1, (5, 3)), (1, (4,)), (0, (5,))],
            [(1, (5, 3)), (1, (4,)), (1, ())],
        ],
        ids=["one lost", "one twice", "too full", "too deep", "another", "taken away", "not used", "empty"],
    )
    def test_a_wrong_one(self, monkeypatch, made):

        wrong = dataclasses.replace(HISTOGRAM_ALGORITHMS["ffd"], run=lambda *_, **__: made)
        monkeypatch.setitem(HISTOGRAM_ALGORITHMS, "ffd", wrong)
        with pytest.raises(RuntimeError, match="ffd made a plan that does not pack this histogram"):
            plan([5, 3, 4], 8, depth=2, algorithm="ffd")

    @pytest.mark.parametrize("condition", [{"max_squares": 33}, {"align": 4}, {"pack_multiple": 3}])
    def test_one_that_breaks_a_condition(self, monkeypatch, condition):
        from nopad.planning import front

        monkeypatch.setattr(front, "cut_strategies", lambda strategies, _: strategies)
        monkeypatch.setattr(front, "within_squares", lambda strategies, *_: strategies)
        monkeypatch.setattr(front, "real_strategies", lambda *_: [(1, (5, 3)), (1, (4,))])
        with pytest.raises(RuntimeError, match="ffd made a plan that does not pack this histogram"):
            plan([5, 3, 4], 8, algorithm="ffd", **condition)

    def test_counts_that_no_share_of_can_be_rounded(self):
        with pytest.raises(LengthError, match=r"counts 4611686018427387905 sequences of one length; plans are exact"):
            plan(Histogram.from_counts({3: 2**62 + 1}), 8)

    @pytest.mark.parametrize("algorithm", ["auto", "optimal"])
    @pytest.mark.parametrize("condition", [{"even": True}, {"max_squares": 50}])
    def test_counts_that_no_two_limits_can_add_up(self, algorithm, condition):
        most = {3: 2**61, 4: 2**61, 5: 1}
        with pytest.raises(LengthError, match=r"4611686018427387905 sequences; with max_squares or even=True plans"):
            plan(Histogram.from_counts(most), 8, algorithm=algorithm, **condition)
        del most[5]
        assert plan(Histogram.from_counts(most), 8, algorithm=algorithm, **condition).packs >= 2**61

    @pytest.mark.parametrize("algorithm", [name for name in HISTOGRAM_ALGORITHMS if name != "none"])
    def test_packs_that_no_plan_can_list(self, refuses, algorithm):
        many = Histogram.from_counts({1: 2**40})
        with refuses(
            OptionError,
            "more than 4,194,304 of these sequences fit into a pack of 1,073,741,824 tokens, and a plan lists those of "
            "every pack: take a depth of at most 4194304, or a smaller capacity",
        ):
            plan(many, 2**30, algorithm=algorithm)
        assert plan(many, 2**30, algorithm="none").packs == 2**40
        assert plan(Histogram.from_counts({1: 2**40, 2**29: 3}), 2**30, depth=4, algorithm="lpfhp").packs >= 2**38
