from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import pack, plan
from nopad.errors import OptionError
from nopad.planning.best_fit import best_fit
from nopad.planning.greedy import greedy

LENGTHS = st.lists(st.integers(1, 30), max_size=60)
DEPTH = st.none() | st.integers(1, 5)


def look_ahead(lengths, capacity, depth, window):
    """Fill one pack after the other from the next `window` sequences: the oldest, then the longest that fit."""
    waiting, packs = list(range(len(lengths))), []
    while waiting:
        members = [waiting.pop(0)]
        while len(members) != depth:
            room = capacity - sum(lengths[i] for i in members)
            fits = [i for i in waiting[:window] if lengths[i] <= room]
            if not fits:
                break
            members.append(max(fits, key=lambda i: (lengths[i], -i)))
            waiting.remove(members[-1])
        packs.append(sorted(members))
    return packs


@given(LENGTHS, st.integers(30, 70), DEPTH)
def test_the_fullest_pack_that_has_room(lengths, capacity, depth):
    array = np.array(lengths, dtype=np.int32)
    packs = best_fit(array, capacity, depth)
    packs.check(array)
    held = {}  # replayed in order of arrival: what each pack holds
    pack_of = {int(i): p for p, members in enumerate(packs) for i in members}
    for i, length in enumerate(lengths):
        fits = [sum(m) for m in held.values() if sum(m) + length <= capacity and len(m) != depth]
        assert sum(held.get(pack_of[i], [])) == max(fits, default=0)
        held.setdefault(pack_of[i], []).append(length)
    assert list(held) == sorted(held)  # numbered as they open


@given(LENGTHS, st.integers(30, 70), DEPTH, st.integers(1, 12) | st.just(1000))
def test_the_window_is_all_it_sees(lengths, capacity, depth, window):
    array = np.array(lengths, dtype=np.int32)
    packs = best_fit(array, capacity, depth, window)
    packs.check(array)
    assert [members.tolist() for members in packs] == look_ahead(lengths, capacity, depth, window)
    assert [members[0] for members in packs] == sorted(members[0] for members in packs)


@given(LENGTHS, st.integers(30, 70), DEPTH)
def test_a_window_of_one_is_next_fit(lengths, capacity, depth):
    array = np.array(lengths, dtype=np.int32)
    assert best_fit(array, capacity, depth, window=1) == greedy(array, capacity, depth)


@pytest.mark.parametrize("window", [3, 16])
def test_no_sequence_waits_longer_than_the_window(window):
    lengths = np.random.default_rng(0).integers(1, 100, 3000).astype(np.int32)
    lengths[lengths < 3] = 50
    lengths[7] = 1  # always the least wanted
    for p, members in enumerate(best_fit(lengths, 100, None, window)):
        if 7 in members:
            assert p <= 7 + window


@pytest.mark.parametrize(
    ("lengths", "depth", "window", "expected"),
    [
        ([], None, None, []),
        ([], None, 4, []),
        ([8, 8], None, None, [[0], [1]]),
        ([5, 6, 2, 3], None, None, [[0, 3], [1, 2]]),  # the tightest, not the earliest
        ([5, 5, 3, 3], None, None, [[0, 3], [1, 2]]),  # among equals the one touched last
        ([4, 1, 4, 3, 4], None, 3, [[0, 2], [1, 3, 4]]),
        ([4, 1, 4, 3, 4], 1, 3, [[0], [1], [2], [3], [4]]),
        ([1, 1, 1, 1, 1], 2, 9, [[0, 1], [2, 3], [4]]),
        ([5, 2, 2, 3], None, 2, [[0, 1], [2, 3]]),  # 3 is not seen in time
        ([5, 2, 2, 3], None, 3, [[0, 3], [1, 2]]),
    ],
)
def test_examples(lengths, depth, window, expected):
    packs = best_fit(np.array(lengths, dtype=np.int32), 8, depth, window)
    assert [members.tolist() for members in packs] == expected


@pytest.mark.parametrize("window", [None, 1, 5])
def test_capacities_far_above_what_memory_could_index(window):
    most = 2**31 - 1
    lengths = [most - 5, 2**30, 5, 2**30 - 1]
    packs = pack(lengths, most, algorithm="best_fit", window=window, order="source")
    packs.check(lengths)
    assert len(packs) == {None: 2, 1: 3, 5: 2}[window]


def test_the_front_door_passes_the_window_on():
    lengths = [5, 4, 3, 4] * 10
    assert plan(lengths, 8, algorithm="best_fit").options == {"window": None}
    made = plan(lengths, 8, algorithm="best_fit", window=1)
    assert (made.options, made.packs) == ({"window": 1}, plan(lengths, 8, algorithm="greedy").packs)


@pytest.mark.parametrize("window", [0, -1, 1.5, True, "3", 2**31])
def test_bad_window(refuses, window):
    with refuses(OptionError, f"window must be an integer from 1 to 2147483647 or None, got {window!r}"):
        plan([1], 8, algorithm="best_fit", window=window)
