from __future__ import annotations

from types import FunctionType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher

from nopad import _kernels, random
from nopad.balance import _cap_kernels as cap_kernels
from nopad.balance import _kernels as kernels

SPACE = {**vars(_kernels), **vars(kernels), **vars(cap_kernels)}
KERNELS = {name: value for name, value in SPACE.items() if isinstance(value, Dispatcher)}
OWN = {kernels.__name__, cap_kernels.__name__}
COMPILED = {name: kernel for name, kernel in KERNELS.items() if kernel.__module__ in OWN}
PLAIN = dict(SPACE)
# A plain kernel must call plain kernels: compiled ones hand 64-bit words back as Python integers.
PLAIN.update({name: FunctionType(kernel.py_func.__code__, PLAIN) for name, kernel in KERNELS.items()})


def case_derive(rng):
    return rng.integers(2**64, dtype=np.uint64), int(rng.integers(2**40))


def case_sort_by_cost(rng):
    costs = rng.integers(0, rng.choice([1, 50, 2**40]), rng.choice([0, 1, 30, 300]))
    return costs, rng.permutation(costs.size), np.zeros(costs.size, np.int64), np.zeros(costs.size, np.int64)


def case_is_permutation(rng):
    items = rng.permutation(9)
    items[rng.integers(9)] += rng.integers(-1, 2)
    return (items,)


def case_arrange_windows(rng):
    levels, piece, steps = rng.integers(1, 5, 3)
    units = rng.permutation(levels * piece * steps)
    window = int(rng.integers(1, 6))
    return rng.integers(0, 90, units.size), units, window, int(levels), int(piece), rng.integers(2**64, dtype=np.uint64)


def case_deal_raster(rng):
    return rng.permutation(12), bool(rng.integers(2)), np.empty((3, 4), np.int64)


def case_deal_karmarkar_karp(rng):
    ranks, rows = rng.integers(1, 7, 2)
    costs = np.sort(rng.integers(0, 2**40, ranks * rows))
    return costs, rng.permutation(costs.size), np.empty((ranks, rows), np.int64)


def case_deal_groups(rng):
    groups, blocks, ranks, rows = rng.integers(1, 4, 4)
    costs = rng.integers(0, 100, groups * blocks * ranks * rows)
    return costs, int(rng.integers(3)), np.empty((groups, blocks, ranks, rows), np.int64)


def placed(rng):
    """Units dealt to four ranks at random, and what each rank holds."""
    costs, tokens = rng.integers(0, 100, 20), rng.integers(1, 30, 20)
    rank_of = rng.integers(0, 3, 20)
    held = [np.bincount(rank_of, weights, 4).astype(np.int64) for weights in (costs, tokens, None)]
    return costs, tokens, rank_of, held


def case__before(rng):
    return int(rng.integers(4)), int(rng.integers(4)), rng.integers(0, 2, 4), rng.integers(0, 2, 4)


def case__sink(rng):
    heap, values = np.arange(6), np.arange(6)
    values[0] = rng.integers(0, 9)
    return heap, np.arange(6), 0, values, rng.integers(0, 3, 6)


def case__place(rng):
    costs, tokens, rank_of, held = placed(rng)
    return np.argsort(costs), costs, tokens, int(rng.integers(40, 120)), int(rng.integers(3)), rank_of, *held


def case__move(rng):
    costs, tokens, rank_of, held = placed(rng)
    return int(rng.integers(20)), int(rng.integers(4)), costs, tokens, rank_of, *held


def case__fill_empty(rng):
    costs, tokens, rank_of, held = placed(rng)
    return costs, tokens, rank_of, *held


def case__relieve(rng):
    costs, tokens, rank_of, held = placed(rng)
    return int(rng.choice([0, 10_000])), costs, tokens, 200, rank_of, *held


def case_deal_capped(rng):
    tokens = rng.integers(1, 30, 20)
    return rng.integers(0, 100, 20), tokens, 4, int(rng.integers(60, 120)), 10_000, np.zeros(20, np.int64)


def case__add_to_emptiest(rng):
    return np.sort(rng.integers(0, 50, rng.integers(1, 9))), int(rng.integers(1, 30)), 50


def case__fits_sorted(rng):
    loads, cap = np.ones(rng.integers(1, 9), np.int64), int(rng.integers(30, 120))
    return rng.integers(1, 30, 20), loads, cap, np.zeros((4, 25), np.int64)


def case__fit_as_they_come(rng):
    return rng.integers(1, 30, 20), int(rng.choice([1, 2, 5])), np.ones(rng.integers(1, 9), np.int64), 100


def case_cut_capped(rng):
    parts, bins, cap = int(rng.choice([1, 2, 4])), int(rng.integers(1, 6)), int(rng.integers(20, 90))
    sizes = rng.integers(1, 30, 60 * parts)
    return sizes, parts, bins, int(rng.integers(1, 30)), cap, bins * cap, 6, np.zeros(61, np.int64)


def case_first_unfit(rng):
    return rng.integers(1, 30, 40), int(rng.choice([1, 2, 4])), int(rng.integers(1, 4)), int(rng.integers(25, 60))


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("seed", range(12))
def test_compiled_is_as_plain(name, seed, check_twins):
    check_twins(COMPILED[name], PLAIN[name], globals()[f"case_{name}"](np.random.default_rng(seed)))


@given(st.lists(st.integers(0, 2**62), max_size=200), st.sampled_from([0, 1, 12, 40]))
def test_the_order_is_that_of_a_stable_sort(costs, coarser):
    costs = np.array(costs, dtype=np.int64) >> coarser
    in_order, items = costs.copy(), np.arange(costs.size, dtype=np.int32)
    kernels.sort_by_cost(in_order, items, np.empty_like(costs), np.empty_like(items))
    np.testing.assert_array_equal(items, np.argsort(costs, kind="stable"))
    np.testing.assert_array_equal(in_order, np.sort(costs))


def test_keys_are_derived_as_specified():
    key = np.uint64(random.key(5, 6))
    assert int(kernels.derive(key, 7)) == random.key(5, 6, 7)


@pytest.mark.parametrize(
    ("items", "whole"),
    [([], True), ([0], True), ([2, 0, 1], True), ([1, 1, 0], False), ([3, 0, 1], False), ([-1, 0], False)],
)
def test_is_permutation(items, whole):
    assert kernels.is_permutation(np.array(items, dtype=np.int64)) == whole
