from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
import nopad.assignment
import nopad.planning.arrival
import nopad.planning.greedy
from nopad import ALGORITHMS, assign, pack, plan, random
from nopad.errors import LengthError, OptionError, PlanMismatchError

LENGTHS = st.lists(st.integers(1, 16), max_size=50)
CAPACITY = st.integers(16, 32)
DEPTH = st.none() | st.integers(1, 6) | st.just(1000)
EVERY = st.sampled_from(ALGORITHMS)
ORDER = st.sampled_from(["random", "source"])
SEED = st.integers(0, 2**64 - 1)


def members(packs):
    return [pack.tolist() for pack in packs]


LISTING = ("ennlshp", "nnlshp")  # they list all strategies, and refuse where there are too many


def made_up(n, longest):
    """Lengths from a formula, in no order."""
    return [(i * i * 7 + i * 13) % longest + 1 for i in range(n)]


def by_hand(made, lengths, seed, order):
    """The assignment again, in the words of its module: lists, `nopad.random`, one sequence at a time."""
    unused = {length: [i for i, n in enumerate(lengths) if n == length] for length in set(lengths)}
    copies = [(s, copy, count) for s, (count, _) in enumerate(made.strategies) for copy in range(count)]
    if order == "random":
        for length, group in unused.items():
            random.shuffle(group, random.key(seed, random.STREAM_WITHIN_LENGTH, length))
        dealt = [s for s, _, _ in copies]
        random.shuffle(dealt, random.key(seed, random.STREAM_PACK_ORDER))
    else:
        copies.sort(key=lambda c: (2 * c[1] + 1) * made.packs // (2 * c[2]))  # stable
        dealt = [s for s, _, _ in copies]
    kinds = [made.strategies[s][1] for s in dealt]
    if order == "random":
        return [[unused[length].pop(0) for length in kind] for kind in kinds]
    packs = []
    while kinds:  # the first sequence left opens the next pack that holds its length
        first = min(group[0] for group in unused.values() if group)
        kind = kinds.pop(next(at for at, kind in enumerate(kinds) if lengths[first] in kind))
        packs.append(sorted(unused[length].pop(0) for length in kind))
    return packs


@pytest.mark.slow
@given(LENGTHS, CAPACITY, DEPTH, EVERY, ORDER, SEED)
def test_what_all_packs_keep(lengths, capacity, depth, algorithm, order, seed):
    options = {"depth": depth, "algorithm": algorithm}
    packs = pack(lengths, capacity, seed=seed, order=order, **options)
    packs.check(lengths)
    assert (packs.capacity, packs.depth) == (capacity, depth)
    strategies = Counter(tuple(sorted((lengths[i] for i in pack), reverse=True)) for pack in members(packs))
    assert strategies == {strategy: count for count, strategy in plan(lengths, capacity, **options).strategies}
    assert packs == pack(np.array(lengths, dtype=np.uint8), capacity, seed=seed, order=order, **options)


@given(LENGTHS, CAPACITY, DEPTH, EVERY, ORDER, SEED)
def test_equals_dealing_by_hand(lengths, capacity, depth, algorithm, order, seed):
    made = plan(lengths, capacity, depth=depth, algorithm=algorithm)
    packs = assign(made, lengths, seed=seed, order=order)
    packs.check(lengths)
    assert members(packs) == by_hand(made, lengths, seed, order)


@given(LENGTHS, CAPACITY, DEPTH, EVERY)
def test_source_order(lengths, capacity, depth, algorithm):
    made = plan(lengths, capacity, depth=depth, algorithm=algorithm)
    packs = members(assign(made, lengths, order="source"))
    assert all(pack == sorted(pack) for pack in packs)
    assert [pack[0] for pack in packs] == sorted(pack[0] for pack in packs)
    last = {}  # the sequences of any one length come in arrival order
    for i in (i for held in packs for i in held):
        assert last.get(lengths[i], -1) < i
        last[lengths[i]] = i


@given(LENGTHS, CAPACITY, DEPTH)
def test_greedy_in_source_order_is_the_order_of_arrival(lengths, capacity, depth):
    packs = pack(lengths, capacity, depth=depth, algorithm="greedy", order="source")
    assert packs.sequence.tolist() == list(range(len(lengths)))


@given(LENGTHS, CAPACITY, SEED)
def test_greedy_in_random_order_shuffles_whole_packs(lengths, capacity, seed):
    packs = members(pack(lengths, capacity, algorithm="greedy", order="source"))
    random.shuffle(packs, random.key(seed, random.STREAM_PACK_ORDER))
    assert members(pack(lengths, capacity, algorithm="greedy", seed=seed)) == packs


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[4], [2, 3, 7], [6, 5], [0, 1]]),
        ({"seed": 7}, [[6, 1], [0, 5], [2, 3, 7], [4]]),
        ({"depth": 2}, [[4], [2, 3], [6, 5], [7], [0, 1]]),
        ({"order": "source"}, [[0, 1], [2, 3, 7], [4], [5, 6]]),
        ({"algorithm": "spfhp"}, [[4], [2, 5], [6, 1], [0, 3, 7]]),
        ({"algorithm": "greedy"}, [[0, 1], [5, 6], [2, 3], [7], [4]]),
    ],
)
def test_small_packs_are_pinned_for_ever(options, expected):
    assert members(pack([5, 3, 4, 2, 8, 3, 5, 1], 8, **options)) == expected


@pytest.mark.parametrize(
    ("options", "fingerprint"),
    [
        ({}, "7bddab98f0337d5318882200c044e7ba82c3a94ca2cca5be31f22c22071e070f"),
        ({"seed": 7}, "51cdd95ac94f2261f95ce7d678eac79c48896b998ce2289654b0093b2f78311f"),
        ({"algorithm": "spfhp", "depth": 3}, "9b60a01896facc928c0b58be82d1c6c697d180ea5378bb4471ee76926e387f61"),
        ({"algorithm": "ffd", "order": "source"}, "2d9b1b108f1560844be2c72771013ec43ea497900e2c5be119f44e4c617496a3"),
        (
            {"algorithm": "greedy", "seed": 18446744073709551615},
            "c29ad9665e4552fa21e24f6acf1802b173b6b884e7203af0e2d587849c61f1d5",
        ),
    ],
)
def test_fingerprints_are_pinned_for_ever(options, fingerprint):
    assert pack(made_up(20_000, 512), 512, **options).fingerprint == fingerprint


def test_the_same_seed_repeats_and_every_other_differs():
    lengths = made_up(60, 16)
    packs = {seed: pack(lengths, 16, seed=seed).fingerprint for seed in [*range(20), 2**63, 2**64 - 1]}
    assert len(set(packs.values())) == 22
    assert all(pack(lengths, 16, seed=seed).fingerprint == packs[seed] for seed in (0, 19, 2**64 - 1))
    assert pack(lengths, 16).fingerprint == assign(plan(lengths, 16), lengths).fingerprint == packs[0]
    assert pack(lengths, 16, seed=np.int64(19)).fingerprint == packs[19]
    assert len({pack(lengths, 16, order="source", seed=seed).fingerprint for seed in range(5)}) == 1


def test_companions_and_places_are_uniform():
    lengths = [5, 3, 3, 3, 3]  # packs [5, 3], [3, 3] and [3]
    made = plan(lengths, 8, depth=2)
    companions, places = Counter(), Counter()
    for seed in range(3000):
        packs = members(assign(made, lengths, seed=seed))
        place = next(p for p, pack in enumerate(packs) if 0 in pack)
        companions[sum(packs[place])] += 1
        places[place] += 1
    assert sum((companions[i] - 750) ** 2 / 750 for i in (1, 2, 3, 4)) < 16.3  # chi-square, 3 degrees, 99.9 %
    assert sum((places[p] - 1000) ** 2 / 1000 for p in (0, 1, 2)) < 13.8  # 2 degrees


def test_packs_do_not_come_sorted_by_length():
    lengths = made_up(5000, 512)
    packs = pack(lengths, 512)
    longest = [max(lengths[i] for i in pack) for pack in packs]
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.1


@pytest.mark.slow
def test_source_order_interleaves_strategies_evenly():
    lengths = [8] * 300 + [4] * 600  # two strategies of 300 packs
    made = plan(lengths, 8)
    spread = np.empty(600, np.int32)
    nopad.assignment._deal_kernels().spread(made.counts, made.packs, spread)
    assert {a != b for a, b in pairwise(spread.tolist())} == {True}
    # Smallest member first all the same: here the 8s arrived before any 4.
    assert [pack.size for pack in assign(made, lengths, order="source")] == [1] * 300 + [2] * 300


@pytest.mark.parametrize("order", ["random", "source"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestEdges:
    @pytest.mark.parametrize("empty", [[], np.empty(0, np.uint16)])
    def test_nothing_to_pack(self, algorithm, order, empty):
        packs = pack(empty, 8, depth=2, algorithm=algorithm, order=order)
        assert (len(packs), packs.sequences) == (0, 0)
        packs.check(empty)
        assert assign(plan(empty, 8), empty, order=order) == pack(empty, 8, order=order)

    @pytest.mark.parametrize("lengths", [[1], [8], [8] * 9, [5] * 9])
    @pytest.mark.parametrize("depth", [None, 1, 100])
    def test_one_sequence_a_pack(self, algorithm, order, lengths, depth):
        packs = pack(lengths, 8, depth=depth, algorithm=algorithm, order=order)
        assert sorted(members(packs)) == [[i] for i in range(len(lengths))]

    def test_wide_indices_change_nothing(self, monkeypatch, algorithm, order):
        lengths = made_up(500, 64)
        how = {"algorithm": algorithm, "order": order, "depth": 2 if algorithm in LISTING else None}
        narrow = pack(lengths, 64, **how)
        for module in (nopad.assignment, nopad.planning.arrival, nopad.planning.greedy):
            monkeypatch.setattr(module, "index_dtype", lambda n: np.int64)
        wide = pack(lengths, 64, **how)
        assert (narrow.sequence.dtype, wide.sequence.dtype, wide.indptr.dtype) == (np.int32, np.int64, np.int64)
        assert wide == narrow
        assert wide.fingerprint == narrow.fingerprint

    def test_lengths_above_the_table(self, algorithm, order):
        unit = 1 << 20  # the longest is above 2^22: ranks come from a search, not from a table
        lengths = made_up(60, 16)
        if algorithm in LISTING:
            with pytest.raises(OptionError, match="strategies"):
                pack(np.array(lengths) * unit, 16 * unit, algorithm=algorithm, order=order)
            return
        packs = pack(np.array(lengths) * unit, 16 * unit, algorithm=algorithm, order=order)
        packs.check(np.array(lengths) * unit)
        if order == "source":  # the seeded choice is keyed by length
            assert members(packs) == members(pack(lengths, 16, algorithm=algorithm, order=order))


@pytest.mark.parametrize(
    ("planned", "present", "difference"),
    [
        ([5, 3], [5, 4], "1 sequences of length 3, the lengths have 0 (in all 2 and 2)"),
        ([5, 3], [3], "1 sequences of length 5, the lengths have 0 (in all 2 and 1)"),
        ([5, 3], [5, 3, 5], "1 sequences of length 5, the lengths have 2 (in all 2 and 3)"),
        ([5, 3], [], "1 sequences of length 3, the lengths have 0 (in all 2 and 0)"),
        ([], [2], "0 sequences of length 2, the lengths have 1 (in all 0 and 1)"),
        (
            [3] * 5000 + [5] * 5000,
            [3] * 4999 + [5] * 5001,
            "5,000 sequences of length 3, the lengths have 4,999 (in all 10,000 and 10,000)",
        ),
    ],
)
def test_a_plan_for_other_lengths(refuses, planned, present, difference):
    with refuses(PlanMismatchError, f"the plan covers {difference}; plan these lengths instead"):
        assign(plan(planned, 8), present)


@pytest.mark.parametrize("order", ["sorted", "", None, 0, ["random"]])
def test_unknown_order(refuses, order):
    message = f"order is {order!r}; it is 'random' or 'source'"
    with refuses(OptionError, message):
        assign(plan([5, 3], 8), [5, 3], order=order)
    for algorithm in ALGORITHMS:
        with refuses(OptionError, message):
            pack([5, 3], 8, algorithm=algorithm, order=order)


def test_bad_options_and_lengths(refuses):
    with refuses(OptionError, "capacity must be an integer from 1 to 2147483647, got 0"):
        pack([5], 0)
    with refuses(OptionError, "depth must be an integer from 1 to 2147483647 (None for unlimited), got 'max'"):
        pack([5], 8, depth="max")
    with refuses(
        OptionError, f"unknown algorithm 'spfph'; did you mean spfhp or lpfhp? (there are: {', '.join(ALGORITHMS)})"
    ):
        pack([5], 8, algorithm="spfph")
    for call in (lambda seed: pack([5], 8, seed=seed), lambda seed: assign(plan([5], 8), [5], seed=seed)):
        with refuses(OptionError, "seed must be an integer from 0 to 18446744073709551615, got -1"):
            call(-1)
    for call in (lambda lengths: pack(lengths, 8), lambda lengths: assign(plan([5], 8), lengths)):
        with refuses(LengthError, "length 0 at index 1; every sequence has at least 1 token: leave it out"):
            call([5, 0])
        with refuses(
            LengthError,
            "length 9 at index 0 is above the capacity of 8 (and 1 more); "
            "cut or remove it, or take a capacity of at least 10",
        ):
            call([9, 10])
        with refuses(
            LengthError, "lengths must be integers, got 1.5 (float64) at index 0; convert them to an int dtype"
        ):
            call([1.5])


def test_packs_have_the_notes_of_their_plan():
    lengths = np.arange(1, 200) % 60 + 1
    made = nopad.plan(lengths, 64, max_squares=4000)
    noted = replace(made, notes=("one", "two"))
    packs = nopad.assign(noted, lengths)
    assert packs.notes == packs[1:3].notes == packs.take([0]).notes == ("one", "two")
    assert nopad.pack(lengths, 64, even=True).notes == nopad.plan(lengths, 64, even=True).notes != ()
