"""Compiled loops of plans for several capacities.

They find the most valuable packs of all capacities with one table (`knapsack`, `patterns_with`), raise the values of a
certificate (`lift`), and swap sequences between packs (`swap_over`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def knapsack(sizes: NDArray[Any], values: NDArray[Any], table: NDArray[Any]) -> None:
    """Fill ``table[r, q]`` with the highest total value of classes that fit into the two limits r and q.

    Classes fit if their first sizes add up to at most r, and their second sizes to at most q. A class stands for
    sequences of equal or similar size. Class i has the two sizes ``sizes[i]`` (``[m, 2]``) and the value ``values[i]``.
    The first sizes ascend, no class has both sizes 0, and a class may be used any number of times. `table` is int64
    ``[largest r + 1, largest q + 1]``; if it has only one column, the second sizes are ignored.
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
        for i in range(fitting - 1, -1, -1):  # classes whose first size is 0 come last: they build on this row itself
            rest, place, value = table[r - sizes[i, 0]], sizes[i, 1], values[i]
            for q in range(place, places):
                own[q] = max(own[q], rest[q - place] + value)


@njit(cache=True, nogil=True)
def lift(
    sizes: NDArray[Any], values: NDArray[Any], table: NDArray[Any], slack: NDArray[Any], limits: NDArray[Any]
) -> None:
    """Raise the values of sizes, one after the other, each as much as possible; change `values` in place.

    No pack of capacity j may become worth more than ``slack[j]``. ``values[i]`` is the value of the size ``sizes[i]``,
    and ``limits[j]`` are the two limits of capacity j. ``table[r, q]`` is the highest total value of sizes that fit
    into the limits r and q (`knapsack`), before any value is raised. It is changed too: each raised value is entered
    before the next one is raised.
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
    """For each p, write to ``out[p]`` the best pattern within ``limits[p]`` that contains class ``first[p]``.

    The best pattern is the multiset of classes with the highest total value. ``used[p]`` gets its number of classes,
    where each copy counts. If ``first[p]`` is negative, the pattern need not contain a certain class. ``limits[p]`` are
    two numbers, the limits on the first and on the second sizes. `table` is what `knapsack` made from the same sizes
    and values. A pattern longer than a row of `out` is cut off.
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
    """Swap sequences of packs that are above a limit with sequences of packs that have room.

    Returns how many of the packs in `over` are within their limits afterwards. `items` and `free` are changed in place.

    `over` lists the packs above a limit, and `roomy` those with room. Pack p holds the sizes
    ``items[begins[p]:begins[p + 1]]`` (indices into `sizes`). ``free[p]`` are two numbers: how much of each limit the
    pack leaves free (negative: the pack is above this limit). For each pack in `over`, up to `looks` packs of `roomy`
    are tried, beginning where the search for the previous pack ended. A swap must keep the pack of `roomy` within its
    limits, and bring the pack of `over` nearer to its own limits.
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
