"""Compiled loops of loading: index look-ups and checks on a few numbers, for which NumPy calls would be too slow.

Arguments are not checked: callers do that. `nopad._kernels` states the other conventions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def within(numbers: NDArray[Any], n: int) -> bool:
    """Return whether all `numbers`, which are integers, are from 0 to n - 1."""
    outside = 0
    for number in numbers:
        outside += number < 0 or number >= n
    return outside == 0


@njit(cache=True, nogil=True)
def sizes_of(indptr: NDArray[Any], chosen: NDArray[Any], sizes: NDArray[Any]) -> int:
    """Write the size of list ``chosen[i]`` to ``sizes[i]``, for each i; return the sum of the sizes.

    List p has ``indptr[p + 1] - indptr[p]`` values.
    """
    total = 0
    for i in range(chosen.shape[0]):
        sizes[i] = indptr[chosen[i] + 1] - indptr[chosen[i]]
        total += sizes[i]
    return total


@njit(cache=True, nogil=True)
def members_of(indptr: NDArray[Any], values: NDArray[Any], chosen: NDArray[Any], members: NDArray[Any]) -> None:
    """Copy the values of list ``chosen[0]``, then those of list ``chosen[1]``, and so on, to the array `members`.

    List p is ``values[indptr[p]:indptr[p + 1]]``. If `values` is empty, list p has the integers from ``indptr[p]`` to
    ``indptr[p + 1]`` (exclusive).
    """
    at = 0
    for chosen_list in chosen:
        for place in range(indptr[chosen_list], indptr[chosen_list + 1]):
            members[at] = values[place] if values.shape[0] else place
            at += 1


@njit(cache=True, nogil=True)
def sum_at(values: NDArray[Any], numbers: NDArray[Any]) -> int:
    """Return the sum of ``values[numbers]``."""
    total = np.int64(0)
    for number in numbers:
        total += np.int64(values[number])
    return int(total)


@njit(cache=True, nogil=True)
def are_at(values: NDArray[Any], numbers: NDArray[Any], found: NDArray[Any]) -> bool:
    """Return whether ``found[i]`` is ``values[numbers[i]]`` for each i; `numbers` and `found` have the same size."""
    different = 0
    for i in range(numbers.shape[0]):
        different += np.int64(values[numbers[i]]) != np.int64(found[i])
    return different == 0


@njit(cache=True, nogil=True)
def total_of_runs(begins: NDArray[Any], lengths: NDArray[Any], size: int, short: NDArray[Any]) -> int:
    """Return the total length of runs of values in a column of `size` values; -1 if a run lies outside of the column.

    Run i has ``lengths[i]`` values from index ``begins[i]`` on. A run with a length below 0 or above 2^31 - 1 counts as
    outside, too. If no run lies outside, all lengths are copied to `short`, which is int32.
    """
    total = 0
    for i in range(begins.shape[0]):
        begin, length = begins[i], lengths[i]
        if begin < 0 or length < 0 or length > np.int64(0x7FFFFFFF) or begin > size - length:
            return -1
        short[i] = length
        total += length
    return total


@njit(cache=True, nogil=True)
def between(offsets: NDArray[Any], numbers: NDArray[Any], begins: NDArray[Any], lengths: NDArray[Any]) -> None:
    """For each i, set ``begins[i]`` and ``lengths[i]`` to the begin and the length of sequence ``numbers[i]``.

    Sequence k begins at ``offsets[k]``, and its length is ``offsets[k + 1] - offsets[k]``.
    """
    for i in range(numbers.shape[0]):
        begins[i] = offsets[numbers[i]]
        lengths[i] = np.int64(offsets[numbers[i] + 1]) - begins[i]


@njit(cache=True, nogil=True, inline="always")
def _chunk_of(row: int, bounds: NDArray[Any]) -> int:
    """Return the number of the chunk that holds a row: chunk c holds rows ``bounds[c]`` to ``bounds[c + 1] - 1``."""
    low, high = 0, bounds.shape[0] - 1
    while high - low > 1:
        middle = (low + high) // 2
        if bounds[middle] <= row:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def places_in_chunks(rows: NDArray[Any], bounds: NDArray[Any], at: NDArray[Any], places: NDArray[Any]) -> None:
    """Set ``places[i]`` to the index of the value of row ``rows[i]`` in a flat view over all chunks of an Arrow column.

    Chunk c holds the rows from ``bounds[c]`` up to ``bounds[c + 1]`` (exclusive); in the view it begins at ``at[c]``.
    """
    for i in range(rows.shape[0]):
        chunk = _chunk_of(rows[i], bounds)
        places[i] = at[chunk] + rows[i] - bounds[chunk]


@njit(cache=True, nogil=True)
def lists_in_chunks(
    rows: NDArray[Any],
    bounds: NDArray[Any],
    at: NDArray[Any],
    sizes: NDArray[Any],
    offsets: NDArray[Any],
    offsets_at: NDArray[Any],
    width: int,
    begins: NDArray[Any],
    lengths: NDArray[Any],
) -> bool:
    """Set ``begins[i]`` and ``lengths[i]`` to where the list of row ``rows[i]`` begins, and to its length.

    Begins are indices in a flat view over all chunks of an Arrow column. Chunk c holds the rows from ``bounds[c]`` up
    to ``bounds[c + 1]`` (exclusive). Its ``sizes[c]`` values begin at ``at[c]`` in the view.

    Let k be the index of a row within its chunk c, from 0. If `width` is 0, the row's list has the values of the chunk
    from ``offsets[offsets_at[c] + k]`` up to ``offsets[offsets_at[c] + k + 1]`` (exclusive). If `width` is above 0,
    `offsets` is not used: each list has `width` values, and that of row k begins at value ``(offsets_at[c] + k) *
    width`` of the chunk.

    Return whether all these lists lie within the values of their chunks.
    """
    outside = 0
    for i in range(rows.shape[0]):
        chunk = _chunk_of(rows[i], bounds)
        entry = offsets_at[chunk] + rows[i] - bounds[chunk]
        if width:
            begin, end = np.int64(entry * width), np.int64(entry * width + width)
        else:
            begin, end = np.int64(offsets[entry]), np.int64(offsets[entry + 1])
        if begin < 0 or end < begin or end > sizes[chunk]:
            outside += 1
        begins[i], lengths[i] = begin + at[chunk], end - begin
    return outside == 0
