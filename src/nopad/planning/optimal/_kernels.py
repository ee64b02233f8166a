"""Compiled loops of column generation: the knapsack of pricing, its patterns, and real lengths for their slots.

All values and sizes are int64, so results are exact. An item stands for all sequences of one size. A pattern is a
multiset of item numbers that fits into a pack; each of its items is a slot for one sequence.

The arrays `below` and `above` link lengths. An available length, of which sequences are left, links to itself. Any
other length links towards the next shorter available length (`below`) or the next longer one (`above`). Lengths 0 and
capacity + 1 link to themselves, and mean that there is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def knapsack(sizes: NDArray[Any], values: NDArray[Any], unlimited: bool, table: NDArray[Any]) -> None:
    """Fill ``table[j, r]`` with the highest total value of at most j items whose sizes add up to at most r.

    `table` is int64 ``[depth + 1, capacity + 1]``. Item i has the size ``sizes[i]`` (ascending) and the value
    ``values[i]``, and may be used repeatedly. If `unlimited`, any number of items is allowed, and the table has just
    two rows, which are equal. In both cases, ``table[-2, r]`` is the highest value of items that fit into a room of r
    and leave a place for one more item.
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
    """For each p, write to ``out[p, :used[p]]`` the items of the most valuable pattern that contains item ``first[p]``.

    `table` is what `knapsack` made from the same sizes and values. After ``first[p]`` the items are in order of size,
    largest first; among equally good patterns the one with larger items is taken.
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
    """Follow the links from `length` to an available length, and return that length.

    An available length links to itself. If no length in the direction of the links is available, the result is where
    the links end: 0 or capacity + 1. All links on the way are set to the result, so that later calls take fewer steps.
    """
    root = length
    while links[root] != root:
        root = links[root]
    while links[length] != root:
        links[length], length = root, links[length]
    return root


@njit(cache=True, nogil=True)
def near(planned: float, low: int, high: int, most: int, below: NDArray[Any], above: NDArray[Any]) -> int:
    """Return the available length nearest to `planned`, of those from `low` to ``high - 1`` that are at most `most`.

    `planned` is rounded to an integer first. If no such length is available, return the next shorter available length,
    or else the next longer one up to `most`; 0 if no available length is at most `most`. The module describes `below`
    and `above`.
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
    """Take one sequence of `length` from `available`.

    If none of this length is left, `below` then links the length to the next shorter one, and `above` to the next
    longer one (see the module). All three arrays are changed.
    """
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
    """Fill ``copies[p]`` packs by each pattern p, with a real length for each item; return the number of packs.

    Packs for which no sequence is left are not counted. The items of pattern p are ``slots[indptr[p]:indptr[p + 1]]``,
    largest first. Item u stands for the lengths from ``edges[u]`` up to ``edges[u + 1]`` (exclusive), its range, and is
    planned as ``middle[u]`` tokens, about the middle of the range. The planned sum of a pack is the sum of these
    numbers over its items so far, rounded. Each item but the last takes the length of its range that brings the pack
    nearest to its planned sum. If the range has no available length that fits, a length outside it is taken (`near`).
    The last item takes the longest length that fits. An item for which no length fits is left out.

    ``available[l]`` is the number of sequences of length l left. It is changed, and so are the links `below` and
    `above` (see the module). Pack k has the lengths ``out[packs[k]:packs[k + 1]]``.
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
) -> tuple[int, int]:
    """List all patterns with a total value of at least `least`; return ``(number of patterns, steps taken)``.

    The number is -1 if there are too many: if `flat` or `ends` is full, or the search needs more than `steps` steps.

    Pattern p is ``flat[ends[p]:ends[p + 1]]``: at most `depth` item numbers, largest first, item i at most
    ``demand[i]`` times. `table` is that of `knapsack` for these sizes, these values and this `unlimited`; it bounds the
    value that the remaining items of a pattern can add.
    """
    found, at, size = 0, 0, 0
    ends[0] = 0
    held = np.empty(depth, np.int64)
    used = np.zeros(sizes.size, np.int64)
    room, worth = table.shape[1] - 1, 0
    item, taken = sizes.size - 1, 0
    while True:
        taken += 1
        if taken > steps:
            return -1, taken
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
                    return -1, taken
                for slot in range(at):
                    flat[size + slot] = held[slot]
                size += at
                found += 1
                ends[found] = size
            continue
        if at == 0:
            return found, taken
        at -= 1
        item = held[at]
        used[item] -= 1
        room += sizes[item]
        worth -= values[item]
        item -= 1
