"""Compiled loops of `nopad.planning.costs.guide`: find the most valuable patterns, and fill in real lengths.

A pattern is a multiset of item numbers that fits into a pack, by tokens, cost and depth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad.planning.costs._kernels import COST, LINK, PACKS, PLACES, TOKENS
from nopad.planning.optimal._kernels import linked, near, use


@njit(cache=True, nogil=True)
def knapsack(sizes: NDArray[Any], costs: NDArray[Any], values: NDArray[Any], table: NDArray[Any]) -> None:
    """Fill ``table[j, r, c]`` with the highest total value of at most j items that fit into a size r and a cost c.

    Items fit if their sizes add up to at most r, and their costs to at most c.

    Item i has the size ``sizes[i]`` (ascending), the cost ``costs[i]`` and the value ``values[i]``, and may be used
    repeatedly. `table` is int64 ``[largest j + 1, largest r + 1, largest c + 1]``. If its first dimension is 1, the
    number of items has no limit.
    """
    layers, rooms, money = table.shape
    table[0] = 0
    for j in range(max(1, layers - 1)):
        layer = min(j + 1, layers - 1)
        if layer:
            table[layer] = table[j]
        for r in range(sizes[0], rooms):
            own, above = table[layer, r], table[layer, r - 1]
            for c in range(money):
                own[c] = max(own[c], above[c])
            for i in range(sizes.shape[0]):
                if sizes[i] > r:
                    break
                rest, cost, value = table[j, r - sizes[i]], costs[i], values[i]
                for c in range(cost, money):
                    own[c] = max(own[c], rest[c - cost] + value)


@njit(cache=True, nogil=True)
def patterns_with(
    sizes: NDArray[Any],
    costs: NDArray[Any],
    values: NDArray[Any],
    table: NDArray[Any],
    first: NDArray[Any],
    out: NDArray[Any],
    used: NDArray[Any],
) -> None:
    """For each p, find the most valuable pattern that contains item ``first[p]``, and write its items to ``out[p]``.

    ``used[p]`` gets the number of these items. ``first[p]`` comes first, then the others in order of size, largest
    first; items without value are left out. `table` is what `knapsack` made from the same sizes, costs and values. A
    pattern longer than a row of `out` is cut off.
    """
    layers, rooms, money = table.shape
    for p in range(first.shape[0]):
        out[p, 0] = first[p]
        room, cost = rooms - 1 - sizes[first[p]], money - 1 - costs[first[p]]
        at, i, j = 1, sizes.shape[0] - 1, max(0, layers - 2)
        while i >= 0 and at < out.shape[1] and table[j, room, cost] > 0:
            below = 0 if layers == 1 else j - 1
            if below < 0:
                break
            fits = sizes[i] <= room and costs[i] <= cost and values[i] > 0
            if fits and table[below, room - sizes[i], cost - costs[i]] + values[i] == table[j, room, cost]:
                out[p, at] = i
                at, room, cost, j = at + 1, room - sizes[i], cost - costs[i], below
            else:
                i -= 1
        used[p] = at


@njit(cache=True, nogil=True)
def root(number: Any) -> Any:
    """Return the square root of an integer (int64, >= 0), rounded down."""
    guess = np.int64(np.sqrt(np.float64(number)))
    while guess * guess > number:
        guess -= 1
    while (guess + 1) * (guess + 1) <= number:
        guess += 1
    return guess


@njit(cache=True, nogil=True)
def fill_slots(
    slots: NDArray[Any],
    indptr: NDArray[Any],
    copies: NDArray[Any],
    edges: NDArray[Any],
    middle: NDArray[Any],
    limits: NDArray[Any],
    align: int,
    available: NDArray[Any],
    below: NDArray[Any],
    above: NDArray[Any],
    packs: NDArray[Any],
    links: NDArray[Any],
) -> tuple[int, int]:
    """Make ``copies[p]`` packs of real lengths from each pattern p; return ``(number of packs, number of links)``.

    Packs for which no sequence is left are not made. The items of pattern p are ``slots[indptr[p]:indptr[p + 1]]``,
    largest first. Item u stands for the lengths from ``edges[u]`` up to ``edges[u + 1]`` (exclusive), its range, and is
    planned as ``middle[u]`` tokens. The planned sum of a pack is the sum of these numbers over its items so far,
    rounded. Each item but the last takes the length of its range that brings the pack nearest to its planned sum. If
    the range has no available length that fits, a length outside it is taken (`near`). The last item takes the longest
    length that fits. An item for which no length fits is left out.

    `limits` are a pack's most tokens (where every length counts rounded up to a multiple of `align`), largest sum of
    squared lengths, and most sequences. ``available[l]`` is the number of sequences of length l left. `below` and
    `above` link each length towards the next shorter and the next longer available length. These three arrays are
    changed.

    Each pack is written as a row of `packs`: free tokens, free cost, free places, 1, and the row of its last link. A
    link is a row of `links`: the row of the link before it (-1: none), a length, and 1.
    """
    filled, at = 0, 0
    for p in range(copies.shape[0]):
        for _ in range(copies[p]):
            room, cost, places, link, planned = limits[TOKENS], limits[COST], limits[PLACES], -1, 0.0
            tokens = 0
            for s in range(indptr[p], indptr[p + 1]):
                u = slots[s]
                planned += middle[u]
                most = min(room // align * align, root(cost))
                if places < 1:
                    break
                length = linked(below, most)
                if s < indptr[p + 1] - 1:
                    length = near(planned - tokens, edges[u], edges[u + 1], most, below, above)
                if length == 0:
                    continue
                links[at, 0], links[at, 1], links[at, 2] = link, length, 1
                link, at = at, at + 1
                tokens += length
                room, cost, places = room - (length + align - 1) // align * align, cost - length * length, places - 1
                use(length, available, below, above)
            if link >= 0:
                packs[filled, TOKENS], packs[filled, COST], packs[filled, PLACES] = room, cost, places
                packs[filled, PACKS], packs[filled, LINK] = 1, link
                filled += 1
    return filled, at
