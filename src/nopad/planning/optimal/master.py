"""The restricted master program: a linear program that packs all items into the fewest packs of known patterns.

An item stands for all sequences of one size, and a pattern is a multiset of items that fits into a pack. HiGHS finds
how often to use each pattern. The rows are items. There are two kinds of columns: patterns, which cost one pack each,
and exchanges, which are free. An exchange lets the slot of an item be used by the next smaller item. Because of the
exchanges, no item has a lower dual value than a smaller item; a certificate requires this. Exchanges also make column
generation stable.

Each solve starts from the basis of the last one. New patterns leave the last solution primal feasible, so the primal
simplex method is used after patterns were added. A change of demand leaves the last solution dual feasible, so the dual
simplex method is used after such a change.

Source: Gilmore and Gomory, "A linear programming approach to the cutting-stock problem", 1961; exchange columns are the
dual-optimal inequalities of Valerio de Carvalho, "Using extra dual cuts to accelerate column generation", 2005.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.pricing import Items, Pattern, price
from nopad.planning.optimal.solver import new_model, solve_linear

__all__ = ["OPTIONS", "Master", "Optimum"]

OPTIONS = {
    "presolve": "off",
    "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9,
    # No perturbation: it takes a quarter of the time; `solve_linear` turns it on for a program that stalls without it
    "dual_simplex_cost_perturbation_multiplier": 0.0,
    "primal_simplex_bound_perturbation_multiplier": 0.0,
}


_DUAL, _PRIMAL = 1, 4  # values of HiGHS' option simplex_strategy


@dataclass(frozen=True)
class Optimum:
    """The optimum of a `Master`.

    Attributes:
        packs: number of packs, which may be fractional.
        times: how often each pattern is used, in the order of `Master.patterns`; float64 ``[patterns]``.
        duals: the dual value of each item; float64 ``[k]``.
    """

    packs: float
    times: NDArray[np.float64]
    duals: NDArray[np.float64]


class Master:
    """The linear program over the patterns added so far; its attribute `patterns` has them in the order of columns."""

    def __init__(self, items: Items) -> None:
        """Create a row for each item, and the exchange columns; without patterns, the program has no solution yet."""
        self.items = items
        self._loose = not items.unlimited
        self.patterns: list[Pattern] = []
        self._known: set[Pattern] = set()
        self._exchanges = k = items.sizes.size - 1
        self._highs = new_model(**OPTIONS)
        self._scale = 1.0
        none = np.empty(0, dtype=np.int32)
        upper = np.full(k + 1, highspy.kHighsInf)
        self._highs.addRows(k + 1, np.zeros(k + 1), upper, 0, none, none, np.empty(0))
        # Column i adds one slot of item i and removes one of i + 1
        rows = np.stack([np.arange(k), np.arange(1, k + 1)], axis=1).astype(np.int32).ravel()
        starts = np.arange(0, 2 * k, 2, dtype=np.int32)
        ends = np.full(k, highspy.kHighsInf)
        self._highs.addCols(k, np.zeros(k), np.zeros(k), ends, 2 * k, starts, rows, np.tile([1.0, -1.0], k))
        self.demand(items.demand)

    def demand(self, demand: NDArray[np.int64] | NDArray[np.float64]) -> None:
        """Set how often each item must be packed; int64 or float64 ``[k]``."""
        self._highs.setOptionValue("simplex_strategy", _DUAL)  # the last solution stays dual feasible
        total = float(demand.sum())
        self._scale = 1e4 / total if total > 1e4 else 1.0  # HiGHS' tolerances are absolute: keep its numbers small
        every = np.arange(demand.size, dtype=np.int32)
        bounds = demand * self._scale
        self._highs.changeRowsBounds(demand.size, every, bounds, np.full(demand.size, highspy.kHighsInf))

    def column(self, pattern: Pattern) -> dict[int, float]:
        """Return ``{row: copies}``: how often the pattern holds each of its items; the row of an item is its number."""
        return {item: float(pattern.count(item)) for item in dict.fromkeys(pattern)}

    def add(self, patterns: Iterable[Pattern]) -> int:
        """Add those patterns that the program does not have yet; return their number."""
        new = [p for p in dict.fromkeys(patterns) if p not in self._known]
        rows: list[int] = []
        amounts: list[float] = []
        starts = []
        for pattern in new:
            starts.append(len(rows))
            column = self.column(pattern)
            rows += column
            amounts += column.values()
        if new:
            m = len(new)
            self._highs.setOptionValue("simplex_strategy", _PRIMAL)  # the last solution stays primal feasible
            self._highs.addCols(
                m,
                np.ones(m),
                np.zeros(m),
                np.full(m, highspy.kHighsInf),
                len(rows),
                np.array(starts, dtype=np.int32),
                np.array(rows, dtype=np.int32),
                np.array(amounts),
            )
        self.patterns += new
        self._known.update(new)
        return len(new)

    @property
    def pricing(self) -> int:
        """Number of operations of the first pricing in the next call of `improve`."""
        return self.items.steps(loose=self._loose)

    def improve(self, values: NDArray[np.int64], most: int, budget: Budget, *, strict: bool = True) -> tuple[int, int]:
        """Add up to `most` patterns worth more than the cost of a pack; return ``(highest value, number added)``.

        `values` are the dual values of the items as integers (`as_values`); int64 ``[k]``. No pattern is worth more
        than the highest value returned, so this value proves a bound.

        The depth limit makes pricing slow, and rarely excludes a good pattern. So pricing ignores the limit at first
        (`loose` of `price`). When it finds no new pattern in this way, the next step depends on `strict`. With
        `strict`, this call prices again with the limit, and all later calls price with the limit only. Without
        `strict`, this call ends and has added nothing; patterns within the limit may have been missed.

        If the budget does not allow pricing with the limit, the number added is -1. The caller must check that the
        budget allows the first pricing (`pricing`).
        """
        if self._loose:
            budget.charge(self.pricing)
            best, patterns = price(self.items, values, most, loose=True)
            added = self.add(patterns)
            if added or not strict:
                return best, added
            if self.items.steps() > budget.most:
                return best, -1
            self._loose = False
        budget.charge(self.pricing)
        best, patterns = price(self.items, values, most)
        return best, self.add(patterns)

    def solve(self, budget: Budget) -> Optimum | None:
        """Return the optimum over the patterns added so far; None if the budget ends first.

        Raises:
            SolverError: HiGHS ended without an optimum, for another reason than the budget.
        """
        if not solve_linear(self._highs, budget):
            return None
        info, solution = self._highs.getInfo(), self._highs.getSolution()
        # The solver's tolerance may leave a value just below 0; scaled up, that would be a negative number of packs
        times = np.array(solution.col_value)[self._exchanges :].clip(0) / self._scale
        return Optimum(float(info.objective_function_value) / self._scale, times, np.array(solution.row_dual))

    def trim(self, times: NDArray[np.float64], slack: float) -> NDArray[np.float64]:
        """Remove unused patterns whose reduced cost is above `slack`; return the `times` of the patterns that stay.

        `times` says how often the last optimum uses each pattern (unused: 0); float64 ``[patterns]``. Patterns added
        later have no reduced cost yet; they stay, and have no entry in `times` or in the result.
        """
        costs = np.array(self._highs.getSolution().col_dual)[self._exchanges :]
        keep = np.ones(len(self.patterns), dtype=bool)
        keep[: times.size] = (costs[: times.size] <= slack) | (times > 0)
        gone = np.flatnonzero(~keep).astype(np.int32) + self._exchanges
        self._highs.deleteCols(gone.size, gone)
        self.patterns = [pattern for pattern, stays in zip(self.patterns, keep.tolist(), strict=True) if stays]
        self._known = set(self.patterns)
        return times[keep[: times.size]]
