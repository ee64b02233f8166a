"""Compiled loops that several packages use, and those of `nopad.batch`; other packages have their own modules of loops.

A kernel (a compiled loop) takes NumPy arrays and plain numbers. Most kernels write their results into arrays that the
caller gives. All kernels release the GIL, and cache their compilation. Callers check the arguments, with one exception:
`lay_rows` checks its argument `per_row`. Tests also run kernels as plain Python (``kernel.py_func``) and compare the
results.

Integers whose arithmetic wraps around are ``uint64`` throughout, since uint64 and signed integers together would
silently give float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)
_1, _27, _30, _31, _32 = np.uint64(1), np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def mix(x: np.uint64) -> np.uint64:
    """Return `x` with its 64 bits mixed (the last step of SplitMix64); the compiled version of `nopad.random.mix`."""
    x = (x ^ (x >> _30)) * _M1
    x = (x ^ (x >> _27)) * _M2
    return x ^ (x >> _31)


@njit(cache=True, nogil=True, inline="always")
def bounded(u: np.uint64, n: np.uint64) -> np.uint64:
    """Return the high 64 bits of the 128-bit product ``u * n``: an integer from 0 to ``n - 1``.

    This is the compiled version of `nopad.random.bounded`.
    """
    u_hi, u_lo, n_hi, n_lo = u >> _32, u & _LOW, n >> _32, n & _LOW
    middle = u_hi * n_lo + ((u_lo * n_lo) >> _32)
    low = (middle & _LOW) + u_lo * n_hi
    return u_hi * n_hi + (middle >> _32) + (low >> _32)


@njit(cache=True, nogil=True)
def shuffle(items: NDArray[Any], key: np.uint64) -> None:
    """Shuffle `items` in place, by the random key `key` (uint64), exactly as `nopad.random.shuffle` does."""
    for i in range(items.shape[0] - 1, 0, -1):
        position = np.uint64(i) + _1
        j = np.int64(bounded(mix(key + position * GOLDEN), position))
        items[i], items[j] = items[j], items[i]


@njit(cache=True, nogil=True)
def group_by_rank(ranks: NDArray[Any], indptr: NDArray[Any], order: NDArray[Any]) -> None:
    """Fill `order` with the indices of `ranks`, grouped by rank and ascending within each group.

    Group k holds the indices i with ``ranks[i] == k``. It begins at ``order[indptr[k]]``; the caller has computed
    `indptr`.
    """
    free = indptr.copy()
    for i in range(ranks.shape[0]):
        k = ranks[i]
        order[free[k]] = i
        free[k] += 1


@njit(cache=True, nogil=True)
def sort_within_packs(indptr: NDArray[Any], sequence: NDArray[Any]) -> None:
    """Sort the sequence numbers in each pack, ascending and in place; pack p is ``sequence[indptr[p]:indptr[p + 1]]``.

    Packs of up to 32 sequences get insertion sort, larger ones Shell sort. NumPy's sort would take longer to compile
    inside a kernel than all other kernels of a plan together.
    """
    for p in range(indptr.shape[0] - 1):
        low, high = indptr[p], indptr[p + 1]
        gap = 1
        if high - low > 32:
            while 9 * gap < high - low:
                gap = 3 * gap + 1
        while gap > 0:
            for i in range(low + gap, high):
                value = sequence[i]
                j = i - gap
                while j >= low and sequence[j] > value:
                    sequence[j + gap] = sequence[j]
                    j -= gap
                sequence[j + gap] = value
            gap //= 3


@njit(cache=True, nogil=True)
def permute_packs(
    indptr: NDArray[Any],
    sequence: NDArray[Any],
    permutation: NDArray[Any],
    new_indptr: NDArray[Any],
    new_sequence: NDArray[Any],
) -> None:
    """Write the packs whose numbers are in `permutation`, in its order, to `new_indptr` and `new_sequence`.

    Pack p holds the sequences ``sequence[indptr[p]:indptr[p + 1]]``. `permutation` may leave packs out, or repeat them.
    ``new_indptr[0]`` is not written, and must be 0.
    """
    at = 0
    for q in range(permutation.shape[0]):
        p = permutation[q]
        for i in range(indptr[p], indptr[p + 1]):
            new_sequence[at] = sequence[i]
            at += 1
        new_indptr[q + 1] = at


@njit(cache=True, nogil=True)
def gather_tokens(source: NDArray[Any], starts: NDArray[Any], lengths: NDArray[Any], out: NDArray[Any]) -> int:
    """Copy ``source[starts[i] : starts[i] + lengths[i]]`` for each i into `out`, back to back.

    `source` holds integers. Returns the bitwise OR of all values that are copied. From it, a caller sees whether any
    value is negative, or reaches a certain power of two. The OR takes no extra time.

    Sequences may lie anywhere in `source`, so each copy would wait for memory. Therefore one token of each cache line
    of the next 32 sequences is read first (up to 64 lines of each sequence). These waits overlap, which halves the
    time.
    """
    at, bits, line = 0, source.dtype.type(0), 64 // source.itemsize
    for window in range(0, starts.shape[0], 32):
        end = min(window + 32, starts.shape[0])
        for i in range(window, end):
            for j in range(starts[i], starts[i] + min(lengths[i], 64 * line), line):
                bits |= source[j]
        for i in range(window, end):
            run = source[starts[i] : starts[i] + lengths[i]]
            place = out[at : at + lengths[i]]
            for j in range(run.shape[0]):
                value = run[j]
                place[j] = value
                bits |= value
            at += lengths[i]
    return int(bits)


@njit(cache=True, nogil=True)
def lay_rows(
    lengths: NDArray[Any], per_row: NDArray[Any], width: int, align: int, starts: NDArray[Any], tokens: NDArray[Any]
) -> bool:
    """Set ``starts[i]`` to where sequence i begins in concatenated rows, and ``tokens[r]`` to the slots used in row r.

    A row has `width` slots. The next ``per_row[r]`` sequences lie in row r. A sequence takes as many slots as its
    length, rounded up to a multiple of `align`. Whether the sequences of a row fit into it is not checked.

    Returns whether `per_row` is valid. If a number in it is negative, or its numbers do not add up to the number of
    sequences, nothing is set, and the result is False.
    """
    total = 0
    for r in range(per_row.shape[0]):
        if per_row[r] < 0:
            return False
        total += per_row[r]
    if total != lengths.shape[0]:
        return False
    at = 0
    for r in range(per_row.shape[0]):
        end = np.int64(r) * width
        for _ in range(per_row[r]):
            starts[at] = end
            end += (np.int64(lengths[at]) + align - 1) // align * align
            at += 1
        tokens[r] = end - np.int64(r) * width
    return True


@njit(cache=True, nogil=True)
def fill_rows(tokens: NDArray[Any], sizes: NDArray[Any], fill: int, rows: NDArray[Any]) -> None:
    """Fill each row r of `rows` ``[R, L]`` with the next ``sizes[r]`` values of `tokens`, and its rest with `fill`."""
    at = 0
    for r in range(rows.shape[0]):
        run, row = tokens[at : at + sizes[r]], rows[r]
        row[: sizes[r]] = run
        row[sizes[r] :] = fill
        at += sizes[r]


@njit(cache=True, nogil=True)
def count_up(starts: NDArray[Any], lengths: NDArray[Any], out: NDArray[Any]) -> None:
    """Write 0, 1, 2, ... to ``out[starts[i] : starts[i] + lengths[i]]`` for each i."""
    for i in range(starts.shape[0]):
        run = out[starts[i] : starts[i] + lengths[i]]
        for j in range(run.shape[0]):
            run[j] = j
