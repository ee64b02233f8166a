"""Compiled loops that sort, select and gather numbers; other compiled loops call them.

NumPy's `argsort`, `partition`, `unique` and indexing by arrays also work in compiled loops, but Numba takes seconds to
compile each of them, on the first call after an installation. These loops take a fraction of that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_RUN = 8  # numbers that are sorted by insertion, before runs are merged


@njit(cache=True, nogil=True)
def gathered(values: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
    """Return ``values[index]``, an int64 array of the size of `index`; `index` has no negative numbers."""
    found = np.empty(index.size, dtype=np.int64)
    for i in range(index.size):
        found[i] = values[index[i]]
    return found


@njit(cache=True, nogil=True)
def ascending(keys: NDArray[Any]) -> NDArray[Any]:
    """Return the indices that sort `keys` in ascending order, int64 ``[n]``; equal keys stay in their order.

    This is a merge sort: runs of `_RUN` keys are sorted by insertion, then merged in pairs.
    """
    n = keys.size
    order, other = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for i in range(n):
        key, at = keys[i], i
        while at % _RUN and keys[order[at - 1]] > key:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
    width = _RUN
    while width < n:
        for begin in range(0, n, 2 * width):
            middle, end = min(begin + width, n), min(begin + 2 * width, n)
            left, right = begin, middle
            for to in range(begin, end):
                if right == end or (left < middle and keys[order[left]] <= keys[order[right]]):
                    other[to] = order[left]
                    left += 1
                else:
                    other[to] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    return order


@njit(cache=True, nogil=True)
def smallest(values: NDArray[Any], k: int) -> int:
    """Return ``sorted(values)[k]``; `values`, int64 ``[n]``, are reordered in place.

    This is Hoare's selection: it takes O(n) steps on average.
    """
    low, high = 0, values.size - 1
    while low < high:
        middle = (low + high) // 2  # the median of three: sorted values take O(n) steps, too
        a, b, c = values[low], values[middle], values[high]
        pivot = max(min(a, b), min(max(a, b), c))
        left, right = low, high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while values[right] > pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if k <= right:
            high = right
        elif k >= left:
            low = left
        else:
            return int(pivot)
    return int(values[k])
