"""`optimal` and `auto`: plans with a proven lower bound.

Packing a histogram is the cutting-stock problem. Heuristics are tried first (milliseconds): best-fit, and with a depth
limit `spread`, which opens all packs up front. A plan that meets a cheap lower bound is optimal. Otherwise column
generation solves the linear program over all patterns; its duals prove a bound, and a dive turns its fractions into
whole packs. With up to about 700 distinct lengths the program works on lengths, otherwise on lengths rounded to units
(`units`).

The budget is a number of linear programs, so the result is the same on every machine, unless a limit in seconds is set.
Gap to the optimum: 0 or 1 pack on Wikipedia-512 and SQuAD-384 at every depth. Within its budget `auto` stops as soon as
a plan is within one pack of the bound; `optimal` continues.

Source: Gilmore and Gomory 1961; Farley 1990; Wascher and Gau, "Heuristics for the integer one-dimensional cutting stock
problem", 1996.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.algorithm import Planned, Strategies
from nopad.planning.bounds import lower_bound
from nopad.planning.certificate import Certificate
from nopad.planning.lpfhp import lpfhp
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.spread import spread

__all__ = ["auto", "optimal"]

_MOST_EXACT = 700  # distinct lengths
_MOST_LISTED = 60  # sequences for which every pattern may be listed
_MOST_CAPACITY = 2**24  # filling slots takes 40 bytes per token of capacity
_POLISHES = 3
_WITHIN_UNITS = 1e-4  # filling slots with real lengths moves the result by more than that


def optimal(
    histogram: Histogram, capacity: int, depth: int | None, *, programs: int = 400, seconds: int | None = None
) -> Planned:
    """Return the best plan found; its certificate is None where a cheap lower bound is as good.

    At most `programs` linear programs are solved, and no new one begins after `seconds` (None: no time limit).

    >>> made = optimal(Histogram.from_lengths([5, 5, 4, 4, 3, 3, 3, 3, 2]), 10, None)
    >>> sum(count for count, _ in made.strategies), made.facts
    (4, {'linear_programs': 0})
    """
    return _Search(histogram, capacity, depth, Budget(programs, seconds), within=0).run()


def auto(
    histogram: Histogram, capacity: int, depth: int | None, *, programs: int = 150, seconds: int | None = None
) -> Planned:
    """Return the first plan found within one pack of its lower bound, or the best one when the budget is spent.

    `programs` and `seconds` are those of `optimal`.

    >>> made = auto(Histogram.from_lengths([5, 5, 4, 4, 3, 3, 3, 3, 2]), 10, None)
    >>> sum(count for count, _ in made.strategies), made.facts
    (4, {'linear_programs': 0})
    """
    return _Search(histogram, capacity, depth, Budget(programs, seconds), within=1).run()


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
        self.strategies = lpfhp(self.histogram, self.capacity, self.depth)
        self.packs = _packs(self.strategies)
        self.notes: list[str] = []

    def run(self) -> Planned:
        """Try the heuristics, then the linear program; return the best plan."""
        if not self._good() and self.depth is not None:
            for packs in (self.bound, self.bound + 1):
                if not self._good():
                    self._offer(spread(self.histogram, self.capacity, self.depth, packs))
        if not self._good():
            self._linear_program()
        if self.budget.out_of_time:
            self.notes.append("stopped by the limit in seconds: another run may find another plan")
        return Planned(
            strategies=self.strategies,
            certificate=self.certificate,
            facts={"linear_programs": self.budget.used},
            notes=tuple(self.notes),
        )

    def _good(self) -> bool:
        return self.packs <= self.bound + self.within

    def _offer(self, strategies: Strategies) -> None:
        packs = _packs(strategies)
        if packs < self.packs:
            self.strategies, self.packs = strategies, packs

    def _prove(self, certificate: Certificate) -> None:
        if certificate.problem(self.capacity, self.depth) is not None:
            return  # a certificate that cannot be checked proves nothing
        bound = certificate.bound(self.histogram, self.capacity, self.depth)
        if bound > self.bound:
            self.bound, self.certificate = bound, certificate

    def _linear_program(self) -> None:
        from nopad.planning.optimal.master import SolverError
        from nopad.planning.optimal.units import MOST_CELLS

        if self.capacity > _MOST_CAPACITY:
            self.notes.append(f"best-fit, and the cheap bounds: the capacity is above {_MOST_CAPACITY:,}")
            return
        lengths = self.histogram.lengths
        cells = lengths.size * self.capacity * min(self.depth or 1, self.capacity // int(lengths[0]))
        exact = lengths.size <= _MOST_EXACT and cells <= MOST_CELLS
        if not exact and self.packs <= self.bound + 1:
            return  # units are too coarse for the last pack
        before = self.budget.used
        try:
            if exact:
                self._exact()
            else:
                self._in_units()
        except SolverError as error:
            self.budget.trouble = str(error)
        if self.budget.trouble:
            self.notes.append(f"the linear-program solver gave up ({self.budget.trouble}): the best plan until then")
        if self.budget.used == before:
            self.notes.append("the budget allowed no linear program: best-fit, and the cheap bounds")
        elif self.budget.spent() and not self.budget.out_of_time and not self._good():
            self.notes.append(
                f"stopped by its budget of {self.budget.used} linear programs: a larger one (programs) may find a "
                "better plan, or a better bound"
            )

    def _exact(self) -> None:
        """Solve with every distinct length as an item."""
        from nopad.planning.optimal.exact import pack_exactly
        from nopad.planning.optimal.pricing import Items
        from nopad.planning.optimal.search import polish, solve

        lengths = self.histogram.lengths
        items = Items.of(lengths, self.histogram.counts, self.capacity, self.depth)
        number = {length: item for item, length in enumerate(lengths.tolist())}
        seeds = [tuple(number[length] for length in strategy) for _, strategy in self.strategies]
        solved = solve(items, seeds, self.budget, enough=self.bound)
        if solved is None:
            return
        self._prove(Certificate.of(zip(lengths.tolist(), solved.values.tolist(), strict=True)))
        self._offer(_named(solved.packing, lengths))
        for turn in range(_POLISHES):
            if self.packs <= self.bound + 1 or self.budget.spent():
                break
            solved = polish(solved, self.budget, turn)
            self._offer(_named(solved.packing, lengths))
        if not self._good() and self.histogram.sequences <= _MOST_LISTED:
            self._offer(_named(pack_exactly(items) or solved.packing, lengths))

    def _in_units(self) -> None:
        """Solve with lengths rounded to units; see `nopad.planning.optimal.units`."""
        from nopad.planning.optimal.search import Solved, solve
        from nopad.planning.optimal.units import Units, certify, divide, fill

        guide: tuple[Solved, Units] | None = None
        strategies: Strategies = []
        copies, part, rest = divide(self.histogram)
        while True:
            units = Units.of(part, self.capacity, self.depth)
            solved = solve(units.items, [], self.budget, within=_WITHIN_UNITS)
            if solved is None:
                filled = lpfhp(part, self.capacity, self.depth)
            else:
                guide = guide or (solved, units)
                filled = fill(solved.packing, units, part, self.capacity, self.depth)
            strategies += [(count * copies, lengths) for count, lengths in filled]
            if not rest.sequences:
                break
            copies, part, rest = divide(rest)
        self._offer(strategies)
        if guide is not None and not self._good():
            certificate = certify(*guide, self.capacity, self.depth, self.budget)
            if certificate is not None:
                self._prove(certificate)


def _named(packing: Counter[tuple[int, ...]], lengths: NDArray[np.int64]) -> Strategies:
    """Return the strategies of a packing whose item i has length ``lengths[i]``."""
    names = lengths.tolist()
    return [(count, tuple(names[item] for item in pattern)) for pattern, count in packing.items()]


def _packs(strategies: Strategies) -> int:
    return sum(count for count, _ in strategies)
