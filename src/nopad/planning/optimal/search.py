"""Column generation and rounding: they give whole packs for `Items`, and values of items that prove a lower bound.

An item stands for all sequences of one size, and a pattern is a multiset of items that fits into a pack. Each round
solves the linear program over the patterns known so far (`master`), and adds patterns that are worth most by its dual
values (`pricing`). In every round the dual values, as integers, prove a lower bound. Column generation ends in one of
three cases: the best bound reaches the optimum of the program, rounded up; or no new pattern can improve the program;
or the budget is spent. The caller may also end it earlier (`relax`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.master import Master
from nopad.planning.optimal.pricing import Items, Pattern
from nopad.planning.optimal.rounding import Packing, as_values, best_fit, dive_through

__all__ = ["Relaxed", "Solved", "relax", "round_off", "solve"]


_SLACK = 0.002  # unused patterns with a reduced cost above this are dropped before rounding
_RELAXING, _ROUNDING = 0.6, 0.35  # share of the budget to solve a linear program; share of the rest to round it
_COLUMNS = 60  # patterns added per round


@dataclass(frozen=True)
class Relaxed:
    """The result of column generation.

    Attributes:
        times: how often the last solution uses each pattern; float64 ``[patterns]``.
        bound: the best lower bound of any round, in packs.
        values: the values of the items, as integers, which prove the bound (`as_values`); int64 ``[k]``.
        most: an upper bound on the sum of these values in one pack.
        converged: whether column generation is complete: no new pattern was found that improves the linear program, or
            the optimum of the program, rounded up, is at most `bound` or `enough` (see `relax`).
    """

    times: NDArray[np.float64]
    bound: int
    values: NDArray[np.int64]
    most: int
    converged: bool


@dataclass(frozen=True)
class Solved:
    """A packing into whole packs, and a proven lower bound on their number.

    Attributes:
        packing: maps each pattern to its number of packs; together they hold all items.
        bound: the lower bound, in packs.
        values: the dual values of the items as integers, which prove the bound (`as_values`); int64 ``[k]``.
        master: the linear program from which the packing was rounded.
        stages: pairs ``(packs made so far, demand left)`` after steps of the rounding (`dive_through`).
    """

    packing: Packing
    bound: int
    values: NDArray[np.int64]
    master: Master
    stages: list[tuple[Packing, NDArray[np.int64]]]


def solve(items: Items, budget: Budget, *, within: float = 0.0, seeds: Iterable[Pattern] = ()) -> Solved | None:
    """Return a packing of all items, and its lower bound; None if the budget does not allow a single linear program.

    The linear program starts from the patterns of a best-fit packing and from `seeds`. Rounding ends early at a packing
    that exceeds the bound by at most `within` times the bound (0.01: 1 %).

    Raises:
        SolverError: HiGHS did not reach an optimum of the linear program. (If it fails later, while the solution is
            rounded, the best packing so far is returned.)
    """
    master = Master(items)
    master.add(best_fit(items, items.demand))
    master.add(seeds)
    with budget.part(_RELAXING):
        relaxed = relax(master, budget)
    if relaxed is None:
        return None
    with budget.part(_ROUNDING):
        return round_off(master, relaxed, relaxed.bound + int(within * relaxed.bound), budget)


def round_off(master: Master, relaxed: Relaxed, goal: int, budget: Budget, *, parts: int = 10) -> Solved:
    """Round a solved linear program to whole packs, and return the result; end early at `goal` packs or fewer.

    Unused patterns with a high reduced cost are removed from `master` first. If a step of the dive finds no pattern
    that is used at least once, it takes the ``1 + n // parts`` patterns with the largest of the n fractions above 0,
    once each (`dive_through`).
    """
    times = master.trim(relaxed.times, _SLACK)
    packing, stages = dive_through(master, times, goal, budget, parts=parts)
    return Solved(packing, relaxed.bound, relaxed.values, master, stages)


def relax(
    master: Master, budget: Budget, *, enough: int = 0, hopeless: int | None = None, rounds: int | None = None
) -> Relaxed | None:
    """Solve the linear program by column generation, and return the result.

    The result is None if the budget is too small to solve the program even once.

    Column generation ends in these cases:

    * the optimum of the program, rounded up, is at most the bound found so far, or at most `enough`
    * the bound found so far is at least `hopeless` (None: this never ends it)
    * no new pattern improves the program
    * the budget is spent
    * it has taken `rounds` rounds (None: no limit)

    Raises:
        SolverError: HiGHS did not reach an optimum.
    """
    demand = master.items.demand.tolist()
    best: Relaxed | None = None
    for _ in itertools.count() if rounds is None else range(rounds):
        solved = master.solve(budget) if master.pricing <= budget.most else None
        if solved is None:
            break
        values = as_values(solved.duals)
        most, added = master.improve(values, _COLUMNS, budget)
        worth = sum(value * count for value, count in zip(values.tolist(), demand, strict=True))
        bound = -(-worth // most) if most else 0
        if best is None or bound >= best.bound:
            best = Relaxed(solved.times, bound, values, most, converged=False)
        else:
            best = replace(best, times=solved.times)
        if max(best.bound, enough) >= math.ceil(solved.packs - 1e-6) or not added:
            return replace(best, converged=True)
        if added < 0 or (hopeless is not None and best.bound >= hopeless):
            break
    return best
