from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.planning.optimal import _kernels
from nopad.planning.optimal.pricing import SCALE, Items, price


@st.composite
def priced(draw):
    capacity = draw(st.integers(3, 9))
    sizes = sorted(draw(st.sets(st.integers(1, capacity), min_size=1, max_size=4)))
    values = np.maximum.accumulate(draw(st.lists(st.integers(0, SCALE), min_size=len(sizes), max_size=len(sizes))))
    depth = draw(st.none() | st.integers(1, 4))
    array = np.array(sizes, dtype=np.int64)
    return Items.of(array, np.ones_like(array), capacity, depth), values.astype(np.int64)


def all_patterns(items):
    for n in range(1, items.depth + 1):
        for pattern in combinations_with_replacement(range(items.sizes.size), n):
            if items.sizes[list(pattern)].sum() <= items.capacity:
                yield pattern


@given(priced())
def test_the_best_pattern_and_the_best_around_each_item(given_items):
    items, values = given_items
    worth = {pattern: int(values[list(pattern)].sum()) for pattern in all_patterns(items)}
    best, patterns = price(items, values, 1000)
    assert best == max(worth.values())
    around = {item: max(worth[p] for p in worth if item in p) for item in range(items.sizes.size)}
    found = [worth[tuple(sorted(pattern))] for pattern in patterns]  # a KeyError would be one that does not fit
    assert found == sorted(found, reverse=True)
    assert all(value > SCALE for value in found)
    for item, most in around.items():
        assert most <= SCALE or any(
            item in pattern for pattern, value in zip(patterns, found, strict=True) if value == most
        )


def test_only_so_many_patterns():
    sizes = np.arange(1, 9, dtype=np.int64)
    items = Items.of(sizes, np.ones_like(sizes), 8, 3)
    assert len(price(items, np.full(8, SCALE), 3)[1]) == 3


@pytest.mark.parametrize("unlimited", [False, True])
def test_compiled_and_plain_agree(unlimited):
    rng = np.random.default_rng(0)
    sizes = np.array([2, 3, 7, 11], dtype=np.int64)
    values = np.sort(rng.integers(0, SCALE, 4))
    tables = [np.empty((2 if unlimited else 4, 24), dtype=np.int64) for _ in range(2)]
    _kernels.knapsack(sizes, values, unlimited, tables[0])
    _kernels.knapsack.py_func(sizes, values, unlimited, tables[1])
    assert np.array_equal(*tables)
    first = np.array([0, 3, 1])
    results = []
    for kernel in (_kernels.patterns_with, _kernels.patterns_with.py_func):
        out, used = np.zeros((3, 14), dtype=np.int64), np.zeros(3, dtype=np.int64)
        kernel(sizes, values, unlimited, tables[0], first, out, used)
        results.append((out.tolist(), used.tolist()))
    assert results[0] == results[1]


def test_filling_slots_compiled_and_plain_agree():
    rng = np.random.default_rng(0)
    results = []
    for kernel, follow in (
        (_kernels.fill_slots, _kernels.linked),
        (_kernels.fill_slots.py_func, _kernels.linked.py_func),
    ):
        rng = np.random.default_rng(0)
        capacity = 40
        available = np.zeros(capacity + 2, dtype=np.int64)
        available[5:31] = rng.integers(0, 4, 26)
        present = available > 0
        present[[0, -1]] = True
        places = np.arange(capacity + 2)
        below = np.maximum.accumulate(np.where(present, places, 0))
        above = np.minimum.accumulate(np.where(present, places, capacity + 1)[::-1])[::-1].copy()
        assert follow(below.copy(), 4) == 0
        before = available.copy()
        out, packs = np.zeros(int(available.sum()), dtype=np.int32), np.zeros(20, dtype=np.int64)
        slots, indptr = np.array([2, 0, 1, 1, 0]), np.array([0, 2, 5])
        filled = kernel(
            slots,
            indptr,
            np.array([9, 8]),
            np.array([5, 12, 20, 31]),
            np.array([8.0, 16.0, 25.0]),
            capacity,
            available,
            below,
            above,
            out,
            packs,
        )
        used = np.bincount(out[: packs[filled]], minlength=capacity + 2)
        assert np.array_equal(before - used, available)
        sums = np.add.reduceat(out[: packs[filled]], packs[:filled])
        assert sums.max() <= capacity
        results.append((filled, out.tolist(), packs.tolist(), available.tolist()))
    assert results[0] == results[1]
