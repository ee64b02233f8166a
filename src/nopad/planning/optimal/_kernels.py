"""Compiled pricing loops: a knapsack over sizes in units, exact in 64-bit integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def knapsack(sizes: NDArray[Any], values: NDArray[Any], unlimited: bool, table: NDArray[Any]) -> None:
    """Fill ``table[j, r]`` with the highest value of at most j items with at most r units in all; `sizes` ascend.

    If `unlimited`, any number of items is allowed; the table then has two equal rows, so that a pattern is still read
    as one item plus the row above.
    """
    depth, capacity = table.shape[0] - 1, table.shape[1] - 1
    for r in range(capacity + 1):
        table[0, r] = 0
    if unlimited:
        for r in range(1, capacity + 1):
            most = table[0, r - 1]
            for i in range(sizes.shape[0]):
                if sizes[i] > r:
                    break
                most = max(most, table[0, r - sizes[i]] + values[i])
            table[0, r] = most
        for r in range(capacity + 1):
            table[1, r] = table[0, r]
        return
    for j in range(1, depth + 1):
        for r in range(capacity + 1):
            table[j, r] = table[j - 1, r]
        for i in range(sizes.shape[0]):
            size, value = sizes[i], values[i]
            for r in range(size, capacity + 1):
                table[j, r] = max(table[j, r], table[j - 1, r - size] + value)


@njit(cache=True, nogil=True)
def patterns_with(
    sizes: NDArray[Any],
    values: NDArray[Any],
    unlimited: bool,
    table: NDArray[Any],
    first: NDArray[Any],
    out: NDArray[Any],
    used: NDArray[Any],
) -> None:
    """Read from a knapsack table the best pattern that contains item ``first[p]``, for each p.

    ``out[p, :used[p]]`` are its item numbers. Among equally good items the largest is taken, so the room is used up
    early.
    """
    depth, capacity = table.shape[0] - 1, table.shape[1] - 1
    for p in range(first.shape[0]):
        out[p, 0] = first[p]
        at, room, j = 1, capacity - sizes[first[p]], depth - 1
        i = sizes.shape[0] - 1
        while j >= 0 and i >= 0 and table[j, room] > 0:
            below = 0 if unlimited else j - 1
            if below < 0:
                break
            if sizes[i] <= room and table[below, room - sizes[i]] + values[i] == table[j, room]:
                out[p, at] = i
                at += 1
                room -= sizes[i]
                j = below
            else:
                i -= 1
        used[p] = at


@njit(cache=True, nogil=True)
def linked(links: NDArray[Any], length: int) -> int:
    """Follow links from `length` to an available length (it links to itself); shorten the path for later calls."""
    root = length
    while links[root] != root:
        root = links[root]
    while links[length] != root:
        links[length], length = root, links[length]
    return root


@njit(cache=True, nogil=True)
def near(planned: float, low: int, high: int, most: int, below: NDArray[Any], above: NDArray[Any]) -> int:
    """Return the available length from `low` up to `high` (exclusive) that is nearest to `planned`, and at most `most`.

    If there is none in this range, the length may be shorter; 0 if no available one fits. `below` and `above` are those
    of `fill_slots`.
    """
    wanted: Any = min(max(np.int64(planned + 0.5), low), high - 1, most)
    shorter, longer = linked(below, wanted), linked(above, wanted)
    if longer > most or (longer >= high and shorter > 0):
        return shorter
    if shorter < low or longer - wanted < wanted - shorter:
        return longer
    return shorter


@njit(cache=True, nogil=True)
def use(length: int, available: NDArray[Any], below: NDArray[Any], above: NDArray[Any]) -> None:
    """Take one sequence of a length; the last one links the length to its neighbours, so that searches skip it."""
    available[length] -= 1
    if available[length] == 0:
        below[length] = length - 1
        above[length] = length + 1


@njit(cache=True, nogil=True)
def fill_slots(
    slots: NDArray[Any],
    indptr: NDArray[Any],
    copies: NDArray[Any],
    edges: NDArray[Any],
    middle: NDArray[Any],
    capacity: int,
    available: NDArray[Any],
    below: NDArray[Any],
    above: NDArray[Any],
    out: NDArray[Any],
    packs: NDArray[Any],
) -> int:
    """Give real lengths to the slots of patterns, longest slot first; return the number of packs filled.

    Slot u stands for lengths ``edges[u] <= l < edges[u + 1]``, near ``middle[u]``. Each slot but the last takes the
    available length of its range that brings the pack nearest to its planned sum; the last takes the longest that still
    fits, so the deviations of the others cost nothing. ``available[l]`` is the number of sequences left; `below` and
    `above` link each length to the next available one (0 and capacity + 1 always link to themselves); all three are
    changed. `packs` gets the CSR bounds of `out`.
    """
    filled, at = 0, 0
    packs[0] = 0
    for p in range(copies.shape[0]):
        for _ in range(copies[p]):
            tokens, planned, begin = 0, 0.0, at
            for s in range(indptr[p], indptr[p + 1]):
                u = slots[s]
                planned += middle[u]
                room = capacity - tokens
                length = linked(below, room)
                if s < indptr[p + 1] - 1:
                    length = near(planned - tokens, edges[u], edges[u + 1], room, below, above)
                if length == 0:
                    continue
                out[at] = length
                at += 1
                tokens += length
                use(length, available, below, above)
            if at > begin:
                filled += 1
                packs[filled] = at
    return filled


@njit(cache=True, nogil=True)
def patterns_above(
    sizes: NDArray[Any],
    demand: NDArray[Any],
    values: NDArray[Any],
    depth: int,
    unlimited: bool,
    table: NDArray[Any],
    least: int,
    steps: int,
    flat: NDArray[Any],
    ends: NDArray[Any],
) -> int:
    """List every pattern worth at least `least`, largest item first; return their number, or -1 if that is too much.

    `table` is that of `knapsack`: what the rest of a pattern can still be worth at most. Pattern p is
    ``flat[ends[p]:ends[p + 1]]``. At most `demand` of each item; -1 after `steps`, or if `flat` or `ends` is full.
    """
    found, at, size = 0, 0, 0
    ends[0] = 0
    held = np.empty(depth, np.int64)
    used = np.zeros(sizes.size, np.int64)
    room, worth = table.shape[1] - 1, 0
    item = sizes.size - 1
    while True:
        steps -= 1
        if steps < 0:
            return -1
        rest = table[0 if unlimited else depth - at, room]
        if worth + rest < least or at == depth:
            item = -1
        while item >= 0 and (sizes[item] > room or used[item] == demand[item]):
            item -= 1
        if item >= 0:
            held[at] = item
            at += 1
            used[item] += 1
            room -= sizes[item]
            worth += values[item]
            if worth >= least:
                if found + 1 == ends.size or size + at > flat.size:
                    return -1
                for slot in range(at):
                    flat[size + slot] = held[slot]
                size += at
                found += 1
                ends[found] = size
            continue
        if at == 0:
            return found
        at -= 1
        item = held[at]
        used[item] -= 1
        room += sizes[item]
        worth -= values[item]
        item -= 1
