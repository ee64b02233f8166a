"""From fractions to whole packs (diving): take what the linear program decides clearly, then solve the rest again.

Each step takes the whole part of every pattern's count; if there is none, the patterns with the largest fractions are
taken once. The items of a pattern are only slots: a slot whose item has run out takes the next smaller item. After
every step the rest is also packed by best-fit, and the best plan so far is kept; the dive ends when it meets the bound.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from nopad.planning.lpfhp import best_fit_decreasing
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.master import Master, SolverError
from nopad.planning.optimal.pricing import SCALE, Items, Pattern, price

__all__ = ["Packing", "as_values", "best_fit", "dive", "dive_through", "fill_demand"]

Packing = Counter[Pattern]

_WHOLE = 1e-6
_ROUNDS = 6  # rounds of pricing for each remainder
_COLUMNS = 40
_PARTS = 10


def as_values(duals: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return duals as integers that never fall with size; any such values give a valid bound."""
    values: NDArray[np.int64] = np.round(duals.clip(0, 1) * SCALE).astype(np.int64)
    return np.maximum.accumulate(values)


def dive(master: Master, times: NDArray[np.float64], bound: int, budget: Budget) -> Packing:
    """Turn a solved master into a packing of all its demand, as near to `bound` packs as the budget allows."""
    return dive_through(master, times, bound, budget)[0]


def dive_through(
    master: Master, times: NDArray[np.float64], bound: int, budget: Budget, *, parts: int = _PARTS
) -> tuple[Packing, list[tuple[Packing, NDArray[np.int64]]]]:
    """Dive, and return (packing, stages).

    Where no pattern is used a whole time, one in `parts` of those with a fraction is taken once.

    A stage is (packs taken, demand left) before a step after which `bound` packs may no longer be enough; the linear
    program of what is left says that they still are at the stage. The last stage comes last.
    """
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
                solved = master.solve(budget)
            except SolverError as error:
                budget.trouble = str(error)
                return best, stages
            if solved is None:
                return best, stages
            times, packs = solved.times, solved.packs
            budget.charge(items.steps)
            if not master.add(price(items, as_values(solved.duals), _COLUMNS)[1]):
                break
        if taken.total() + math.ceil(packs - _WHOLE) <= bound:
            stages.append((taken.copy(), left.copy()))


def fill_demand(patterns: list[Pattern], times: NDArray[np.int64], demand: NDArray[np.int64]) -> Packing:
    """Return a packing that uses pattern p ``times[p]`` times, or as long as there is demand for it."""
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
    """Move `copies` packs of a pattern from `left` to `taken`.

    A slot whose item has run out takes the next smaller item.
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
    """Pack ``left[i]`` of each item i by best-fit decreasing."""
    present = np.flatnonzero(left)
    sizes = items.sizes[present]
    number = dict(zip(sizes.tolist(), present.tolist(), strict=True))
    packing: Packing = Counter()
    for count, held in best_fit_decreasing(sizes, left[present], items.capacity, items.depth):
        packing[tuple(number[size] for size in held)] += count
    return packing
