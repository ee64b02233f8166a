from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import plan
from nopad.errors import OptionError
from nopad.planning.greedy import greedy
from nopad.planning.harmonic import harmonic

LENGTHS = st.lists(st.integers(1, 40), max_size=60)


@given(LENGTHS, st.integers(40, 99), st.none() | st.integers(1, 5), st.integers(1, 12))
def test_classes_do_not_mix(lengths, capacity, depth, k):
    array = np.array(lengths, dtype=np.int32)
    packs = harmonic(array, capacity, depth, k)
    packs.check(array)
    still_open = {}
    for pack in packs:
        assert pack.tolist() == sorted(pack)
        [j] = {min(capacity // length, k) for length in array[pack].tolist()}
        if j in still_open:  # the pack before it in its class was full
            before = still_open[j]
            assert before.size == (depth or 10**9) or array[before].sum() + array[pack[0]] > capacity
            assert before[-1] < pack[0]
        still_open[j] = pack
    firsts = [pack[0] for pack in packs]
    assert firsts == sorted(firsts)


@given(LENGTHS, st.none() | st.integers(1, 5))
def test_one_class_is_next_fit(lengths, depth):
    array = np.array(lengths, dtype=np.int32)
    assert harmonic(array, 50, depth, k=1) == greedy(array, 50, depth)


@pytest.mark.parametrize(
    ("k", "depth", "expected"),
    [
        (3, None, [[0, 4], [1, 2, 3, 5]]),
        (1, None, [[0, 1, 2, 3], [4, 5]]),
        (12, None, [[0, 4], [1, 2, 3], [5]]),
        (3, 2, [[0, 4], [1, 2], [3, 5]]),
    ],
)
def test_examples(k, depth, expected):
    lengths = np.array([6, 2, 2, 2, 6, 1], dtype=np.int32)
    assert [pack.tolist() for pack in harmonic(lengths, 12, depth, k)] == expected


def test_more_classes_than_tokens():
    assert plan([1, 2, 1], 2, algorithm="harmonic", k=2**20).packs == 2


@pytest.mark.parametrize("k", [0, 2**20 + 1, 1.5, True, None, "3"])
def test_bad_number_of_classes(refuses, k):
    with refuses(OptionError, f"k must be an integer from 1 to 1048576, got {k!r}"):
        plan([1], 8, algorithm="harmonic", k=k)


def test_the_plan_names_k():
    assert plan([1], 8, algorithm="harmonic").options == {"k": 12}
