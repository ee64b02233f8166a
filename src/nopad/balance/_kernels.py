"""Compiled loops of balance: sort units by cost, arrange them in windows, and deal equal numbers of them to ranks.

A unit is a sequence, or a pack of several.

As in `nopad._kernels`, arguments are plain arrays, and callers validate them. Costs are int64 and not negative, and
their sum fits into int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._kernels import GOLDEN, mix, shuffle

_BITS = 11  # bits of a digit; few, so that the table of counts per digit stays in the L1 cache
_FEW = 64  # up to this many items are sorted by insertion

RASTER, SNAKE, KARMARKAR_KARP = 0, 1, 2


@njit(cache=True, nogil=True)
def sort_by_cost(
    costs: NDArray[Any], items: NDArray[Any], spare_costs: NDArray[Any], spare_items: NDArray[Any]
) -> None:
    """Sort `items` and their `costs` ascending by cost, in place; equal costs stay in order.

    Up to 64 items are sorted by insertion, more by a radix sort of ``cost - lowest cost``. Its digits have 11 bits; it
    sorts only by the digits that the largest difference has. The spare arrays are working memory, at least as large as
    `costs`.
    """
    n = costs.shape[0]
    if n <= _FEW:
        for i in range(1, n):
            cost, item = costs[i], items[i]
            j = i - 1
            while j >= 0 and costs[j] > cost:
                costs[j + 1], items[j + 1] = costs[j], items[j]
                j -= 1
            costs[j + 1], items[j + 1] = cost, item
        return
    lowest, highest = costs[0], costs[0]
    for i in range(n):
        lowest = min(lowest, costs[i])
        highest = max(highest, costs[i])
    begin = np.empty((1 << _BITS) + 1, dtype=np.int64)
    mask = (1 << _BITS) - 1
    shift, turned = 0, False
    while shift < 63 and (highest - lowest) >> shift > 0:
        from_costs, from_items, to_costs, to_items = costs, items, spare_costs, spare_items
        if turned:
            from_costs, from_items, to_costs, to_items = spare_costs, spare_items, costs, items
        begin[:] = 0
        for i in range(n):
            begin[(((from_costs[i] - lowest) >> shift) & mask) + 1] += 1
        for digit in range(mask):
            begin[digit + 1] += begin[digit]
        for i in range(n):
            digit = ((from_costs[i] - lowest) >> shift) & mask
            to_costs[begin[digit]] = from_costs[i]
            to_items[begin[digit]] = from_items[i]
            begin[digit] += 1
        turned = not turned
        shift += _BITS
    if turned:
        for i in range(n):
            costs[i], items[i] = spare_costs[i], spare_items[i]


@njit(cache=True, nogil=True)
def is_permutation(items: NDArray[Any]) -> bool:
    """Return whether the n `items` hold each integer from 0 to n - 1 once."""
    n = items.shape[0]
    found = np.zeros(n, dtype=np.bool_)
    for i in range(n):
        item = items[i]
        if item < 0 or item >= n or found[item]:
            return False
        found[item] = True
    return True


@njit(cache=True, nogil=True, inline="always")
def derive(key: np.uint64, part: int) -> np.uint64:
    """Return the random key that is derived from `key` for `part`, an integer.

    In the words of `nopad.random`, ``key(a, b)`` is ``derive(key(a), b)``.
    """
    return mix((key ^ np.uint64(part)) + GOLDEN)


@njit(cache=True, nogil=True)
def arrange_windows(
    costs: NDArray[Any], units: NDArray[Any], window: int, levels: int, piece: int, key: np.uint64
) -> None:
    """Arrange `units` in place so that units of similar cost share a step or a micro-step; `costs` are their costs.

    A step has `levels` pieces of `piece` units each; `units` fill whole steps. A piece is a micro-step, or the whole
    step if `levels` is 1. A window is `window` steps (the last may have fewer). The units of a window are sorted by
    cost and cut into pieces. The pieces, in this order, are divided into `levels` equal runs, and each step gets one
    piece from each run. `key` decides at random which step gets a piece, where in the step the piece is, and the order
    of its units. `costs` is changed too: it is sorted within each window.
    """
    n = units.shape[0]
    per_step = levels * piece
    longest = min(window * per_step, n)
    spare_costs = np.empty(longest, dtype=costs.dtype)
    spare = np.empty(longest, dtype=units.dtype)
    for number, first in enumerate(range(0, n, window * per_step)):
        size = min(window * per_step, n - first)
        steps = size // per_step
        mine = units[first : first + size]
        sort_by_cost(costs[first : first + size], mine, spare_costs[:size], spare[:size])
        of_window = derive(key, number)
        turned = np.empty((steps, levels), dtype=np.int64)
        for step in range(steps):
            for level in range(levels):
                turned[step, level] = level
            shuffle(turned[step], derive(derive(of_window, 1), step))
        for level in range(levels):
            target = np.arange(steps)
            shuffle(target, derive(derive(of_window, 0), level))
            of_level = derive(derive(of_window, 2), level)
            for step in range(steps):
                begin = (level * steps + step) * piece
                place = (target[step] * levels + turned[target[step], level]) * piece
                for i in range(piece):
                    spare[place + i] = mine[begin + i]
                shuffle(spare[place : place + piece], derive(of_level, step))
        for i in range(size):
            mine[i] = spare[i]


@njit(cache=True, nogil=True)
def deal_raster(units: NDArray[Any], snake: bool, parts: NDArray[Any]) -> None:
    """Deal units to ranks row by row, from the costliest on; with `snake`, every second row is reversed.

    `units` are sorted by cost, ascending. They are written to `parts`, ``[ranks, rows]``; a row is one unit per rank.
    """
    ranks, rows = parts.shape
    last = units.shape[0] - 1
    for row in range(rows):
        for column in range(ranks):
            rank = ranks - 1 - column if snake and row % 2 == 1 else column
            parts[rank, row] = units[last - (row * ranks + column)]


@njit(cache=True, nogil=True)
def deal_karmarkar_karp(costs: NDArray[Any], units: NDArray[Any], parts: NDArray[Any]) -> None:
    """Deal the same number of units to each rank, by the largest differencing method (Karmarkar-Karp).

    Units, ascending by cost, are cut into rows of one unit per rank. Then the two rows with the largest spread (highest
    minus lowest cost) are replaced by their sum: the cheap end of one is added to the costly end of the other, and the
    sums are sorted. This is repeated until one row is left, which holds the total costs of ranks. The order of each
    sort is recorded; going back through the sorts gives every unit its rank.

    `costs` are the costs of `units`, ascending. The units are written to `parts`, ``[ranks, rows]``.
    """
    ranks, rows = parts.shape
    sums = np.empty((rows, ranks), dtype=np.int64)
    spread = np.empty(rows, dtype=np.int64)
    for row in range(rows):
        for column in range(ranks):
            sums[row, column] = costs[row * ranks + column]
        spread[row] = sums[row, ranks - 1] - sums[row, 0]
    node = np.arange(rows)  # each row's node in the tree of joins; nodes are numbered rows first, then joins
    joined = np.empty((max(rows - 1, 0), 2), dtype=np.int64)
    sorted_from = np.empty((max(rows - 1, 0), ranks), dtype=np.int32)
    spare_sums = np.empty(ranks, dtype=np.int64)
    spare = np.empty(ranks, dtype=np.int32)
    for join in range(rows - 1):
        a, b = -1, -1
        for row in range(rows):
            if spread[row] < 0:  # joined to another
                continue
            if a < 0 or spread[row] > spread[a]:
                a, b = row, a
            elif b < 0 or spread[row] > spread[b]:
                b = row
        for column in range(ranks):
            sums[a, column] += sums[b, ranks - 1 - column]
            sorted_from[join, column] = column
        sort_by_cost(sums[a], sorted_from[join], spare_sums, spare)
        spread[a], spread[b] = sums[a, ranks - 1] - sums[a, 0], -1
        joined[join, 0], joined[join, 1] = node[a], node[b]
        node[a] = rows + join
    rank_of = np.empty((2 * rows - 1, ranks), dtype=np.int32)
    for column in range(ranks):
        rank_of[2 * rows - 2, column] = column
    for join in range(rows - 2, -1, -1):
        a, b = joined[join, 0], joined[join, 1]
        for column in range(ranks):
            was = sorted_from[join, column]
            rank_of[a, was] = rank_of[rows + join, column]
            rank_of[b, ranks - 1 - was] = rank_of[rows + join, column]
    for row in range(rows):
        for column in range(ranks):
            parts[rank_of[row, column], row] = units[row * ranks + column]


@njit(cache=True, nogil=True)
def deal_groups(costs: NDArray[Any], how: int, parts: NDArray[Any]) -> None:
    """Deal each group's units to the ranks of the group; write the units' indices in `costs` to `parts`.

    `costs` has the cost of each unit, and does not change. `parts` is ``[groups, blocks, ranks, rows]``; `rows` is the
    number of units of a rank in a block. A group is the ranks of a node, or all ranks; the costs of its units are
    adjacent in `costs`. The units of a group are sorted by cost, ascending, and cut into blocks. A block is a
    micro-step, or the whole step. Each block is dealt by itself. `how` is RASTER, SNAKE or KARMARKAR_KARP.
    """
    groups, blocks, ranks, rows = parts.shape
    size, block_size = blocks * ranks * rows, ranks * rows
    spare_costs = np.empty(size, dtype=np.int64)
    spare = np.empty(size, dtype=np.int64)
    for group in range(groups):
        mine = costs[group * size : (group + 1) * size].copy()
        units = np.arange(group * size, (group + 1) * size)
        sort_by_cost(mine, units, spare_costs, spare)
        for block in range(blocks):
            begin, end = block * block_size, (block + 1) * block_size
            if how == KARMARKAR_KARP and ranks > 1:
                deal_karmarkar_karp(mine[begin:end], units[begin:end], parts[group, block])
            else:
                deal_raster(units[begin:end], how == SNAKE, parts[group, block])
