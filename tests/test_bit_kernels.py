from __future__ import annotations

from types import FunctionType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numba.core.dispatcher import Dispatcher

from nopad import _bit_kernels as kernels

COMPILED = {name: value for name, value in vars(kernels).items() if isinstance(value, Dispatcher)}
PLAIN = dict(vars(kernels))
# A plain kernel must call plain kernels: compiled ones hand 64-bit words back as Python integers.
PLAIN.update({name: FunctionType(kernel.py_func.__code__, PLAIN) for name, kernel in COMPILED.items()})
EDGES = [1, 2, 63, 64, 65, 4095, 4096, 262_143, 262_144, 2**31 - 1]  # where a level gets one word more, or one is added


@njit
def compiled_highest_bit(word):
    return kernels.highest_bit(word)


def a_set(rng, capacity):
    words = kernels.empty_set(capacity)
    for value in {int(v) for v in rng.integers(0, capacity + 1, int(rng.integers(0, 40)))}:
        PLAIN["add"](words, capacity, value)
    return words, capacity


def case_lowest_bit(rng):
    return (rng.integers(1, 2**64, dtype=np.uint64) << np.uint64(rng.integers(0, 64)) | np.uint64(2**63),)


def case_add(rng):
    return *a_set(rng, 300_000), 123_456


def case_remove(rng):
    args = case_add(rng)
    PLAIN["add"](*args)
    return args


def case_at_least(rng):
    return *a_set(rng, 300_000), int(rng.integers(0, 300_001))


def case_at_most(rng):
    return case_at_least(rng)


CASES = {name.removeprefix("case_"): case for name, case in vars().items() if name.startswith("case_")}


def test_every_kernel_has_a_case():
    assert CASES.keys() == COMPILED.keys()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_plain(name, seed, check_twins):
    check_twins(COMPILED[name], PLAIN[name], CASES[name](np.random.default_rng(seed)))


@pytest.mark.parametrize("place", range(64))
def test_bits_at_every_place(place):
    bit = 1 << place
    for word in (bit, bit | 1, bit | (bit >> 1), 2 * bit - 1):
        assert compiled_highest_bit(np.uint64(word)) == kernels.highest_bit(np.uint64(word)) == place
    for word in (bit, bit | 2**63, 2**64 - bit):
        assert kernels.lowest_bit(np.uint64(word)) == place


@given(st.sets(st.integers(0, 300_000), max_size=30), st.integers(260_000, 300_000), st.data())
def test_neighbours_are_found(values, capacity, data):
    words = kernels.empty_set(capacity)
    values = {value for value in values if value <= capacity}
    for value in values:
        kernels.add(words, capacity, value)
    for gone in data.draw(st.sets(st.sampled_from(sorted(values)))) if values else ():
        kernels.remove(words, capacity, gone)
        values.remove(gone)
    near = {v + d for v in values for d in (-1, 0, 1) if 0 <= v + d <= capacity}
    for at in {0, capacity, data.draw(st.integers(0, capacity)), *near}:
        assert kernels.at_least(words, capacity, at) == min((v for v in values if v >= at), default=-1)
        assert kernels.at_most(words, capacity, at) == max((v for v in values if v <= at), default=-1)
    assert bool(words.any()) == bool(values)


@given(st.sets(st.integers(0, 300), max_size=40), st.integers(300, 400), st.integers(0, 300))
def test_small_sets_are_dense_ones(values, capacity, at):
    words = kernels.empty_set(capacity)
    for value in [*values, *values]:  # adding a member changes nothing
        kernels.add(words, capacity, value)
    assert {v for v in range(capacity + 1) if int(words[v >> 6]) >> (v & 63) & 1} == values
    assert kernels.at_least(words, capacity, at) == min((v for v in values if v >= at), default=-1)
    assert kernels.at_most(words, capacity, at) == max((v for v in values if v <= at), default=-1)


@pytest.mark.parametrize("capacity", EDGES)
def test_both_ends_are_reached(capacity):
    words = kernels.empty_set(capacity)
    for value in (0, capacity):
        kernels.add(words, capacity, value)
    assert kernels.at_least(words, capacity, 1) == kernels.at_most(words, capacity, capacity) == capacity
    assert kernels.at_most(words, capacity, capacity - 1) == 0
    kernels.remove(words, capacity, capacity)
    assert kernels.at_least(words, capacity, 1) == -1
    kernels.remove(words, capacity, 0)
    assert kernels.at_most(words, capacity, capacity) == -1
    if capacity < 2**31 - 1:  # of that one only few pages are ever touched
        assert not words.any()


@pytest.mark.parametrize("capacity", EDGES)
def test_a_set_is_no_larger_than_its_levels(capacity):
    """The last word of a full set is that of the highest level, and in use."""
    words = kernels.empty_set(capacity)
    kernels.add(words, capacity, capacity)
    assert words[-1] == 1 << (capacity >> 6 * ((capacity.bit_length() - 1) // 6))
