"""`optimal` and `auto`: plans with a proven lower bound.

Packing a histogram is the cutting-stock problem. Heuristics are tried first (milliseconds): best-fit, and with a depth
limit `spread`, which opens all packs up front. A plan that meets a cheap lower bound is optimal. Otherwise column
generation solves the linear program over all patterns; its duals prove a bound, and a dive turns its fractions into
whole packs. The program works on the distinct lengths for as long as the budget allows; else on lengths rounded to
units (`units`), and the free space that rounding leaves in every pack is gathered (`gathering`). The last packs above
the bound are removed by an integer program (`closing`).

The budget is counted in operations, so the result is the same on every machine, unless a limit in seconds is set.
Within it `auto` stops as soon as a plan is within one pack of the bound; `optimal` continues.

Source: Gilmore and Gomory 1961; Farley 1990; Wascher and Gau, "Heuristics for the integer one-dimensional cutting stock
problem", 1996.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.algorithm import Planned, Strategies
from nopad.planning.bounds import lower_bound
from nopad.planning.certificate import Certificate
from nopad.planning.lpfhp import lpfhp
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.listed import Listed
from nopad.planning.optimal.pricing import Items
from nopad.planning.optimal.spread import spread

if TYPE_CHECKING:
    from nopad.planning.optimal.master import Master
    from nopad.planning.optimal.search import Solved

__all__ = ["auto", "nearly", "optimal"]

_MOST_TABLE = 2**27  # entries of a table of pricing, 8 bytes each
_MOST_SEEDS = 4_000
_SHORT = 3 * 10**9  # operations of a first round of all steps, if the budget is larger: no worse than that budget gives
_BEGINNING = 0.4  # share of the budget for a first attempt at the exact program
_MOST_BEGINNING = 0.9  # the same, where even a bad case takes less than half of the budget
_LENGTH_STEPS = 1_700  # operations per squared number of distinct lengths: simplex iterations of a bad case
_UNLIKE = 3e-3  # share of packs above the cheap bound, from which free space is not what is wrong
_PARTS = (10, 25, 5, 60)  # of the fractions that a dive takes at a time, one dive after the other
_RELAXING = 0.7  # share for the linear program, before it is rounded
_ROW_STEPS = 100  # operations per listed pack, to divide a list and to join it again
_MOST_LEFT = 500  # sequences that a dive had left over, to be packed by the integer program
_NEAR = 64  # packs above the bound, up to which they are removed one by one
_MOST_CAPACITY = 2**24  # filling slots takes 40 bytes per token of capacity
_WITHIN_UNITS = 1e-4  # filling slots with real lengths moves the result by more than that


def optimal(
    histogram: Histogram, capacity: int, depth: int | None, *, effort: float = 30, seconds: int | None = None
) -> Planned:
    """Return the best plan found; its certificate is None where a cheap lower bound is as good.

    `effort` is the budget: about so many seconds of an ordinary core, counted in operations. No new step begins after
    `seconds` on the clock (None: no time limit).

    >>> made = optimal(Histogram.from_lengths([5, 5, 4, 4, 3, 3, 3, 3, 2]), 10, None)
    >>> sum(count for count, _ in made.strategies), made.facts
    (4, {'linear_programs': 0})
    """
    return _Search(histogram, capacity, depth, Budget(effort, seconds), within=0).run()


def auto(
    histogram: Histogram, capacity: int, depth: int | None, *, effort: float = 3, seconds: int | None = None
) -> Planned:
    """Return the first plan found within one pack of its lower bound, or the best one when the budget is spent.

    `effort` and `seconds` are those of `optimal`.

    >>> made = auto(Histogram.from_lengths([5, 5, 4, 4, 3, 3, 3, 3, 2]), 10, None)
    >>> sum(count for count, _ in made.strategies), made.facts
    (4, {'linear_programs': 0})
    """
    return _Search(histogram, capacity, depth, Budget(effort, seconds), within=1).run()


def nearly(histogram: Histogram, capacity: int, depth: int | None, *, effort: float, share: float) -> Strategies:
    """Return the first plan found at most this share above its lower bound, or the best one within `effort`."""
    search = _Search(histogram, capacity, depth, Budget(effort), within=1)
    search.within = max(1, int(share * search.bound))
    return list(search.run().strategies)


@dataclass
class _Search:
    """The state of one search: best plan, best bound, budget; a plan at most `within` packs above the bound ends it."""

    histogram: Histogram
    capacity: int
    depth: int | None
    budget: Budget
    within: int

    def __post_init__(self) -> None:
        self.bound = lower_bound(self.histogram, self.capacity, self.depth).packs
        self.certificate: Certificate | None = None
        self.best = Listed.of(lpfhp(self.histogram, self.capacity, self.depth))
        self.notes: list[str] = []
        self.master: Master | None = None
        self.solved = False

    def run(self) -> Planned:
        """Try the heuristics, then the linear program; return the best plan."""
        if not self._good() and self.depth is not None:
            for packs in (self.bound, self.bound + 1):
                if not self._good():
                    self._offer(Listed.of(spread(self.histogram, self.capacity, self.depth, packs)))
        if not self._good():
            self._search()
        if self.budget.out_of_time:
            self.notes.append("stopped by the limit in seconds: another run may find another plan")
        return Planned(
            strategies=self.best.strategies(),
            certificate=self.certificate,
            facts={"linear_programs": self.budget.programs},
            notes=tuple(self.notes),
        )

    def _good(self) -> bool:
        return self.best.packs <= self.bound + self.within

    def _offer(self, packs: Listed) -> None:
        if packs.packs < self.best.packs:
            self.best = packs

    def _prove(self, certificate: Certificate) -> None:
        if certificate.problem(self.capacity, self.depth) is not None:
            return  # a certificate that cannot be checked proves nothing
        bound = certificate.bound(self.histogram, self.capacity, self.depth)
        if bound > self.bound:
            self.bound, self.certificate = bound, certificate

    def _search(self) -> None:
        """Solve linear programs and search from their packings, until a plan is good or the budget is spent."""
        if self.capacity > _MOST_CAPACITY:
            self.notes.append(f"best-fit, and the cheap bounds: the capacity is above {_MOST_CAPACITY:,}")
            return
        from nopad.planning.optimal.master import SolverError

        try:
            if self.budget.left > 2 * _SHORT:
                with self.budget.part(_SHORT / self.budget.left):
                    self._steps()
                    self._shallower()
            self._steps()
            self._shallower()
        except SolverError as error:
            self.budget.trouble = str(error)
        if self.budget.trouble:
            self.notes.append(f"the linear-program solver gave up ({self.budget.trouble}): the best plan until then")
        elif not self.budget.programs:
            self.notes.append("the budget allowed no linear program: best-fit, and the cheap bounds")
        elif self.budget.spent() and not self.budget.out_of_time and not self._good():
            self.notes.append(
                f"stopped by its budget after {self.budget.programs} linear programs: a larger one (effort) may find a "
                "better plan, or a better bound"
            )

    def _steps(self) -> None:
        """Take every step with the budget that is left, until a plan is good."""
        close = self._close
        for step in (close, self._begin_exact, close, self._in_units, close, self._exact, self._gather, close):
            if self._good() or self.budget.spent():
                break
            step()

    def _shallower(self) -> None:
        """Try a smaller depth: such plans are valid too, and sometimes one is nearer to the bound."""
        depth = max(2, 2 * self.histogram.sequences // self.bound)
        if not self._good() and not self.budget.spent() and (self.depth is None or depth < self.depth):
            other = _Search(self.histogram, self.capacity, depth, self.budget, self.within)
            other.bound = max(other.bound, self.bound)
            other._steps()
            self._offer(other.best)

    def _most_used(self) -> int:
        """Return the most sequences that a limit on depth allows in a pack; 1 if it does not limit packs at all."""
        most = self.capacity // int(self.histogram.lengths[0])
        return 1 if self.depth is None or self.depth >= most else self.depth

    def _begin_exact(self) -> None:
        """Try the exact program with a part of the budget, since it often needs less than it may."""
        bad = _LENGTH_STEPS * self.histogram.lengths.size**2
        with self.budget.part(_MOST_BEGINNING if 2 * bad < self.budget.left else _BEGINNING):
            self._exact(whole=False)

    def _exact(self, *, whole: bool = True) -> None:
        """Solve with every distinct length as an item, and go on where an earlier call ended.

        If not `whole`, the program is rounded only if it was solved to its end.
        """
        from nopad.planning.optimal.master import Master
        from nopad.planning.optimal.rounding import best_fit
        from nopad.planning.optimal.search import relax, round_off

        if self.solved or self.capacity * (self._most_used() + 1) > _MOST_TABLE:
            return
        lengths = self.histogram.lengths
        if self.master is None:
            items = Items.of(lengths, self.histogram.counts, self.capacity, self.depth)
            self.master = Master(items)
            self.master.add(best_fit(items, items.demand))
        common = np.argsort(-self.best.copies, kind="stable")[:_MOST_SEEDS]
        number = {length: item for item, length in enumerate(lengths.tolist())}
        strategies = self.best.take(common).strategies()
        self.master.add(tuple(number[length] for length in strategy) for _, strategy in strategies)
        with self.budget.part(_RELAXING):
            relaxed = relax(self.master, self.budget, enough=self.bound)
        if relaxed is None:
            return
        self._prove(Certificate.of(zip(lengths.tolist(), relaxed.values.tolist(), strict=True)))
        if whole or relaxed.converged:
            self.solved = relaxed.converged
            for parts in _PARTS:
                solved = round_off(self.master, relaxed, max(self.bound, relaxed.bound), self.budget, parts=parts)
                self._offer(Listed.of(_named(solved.packing, lengths)))
                self._close_stages(solved)
                if self._good() or self.budget.spent() or not self.solved:
                    break
                self.master.demand(self.master.items.demand)
                relaxed = relax(self.master, self.budget, enough=self.bound) or relaxed

    def _close_stages(self, solved: Solved) -> None:
        """Pack what a dive had left over into as few packs as the bound allows, from the last stage back."""
        from nopad.planning.optimal.closing import close

        lengths = self.histogram.lengths
        for taken, left in reversed(solved.stages):
            if self._good() or self.budget.spent() or left.sum() > _MOST_LEFT:
                break
            present = np.flatnonzero(left)
            items = Items.of(lengths[present], left[present], self.capacity, self.depth)
            packing = close(items, self.bound - taken.total(), self.budget)
            if packing is not None:
                self._offer(Listed.of(_named(taken, lengths) + _named(packing, lengths[present])))

    def _gather(self) -> None:
        """Gather the free space of the best plan, if the exact program could not be solved to its end."""
        from nopad.planning.optimal.gathering import gather

        if not self.solved:
            self._offer(gather(self.best, self.capacity, self.depth, self.bound, self.budget))

    def _in_units(self) -> None:
        """Solve with lengths rounded to units, and gather the free space that rounding leaves; see `units`."""
        if self.solved:
            return
        from nopad.planning.optimal.gathering import gather
        from nopad.planning.optimal.search import solve
        from nopad.planning.optimal.units import Units, certify, divide, fill

        guide: tuple[Solved, Units] | None = None
        packs: list[Listed] = []
        copies, part, rest = divide(self.histogram)
        while True:
            units = Units.of(part, self.capacity, self.depth)
            solved = solve(units.items, self.budget, within=_WITHIN_UNITS)
            if solved is None:
                filled = Listed.of(lpfhp(part, self.capacity, self.depth))
            else:
                guide = guide or (solved, units)
                filled = fill(solved.packing, units, part, self.capacity, self.depth)
            packs.append(filled.take(np.arange(filled.copies.size), filled.copies * copies))
            if not rest.sequences:
                break
            copies, part, rest = divide(rest)
        filled = Listed.joined(packs)
        unlike = filled.packs - self.bound > _UNLIKE * self.bound
        if not unlike:
            filled = gather(filled, self.capacity, self.depth, self.bound, self.budget)
        self._offer(filled)
        if guide is not None and (unlike or not self._good()):
            certificate = certify(*guide, self.capacity, self.depth, self.budget)
            if certificate is not None:
                self._prove(certificate)

    def _close(self) -> None:
        """Pack again the packs that have free space, with some full ones: each time in one pack fewer."""
        from nopad.planning.optimal.closing import close, residuals

        progress = self.best.packs <= self.bound + _NEAR
        while progress and not self._good() and not self.budget.spent():
            progress = False
            for inside, outside in residuals(self.best, self.capacity):
                histogram = Histogram.from_lengths(np.repeat(inside.lengths, np.repeat(inside.copies, inside.sizes)))
                items = Items.of(histogram.lengths, histogram.counts, self.capacity, self.depth)
                self.budget.charge(_ROW_STEPS * self.best.copies.size)
                packing = close(items, inside.packs - 1, self.budget)
                if packing is not None:
                    self._offer(Listed.joined([outside, Listed.of(_named(packing, histogram.lengths))]))
                    progress = True
                    break
                if self.budget.spent():
                    break


def _named(packing: Counter[tuple[int, ...]], lengths: NDArray[np.int64]) -> Strategies:
    """Return the strategies of a packing whose item i has length ``lengths[i]``."""
    names = lengths.tolist()
    return [(count, tuple(names[item] for item in pattern)) for pattern, count in packing.items()]
