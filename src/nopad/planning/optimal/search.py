"""Column generation and rounding for items in units: whole packs, and the values that prove a bound.

Each round solves the master over the patterns known so far, prices the duals, and adds the best patterns around single
items. In every round the duals, as integers, prove a bound; the search ends when the best bound equals the optimum of
the linear program, rounded up, when no new pattern improves this optimum, or when the budget is spent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.master import Master
from nopad.planning.optimal.pricing import Items, Pattern, price
from nopad.planning.optimal.rounding import Packing, as_values, best_fit, dive

__all__ = ["Relaxed", "Solved", "polish", "relax", "solve"]


_SLACK = 0.002  # patterns with a reduced cost above this are dropped before rounding
_COLUMNS = 60  # added per round
_POLISH_COPIES = 40


@dataclass(frozen=True)
class Relaxed:
    """The solved linear program: how often to use each pattern, and the best bound with the values that prove it."""

    times: NDArray[np.float64]
    bound: int
    values: NDArray[np.int64]


@dataclass(frozen=True)
class Solved:
    """A packing into whole packs, with the bound and the values that prove it."""

    packing: Packing
    bound: int
    values: NDArray[np.int64]
    master: Master


def solve(
    items: Items, seeds: Iterable[Pattern], budget: Budget, *, enough: int = 0, within: float = 0.0
) -> Solved | None:
    """Pack all items; None if the budget does not allow a single linear program.

    The search ends early at `enough` packs (a bound known from elsewhere), or when the packs exceed its own bound by at
    most the share `within`.
    """
    master = Master(items)
    master.add([*seeds, *best_fit(items, items.demand)])
    relaxed = relax(master, budget)
    if relaxed is None:
        return None
    goal = max(enough, relaxed.bound + int(within * relaxed.bound))
    times = master.trim(relaxed.times, _SLACK)

    return Solved(dive(master, times, goal, budget), relaxed.bound, relaxed.values, master)


def relax(master: Master, budget: Budget) -> Relaxed | None:
    """Generate columns until the bound meets the optimum or the budget is spent; None if it was spent before."""
    demand = master.items.demand.tolist()
    best: Relaxed | None = None
    while budget.spend():
        packs, times, duals = master.solve()
        values = as_values(duals)
        most, patterns = price(master.items, values, _COLUMNS)
        worth = sum(value * count for value, count in zip(values.tolist(), demand, strict=True))
        bound = -(-worth // most) if most else 0
        if best is None or bound >= best.bound:
            best = Relaxed(times, bound, values)
        else:
            best = Relaxed(times, best.bound, best.values)
        if best.bound >= math.ceil(packs - 1e-6) or not master.add(patterns):
            break
    return best


def polish(solved: Solved, budget: Budget, turn: int) -> Solved:
    """Pack again what is in packs with room and in some full ones; return the better of both packings.

    Which full packs are chosen depends on `turn`.
    """
    items, master = solved.master.items, solved.master
    sizes = items.sizes.tolist()
    opened: Packing = Counter()
    left = np.zeros_like(items.demand)
    for at, (pattern, count) in enumerate(sorted(solved.packing.items())):
        has_room = sum(sizes[item] for item in pattern) < items.capacity
        copies = min(count, _POLISH_COPIES if has_room else int((7 * at + 3 * turn) % 11 == 0))
        if copies:
            opened[pattern] = copies
            for item in pattern:
                left[item] += copies
    part = Master.like(master, Items(items.sizes, left, items.capacity, items.depth))
    relaxed = relax(part, budget)
    if relaxed is None or relaxed.bound >= opened.total():
        return solved
    again = dive(part, relaxed.times, relaxed.bound, budget)
    if again.total() >= opened.total():
        return solved
    return Solved(solved.packing - opened + again, solved.bound, solved.values, master)
