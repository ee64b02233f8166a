"""Plans with limits on tokens and cost where few sequences share a pack: column generation with real lengths.

Where three or four sequences fill a pack, a difference of one token may decide whether they fit, so lengths and costs
must not be rounded. The patterns of the linear program hold real lengths, and keep to the limits exactly. The program
has few rows, since each length counts as shares of two chosen lengths, the knots (`nopad.planning.costs.knots`). For
each knot, a valuable pattern that begins with this knot is found: each knot that is not longer is tried as the second
length, together with one or two further lengths, either the longest that fits or a pair from a table.

The whole parts of the solution are filled with sequences of nearly the planned lengths, so that packs stay as valuable
as planned. Then the program is solved again for what is left. The dual values prove a bound (`prove`).

Source: Gilmore and Gomory, "Multistage cutting stock problems of two and more dimensions", 1965; values between knots
are a restriction of the dual program, as in Ben Amor and Valerio de Carvalho, "Cutting stock problems", 2005.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.planning.algorithm import Strategies
from nopad.planning.costs.knots import Knots
from nopad.planning.costs.spread import LOOK, Load, Packed
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.listed import Listed
from nopad.planning.optimal.master import Master, Optimum
from nopad.planning.optimal.pricing import Items, Pattern
from nopad.planning.optimal.solver import SolverError

__all__ = ["Few", "few"]

_KNOTS = 240
_ROUNDS, _AGAIN, _STAGES = 60, 4, 12  # rounds of pricing: at first, and at each of the later stages
_COLUMNS = 400  # most patterns added per round
_NEAR = 2e-5  # pricing ends when no pattern is worth this much more than a pack
_WHOLE = 1e-6  # a number this close to an integer counts as one
_LOSS = 3e-3  # a pack that loses more than this share is left to the next stage
_SMALL, _PARTS = 300, 4  # below so many packs, small counts are rounded up (`_take`), and packs may lose more
_REST = 30  # so many sequences are left to best-fit
_WIDTH = 8  # available lengths that are tried on each side of the planned one
_PAIR, _TABLE, _SEQUENCE = 25, 2 * 10**6, 400  # operations per pair of knots in pricing; per table; per sequence
_LOOKS = 10**7  # most steps of best-fit


@dataclass(frozen=True)
class Few:
    """A plan, and the dual values of its linear program.

    Attributes:
        strategies: the packs of all sequences.
        values: value of each length of the load, float64 ``[k]``; in a pack they add up to at most about 1.
    """

    strategies: Strategies
    values: NDArray[np.float64]


class _KnotMaster(Master):
    """The linear program (`Master`), with a row for each knot instead of each item.

    A pattern is a tuple of indices of lengths in the load.
    """

    def __init__(self, load: Load, knots: Knots) -> None:
        self.load, self.knots = load, knots
        at, share = knots.shares(load.lengths)
        self._shares = list(zip(at.tolist(), share.tolist(), strict=True))
        capacity = int(load.limits[0])
        number = np.ones_like(knots.lengths)
        super().__init__(Items(knots.lengths, number, capacity, capacity))
        self.demand(knots.demand(load.lengths, load.counts))

    def column(self, pattern: Pattern) -> dict[int, float]:
        """Return ``{knot: amount}``: the shares of a knot (`Knots.shares`), summed over the lengths of `pattern`."""
        found: dict[int, float] = {}
        for item in pattern:
            at, share = self._shares[item]
            found[at] = found.get(at, 0.0) + 1 - share
            if share:
                found[at + 1] = found.get(at + 1, 0.0) + share
        return found


def few(load: Load, align: int, budget: Budget) -> Few | None:
    """Return a plan of all sequences of `load`; None if the first linear program was not solved.

    That program is not solved if the budget is too small, or if the solver fails. If the solver failed at this program
    or at a later one, `Budget.trouble` says why. In a pack, lengths are rounded up to multiples of `align`. The
    operations are charged to `budget`.
    """
    try:
        return _Search(load, align, budget).run()
    except SolverError as error:
        budget.trouble = str(error)
        return None


class _Search:
    """A search for a plan: the knots of its program, the sequences left, the packs made, and the values of lengths."""

    def __init__(self, load: Load, align: int, budget: Budget) -> None:
        self.load, self.align, self.budget = load, align, budget
        self.knots = Knots.of(load, _KNOTS)
        self.left = load.counts.copy()
        self.upto = np.searchsorted(load.lengths, np.arange(int(load.lengths[-1]) + 1), side="right")
        self.made: list[Listed] = []
        self.values = np.empty(0)
        self.work = _PAIR * self.knots.lengths.size**2 + _TABLE

    def run(self) -> Few | None:
        """Solve the linear program, fill its patterns, and go on with what is left; return the plan.

        The result is None if the budget ends before the first linear program is solved. Sequences left at the end are
        packed by best-fit; the end comes early if the solver fails at a later linear program, and then `Budget.trouble`
        says why.

        Raises:
            SolverError: HiGHS ended without an optimum of the first linear program.
        """
        if self.budget.most < 3 * self.work:
            return None
        master = _KnotMaster(self.load, self.knots)
        alike = self._alike()
        chosen = self.knots.chosen.tolist()
        master.add([(item,) for item in chosen])
        master.add([(item,) * n for item, n in zip(chosen, alike, strict=True)])
        for stage in range(_STAGES):
            try:
                solved = self._solve(master, _AGAIN if stage else _ROUNDS)
            except SolverError as error:
                if not stage:
                    raise
                self.budget.trouble = str(error)
                break
            if solved is None or not self._take(master, solved) or self.left.sum() <= _REST:
                break
            master.demand(self.knots.demand(self.load.lengths, self.left))
        return Few(self._finish(), self.values) if self.values.size else None

    def _alike(self) -> list[int]:
        """Return for each knot how many sequences of its length fit into one pack."""
        limits, chosen = self.load.limits, self.knots.chosen
        by_both = np.minimum(limits[0] // self.load.sizes[chosen], limits[1] // self.load.costs[chosen])
        alike: list[int] = np.minimum(by_both, limits[2]).tolist()
        return alike

    def _solve(self, master: _KnotMaster, rounds: int) -> Optimum | None:
        """Return the optimum after up to `rounds` rounds of pricing; None if the budget ends before the first round.

        The first call also sets `values`, the value of each length, unless it returns None.

        Raises:
            SolverError: HiGHS ended without an optimum.
        """
        solved: Optimum | None = None
        for _ in range(rounds):
            again = master.solve(self.budget) if self.work <= self.budget.most else None
            if again is None:
                break
            solved = again
            values = self.knots.values(solved.duals, self.load.lengths)
            worth, found = self._price(values)
            if worth <= 1 + _NEAR or not master.add(found):
                break
        if solved is not None and not self.values.size:
            self.values = values
        return solved

    def _price(self, values: NDArray[np.float64]) -> tuple[float, list[Pattern]]:
        """Return the value of the best pattern found, and up to 400 patterns with a value above 1, best first."""
        from nopad.planning.costs import _few_kernels

        self.budget.charge(self.work)
        load, chosen = self.load, self.knots.chosen
        out, worth = np.empty((chosen.size, 4), dtype=np.int64), np.empty(chosen.size)
        _few_kernels.price(load.lengths, load.sizes, values, chosen, self.upto, load.limits, self.align, out, worth)
        above = np.flatnonzero(worth > 1 + _NEAR / 100)
        above = above[np.argsort(-worth[above], kind="stable")][:_COLUMNS]
        return float(worth.max()), [
            tuple(sorted((i for i in row if i >= 0), reverse=True)) for row in out[above].tolist()
        ]

    def _take(self, master: _KnotMaster, solved: Optimum) -> int:
        """Make packs of real lengths from the whole parts of a solution; return the number of packs made.

        The whole part of ``solved.times[p]`` is the number of packs to make like pattern p. This number is raised to at
        least 1 for some patterns if all whole parts are 0, or if the program needs fewer than 300 packs. These are the
        patterns with the largest ``solved.times[p]``: a quarter of the patterns in use, and one more. No more packs are
        made like a pattern once the next one would be empty or worth too little.
        """
        from nopad.planning.costs import _few_kernels

        load, small = self.load, solved.packs < _SMALL
        whole = np.floor(solved.times + _WHOLE).astype(np.int64)
        if small or not whole.any():
            used = np.count_nonzero(solved.times > _WHOLE)
            largest = np.argsort(-solved.times, kind="stable")[: 1 + used // _PARTS]
            whole[largest] = np.maximum(whole[largest], 1)
        patterns = sorted(((master.patterns[p], int(whole[p])) for p in np.flatnonzero(whole)), reverse=True)
        n, k = int(self.left.sum()), self.left.size
        self.budget.charge(_SEQUENCE * n)
        places = np.arange(k + 2)
        present = np.concatenate([[True], self.left > 0, [True]])
        below = np.maximum.accumulate(np.where(present, places, 0))
        above = np.minimum.accumulate(np.where(present, places, k + 1)[::-1])[::-1].copy()
        held, ends = np.empty(n + 1, dtype=np.int64), np.empty(n + 2, dtype=np.int64)
        packs = _few_kernels.fill(
            np.array([item for pattern, _ in patterns for item in pattern]),
            np.cumsum([0, *(len(pattern) for pattern, _ in patterns)]),
            np.array([copies for _, copies in patterns]),
            _WIDTH,
            0.0 if small else 1 - _LOSS,
            load.lengths,
            load.sizes,
            self.values,
            self.upto,
            load.limits,
            self.align,
            self.left,
            below,
            above,
            held,
            ends,
        )
        lengths = load.lengths[held[: ends[packs]]].astype(np.int32)
        self.made.append(Listed(lengths, ends[: packs + 1].copy(), np.ones(packs, dtype=np.int64)))
        return packs

    def _finish(self) -> Strategies:
        """Use best-fit to pack the sequences that are left; return all packs as ``(count, lengths)`` pairs."""
        from nopad.planning.costs import _kernels

        load = self.load
        strategies: Counter[tuple[int, ...]] = Counter()
        filled = [part for part in self.made if part.copies.size]
        for count, lengths in Listed.joined(filled).strategies() if filled else []:
            strategies[lengths] += count
        if self.left.any():
            classes, links = np.empty((self.left.size + 16, 5), np.int64), np.empty((self.left.size + 16, 3), np.int64)
            made: Any = _kernels.best_fit(load.sizes, load.costs, self.left, classes, 0, links, 0, load.limits, _LOOKS)
            self.budget.charge(LOOK * made[4])
            for count, lengths in Packed(made[0][: made[1]], made[2][: made[3]]).strategies(load.lengths):
                strategies[lengths] += count
        return [(count, lengths) for lengths, count in strategies.items()]
