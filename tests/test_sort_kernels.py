"""Sorting, selecting and gathering in compiled loops: the same as NumPy's, in compiled and in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher

from nopad import _sort_kernels as kernels

NUMBERS = st.lists(st.integers(-3, 3) | st.integers(-(2**62), 2**62), max_size=70)
BOTH = pytest.mark.parametrize("of", [lambda loop: loop, lambda loop: loop.py_func], ids=["compiled", "plain"])


def test_these_are_all():
    assert [name for name, one in vars(kernels).items() if isinstance(one, Dispatcher)] == [
        "gathered",
        "ascending",
        "smallest",
    ]


@BOTH
@given(numbers=NUMBERS)
def test_sorted_as_numpy_sorts(of, numbers):
    keys = np.array(numbers, np.int64)
    order = of(kernels.ascending)(keys)
    assert order.tolist() == np.argsort(keys, kind="stable").tolist()
    assert of(kernels.gathered)(keys, order).tolist() == sorted(numbers)


@BOTH
@given(numbers=NUMBERS.filter(bool), data=st.data())
def test_the_kth_smallest(of, numbers, data):
    k = data.draw(st.integers(0, len(numbers) - 1))
    values = np.array(numbers, np.int64)
    assert of(kernels.smallest)(values, k) == sorted(numbers)[k]
    assert sorted(values.tolist()) == sorted(numbers)


@pytest.mark.parametrize("shape", ["sorted", "reversed", "equal", "organ pipe", "random"])
def test_many_numbers(shape):
    n = 20_000
    values = {
        "sorted": np.arange(n),
        "reversed": np.arange(n)[::-1].copy(),
        "equal": np.zeros(n, np.int64),
        "organ pipe": np.minimum(np.arange(n), np.arange(n)[::-1]),
        "random": np.random.default_rng(0).integers(0, n, n),
    }[shape]
    np.testing.assert_array_equal(kernels.ascending(values), np.argsort(values, kind="stable"))
    for k in (0, 1, n // 3, n - 1):
        assert kernels.smallest(values.copy(), k) == np.sort(values)[k]
