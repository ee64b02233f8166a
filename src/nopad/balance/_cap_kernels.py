"""The compiled loops of `nopad.balance.cap`, which deal units (sequences or packs) under a limit of tokens per rank.

As in `nopad._kernels`, arguments are plain arrays, and callers validate them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad.balance._kernels import sort_by_cost


@njit(cache=True, nogil=True)
def _before(rank: int, other: int, values: NDArray[Any], units_of: NDArray[Any]) -> bool:
    """Return whether `rank` comes before `other` in a heap of ranks.

    The rank r with the lower ``values[r]`` comes first. Ties go to the rank with fewer units, ``units_of[r]``, then to
    the rank with the lower number.
    """
    if values[rank] != values[other]:
        return bool(values[rank] < values[other])
    if units_of[rank] != units_of[other]:
        return bool(units_of[rank] < units_of[other])
    return rank < other


@njit(cache=True, nogil=True)
def _sink(heap: NDArray[Any], place: NDArray[Any], rank: int, values: NDArray[Any], units_of: NDArray[Any]) -> None:
    """Restore the order of a heap of ranks after `rank` got a unit; `heap` and `place` are changed in place.

    ``place[r]`` is the index of rank r in `heap`. The order is that of `_before`: by ``values[r]``, then by the number
    of the rank's units, ``units_of[r]``, and then by r.
    """
    at, n = place[rank], heap.shape[0]
    while True:
        child = 2 * at + 1
        if child + 1 < n and _before(heap[child + 1], heap[child], values, units_of):
            child += 1
        if child >= n or _before(rank, heap[child], values, units_of):
            break
        heap[at] = heap[child]
        place[heap[at]] = at
        at = child
    heap[at] = rank
    place[rank] = at


@njit(cache=True, nogil=True)
def _place(
    order: NDArray[Any],
    costs: NDArray[Any],
    tokens: NDArray[Any],
    cap: int,
    by: int,
    rank_of: NDArray[Any],
    cost_of: NDArray[Any],
    tokens_of: NDArray[Any],
    units_of: NDArray[Any],
) -> bool:
    """Place units on ranks one by one, the last of `order` first; return whether each found a rank with room for it.

    Unit u has the cost ``costs[u]`` and ``tokens[u]`` tokens. ``rank_of[u]`` is set to its rank; `cost_of`, `tokens_of`
    and `units_of` are set to the cost, tokens and number of units of each rank. A rank has room for `cap` tokens. If a
    unit finds no room, the units after it are not placed.

    A unit goes to one of the ranks with room: the one with the lowest cost (`by` 0), the fewest tokens (`by` 1) or the
    most tokens (`by` 2). Ties go to the rank with fewer units, then to the rank with the lower number.
    """
    cost_of[:] = 0
    tokens_of[:] = 0
    units_of[:] = 0
    heap, place = np.arange(cost_of.shape[0]), np.arange(cost_of.shape[0])  # a heap of ranks, lowest value first
    values = np.zeros(cost_of.shape[0], dtype=np.int64)
    for at in range(order.shape[0] - 1, -1, -1):
        unit = order[at]
        best = heap[0]
        if by == 2 or tokens[unit] > cap - tokens_of[best]:
            best = -1
            if by != 1:  # with by == 1, the rank of the fewest tokens has no room, so none has
                for rank in range(cost_of.shape[0]):
                    fits = tokens[unit] <= cap - tokens_of[rank]
                    if fits and (best < 0 or _before(rank, best, values, units_of)):
                        best = rank
        if best < 0:
            return False
        rank_of[unit] = best
        cost_of[best] += costs[unit]
        tokens_of[best] += tokens[unit]
        units_of[best] += 1
        if by == 2:
            values[best] = -tokens_of[best]
        else:
            values[best] = cost_of[best] if by == 0 else tokens_of[best]
            _sink(heap, place, best, values, units_of)
    return True


@njit(cache=True, nogil=True)
def _move(
    unit: int,
    rank: int,
    costs: NDArray[Any],
    tokens: NDArray[Any],
    rank_of: NDArray[Any],
    cost_of: NDArray[Any],
    tokens_of: NDArray[Any],
    units_of: NDArray[Any],
) -> None:
    """Move a unit from its rank to `rank`: update ``rank_of[unit]``, and the totals of both ranks.

    The totals of rank r are its cost, tokens and units: ``cost_of[r]``, ``tokens_of[r]`` and ``units_of[r]``.
    """
    was = rank_of[unit]
    rank_of[unit] = rank
    cost_of[was] -= costs[unit]
    cost_of[rank] += costs[unit]
    tokens_of[was] -= tokens[unit]
    tokens_of[rank] += tokens[unit]
    units_of[was] -= 1
    units_of[rank] += 1


@njit(cache=True, nogil=True)
def _fill_empty(
    costs: NDArray[Any],
    tokens: NDArray[Any],
    rank_of: NDArray[Any],
    cost_of: NDArray[Any],
    tokens_of: NDArray[Any],
    units_of: NDArray[Any],
) -> None:
    """Move one unit to each rank that has none, from a rank that has at least two units.

    ``rank_of[u]`` is the rank of unit u. The totals of rank r are its cost, tokens and units: ``cost_of[r]``,
    ``tokens_of[r]`` and ``units_of[r]``. These four arrays are changed in place.
    """
    unit = 0
    for rank in range(cost_of.shape[0]):
        if units_of[rank] == 0:
            while units_of[rank_of[unit]] < 2:
                unit += 1
            _move(unit, rank, costs, tokens, rank_of, cost_of, tokens_of, units_of)


@njit(cache=True, nogil=True)
def _relieve(
    most_looks: int,
    costs: NDArray[Any],
    tokens: NDArray[Any],
    cap: int,
    rank_of: NDArray[Any],
    cost_of: NDArray[Any],
    tokens_of: NDArray[Any],
    units_of: NDArray[Any],
) -> None:
    """Lower the cost of the costliest rank: move its units to other ranks, or swap them with units there.

    This is repeated while it helps.

    No rank gets more than `cap` tokens or loses its last unit. This stops after about `most_looks` comparisons of pairs
    of units. It also stops when the highest cost of a rank is within 1 part in 4,096 of a lower bound. This bound is
    the mean cost of a rank, rounded up, or the cost of the costliest unit if that is more.

    Unit u has the cost ``costs[u]``, ``tokens[u]`` tokens and the rank ``rank_of[u]``. The totals of rank r are its
    cost, tokens and units: ``cost_of[r]``, ``tokens_of[r]`` and ``units_of[r]``. `rank_of` and the totals are changed
    in place.
    """
    n, world = costs.shape[0], cost_of.shape[0]
    mine = np.empty(n, dtype=np.int64)
    least = max(costs.max(), (cost_of.sum() + world - 1) // world)
    looks = 0
    while looks < most_looks:
        worst = int(np.argmax(cost_of))
        if cost_of[worst] <= least + least // 4096:
            return
        held = 0
        for unit in range(n):
            if rank_of[unit] == worst:
                mine[held] = unit
                held += 1
        best, mover, swapped, target = cost_of[worst], -1, -1, -1
        looks += held * (n + world)
        for at in range(held):
            unit = mine[at]
            if held > 1:
                for rank in range(world):
                    after = max(cost_of[worst] - costs[unit], cost_of[rank] + costs[unit])
                    if rank != worst and after < best and tokens_of[rank] + tokens[unit] <= cap:
                        best, mover, swapped, target = after, unit, -1, rank
            for other in range(n):
                gain = costs[unit] - costs[other]
                rank = rank_of[other]
                if gain <= 0 or rank == worst:
                    continue
                after = max(cost_of[worst] - gain, cost_of[rank] + gain)
                longer = tokens[unit] - tokens[other]
                if after < best and tokens_of[rank] + longer <= cap and tokens_of[worst] - longer <= cap:
                    best, mover, swapped, target = after, unit, other, rank
        if mover < 0:
            return
        _move(mover, target, costs, tokens, rank_of, cost_of, tokens_of, units_of)
        if swapped >= 0:
            _move(swapped, worst, costs, tokens, rank_of, cost_of, tokens_of, units_of)


@njit(cache=True, nogil=True)
def deal_capped(
    costs: NDArray[Any], tokens: NDArray[Any], world: int, cap: int, most_looks: int, rank_of: NDArray[Any]
) -> bool:
    """Set ``rank_of[u]`` to a rank for each unit u, with at most `cap` tokens per rank; return whether a way was found.

    Unit u has the cost ``costs[u]`` and ``tokens[u]`` tokens. There must be at least as many units as ranks (`world`);
    each rank gets one or more. If the result is False, `rank_of` holds no valid result.

    Four ways are tried until one works:

    * the costliest units first, each to the cheapest rank with room
    * the units with most tokens first, each to the rank with most room
    * the units with most tokens first, each to the fullest rank with room
    * units in the given order, each to the rank with most room

    `most_looks` limits the comparisons that lower the highest cost afterwards (`_relieve`).
    """
    n = costs.shape[0]
    spare_costs = np.empty(n, dtype=np.int64)
    spare = np.empty(n, dtype=np.int64)
    cost_of = np.empty(world, dtype=np.int64)
    tokens_of = np.empty(world, dtype=np.int64)
    units_of = np.empty(world, dtype=np.int64)
    for way in range(4):
        order, by = np.arange(n), way
        if way < 3:
            sort_by_cost(costs.copy() if way == 0 else tokens.copy(), order, spare_costs, spare)
        else:
            order, by = order[::-1].copy(), 1
        if _place(order, costs, tokens, cap, by, rank_of, cost_of, tokens_of, units_of):
            _fill_empty(costs, tokens, rank_of, cost_of, tokens_of, units_of)
            _relieve(most_looks, costs, tokens, cap, rank_of, cost_of, tokens_of, units_of)
            return True
    return False


@njit(cache=True, nogil=True)
def _add_to_emptiest(loads: NDArray[Any], size: int, cap: int) -> bool:
    """Add `size` to the smallest of `loads`, unless the sum would be above `cap`; return whether it was added.

    `loads` is a heap with the smallest first.
    """
    if size > cap - loads[0]:
        return False
    load, at, n = loads[0] + size, 0, loads.shape[0]
    while True:
        child = 2 * at + 1
        if child + 1 < n and loads[child + 1] < loads[child]:
            child += 1
        if child >= n or loads[child] >= load:
            break
        loads[at] = loads[child]
        at = child
    loads[at] = load
    return True


@njit(cache=True, nogil=True)
def _fits_sorted(sizes: NDArray[Any], loads: NDArray[Any], cap: int, spare: NDArray[Any]) -> bool:
    """Return whether all `sizes` fit into bins, if they are placed largest first, each in the emptiest bin.

    Each bin holds at most `cap`. `loads`, ``[bins]``, and `spare`, ``[4, sizes]`` or wider, are working memory, and are
    overwritten.
    """
    n = sizes.shape[0]
    ordered = spare[0, :n]
    ordered[:] = sizes
    sort_by_cost(ordered, spare[1, :n], spare[2, :n], spare[3, :n])
    loads[:] = 0
    fitting, at = True, n - 1
    while fitting and at >= 0:
        fitting = _add_to_emptiest(loads, ordered[at], cap)
        at -= 1
    return fitting


@njit(cache=True, nogil=True)
def _fit_as_they_come(sizes: NDArray[Any], parts: int, loads: NDArray[Any], cap: int) -> int:
    """Return how many units fit into bins if they are placed in the given order.

    A unit has several parts: unit u has the sizes ``sizes[u * parts : (u + 1) * parts]``. Each part is placed in the
    emptiest bin; a bin holds at most `cap`. The first unit that does not fit ends the count. `loads`, ``[bins]``, is
    working memory, and is overwritten.
    """
    loads[:] = 0
    for at in range(sizes.shape[0]):
        if not _add_to_emptiest(loads, sizes[at], cap):
            return int(at // parts)
    return int(sizes.shape[0] // parts)


@njit(cache=True, nogil=True)
def cut_capped(
    sizes: NDArray[Any], parts: int, bins: int, most: int, cap: int, room: int, tries: int, bounds: NDArray[Any]
) -> int:
    """Cut units into steps that `deal_capped` can deal to `bins` bins; return the number of steps.

    A bin is one micro-step of one rank, with room for `cap` tokens; all bins together have room for `room` tokens. Each
    unit has several parts, which may lie in different bins: unit u has parts of ``sizes[u * parts : (u + 1) * parts]``
    tokens. ``bounds[s + 1]`` is set to the index of the first unit after step s. If unit u does not fit into an empty
    step, ``-u - 1`` is returned.

    A step takes up to `most` units, as follows:

    1. The largest number of units whose tokens do not exceed `room` is tried first. Smaller numbers follow, up to
       `tries` numbers in all.
    2. The step takes the first number whose units fit into the bins if their parts are placed largest first.
    3. If no number fits, the step takes as many units as fit if they are placed in the given order, but at least one.

    If the first number leaves more than a quarter of `room` free, units are placed in the given order before numbers
    are tried. Only numbers above the number that fits in this way are tried then.
    """
    units, begin, steps = sizes.shape[0] // parts, 0, 0
    loads = np.zeros(bins, dtype=np.int64)
    spare = np.empty((4, min(most, units) * parts), dtype=np.int64)
    while begin < units:
        high = min(most, units - begin)
        of_step = sizes[begin * parts : (begin + high) * parts]
        left, at = np.int64(room), 0
        while at < of_step.shape[0] and of_step[at] <= left:
            left -= of_step[at]
            at += 1
        more = max(at // parts, 1)  # with more units, the tokens would exceed the room of all bins
        low, back, tried = 0, 0, 0
        if left > room // 4:
            low = _fit_as_they_come(of_step, parts, loads, cap)
        while low < more and tried < tries:
            if _fits_sorted(of_step[: more * parts], loads, cap, spare):
                low = more
            back = 4 * back if back else 1 + more // 256
            more = max(more - back, 1)
            tried += 1
        if low == 0:
            low = _fit_as_they_come(of_step, parts, loads, cap)
        if low == 0:
            if not _fits_sorted(of_step[:parts], loads, cap, spare):
                return -begin - 1
            low = 1
        begin += low
        steps += 1
        bounds[steps] = begin
    return steps


@njit(cache=True, nogil=True)
def first_unfit(sizes: NDArray[Any], parts: int, bins: int, cap: int) -> int:
    """Return the index of the first unit whose parts do not fit into `bins` empty bins; -1 if all units fit.

    Unit u has parts of ``sizes[u * parts : (u + 1) * parts]`` tokens, and a bin holds at most `cap` tokens. The parts
    are placed largest first, each in the emptiest bin; if they do not fit then, they are placed in the given order.
    """
    loads = np.zeros(bins, dtype=np.int64)
    spare = np.empty((4, parts), dtype=np.int64)
    for unit in range(sizes.shape[0] // parts):
        mine = sizes[unit * parts : (unit + 1) * parts]
        if not _fits_sorted(mine, loads, cap, spare) and not _fit_as_they_come(mine, parts, loads, cap):
            return unit
    return -1
