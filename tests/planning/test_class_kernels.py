from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram
from nopad._bit_kernels import empty_set
from nopad.planning import _class_kernels, lpfhp
from nopad.planning.arrival import empty_table
from nopad.planning.open_packs import OpenPacks
from nopad.planning.optimal.spread import spread


def classes_of(kernel, lengths, counts, capacity, depth, first=-1, rows=200):
    classes = np.zeros((rows, 4), dtype=np.int64)
    contents = np.zeros((rows, 3), dtype=np.int64)
    rooms, keys = empty_set(capacity), empty_table(rows, capacity)
    used, made = kernel(lengths, counts, capacity, depth, first, rooms, keys, keys.copy(), classes, contents)
    return used, made, classes[: max(used, 0), :3].tolist(), contents[: max(made, 0)].tolist()


@pytest.mark.parametrize("first", [-1, 0, 60])
@pytest.mark.parametrize("depth", [1, 3, 100])
def test_compiled_and_plain_agree(depth, first):
    lengths, counts = np.array([30, 17, 9, 8, 3, 1]), np.array([5, 40, 7, 90, 11, 200])
    results = [
        classes_of(kernel, lengths, counts, 32, depth, first)
        for kernel in (_class_kernels.place_classes, _class_kernels.place_classes.py_func)
    ]
    assert results[0] == results[1]
    used, made, classes, contents = results[0]
    assert used == made > 0
    rows = np.array([[*row, 0] for row in classes])
    kept = np.flatnonzero(rows[:, 0])
    flat = [np.zeros(int(rows[kept, 2].sum()), dtype=np.int64) for _ in range(2)]
    for kernel, out in zip((_class_kernels.flatten, _class_kernels.flatten.py_func), flat, strict=True):
        kernel(kept, rows, np.array(contents), out)
    assert flat[0].tolist() == flat[1].tolist()
    assert flat[0].min() >= 1


def test_a_table_that_is_too_small_is_told():
    lengths, counts = np.array([9, 5, 3]), np.array([4, 4, 4])
    for kernel in (_class_kernels.place_classes, _class_kernels.place_classes.py_func):
        assert classes_of(kernel, lengths, counts, 12, 12, rows=2)[:2] == (-1, -1)


def test_a_table_that_is_too_small_grows(monkeypatch):
    histogram = Histogram.from_lengths(np.random.default_rng(0).integers(1, 60, 3000))
    expected = sorted(lpfhp.lpfhp(histogram, 64, None))
    tables, kernel = [], _class_kernels.place_classes

    def small_at_first(lengths, counts, capacity, most, first, words, keys, tops, classes, contents):
        tables.append(len(classes))
        if len(tables) == 1:
            classes = classes[:3]
        return kernel(lengths, counts, capacity, most, first, words, keys, tops, classes, contents)

    monkeypatch.setattr(_class_kernels, "place_classes", small_at_first)
    assert sorted(lpfhp.lpfhp(histogram, 64, None)) == expected
    assert tables[1] == 4 * tables[0]


@given(st.from_type(Histogram), st.integers(40, 70), st.none() | st.integers(1, 6))
def test_the_same_plans_as_without_compiled_code(histogram, capacity, depth):
    plain = lpfhp.best_fit_decreasing_few(histogram.to_dict(), capacity, depth)
    assert sorted(plain) == sorted(lpfhp.lpfhp(histogram, capacity, depth))


def spread_without_compiled_code(histogram, capacity, depth, packs):
    opened, empty = OpenPacks(capacity, depth), packs
    for length, left in zip(histogram.lengths[::-1].tolist(), histogram.counts[::-1].tolist(), strict=True):
        while left:
            if empty:
                count = min(empty, left)
                empty -= count
                opened.put(capacity - length, count, (None, length, 1), 1)
            elif (room := opened.emptiest()) >= length:
                available, content, used = opened.take(room)
                count = min(available, left)
                if available > count:
                    opened.put(room, available - count, content, used)
                opened.put(room - length, count, (content, length, 1), used + 1)
            else:
                opened.best_fit(length, left)
                break
            left -= count
    return opened.strategies()


@given(st.from_type(Histogram), st.integers(40, 70), st.none() | st.integers(1, 6), st.integers(0, 80))
def test_the_same_spread_as_without_compiled_code(histogram, capacity, depth, packs):
    plain = spread_without_compiled_code(histogram, capacity, depth, packs)
    found = spread(histogram, capacity, depth, packs)
    begins, ends = found.indptr[:-1].tolist(), found.indptr[1:].tolist()
    held = [tuple(found.lengths[begin:end].tolist()) for begin, end in zip(begins, ends, strict=True)]
    assert sorted(zip(found.copies.tolist(), held, strict=True)) == sorted(plain)
