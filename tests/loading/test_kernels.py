from __future__ import annotations

import copy

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from nopad.loading import _kernels

SIZES = np.array([9, 4, 12])
BOUNDS = np.array([0, 3, 5, 9])  # rows of three chunks
AT = np.array([100, 20, 60])  # where their values begin
OFFSETS = np.array([0, 4, 4, 9, 1, 3, 4, 0, 2, 5, 5, 12], np.int32)
OFFSETS_AT = np.array([0, 4, 7])
# Row by row: begin, length
LISTS = [(100, 4), (104, 0), (104, 5), (21, 2), (23, 1), (60, 2), (62, 3), (65, 0), (65, 7)]


def two(n):
    return np.empty(n, np.int64), np.empty(n, np.int64)


def case_within(rng):
    return rng.integers(0, 9, 20), 9


def some_lists(rng):
    """Where lists begin, their values (none: they ascend), and which are chosen."""
    indptr = np.cumsum(rng.integers(0, 4, 10)).astype(np.int32)
    return indptr, rng.permutation(int(rng.choice([0, indptr[-1]]))), rng.integers(0, 9, 5)


def case_sizes_of(rng):
    indptr, _, chosen = some_lists(rng)
    return indptr, chosen, np.empty(5, np.int64)


def case_members_of(rng):
    indptr, values, chosen = some_lists(rng)
    return indptr, values, chosen, np.zeros((indptr[chosen + 1] - indptr[chosen]).sum(), np.int64)


def case_sum_at(rng):
    return rng.integers(0, 255, 20).astype(np.uint8), rng.integers(0, 20, 30)


def case_are_at(rng):
    values, numbers = rng.integers(0, 255, 20).astype(np.uint8), rng.integers(0, 20, 30)
    found = values[numbers].astype(np.int32)
    found[:1] += rng.integers(0, 2)
    return values, numbers, found


def case_total_of_runs(rng):
    return rng.integers(0, 50, 8), rng.integers(0, 9, 8), 60, np.zeros(8, np.int32)


def case_between(rng):
    return np.cumsum(rng.integers(0, 9, 20)), rng.integers(0, 19, 12), *two(12)


def case_places_in_chunks(rng):
    return rng.integers(0, 9, 12), BOUNDS, AT, np.empty(12, np.int64)


def case_lists_in_chunks(rng):
    return rng.integers(0, 9, 12), BOUNDS, AT, SIZES, OFFSETS, OFFSETS_AT, 0, *two(12)


def case__chunk_of(rng):
    return int(rng.integers(0, 9)), BOUNDS


CASES = {name.removeprefix("case_"): case for name, case in vars().items() if name.startswith("case_")}


def test_every_kernel_has_a_case():
    here = {name for name, value in vars(_kernels).items() if isinstance(value, Dispatcher)}
    assert CASES.keys() == here


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_plain(name, seed, check_twins, monkeypatch):
    compiled = getattr(_kernels, name)

    def plain(*args):
        with monkeypatch.context() as patched:  # only now: a loop that is compiled meanwhile needs the compiled one
            patched.setattr(_kernels, "_chunk_of", _kernels._chunk_of.py_func)
            return compiled.py_func(*args)

    check_twins(compiled, plain, CASES[name](np.random.default_rng(seed)))


def test_lists_in_chunks_are_found():
    rows = np.array([8, 0, 3, 4, 2, 7, 1, 6, 5, 0])
    begins, lengths = two(rows.size)
    assert _kernels.lists_in_chunks(rows, BOUNDS, AT, SIZES, OFFSETS, OFFSETS_AT, 0, begins, lengths)
    assert list(zip(begins.tolist(), lengths.tolist(), strict=True)) == [LISTS[row] for row in rows.tolist()]
    none = np.empty(0, np.int32)
    first, sizes = np.array([0, 1, 0]), np.array([9, 6, 12])  # lists of two values
    assert _kernels.lists_in_chunks(rows[1:4], BOUNDS, AT, sizes, none, first, 2, begins[:3], lengths[:3])
    # Rows 0, 3 and 4: the first list, and those from list 1 of the second chunk on
    assert (begins[:3].tolist(), lengths[:3].tolist()) == ([100, 22, 24], [2, 2, 2])


@pytest.mark.parametrize(("at", "offset", "inside"), [(3, 10, False), (3, -1, False), (3, 3, False), (3, 4, True)])
def test_lists_beyond_their_chunk(at, offset, inside):
    offsets = OFFSETS.copy()
    offsets[at] = offset
    rows = np.array([0, 2])
    assert _kernels.lists_in_chunks(rows, BOUNDS, AT, SIZES, offsets, OFFSETS_AT, 0, *two(2)) == inside


@pytest.mark.parametrize(
    ("begins", "lengths", "total"),
    [
        ([0, 5], [5, 5], 10),
        ([0, 5], [5, 6], -1),
        ([-1], [3], -1),
        ([0], [-1], -1),
        ([0], [2**31], -1),
        ([2**62], [1], -1),
        ([10], [0], 0),
        ([], [], 0),
    ],
)
def test_runs_outside_of_their_column(begins, lengths, total):
    short = np.zeros(len(begins), np.int32)
    assert _kernels.total_of_runs(np.array(begins, np.int64), np.array(lengths, np.int64), 10, short) == total
    if total >= 0:
        assert short.tolist() == lengths


def test_numbers_within():
    assert _kernels.within(np.array([0, 4]), 5)
    for wrong in ([5], [-1], [0, 2**62]):
        assert not _kernels.within(np.array(wrong), 5)


def test_between_offsets_of_any_type():
    for dtype in (np.int32, np.uint32, np.int64, np.uint64):
        begins, lengths = two(3)
        _kernels.between(np.array([0, 3, 3, 10], dtype), np.array([2, 0, 1]), begins, lengths)
        assert (begins.tolist(), lengths.tolist()) == ([3, 0, 3], [7, 3, 0])


def test_arguments_are_not_changed():
    case = case_lists_in_chunks(np.random.default_rng(0))
    before = copy.deepcopy(case[:6])
    _kernels.lists_in_chunks(*case)
    for now, then in zip(case[:6], before, strict=True):
        np.testing.assert_array_equal(now, then)
