"""`optimal` and `auto`: plans with a proven lower bound.

Packing a histogram is the cutting-stock problem. Heuristics are tried first (milliseconds): best-fit decreasing, and
with a depth limit `spread`, which opens all packs at the start. A plan with no more packs than a cheap lower bound is
optimal. Otherwise column generation (`search`) solves a linear program over all patterns (multisets of lengths that fit
into a pack). Its dual values prove a better bound, and its fractional solution is rounded to whole packs (`rounding`).
Its items are the distinct lengths where the budget allows that, otherwise lengths rounded to a few hundred sizes
(`units`); `gathering` then collects the free space of all packs in a few packs, until these can be emptied. The last
packs above the bound are removed by an integer program (`closing`).

The budget is counted in operations, so the plan is the same on every machine, unless a limit in seconds is set. `auto`
stops at the first plan within one pack of the bound; `optimal` goes on until the bound is met or the budget is spent.

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

_MOST_TABLE = 2**27  # entries, 8 bytes each, of the table of pricing; no exact program where it would be larger
_MOST_SEEDS = 4_000  # strategies of the best plan that are added to the exact program
_SHORT = 3 * 10**9  # a budget twice as large first spends this on all steps: its plan is no worse than that of effort=3
_LAST = 4 * 10**8  # operations for the pack that `auto` may leave above the bound
_BEGINNING = 0.4  # share of the budget for a first attempt at the exact program
_MOST_BEGINNING = 0.9  # that share where even a bad case (`_LENGTH_STEPS`) takes less than half of the budget
_LENGTH_STEPS = 1_700  # times (distinct lengths)^2: operations of the simplex iterations in a bad case
_UNLIKE = 3e-3  # a plan above the bound by more than this share is not improved by gathering free space
_PARTS = (10, 25, 5, 60, 15, 40, 8, 100)  # `parts` of `dive_through`, one value for each dive from the exact program
_CONTINUING = 0.8  # share of the budget for the exact program after the one in units; the rest is to gather free space
_RELAXING = 0.7  # share of the budget for solving the linear program; the rest is for rounding it
_ROW_STEPS = 100  # operations per entry of a `Listed`, to divide it in two and to join the parts again
_MOST_LEFT = 500  # sequences left at a stage of a dive, up to which the integer program is tried on them
_NEAR = 64  # packs above the bound, up to which `_close` is tried
_MOST_CAPACITY = 2**24  # no linear programs above this: `units.fill` takes 40 bytes per token of capacity
_WITHIN_UNITS = 1e-4  # a rounded program is solved to this share of its bound; filling its slots changes more than that


def optimal(
    histogram: Histogram,
    capacity: int,
    depth: int | None,
    *,
    effort: float = 30,
    seconds: int | None = None,
    budget: Budget | None = None,
) -> Planned:
    """Return the best plan found; its certificate is None if no linear program proved more than the cheap lower bounds.

    `effort` is the budget: seconds of an ordinary core, counted as 10^9 operations each. No new step begins when
    `seconds` have passed on the clock (None: no time limit). A `budget` that other steps of planning share replaces
    both. The plan's facts give the number of linear programs solved, all that the budget has counted included.

    >>> made = optimal(Histogram.from_lengths([5, 5, 4, 4, 3, 3, 3, 3, 2]), 10, None)
    >>> sum(count for count, _ in made.strategies), made.facts
    (4, {'linear_programs': 0})
    """
    return _Search(histogram, capacity, depth, budget or Budget(effort, seconds), within=0).run()


def auto(
    histogram: Histogram,
    capacity: int,
    depth: int | None,
    *,
    effort: float = 3,
    seconds: int | None = None,
    budget: Budget | None = None,
) -> Planned:
    """Return the first plan found within one pack of its lower bound, or the best one when the budget is spent.

    `effort`, `seconds` and `budget` are those of `optimal`.

    >>> made = auto(Histogram.from_lengths([5, 5, 4, 4, 3, 3, 3, 3, 2]), 10, None)
    >>> sum(count for count, _ in made.strategies), made.facts
    (4, {'linear_programs': 0})
    """
    return _Search(histogram, capacity, depth, budget or Budget(effort, seconds), within=1).run()


def nearly(histogram: Histogram, capacity: int, depth: int | None, *, effort: float, share: float) -> Strategies:
    """Return the first plan found that is near its lower bound, or the best one when the budget is spent.

    Near: at most one pack above the bound, or this `share` of the cheap lower bound if that is more. `effort` is that
    of `optimal`.
    """
    search = _Search(histogram, capacity, depth, Budget(effort), within=1)
    search.within = max(1, int(share * search.bound))
    return list(search.run().strategies)


@dataclass
class _Search:
    """One search: its best plan and bound so far, and its budget; it ends at a plan within `within` packs of the bound.

    `depth` None is unlimited. `master` is the exact program (see `_exact`), None before it is first tried; `solved`
    says whether it was solved to optimality. `dived` counts the dives from it, `dives` those that may still follow in
    this round of all steps. `gathered` is the plan that `_gather` returned last. `notes` are sentences for the user.
    """

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
        self.gathered: Listed | None = None
        self.solved = False
        self.dived, self.dives = 0, 1

    def run(self) -> Planned:
        """Try the heuristics, then column generation; return the best plan."""
        if not self._good() and self.depth is not None:
            for packs in (self.bound, self.bound + 1):
                if not self._good():
                    self._offer(Listed.of(spread(self.histogram, self.capacity, self.depth, packs)))
        if self.best.packs > self.bound:
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
        """Run `_steps`, `_shallower` and `_last_pack`, and note what ended them.

        A large budget first runs `_steps` and `_shallower` on a part of it (`_SHORT`).
        """
        if self.capacity > _MOST_CAPACITY:
            self.notes.append(f"best-fit, and the cheap bounds: the capacity is above {_MOST_CAPACITY:,}")
            return
        from nopad.planning.optimal.solver import SolverError

        try:
            if not self._good() and self.budget.left > 2 * _SHORT:
                with self.budget.part(_SHORT / self.budget.left):
                    self._steps()
                    self._shallower()
            self._steps()
            self._shallower()
            self._last_pack()
        except SolverError as error:
            self.budget.trouble = str(error)
        if self.budget.trouble:
            self.notes.append(f"the linear-program solver gave up ({self.budget.trouble}): the best plan until then")
        elif not self.budget.programs and not self._good():
            self.notes.append("the budget allowed no linear program: best-fit, and the cheap bounds")
        elif self.budget.spent() and not self.budget.out_of_time and not self._good():
            self.notes.append(
                f"stopped by its budget after {self.budget.programs} linear programs: a larger one (effort) may find a "
                "better plan, or a better bound"
            )

    def _steps(self) -> None:
        """Take the steps of the search in their order, until a plan is good or the budget is spent.

        The exact program is tried before that in units only where the plan is near the bound, or where the budget is
        enough for twice the estimated work of a hard input. Until a dive from the exact program was finished, one is
        allowed; a later call allows one for each of `_PARTS` that is left.
        """
        self.dives = 1 if not self.dived else len(_PARTS) - self.dived
        close, gather = self._close, self._gather
        bad = _LENGTH_STEPS * self.histogram.lengths.size**2
        near = self.best.packs <= self.bound + _NEAR
        begin = (close, self._begin_exact) if near or 2 * bad < self.budget.left else ()
        exact = (self._exact_in_part, gather, close, self._exact, gather, close)
        for step in (*begin, close, self._in_units, gather, close, *exact):
            if self._good() or self.budget.spent():
                break
            step()

    def _shallower(self) -> None:
        """Plan at a smaller depth, twice the mean number of sequences per pack.

        Such a plan also keeps the given depth, and sometimes has fewer packs than the best plan so far.
        """
        depth = max(2, 2 * self.histogram.sequences // self.bound)
        if not self._good() and not self.budget.spent() and (self.depth is None or depth < self.depth):
            other = _Search(self.histogram, self.capacity, depth, self.budget, self.within)
            other.bound = max(other.bound, self.bound)
            other._steps()
            self._offer(other.best)

    def _last_pack(self) -> None:
        """Spend up to `_LAST` operations on removing the one pack above the bound that `auto` may leave."""
        if self._good() and self.best.packs > self.bound and self.budget.left > _LAST:
            self.within = 0
            with self.budget.part(_LAST / self.budget.left):
                self._close()
                self._shallower()

    def _most_used(self) -> int:
        """Return the depth if it limits any pack, otherwise 1; the knapsack table of pricing has one row more."""
        most = self.capacity // int(self.histogram.lengths[0])
        return 1 if self.depth is None or self.depth >= most else self.depth

    def _begin_exact(self) -> None:
        """Try the exact program (`_exact`) early, with a part of the budget, which is often enough to solve it.

        The part is larger if twice the estimated work of a hard input is within the budget.
        """
        bad = _LENGTH_STEPS * self.histogram.lengths.size**2
        with self.budget.part(_MOST_BEGINNING if 2 * bad < self.budget.left else _BEGINNING):
            self._exact(whole=False)

    def _exact_in_part(self) -> None:
        """Continue with the exact program, but leave some budget to gather what its rounding leaves free."""
        with self.budget.part(_CONTINUING):
            self._exact()

    def _exact(self, *, whole: bool = True) -> None:
        """Solve and round the exact program, whose items are the distinct lengths; keep its bound and plan if better.

        A later call continues the program of an earlier one. Once it is solved to optimality, each dive rounds it with
        the next of `_PARTS`, and `dives` limits their number. If not `whole`, the program is rounded only if it was
        solved to optimality.
        """
        from nopad.planning.optimal.search import relax, round_off

        if not self.dives or self.capacity * (self._most_used() + 1) > _MOST_TABLE:
            return
        master, lengths = self._exact_master(), self.histogram.lengths
        with self.budget.part(_RELAXING):
            relaxed = relax(master, self.budget, enough=self.bound)
        if relaxed is None:
            return
        self._prove(Certificate.of(zip(lengths.tolist(), relaxed.values.tolist(), strict=True)))
        if not whole and not relaxed.converged:
            return
        self.solved = relaxed.converged
        while relaxed is not None:
            parts = _PARTS[self.dived]
            solved = round_off(master, relaxed, max(self.bound, relaxed.bound), self.budget, parts=parts)
            self._offer(Listed.of(_named(solved.packing, lengths)))
            self._close_stages(solved)
            if not self.solved:
                break
            self.dived += 1
            self.dives -= 1
            if self._good() or self.budget.spent() or not self.dives:
                break
            relaxed = relax(master, self.budget, enough=self.bound)

    def _exact_master(self) -> Master:
        """Return the exact program; the first call makes it.

        Until it is solved to optimality, each call adds the most common strategies of the best plan to its patterns.
        """
        from nopad.planning.optimal.master import Master
        from nopad.planning.optimal.rounding import best_fit

        lengths = self.histogram.lengths
        if self.master is None:
            items = Items.of(lengths, self.histogram.counts, self.capacity, self.depth)
            self.master = Master(items)
            self.master.add(best_fit(items, items.demand))
        if not self.solved:
            common = np.argsort(-self.best.copies, kind="stable")[:_MOST_SEEDS]
            number = {length: item for item, length in enumerate(lengths.tolist())}
            strategies = self.best.take(common).strategies()
            self.master.add(tuple(number[length] for length in strategy) for _, strategy in strategies)
        return self.master

    def _close_stages(self, solved: Solved) -> None:
        """Pack by `close` what was left at each stage of a dive (see `dive_through`), the last stage first.

        The target of `close` is the bound, less the packs that the dive had made before that stage.
        """
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
        """Gather the free space of the best plan in few packs (`gathering`), unless this plan was gathered before.

        A plan far above the bound is left as it is: there the patterns are wrong, not only their free space. A plan one
        pack above the bound is left to `_close`.
        """
        from nopad.planning.optimal.gathering import gather

        above = self.best.packs - self.bound
        if self.best is not self.gathered and 1 < above <= self.bound * _UNLIKE:
            self._offer(gather(self.best, self.capacity, self.depth, self.bound, self.budget))
            self.gathered = self.best

    def _in_units(self) -> None:
        """Plan with lengths rounded to few sizes (see `units`).

        A large histogram is planned in parts (`divide`), each rest being divided again. If the plan is not good then,
        also try to prove a bound from the first linear program that was solved.
        """
        if self.solved:
            return
        from nopad.planning.optimal.search import solve
        from nopad.planning.optimal.units import Units, certify, divide, fill, patterns_of

        guide: tuple[Solved, Units] | None = None
        packs: list[Listed] = []
        copies, part, rest = divide(self.histogram)
        while True:
            units = Units.of(part, self.capacity, self.depth)
            seeds = patterns_of(guide[0].packing, guide[1], units) if guide else ()
            solved = solve(units.items, self.budget, within=_WITHIN_UNITS, seeds=seeds)
            if solved is None:
                filled = Listed.of(lpfhp(part, self.capacity, self.depth))
            else:
                guide = guide or (solved, units)
                filled = fill(solved.packing, units, part, self.capacity, self.depth)
            packs.append(filled.take(np.repeat(np.arange(filled.copies.size), filled.copies), copies))
            if not rest.sequences:
                break
            copies, part, rest = divide(rest)
        filled = Listed.joined(packs)
        self._offer(filled)
        if guide is not None and not self._good():
            certificate = certify(*guide, self.capacity, self.depth, self.budget)
            if certificate is not None:
                self._prove(certificate)

    def _close(self) -> None:
        """Pack the sequences of some packs into one pack fewer, and repeat this until it fails.

        `residuals` gives the choices of packs: those with free space and some full ones. Nothing is done for a plan
        more than `_NEAR` packs above the bound.
        """
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
    """Return the ``(count, lengths)`` pairs of a ``{pattern: count}`` map whose item i has length ``lengths[i]``."""
    names = lengths.tolist()
    return [(count, tuple(names[item] for item in pattern)) for pattern, count in packing.items()]
