from __future__ import annotations

from types import FunctionType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher

from nopad import _bit_kernels
from nopad import _stream_kernels as kernels
from nopad.online.stream import StreamPacker

SPACE = {**vars(_bit_kernels), **vars(kernels)}
KERNELS = {name: value for name, value in SPACE.items() if isinstance(value, Dispatcher)}
COMPILED = {name: kernel for name, kernel in KERNELS.items() if kernel.__module__ == kernels.__name__}
PLAIN = dict(SPACE)
# A plain kernel must call plain kernels: compiled ones hand 64-bit words back as Python integers.
PLAIN.update({name: FunctionType(kernel.py_func.__code__, PLAIN) for name, kernel in KERNELS.items()})
CAPACITY = 200


def holding(rng, n=60, buffer=80):
    """The five arrays, with n sequences held after some have come and gone."""
    packer = StreamPacker(CAPACITY, buffer=buffer)
    held = packer._held
    lengths = rng.integers(1, CAPACITY, n + 10)
    for number, length in enumerate(lengths.tolist()):
        PLAIN["insert"](*held, number, length)
    for length in rng.permutation(lengths)[:10].tolist():
        PLAIN["take"](*held, length)
    held[0][kernels.ARRIVED] = n + 10
    return held


def some_depth(rng):
    return int(rng.choice([2, 3, 4, 8, CAPACITY + 1]))


def outputs(n):
    return np.zeros(n + 1, np.int64), np.full(n, -1, np.int64)


def case_window(rng):
    return rng.integers(0, 2**64, 5, dtype=np.uint64), int(rng.integers(0, 256))


def case_mark(rng):
    lengths = holding(rng)[2:]
    length = int(rng.choice(np.flatnonzero(lengths[0][: CAPACITY + 1, kernels.COUNT])))
    return *lengths, length, int(rng.choice([-1, 1]))


def case_insert(rng):
    return *holding(rng), 99, int(rng.integers(1, CAPACITY))


def case_take(rng):
    held = holding(rng)
    return *held, int(rng.choice(np.flatnonzero(held[2][: CAPACITY + 1, kernels.COUNT])))


def case_exact(rng):
    return *holding(rng)[2:], int(rng.integers(1, CAPACITY)), int(rng.integers(1, 4))


def case_padding(rng):
    queues, words, _, room, places = case_exact(rng)
    return queues, words, room, places


def case_anchor(rng):
    return *holding(rng, n=int(rng.choice([4, 60])))[2:], CAPACITY, some_depth(rng)


def case_emit(rng):
    held = holding(rng)
    first = int(rng.choice(np.flatnonzero(held[2][: CAPACITY + 1, kernels.COUNT])))
    return *held, first, some_depth(rng), np.full(70, -1, np.int64), 3


def case_push(rng):
    held = holding(rng)
    lengths = rng.integers(1, int(rng.choice([30, CAPACITY + 1])), 150).astype(np.int32)
    return *held, lengths, some_depth(rng), int(rng.choice([40, 10_000])), int(rng.choice([50, 2**40])), *outputs(300)


def case_drain(rng):
    return *holding(rng), some_depth(rng), *outputs(100)


CASES = {name.removeprefix("case_"): case for name, case in vars().items() if name.startswith("case_")}


def test_every_kernel_has_a_case():
    assert CASES.keys() == COMPILED.keys()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_plain(name, seed, check_twins):
    check_twins(COMPILED[name], PLAIN[name], CASES[name](np.random.default_rng(seed)))


@given(st.sets(st.integers(1, 300), max_size=40), st.integers(0, 300))
def test_windows_show_64_places(members, value):
    row = np.zeros(7, np.uint64)
    for member in members:
        row[member >> 6] |= np.uint64(1) << np.uint64(member & 63)
    seen = int(kernels.window(row, value))
    assert {value + i for i in range(64) if seen >> i & 1} == {m for m in members if value <= m < value + 64}


@given(st.data(), st.sampled_from([60, 191]), st.integers(1, 4))  # with 191, windows reach the next level of a set
def test_exact_fills_are_found_whenever_there_is_one(data, capacity, places):
    lengths = data.draw(st.lists(st.integers(1, capacity - 1), min_size=1, max_size=50))
    room = data.draw(st.integers(1, capacity - 1) | st.just(capacity - 1))
    packer = StreamPacker(capacity, buffer=64)
    for number, length in enumerate(lengths):
        kernels.insert(*packer._held, number, length)
    count = {length: lengths.count(length) for length in lengths}
    ways = {room: count[room]} if room in count else {}
    for a in range((room + 1) // 2, room):
        b = room - a
        if places > 1 and a in count and b in count and (a != b or count[a] > 1):
            ways[a] = count[a] + count[b]
    found = kernels.exact(*packer._held[2:], room, places)
    assert found in ways if ways else found == -1
    assert ways.get(found, 0) == max(ways.values(), default=0)


@pytest.mark.parametrize("emit", [kernels.emit, PLAIN["emit"]])
def test_where_places_are_scarce_and_nothing_is_short_enough_the_next_longer_is_taken(emit):
    held, sequence = StreamPacker(200, depth=8, buffer=64)._held, np.full(8, -1, np.int64)
    for number, length in enumerate([190, *[9] * 20]):
        kernels.insert(*held, number, length)
    assert emit(*held, 190, 8, sequence, 0) == 2  # 10 tokens for 7 places, then 1 for 6
    assert sequence[:2].tolist() == [0, 1]


@given(st.data())
def test_what_is_held_stays_consistent(data):
    packer = StreamPacker(30, buffer=12)
    state, _, queues, words, mirror = packer._held
    held = []
    for number in range(data.draw(st.integers(0, 40))):
        if held and (len(held) == 12 or data.draw(st.booleans())):
            length = data.draw(st.sampled_from([length for _, length in held]))
            oldest = next(pair for pair in held if pair[1] == length)
            assert kernels.take(*packer._held, length) == oldest[0]
            held.remove(oldest)
        else:
            held.append((number, data.draw(st.integers(1, 29))))
            kernels.insert(*packer._held, *held[-1])
        lengths = [length for _, length in held]
        assert packer.state_dict()["numbers"] == [number for number, _ in held]
        assert packer.state_dict()["lengths"] == lengths
        assert state[: kernels.ARRIVED].tolist() == [len(held), sum(lengths)]
        assert queues[:31, kernels.COUNT].tolist() == np.bincount(lengths or [0], minlength=31).tolist() if held else 1
        assert {i for i in range(31) if int(words[0]) >> i & 1} == set(lengths)
        assert {30 - i for i in range(31) if int(mirror[0]) >> i & 1} == set(lengths)
