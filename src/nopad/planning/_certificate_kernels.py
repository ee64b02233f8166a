"""Compiled loops that check certificates (`nopad.planning.certificate`, `nopad.planning.several.certificate`).

They share no code with the solver that finds the values of a certificate, so they cannot share its mistakes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def most_valuable(lengths: NDArray[Any], values: NDArray[Any], capacity: int) -> int:
    """Return the highest total value of any lengths that together fit into `capacity`; an exact integer.

    A sequence of the length ``lengths[i]`` is worth ``values[i]``. Lengths ascend, there is at least one, and each may
    be used repeatedly. Both arrays are int64 ``[m]``.
    """
    worth = np.zeros(capacity + 1, dtype=np.int64)  # worth[room]: highest total value of lengths that fit into `room`
    for room in range(lengths[0], capacity + 1):
        best = worth[room - 1]
        for i in range(lengths.shape[0]):
            if lengths[i] > room:
                break
            best = max(best, worth[room - lengths[i]] + values[i])
        worth[room] = best
    return int(worth[capacity])


@njit(cache=True, nogil=True)
def most_valuable_within(lengths: NDArray[Any], values: NDArray[Any], capacity: int, depth: int) -> int:
    """Return the highest total value of at most `depth` lengths that together fit into `capacity`; an exact integer.

    A sequence of the length ``lengths[i]`` is worth ``values[i]``, and each length may be used repeatedly. Both arrays
    are int64 ``[m]``.
    """
    worth = np.zeros(capacity + 1, dtype=np.int64)  # worth[room]: highest total value of the lengths placed so far
    following = np.zeros(capacity + 1, dtype=np.int64)
    for _ in range(depth):
        for i in range(lengths.shape[0]):
            length, value = lengths[i], values[i]
            for room in range(length, capacity + 1):
                following[room] = max(following[room], worth[room - length] + value)
        for room in range(capacity + 1):
            worth[room] = following[room]
    return int(worth[capacity])


@njit(cache=True, nogil=True)
def most_valuable_of_two(sizes: NDArray[Any], values: NDArray[Any], rooms: int, places: int) -> Any:
    """Return a table ``worth``, int64 ``[rooms + 1, places + 1]``, of the values of items under two limits.

    ``worth[r, p]`` is the highest total value of items whose first sizes add up to at most r, and whose second sizes
    add up to at most p. Item i has the two sizes ``sizes[i]`` (integers, ``[m, 2]``), is worth ``values[i]``, and may
    be used repeatedly. The first sizes ascend, and no item has the sizes (0, 0).
    """
    worth = np.zeros((rooms + 1, places + 1), dtype=np.int64)
    for r in range(rooms + 1):
        own = worth[r]
        fitting = np.searchsorted(sizes[:, 0], r, side="right")
        for i in range(fitting - 1, -1, -1):  # items with the first size 0 last: they use this same row
            rest, place, value = worth[r - sizes[i, 0]], sizes[i, 1], values[i]
            for p in range(place, places + 1):
                own[p] = max(own[p], rest[p - place] + value)
    return worth
