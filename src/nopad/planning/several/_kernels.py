"""Compiled pricing: the most valuable contents of a pack, for all capacities from one table."""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def knapsack(sizes: NDArray[Any], values: NDArray[Any], table: NDArray[Any]) -> None:
    """Fill ``table[r, q]`` with the highest value of classes within r and q units of the two sizes.

    `sizes` ``[m, 2]`` ascend in the first; none is 0 in both; any number of each class is allowed.
    """
    rooms, places = table.shape
    table[:] = 0
    if places == 1:
        line = table[:, 0]
        for r in range(1, rooms):
            most = line[r - 1]
            for i in range(sizes.shape[0]):
                if sizes[i, 0] > r:
                    break
                most = max(most, line[r - sizes[i, 0]] + values[i])
            line[r] = most
        return
    fitting = 0
    for r in range(rooms):
        while fitting < sizes.shape[0] and sizes[fitting, 0] <= r:
            fitting += 1
        own = table[r]
        for i in range(fitting - 1, -1, -1):  # those of size 0 last: they build on this very row
            rest, place, value = table[r - sizes[i, 0]], sizes[i, 1], values[i]
            for q in range(place, places):
                own[q] = max(own[q], rest[q - place] + value)


@njit(cache=True, nogil=True)
def patterns_with(
    sizes: NDArray[Any],
    values: NDArray[Any],
    table: NDArray[Any],
    first: NDArray[Any],
    limits: NDArray[Any],
    out: NDArray[Any],
    used: NDArray[Any],
) -> None:
    """Read the best pattern within ``limits[p]`` that contains class ``first[p]``: ``out[p, :used[p]]``, for each p.

    A negative ``first[p]`` is no class. A pattern longer than a row of `out` is cut off.
    """
    for p in range(first.shape[0]):
        room, place, at = limits[p, 0], limits[p, 1], 0
        if first[p] >= 0:
            out[p, 0] = first[p]
            at, room, place = 1, room - sizes[first[p], 0], place - sizes[first[p], 1]
        i = sizes.shape[0] - 1
        while i >= 0 and at < out.shape[1] and table[room, place] > 0:
            fits = sizes[i, 0] <= room and sizes[i, 1] <= place and values[i] > 0
            if fits and table[room - sizes[i, 0], place - sizes[i, 1]] + values[i] == table[room, place]:
                out[p, at] = i
                at, room, place = at + 1, room - sizes[i, 0], place - sizes[i, 1]
            else:
                i -= 1
        used[p] = at
