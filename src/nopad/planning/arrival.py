"""Helpers of algorithms that place sequences one by one: they make arrays and hash tables for the kernels, and `Packs`.

They take O(n) for n sequences. Packs are in the order in which they were opened, and the sequences of a pack in order
of arrival.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.packs import Packs, index_dtype

__all__ = ["empty_table", "grouped", "unplaced"]


def unplaced(n: int) -> NDArray[Any]:
    """Return an array ``[n]`` of -1, which means that no sequence has a pack yet; int32, or int64 if n >= 2^31."""
    return np.full(n, -1, dtype=index_dtype(n))


def grouped(pack_of: NDArray[Any], packs: int, capacity: int, depth: int | None) -> Packs:
    """Return `Packs` in which sequence i is in pack ``pack_of[i]``; `packs` is the number of packs.

    The sequences of each pack are in ascending order. `capacity` and `depth` are stored in the result.

    >>> [p.tolist() for p in grouped(np.array([0, 1, 0, 2]), 3, 8, None)]
    [[0, 2], [1], [3]]
    """
    from nopad import _kernels
    from nopad.planning import _fit_kernels

    indptr = np.zeros(packs + 1, dtype=pack_of.dtype)
    sequence = np.empty(pack_of.size, dtype=pack_of.dtype)
    _fit_kernels.pack_bounds(pack_of, indptr)
    _kernels.group_by_rank(pack_of, indptr[:-1], sequence)
    return Packs(capacity, depth, indptr, sequence)


def empty_table(n: int, capacity: int) -> NDArray[np.int64]:
    """Return an empty hash table for the kernels: int64, all -1; the number of entries is a power of two.

    The table stays at most half full if at most ``min(n, capacity)`` different rooms or lengths are put into it.
    """
    size = 2 ** (2 * min(n, capacity) + 1).bit_length()
    return np.full(size, -1, dtype=np.int64)
