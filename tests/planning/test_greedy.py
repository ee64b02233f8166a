from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.planning.greedy import greedy


@given(st.lists(st.integers(1, 16), max_size=40), st.integers(16, 40), st.none() | st.integers(1, 5))
def test_cuts_the_arrival_order_only_where_it_must(lengths, capacity, depth):
    array = np.array(lengths, dtype=np.int32)
    packs = greedy(array, capacity, depth)
    packs.check(array)
    assert packs.sequence.tolist() == list(range(len(lengths)))
    for pack, following in zip(packs, list(packs)[1:], strict=False):
        assert array[pack].sum() + array[following[0]] > capacity or pack.size == depth


@pytest.mark.parametrize(
    ("lengths", "depth", "indptr"),
    [
        ([], None, [0]),
        ([8], None, [0, 1]),
        ([5, 4, 3, 2, 2], None, [0, 1, 3, 5]),
        ([1, 1, 1, 1, 1], 2, [0, 2, 4, 5]),
        ([1, 8, 7, 1, 8], 9, [0, 1, 2, 4, 5]),
    ],
)
def test_examples(lengths, depth, indptr):
    packs = greedy(np.array(lengths, dtype=np.int32), 8, depth)
    assert packs.indptr.tolist() == indptr
    assert (packs.capacity, packs.depth, packs.indptr.dtype, packs.sequence.dtype) == (8, depth, np.int32, np.int32)


def test_packs_do_not_keep_the_scratch_alive():
    packs = greedy(np.ones(10_000, np.int32), 10_000, None)
    assert packs.indptr.base is None
    assert packs.indptr.nbytes == 8
