from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad.planning.first_fit
from nopad.planning.first_fit import first_fit

DEPTH = st.none() | st.integers(1, 5)


def naive(lengths, capacity, depth):
    packs, rooms = [], []
    for i, length in enumerate(lengths):
        for p, room in enumerate(rooms):
            if room >= length and (depth is None or len(packs[p]) < depth):
                break
        else:
            p = len(packs)
            packs.append([])
            rooms.append(capacity)
        packs[p].append(i)
        rooms[p] -= length
    return packs


@given(st.lists(st.integers(1, 30), max_size=80), st.integers(30, 70), DEPTH, st.sampled_from([1, 2, 8]))
def test_the_tree_finds_what_looking_at_every_pack_finds(lengths, capacity, depth, leaves):
    array = np.array(lengths, dtype=np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nopad.planning.first_fit, "_LEAVES", leaves)  # it grows and drops what closed
        packs = first_fit(array, capacity, depth)
    packs.check(array)
    assert [pack.tolist() for pack in packs] == naive(lengths, capacity, depth)


@pytest.mark.parametrize("depth", [None, 3])
def test_many_packs(depth):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4, 1, 5000), 1, 300).astype(np.int32)
    packs = first_fit(lengths, 300, depth)
    assert len(packs) > nopad.planning.first_fit._LEAVES
    assert [pack.tolist() for pack in packs] == naive(lengths.tolist(), 300, depth)


@pytest.mark.parametrize(
    ("lengths", "depth", "expected"),
    [
        ([], None, []),
        ([8, 8], None, [[0], [1]]),
        ([5, 6, 2, 3], None, [[0, 2], [1], [3]]),  # the earliest, not the tightest
        ([1, 1, 1, 1, 1], 2, [[0, 1], [2, 3], [4]]),
        ([4, 4], 1, [[0], [1]]),
    ],
)
def test_examples(lengths, depth, expected):
    packs = first_fit(np.array(lengths, dtype=np.int32), 8, depth)
    assert [pack.tolist() for pack in packs] == expected
    assert (packs.capacity, packs.depth, packs.indptr.dtype, packs.sequence.dtype) == (8, depth, np.int32, np.int32)
