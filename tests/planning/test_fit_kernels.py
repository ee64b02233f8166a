from __future__ import annotations

import copy
from types import FunctionType

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from nopad import _bit_kernels, _kernels
from nopad._bit_kernels import empty_set
from nopad.planning import _fit_kernels
from nopad.planning.arrival import empty_table

SPACE = {**vars(_kernels), **vars(_bit_kernels), **vars(_fit_kernels)}
KERNELS = {name: value for name, value in SPACE.items() if isinstance(value, Dispatcher)}
COMPILED = {name: kernel for name, kernel in KERNELS.items() if kernel.__module__ == _fit_kernels.__name__}
PLAIN = dict(SPACE)
PLAIN.update({name: FunctionType(kernel.py_func.__code__, PLAIN) for name, kernel in KERNELS.items()})


def some_lengths(rng):
    return rng.integers(1, 41, int(rng.integers(0, 90))).astype(np.int32)


def some_depth(rng):
    return int(rng.choice([1, 2, 3, 1000]))


def case_pack_bounds(rng):
    return rng.integers(0, 7, 50).astype(np.int32), np.zeros(8, np.int32)


def case_settle(rng):
    tree = np.zeros(16, np.int32)
    for leaf in range(8, 16):
        PLAIN["settle"](tree, leaf, int(rng.integers(0, 4)))
    return tree, int(rng.integers(8, 16)), int(rng.integers(0, 4))


def case_move_open(rng):
    tree = case_settle(rng)[0]
    rest = rng.integers(0, 50, 8), rng.integers(0, 5, 8)
    return tree, *rest, np.zeros(32, np.int32), np.zeros(16, np.int64), np.zeros(16, np.int64)


def case_first_fit(rng):
    lengths = some_lengths(rng)
    return lengths, 50, some_depth(rng), int(lengths.min(initial=50)), 2, np.full(lengths.size, -1, np.int32)


def case_slot_of(rng):
    keys = empty_table(20, 10**6)
    for key in rng.integers(0, 10**6, 20):
        PLAIN["slot_of"](keys, int(key))
    return keys, int(keys.max()) - int(rng.integers(0, 2))


def case_best_fit(rng):
    lengths = some_lengths(rng)
    tables = empty_set(50), empty_table(lengths.size, 50), np.full(lengths.size, -1, np.int32)
    return lengths, 50, some_depth(rng), int(lengths.min(initial=50)), *tables


def case_enqueue(rng):
    first, last, following = np.array([-1, 3]), np.array([-1, 3]), np.full(9, -1)
    return 7, int(rng.integers(0, 2)), first, last, following


def case_look_ahead(rng):
    lengths = some_lengths(rng)
    tables = empty_set(50), empty_table(lengths.size, 50), np.full(lengths.size, -1, np.int32)
    return lengths, 50, some_depth(rng), int(rng.choice([1, 3, 1000])), *tables


def case_harmonic(rng):
    lengths = some_lengths(rng)
    return lengths, 50, some_depth(rng), int(rng.integers(1, 9)), np.full(lengths.size, -1, np.int32)


def case_next_fit(rng):
    n = 60 * int(rng.integers(0, 2))
    return rng.integers(1, 9, n).astype(np.int32), 12, int(rng.integers(1, 5)), np.zeros(n + 1, np.int32)


def case_multiset_keys(rng):
    indptr = np.concatenate([[0], np.cumsum(rng.integers(1, 7, 40))]).astype(np.int32)
    sequence = rng.permutation(indptr[-1]).astype(np.int32)
    return indptr, sequence, rng.integers(1, 512, sequence.size).astype(np.int32), np.empty(40, np.uint64)


CASES = {name.removeprefix("case_"): case for name, case in vars().items() if name.startswith("case_")}


def test_every_kernel_has_a_case():
    assert CASES.keys() == COMPILED.keys()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_plain(name, seed, check_twins):
    check_twins(COMPILED[name], PLAIN[name], CASES[name](np.random.default_rng(seed)))


@pytest.mark.parametrize("name", ["first_fit", "best_fit", "look_ahead", "harmonic"])
def test_int64_packs_are_the_same(name):
    args = CASES[name](np.random.default_rng(3))
    wide = [*copy.deepcopy(args[:-1]), args[-1].astype(np.int64)]
    assert COMPILED[name](*args) == COMPILED[name](*wide)
    assert args[-1].tolist() == wide[-1].tolist()


def test_a_table_gives_each_key_its_slot():
    keys = empty_table(50, 2**31 - 1)
    wanted = [2**31 - 1 - 4096 * i for i in range(50)]
    slots = [_fit_kernels.slot_of(keys, key) for key in wanted]
    assert len(set(slots)) == 50
    assert [_fit_kernels.slot_of(keys, key) for key in wanted] == slots
    assert keys[slots].tolist() == wanted


def test_bounds_and_groups_agree():
    pack_of, indptr = case_pack_bounds(np.random.default_rng(0))
    _fit_kernels.pack_bounds(pack_of, indptr)
    order = np.empty(50, np.int32)
    _kernels.group_by_rank(pack_of, indptr[:-1], order)
    for p in range(7):
        assert order[indptr[p] : indptr[p + 1]].tolist() == np.flatnonzero(pack_of == p).tolist()


def test_keys_of_packs_ignore_order_but_not_lengths():
    lengths = np.array([73, 73, 146, 1, 145, 145, 1], np.int32)
    indptr = np.array([0, 2, 3, 5, 7])
    keys = np.empty(4, np.uint64)
    _fit_kernels.multiset_keys(indptr, np.arange(7), lengths, keys)
    assert keys[2] == keys[3]  # [1, 145] and [145, 1]
    assert len(set(keys.tolist())) == 3  # all of them 146 tokens
