"""Round a linear program to whole packs by diving: fix some packs, solve the program for the remaining items, repeat.

An item stands for all sequences of one size. A linear program says how often to use each pattern (a multiset of items
that fits into a pack), in fractions. Each step of a dive makes some packs: of each pattern, as many as the whole part
of its number. If all whole parts are 0, the step makes one pack of each of the patterns with the largest fractions. The
items of a pattern are slots: if an item has run out, its slot takes the next smaller item. After every step, the
remaining items are also packed by best-fit, and the best complete packing is kept. The dive ends in these cases:

* the best complete packing has no more packs than the bound
* no item is left
* the dive has made as many packs as the best complete packing has
* the budget is spent, or the solver fails

A packing maps each pattern (a tuple of item numbers, largest first) to its number of packs.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from nopad.planning.lpfhp import best_fit_decreasing
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.master import Master
from nopad.planning.optimal.pricing import SCALE, Items, Pattern
from nopad.planning.optimal.solver import SolverError

__all__ = ["Packing", "as_values", "best_fit", "dive", "dive_through", "fill_demand"]

Packing = Counter[Pattern]

_WHOLE = 1e-6  # a number this close to an integer counts as one
_ROUNDS = 6  # rounds of pricing after each step
_COLUMNS = 40  # patterns added per round
_PARTS = 10  # see `dive_through`


def as_values(duals: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return dual values as integers, int64 ``[k]``: a value of 1 becomes `SCALE`, and values outside 0..1 are clipped.

    `duals` are float64 ``[k]``, one per item, by ascending size. If the integer of an item is below the integer of a
    smaller item, it is raised to that one. Any integers that do not fall with size prove a bound, so rounding can
    weaken the bound but never make it wrong.
    """
    values: NDArray[np.int64] = np.round(duals.clip(0, 1) * SCALE).astype(np.int64)
    return np.maximum.accumulate(values)


def dive(master: Master, times: NDArray[np.float64], bound: int, budget: Budget) -> Packing:
    """Turn a solved linear program into a packing of all its items, in as few packs as one dive finds.

    The dive ends early at a packing of at most `bound` packs. `times` is how often the solution uses each pattern;
    float64 ``[patterns]``.
    """
    return dive_through(master, times, bound, budget)[0]


def dive_through(
    master: Master, times: NDArray[np.float64], bound: int, budget: Budget, *, parts: int = _PARTS
) -> tuple[Packing, list[tuple[Packing, NDArray[np.int64]]]]:
    """Turn a solved linear program into a packing of all its items by one dive; return ``(packing, stages)``.

    The solution uses pattern p ``times[p]`` times. The dive ends early at a packing of at most `bound` packs.

    If all whole parts are 0 in a step, let n be the number of patterns with a fraction above 0. The ``1 + n // parts``
    patterns with the largest fractions are then used once each.

    A stage is ``(packs made so far, demand left)`` after a step, where a demand is int64 ``[k]``. It is kept only if
    the linear program for the demand left shows that `bound` packs in total may still be enough. Stages are in the
    order of the steps. In the end, the demand of `master` is as before.
    """
    try:
        return _dive(master, times, bound, budget, parts)
    finally:
        master.demand(master.items.demand)


def _dive(
    master: Master, times: NDArray[np.float64], bound: int, budget: Budget, parts: int
) -> tuple[Packing, list[tuple[Packing, NDArray[np.int64]]]]:
    """Return ``(packing, stages)`` as `dive_through` does, but leave the demand of `master` as the last step set it."""
    items = master.items
    left = items.demand.copy()
    taken: Packing = Counter()
    stages: list[tuple[Packing, NDArray[np.int64]]] = []
    best = best_fit(items, left)
    while True:
        if not _take_whole(master, times, left, taken):
            _take_nearest(master, times, left, taken, parts)
        complete = taken + best_fit(items, left)
        if complete.total() < best.total():
            best = complete
        if best.total() <= bound or not left.any() or taken.total() >= best.total():
            return best, stages
        master.demand(left)
        packs = math.inf
        for _ in range(_ROUNDS):
            try:
                solved = master.solve(budget) if master.pricing <= budget.most else None
            except SolverError as error:
                budget.trouble = str(error)
                return best, stages
            if solved is None:
                return best, stages
            times, packs = solved.times, solved.packs
            if not master.improve(as_values(solved.duals), _COLUMNS, budget, strict=False)[1]:
                break
        if taken.total() + math.ceil(packs - _WHOLE) <= bound:
            stages.append((taken.copy(), left.copy()))


def fill_demand(patterns: list[Pattern], times: NDArray[np.int64], demand: NDArray[np.int64]) -> Packing:
    """Return a packing: up to ``times[p]`` packs of each pattern p in turn; packs without any item are left out.

    There are ``demand[i]`` sequences of item i, int64 ``[k]``; the packing need not hold all of them. The slot of an
    item that has run out takes the next smaller item that is left, or stays empty.
    """
    left, taken = demand.copy(), Packing()
    for p in np.flatnonzero(times).tolist():
        _fill(patterns[p], int(times[p]), left, taken)
    return taken


def _take_whole(master: Master, times: NDArray[np.float64], left: NDArray[np.int64], taken: Packing) -> bool:
    whole = np.floor(times + _WHOLE).astype(np.int64)
    for p in np.flatnonzero(whole):
        _fill(master.patterns[p], int(whole[p]), left, taken)
    return bool(whole.any())


def _take_nearest(
    master: Master, times: NDArray[np.float64], left: NDArray[np.int64], taken: Packing, parts: int
) -> None:
    used = np.flatnonzero(times > _WHOLE)
    for p in used[np.argsort(-times[used], kind="stable")][: 1 + used.size // parts]:
        _fill(master.patterns[p], 1, left, taken)


def _fill(pattern: Pattern, copies: int, left: NDArray[np.int64], taken: Packing) -> None:
    """Add up to `copies` packs of a pattern to `taken`, and subtract their items from `left` (int64 ``[k]``).

    The slot of an item that has run out takes the next smaller item that is left, or stays empty.
    """
    while copies > 0:
        held: list[int] = []
        for item in pattern:
            while item >= 0 and left[item] <= held.count(item):
                item -= 1
            if item >= 0:
                held.append(item)
        if not held:
            return
        packed = tuple(sorted(held, reverse=True))
        equal = min(copies, *(int(left[item]) // held.count(item) for item in set(held)))
        taken[packed] += equal
        for item in held:
            left[item] -= equal
        copies -= equal


def best_fit(items: Items, left: NDArray[np.int64]) -> Packing:
    """Return a packing of ``left[i]`` sequences of each item i, by best-fit decreasing."""
    present = np.flatnonzero(left)
    sizes = items.sizes[present]
    number = dict(zip(sizes.tolist(), present.tolist(), strict=True))
    packing: Packing = Counter()
    for count, held in best_fit_decreasing(sizes, left[present], items.capacity, items.depth):
        packing[tuple(number[size] for size in held)] += count
    return packing
