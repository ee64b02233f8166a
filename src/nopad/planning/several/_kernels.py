"""Compiled pricing: the most valuable contents of a pack, for all capacities from one table."""

from __future__ import annotations

from typing import Any

import numpy as np
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
def lift(
    sizes: NDArray[Any], values: NDArray[Any], table: NDArray[Any], slack: NDArray[Any], limits: NDArray[Any]
) -> None:
    """Raise ``values[i]`` of one size after the other as far as no capacity j is worth more than ``slack[j]``.

    `table` holds the highest value of contents within both limits (`knapsack`), ``limits[j]`` the limits of capacity j;
    each size that rises is added to the table.
    """
    rooms, places = table.shape
    for i in range(sizes.shape[0]):
        a, b, most, fits = sizes[i, 0], sizes[i, 1], np.int64(0), False
        for j in range(limits.shape[0]):
            room, place, copies = limits[j, 0] - a, limits[j, 1] - b, 1
            while room >= 0 and place >= 0:
                own = (slack[j] - table[room, place]) // copies
                if not fits or own < most:
                    most, fits = own, True
                room, place, copies = room - a, place - b, copies + 1
        if fits and most > values[i]:
            values[i] = most
            for r in range(a, rooms):
                for q in range(b, places):
                    table[r, q] = max(table[r, q], table[r - a, q - b] + most)


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

    A negative ``first[p]`` is not a class. A pattern longer than a row of `out` is cut off.
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


@njit(cache=True, nogil=True)
def swap_over(
    sizes: NDArray[Any],
    items: NDArray[Any],
    begins: NDArray[Any],
    free: NDArray[Any],
    over: NDArray[Any],
    roomy: NDArray[Any],
    looks: int,
) -> int:
    """Swap sequences of packs that are `over` a limit with others of `roomy` packs, until they fit; return how many do.

    ``items[begins[p]:begins[p + 1]]`` is what pack p holds, ``free[p]`` what it has left of both limits (negative: too
    much). Each pack looks at `looks` other packs, from where the one before it ended. A swap must leave the other pack
    within its limits, and this one nearer to them.
    """
    mended, at = 0, 0
    for p in over:
        for _ in range(looks):
            lack_one, lack_other = max(0, -free[p, 0]), max(0, -free[p, 1])
            if lack_one + lack_other == 0:
                break
            q = roomy[at]
            at = (at + 1) % roomy.shape[0]
            done = q == p or free[q, 0] < 0 or free[q, 1] < 0
            for i in range(begins[p], begins[p + 1]):
                if done:
                    break
                for k in range(begins[q], begins[q + 1]):
                    one = sizes[items[i], 0] - sizes[items[k], 0]
                    other = sizes[items[i], 1] - sizes[items[k], 1]
                    if one > free[q, 0] or other > free[q, 1]:
                        continue
                    left_one, left_other = max(0, -free[p, 0] - one), max(0, -free[p, 1] - other)
                    if left_one > lack_one or left_other > lack_other or left_one + left_other == lack_one + lack_other:
                        continue
                    items[i], items[k] = items[k], items[i]
                    free[p, 0] += one
                    free[p, 1] += other
                    free[q, 0] -= one
                    free[q, 1] -= other
                    done = True
                    break
        mended += free[p, 0] >= 0 and free[p, 1] >= 0
    return mended
