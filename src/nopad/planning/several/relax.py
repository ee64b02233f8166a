"""The linear program over packs of all capacities, solved by column generation with one pricing table.

A column is a pattern (classes that share a pack) and a capacity; the room that the pattern leaves in a pack holds sand
(see `nopad.planning.several.classes`). The rows require every class as often as there are sequences of it, and room for
all sand. The dual values of the rows are the values of classes and the rates (values of a unit) of sand. The extra of a
class is its value minus ``rates . corner``. A knapsack over extras, in one table up to the largest limits, prices the
columns of every capacity at once. The dual values of each round, scaled so that no pack is worth more than its price,
prove a lower bound.

Source: Gilmore and Gomory, "A linear programming approach to the cutting-stock problem", 1961, with several stock
lengths; the bound of a round as in Farley 1990.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.master import OPTIONS
from nopad.planning.optimal.solver import new_model, solve_linear
from nopad.planning.several.certificate import MAX_VALUE, PriceCertificate
from nopad.planning.several.classes import Classes
from nopad.planning.several.task import Task

__all__ = ["Column", "Master", "Relaxed"]

Column = tuple[int, tuple[int, ...]]  # number of the capacity, classes (ascending)

_SCALE = 2.0**40  # the integer that stands for the highest price in the pricing table
_COLUMNS = 60  # most columns added in a round
_DEMAND = 1e4  # demands with a larger sum are scaled down to this sum, since the solver's tolerances are absolute
_CELL_STEPS = (1.5, 0.4)  # operations per class and cell of the table, for one kind of size and for two
_LONGEST = 4096  # most classes in one pattern


@dataclass(frozen=True)
class Relaxed:
    """The result of the linear program, at its optimum or when the budget or the number of rounds ended.

    Sand is what sequences have beyond the corners of their classes (`nopad.planning.several.classes`). `times` and
    `price` are from the last round of column generation; `rates`, `extras` and `proven` are from the round that proves
    the highest bound.

    Attributes:
        times: how often each column is used; may be fractional; float64 ``[columns]``.
        rates: dual value of one unit of sand of the first size, and of one unit of sand of the second size; both
            divided by the highest price of any capacity worth using (`Task.by_price`); float64 ``[2]``.
        extras: dual value of each class, divided by the same price, minus ``rates . corner``; at least 0; float64
            ``[m]``.
        price: total price of the packs in the program's solution, in the unit of `Task.prices`.
        proven: approximately the lower bound on this total price that the dual values prove, in the same unit.
    """

    times: NDArray[np.float64]
    rates: NDArray[np.float64]
    extras: NDArray[np.float64]
    price: float
    proven: float


class Master:
    """The linear program over the columns added so far.

    A column is a pair: the index of a capacity, and the classes of sequences that share a pack of it. The room left in
    the pack holds sand: what sequences have beyond the corners of their classes (`nopad.planning.several.classes`).
    """

    def __init__(self, task: Task, classes: Classes) -> None:
        """Create a row for each class and for each kind of sand, and first columns that cover all of them."""
        self.task, self.classes = task, classes
        self.columns: list[Column] = []
        self._known: set[Column] = set()
        self.dearest = max(task.prices[j] for j in task.by_price)
        self.costs = np.array([price / self.dearest for price in task.prices])
        self.limits = task.capacities // classes.units
        self._corners = classes.corners // classes.units
        self._order = np.argsort(self._corners[:, 0], kind="stable")
        self._table = np.empty(self.limits.max(axis=0) + 1, dtype=np.int64)
        self._most = task.capacities.max(axis=0).clip(1).astype(np.float64)
        self._highs = new_model(**OPTIONS)
        m, none = len(classes.corners), np.empty(0, dtype=np.int32)
        self._highs.addRows(m + 2, np.zeros(m + 2), np.full(m + 2, highspy.kHighsInf), 0, none, none, np.empty(0))
        self.demand(classes.demand, classes.sand)
        self.add(self._first())

    @property
    def cells(self) -> tuple[int, int]:
        """Number of cells of the pricing table, and number of its columns: 1 if only the first size is limited."""
        return self._table.size, self._table.shape[1]

    @property
    def steps(self) -> int:
        """Number of operations of one pricing round."""
        return int(self._table.size * len(self._corners) * _CELL_STEPS[self._table.shape[1] > 1]) + 10**5

    def _first(self) -> list[Column]:
        """Return the first columns of the program.

        For each capacity worth using, there are these columns:

        * a pack of sand alone
        * for each class that fits, a pack with one copy of it
        * for each class that fits, a pack with as many copies of it as fit (at most 4,096)
        """
        found: list[Column] = []
        corners = self.classes.corners
        for j in self.task.by_price:
            limit = self.task.capacities[j]
            copies = np.min(np.where(corners > 0, limit // np.maximum(corners, 1), 2**31), axis=1)
            found.append((j, ()))
            for i, n in enumerate(copies.tolist()):
                found += [(j, (i,) * times) for times in {1: 0, min(n, _LONGEST): 0} if n]
        return found

    def demand(self, demand: NDArray[np.float64], sand: tuple[float, float]) -> None:
        """Set the number of sequences of each class (float64 ``[m]``), and the total sand of each of the two sizes."""
        self._highs.setOptionValue("simplex_strategy", 1)  # the last solution stays dual feasible
        asked = np.append(demand, np.array(sand) / self._most)
        total = float(asked.sum())
        self._scale = _DEMAND / total if total > _DEMAND else 1.0
        rows = np.arange(asked.size, dtype=np.int32)
        self._asked = asked
        self._highs.changeRowsBounds(asked.size, rows, asked * self._scale, np.full(asked.size, highspy.kHighsInf))

    def add(self, columns: Iterable[Column]) -> int:
        """Add those columns that the program does not have yet; return their number."""
        new = [column for column in dict.fromkeys(columns) if column not in self._known]
        rows: list[int] = []
        amounts: list[float] = []
        starts: list[int] = []
        m = len(self.classes.corners)
        for j, held in new:
            starts.append(len(rows))
            free = self.task.capacities[j].astype(np.float64)
            for i, n in Counter(held).items():
                rows.append(i)
                amounts.append(float(n))
                free = free - n * self.classes.corners[i]
            for kind, room in enumerate((free / self._most).tolist()):
                if room:
                    rows.append(m + kind)
                    amounts.append(room)
        if new:
            self._highs.setOptionValue("simplex_strategy", 4)  # the last solution stays primal feasible
            self._highs.addCols(
                len(new),
                np.array([self.costs[j] for j, _ in new]),
                np.zeros(len(new)),
                np.full(len(new), highspy.kHighsInf),
                len(rows),
                np.array(starts, dtype=np.int32),
                np.array(rows, dtype=np.int32),
                np.array(amounts),
            )
        self.columns += new
        self._known.update(new)
        return len(new)

    def relax(self, budget: Budget, *, near: float = 1e-6, rounds: int = 10_000) -> Relaxed | None:
        """Solve the program by column generation; return the result, or None if `budget` allows no round.

        The search ends when the lower bound is at least ``1 - near`` times the price of the program's solution, when no
        new column is found, when `budget` is spent, or after `rounds` rounds. The columns found are added.

        Raises:
            SolverError: HiGHS did not reach an optimum.
        """
        best: Relaxed | None = None
        for _ in range(rounds):
            solved = self._solve(budget)
            if solved is None:
                break
            price, times, duals = solved
            m = len(self.classes.corners)
            rates = duals[m:].clip(0) / self._most
            extras = (duals[:m] - self.classes.corners @ rates).clip(0)
            share, columns = self._price(rates, extras)
            budget.charge(self.steps)
            proven = float(self._asked @ duals.clip(0)) / share * self.dearest if share else 0.0
            if best is None or proven >= best.proven:
                best = Relaxed(times, rates, extras, price, proven)
            else:
                best = Relaxed(times, best.rates, best.extras, price, best.proven)
            if best.proven >= price * (1 - near) or not self.add(columns):
                break
        return best

    def _solve(self, budget: Budget) -> tuple[float, NDArray[np.float64], NDArray[np.float64]] | None:
        if not solve_linear(self._highs, budget):
            return None
        info, solution = self._highs.getInfo(), self._highs.getSolution()
        times = np.array(solution.col_value).clip(0) / self._scale
        price = float(info.objective_function_value) / self._scale * self.dearest
        return price, times, np.array(solution.row_dual)

    def _price(self, rates: NDArray[np.float64], extras: NDArray[np.float64]) -> tuple[float, list[Column]]:
        """Return the highest ratio of a pack's value to its price, and up to 60 columns worth more than their price.

        The value of a pack is the sum of the values of its classes and its sand. A unit of sand of either size is worth
        its entry in `rates`. A class is worth its corner at these rates, plus its entry in `extras`.
        """
        from nopad.planning.several import _kernels

        chosen = self._order[extras[self._order] > 0]
        corners, values = self._corners[chosen], np.floor(extras[chosen] * _SCALE).astype(np.int64)
        table = self._table
        _kernels.knapsack(corners, values, table)
        sand = self.task.capacities @ rates
        share = 0.0
        found: list[tuple[float, int, int]] = []
        for j in self.task.by_price:
            limit = self.limits[j]
            best = sand[j] + int(table[tuple(limit)]) / _SCALE
            share = max(share, best / self.costs[j])
            room = (self.costs[j] - sand[j]) * _SCALE
            if best > self.costs[j] * (1 + 1e-9):
                found.append((float(best / self.costs[j]), j, -1))
            fits = np.flatnonzero((corners <= limit).all(axis=1))
            around = values[fits] + table[limit[0] - corners[fits, 0], limit[1] - corners[fits, 1]]
            gain = (around - room) / _SCALE / self.costs[j]
            dear = np.flatnonzero(gain > 1e-9)
            dear = dear[np.argsort(-gain[dear], kind="stable")][:_COLUMNS]
            found += [(1 + float(gain[at]), j, int(fits[at])) for at in dear.tolist()]
        found = sorted(found, key=lambda one: -one[0])[:_COLUMNS]
        return share, self._read(found, chosen, corners, values)

    def _read(
        self,
        found: list[tuple[float, int, int]],
        chosen: NDArray[np.int64],
        corners: NDArray[np.int64],
        values: NDArray[np.int64],
    ) -> list[Column]:
        """Return the most valuable column for each ``(gain, capacity, class)`` of `found`.

        The column has this capacity, and contains this class, given as an index into `chosen` (-1: any classes).
        `corners` and `values` are those of the classes `chosen`. Columns without any class are left out.
        """
        from nopad.planning.several import _kernels

        if not found or not chosen.size:
            return []
        first = np.array([i for *_, i in found], dtype=np.int64)
        limits = np.array([self.limits[j] for _, j, _ in found], dtype=np.int64)
        out = np.empty((len(found), self._longest(corners)), dtype=np.int64)
        used = np.empty(len(found), dtype=np.int64)
        _kernels.patterns_with(corners, values, self._table, first, limits, out, used)
        rows = zip(found, out, used.tolist(), strict=True)
        return [(j, tuple(sorted(chosen[row[:n]].tolist()))) for (_, j, _), row, n in rows if n]

    def _longest(self, corners: NDArray[np.int64]) -> int:
        """Return an upper bound on the number of classes in a pattern, where each copy of a class counts.

        It is at most 4,096; longer patterns are cut off.
        """
        limits = self.limits.max(axis=0)
        first = corners[corners[:, 0] > 0, 0].min(initial=limits[0] + 1)
        second = corners[corners[:, 0] == 0, 1].min(initial=limits[1] + 1)
        return min(_LONGEST, int(limits[0] // first + limits[1] // second) + 1)

    def certificate(self, relaxed: Relaxed) -> PriceCertificate:
        """Return a certificate with the rates and extras of `relaxed`, scaled and rounded down to integers."""
        scale = float(MAX_VALUE // 2)
        corners, extras = self.classes.corners, np.floor(relaxed.extras * scale)
        kept = np.flatnonzero(extras >= 1)
        pairs = zip(corners[kept].tolist(), extras[kept].astype(np.int64).tolist(), strict=True)
        rates = [int(rate * scale) for rate in relaxed.rates.tolist()]
        one, other = self.classes.units.tolist()
        return PriceCertificate((rates[0], rates[1]), tuple((a, b, value) for (a, b), value in pairs), (one, other))
