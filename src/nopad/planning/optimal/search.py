"""Column generation and rounding for items in units: whole packs, and the values that prove a bound.

Each round solves the master over the patterns known so far, prices the duals, and adds the best patterns around single
items. In every round the duals, as integers, prove a bound; the search ends when the best bound equals the optimum of
the linear program, rounded up, when no new pattern improves this optimum, or when the budget is spent.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.master import Master
from nopad.planning.optimal.pricing import Items, price
from nopad.planning.optimal.rounding import Packing, as_values, best_fit, dive_through

__all__ = ["Relaxed", "Solved", "relax", "round_off", "solve"]


_SLACK = 0.002  # patterns with a reduced cost above this are dropped before rounding
_COLUMNS = 60  # added per round


@dataclass(frozen=True)
class Relaxed:
    """The solved linear program: how often to use each pattern, and the best bound with the values that prove it.

    `most` is the worth of the most valuable pattern under these values. `converged`: no column can improve the program
    any more, or it needs no more packs than are known to be enough.
    """

    times: NDArray[np.float64]
    bound: int
    values: NDArray[np.int64]
    most: int
    converged: bool


@dataclass(frozen=True)
class Solved:
    """A packing into whole packs, with the bound and the values that prove it; `stages` are those of `dive_through`."""

    packing: Packing
    bound: int
    values: NDArray[np.int64]
    master: Master
    stages: list[tuple[Packing, NDArray[np.int64]]]


def solve(items: Items, budget: Budget, *, within: float = 0.0) -> Solved | None:
    """Pack all items; None if the budget does not allow a single linear program.

    The search ends early when the packs exceed the bound by at most the share `within`.
    """
    master = Master(items)
    master.add(best_fit(items, items.demand))
    relaxed = relax(master, budget)
    if relaxed is None:
        return None
    return round_off(master, relaxed, relaxed.bound + int(within * relaxed.bound), budget)


def round_off(master: Master, relaxed: Relaxed, goal: int, budget: Budget, *, parts: int = 10) -> Solved:
    """Return whole packs, `goal` at best, from a solved linear program; `parts` is that of `dive_through`."""
    times = master.trim(relaxed.times, _SLACK)
    packing, stages = dive_through(master, times, goal, budget, parts=parts)
    return Solved(packing, relaxed.bound, relaxed.values, master, stages)


def relax(master: Master, budget: Budget, *, enough: int = 0, rounds: int | None = None) -> Relaxed | None:
    """Generate columns until the linear program meets its bound or `enough` packs, or budget or `rounds` are spent."""
    demand = master.items.demand.tolist()
    best: Relaxed | None = None
    for _ in itertools.count() if rounds is None else range(rounds):
        solved = master.solve(budget)
        if solved is None:
            break
        values = as_values(solved.duals)
        most, patterns = price(master.items, values, _COLUMNS)
        budget.charge(master.items.steps)
        worth = sum(value * count for value, count in zip(values.tolist(), demand, strict=True))
        bound = -(-worth // most) if most else 0
        if best is None or bound >= best.bound:
            best = Relaxed(solved.times, bound, values, most, converged=False)
        else:
            best = replace(best, times=solved.times)
        if max(best.bound, enough) >= math.ceil(solved.packs - 1e-6) or not master.add(patterns):
            return replace(best, converged=True)
    return best
