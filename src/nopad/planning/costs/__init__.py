"""Plans under two limits: tokens and cost, where the cost of a pack is the sum of the squares of its lengths.

`within` plans with both limits from the start, for `auto` and `optimal`. The other algorithms plan by tokens, and packs
above the limit on cost are cut afterwards (`nopad.planning.conditions`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.algorithm import Planned, Strategies
from nopad.planning.cost_certificate import CostCertificate
from nopad.planning.costs.even import EVEN, STOPPED, broken_evenness, described, even_out, spreads
from nopad.planning.costs.gathering import gather
from nopad.planning.costs.guide import FILLING, MOST_CAPACITY, MOST_FILLED, fill, fits_memory, guide
from nopad.planning.costs.spread import UNLIMITED, Load, Packed, bound_of, is_few, load_of, spread
from nopad.planning.optimal.budget import Budget

__all__ = [
    "EVEN",
    "STOPPED",
    "Packed",
    "bound_of",
    "broken_evenness",
    "described",
    "even_out",
    "load_of",
    "spreads",
    "within",
]

_NEAR = 10_000  # `auto` ends at 1 + bound // _NEAR packs above the bound
_GOOD = 2_000  # no slower method is tried for a plan at most bound // _GOOD packs above the bound
_FAR = 100  # `by_tokens` is tried where the plan needs bound // _FAR packs more: then few sequences share a pack
_LOOSE = 1.4  # a limit of at least so many times the mean cost is loose: few packs of a plan by tokens are above it
_SPREADING, _BY_TOKENS, _GUIDING, _GATHERING = 0.3, 0.35, 0.65, 0.7  # shares of the budget left as a method begins
_LOOSELY = 0.8  # the same share for `by_tokens`, where the limit is loose
_UNITS = (512, 256)  # units of tokens and of cost, in a certificate for packs of few sequences
_SHALLOW = 6  # up to this depth, such a certificate counts the depth


def within(
    histogram: Histogram,
    capacity: int,
    depth: int | None,
    squares: int,
    align: int = 1,
    *,
    budget: Budget,
    exact: bool,
    by_tokens: Callable[[], Strategies] | None = None,
) -> Planned:
    """Return the best plan found under limits on a pack's tokens (`capacity`) and sum of squared lengths (`squares`).

    Several methods are tried in turn until a plan is good. The plan with the fewest packs is returned;
    ``facts["method"]`` names the methods that made it. Below, `bound` is a lower bound on the number of packs. With
    `exact`, a plan is good if it has no more packs than the bound. Without `exact`, it may have up to ``max(bound //
    2_000, 1 + bound // 10_000)`` packs more than the bound. The methods are:

    1. `spread` opens all packs at the start. It ends when its plan is at most ``1 + bound // 10_000`` packs above the
       bound; with `exact`, when its plan meets the bound.
    2. `by_tokens` plans without the limit on squares. The limit is loose if it is at least 1.4 times the mean cost of a
       pack. With a loose limit, this method comes second if few sequences share a pack, and after method 4 otherwise.
       With any other limit, it comes after method 3. It is used if the best plan is above the bound by more than
       ``bound // 2_000`` packs with a loose limit, or by more than ``bound // 100`` otherwise, even if that plan is
       good.
    3. A linear program gives each length a value, and often a certificate with a higher bound. If few sequences share a
       pack, its solution also gives a plan (`few`). Otherwise only the longest sequence of a pack is whole in this
       program (`liquid`), and if the bound rises, `spread` is tried again with the higher bound.
    4. `gather` is a local search that uses the values of method 3.
    5. Column generation with rounded lengths and costs (`guide`) makes a plan, then `gather` is used again.

    All methods but the third get a share of the operations left in `budget`. Methods 3 to 5 are left out above a
    capacity of 2^24. Methods 4 and 5, and `few`, are left out for more than 2^22 sequences, since they need memory for
    each.

    Args:
        histogram: the sequences, by length.
        capacity: most tokens of a pack.
        depth: most sequences of a pack; None: unlimited.
        squares: largest sum of squared lengths of a pack.
        align: for the limit on tokens, the length of a sequence is rounded up to a multiple of this.
        budget: limits the search; the operations of the search are charged to it.
        exact: whether the search ends early only when a plan has no more packs than the lower bound.
        by_tokens: a function that plans without the limit on squares, and then divides packs above the limit. Its plan
            is often better than that of `spread` if few packs are above the limit. The function charges `budget`
            itself. None: this method is not tried.

    >>> made = within(Histogram.from_lengths([5, 5, 2, 2, 2, 2]), 9, None, 33, budget=Budget(1), exact=True)
    >>> made.strategies
    [(2, (5, 2, 2))]
    """
    load = load_of(histogram, capacity, depth, squares, align)
    if not load.counts.size:
        return Planned(strategies=[], facts={"method": "spread"})
    search = _Search(load, align, budget, exact)
    search.run(by_tokens)
    return Planned(
        strategies=search.best,
        certificate=search.certificate,
        facts={"method": search.method},
        notes=tuple(search.notes),
    )


@dataclass
class _Search:
    """The search of `within`: its best plan and its lower bound so far.

    Attributes:
        load: the sequences, and the limits of a pack.
        align: lengths are padded to multiples of this.
        budget: limits the search.
        exact: whether the search ends early only when a plan has no more packs than the bound.
        bound: the lower bound on the number of packs.
        best: the best plan; empty before there is one.
        packs: number of packs of `best`.
        method: the methods that made `best`.
        certificate: proof of `bound`; None: the bound is the one of `bound_of`.
        values: value of each length, float64 ``[k]``, for `gather`; None before a linear program is solved.
        notes: sentences for the user.
    """

    load: Load
    align: int
    budget: Budget
    exact: bool
    best: Strategies = field(default_factory=list)
    packs: int = 2**63
    method: str = ""
    certificate: CostCertificate | None = None
    values: NDArray[np.float64] | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bound = bound_of(self.load)

    def run(self, by_tokens: Callable[[], Strategies] | None) -> None:
        """Try the methods of `within` in turn, and store the best plan in `best`.

        `by_tokens` plans without the limit on squares, then divides packs above it. None: this method is not tried.
        """
        self._spread()
        cost = sum(a * b for a, b in zip(self.load.costs.tolist(), self.load.counts.tolist(), strict=True))
        loose = int(self.load.limits[1]) * self.bound >= _LOOSE * cost
        first = loose and is_few(self.load)
        if first and by_tokens is not None and self.packs > self.bound + self.bound // _GOOD:
            self._by_tokens(by_tokens, _LOOSELY)
        if not self._good() and self.load.limits[0] <= MOST_CAPACITY:
            self._relax()
            if loose and not first and fits_memory(self.load):
                self._gather()
        far = self.packs > self.bound + self.bound // (_GOOD if loose else _FAR)
        if far and not first and by_tokens is not None:
            self._by_tokens(by_tokens, _LOOSELY if loose else _BY_TOKENS)
        if not self._good():
            if fits_memory(self.load):
                self._gather()
                if not self._good():
                    self._guide()
                    self._gather()
            else:
                self.notes.append(
                    f"no column generation: a capacity above {MOST_CAPACITY:,}, or more than {MOST_FILLED:,} sequences"
                )
        if self.packs > self._near() and not (self.budget.spent() and self.budget.out_of_time):
            self.notes.append("no better plan within its budget: a larger one (effort) may find one, or a better bound")

    def _near(self) -> int:
        """Return the largest number of packs that counts as near the bound, at which `spread` and `gather` end.

        This is the bound itself if `exact`, otherwise ``bound + 1 + bound // 10_000``.
        """
        return self.bound if self.exact else self.bound + 1 + self.bound // _NEAR

    def _good(self) -> bool:
        return self.packs <= (self.bound if self.exact else max(self._near(), self.bound + self.bound // _GOOD))

    def _offer(self, strategies: Strategies, method: str) -> None:
        """Keep a plan as `best`, and `method` with it, if the plan has fewer packs than the best plan so far."""
        packs = sum(count for count, _ in strategies)
        if packs < self.packs:
            self.best, self.packs, self.method = strategies, packs, method

    def _spread(self) -> None:
        with self.budget.part(_SPREADING):
            made = spread(self.load, self.bound, self._near(), self.budget)
        if made.packs < self.packs:
            self._offer(made.strategies(self.load.lengths), "spread")

    def _by_tokens(self, by_tokens: Callable[[], Strategies], share: float) -> None:
        if not self.budget.spent():
            with self.budget.part(share):
                self._offer(by_tokens(), "by tokens, then cut")

    def _relax(self) -> None:
        """Solve linear programs, and set `values` from them; this may also give a higher bound and a better plan."""
        from nopad.planning.costs.few import few
        from nopad.planning.costs.knots import prove
        from nopad.planning.costs.liquid import liquid

        if fits_memory(self.load) and is_few(self.load):
            made = few(self.load, self.align, self.budget)
            if made is not None:
                self._offer(made.strategies, "few")
                self.values = made.values
                by_depth = bool(self.load.limits[2] <= _SHALLOW)
                self._prove(*prove(self.load, self.align, made.values, _UNITS, by_depth, self.budget))
            return
        self.values = liquid(self.load, self.budget, exact=False)
        values = liquid(self.load, self.budget, exact=True)
        if values is not None:
            before, limited = self.bound, bool(self.load.limits[2] < UNLIMITED)
            self._prove(*prove(self.load, self.align, values, None, limited, self.budget))
            if self.bound > before and not self._good():
                self._spread()

    def _prove(self, bound: int, certificate: CostCertificate | None) -> None:
        """Keep `bound`, and the `certificate` that proves it, if `bound` is higher than the best bound so far."""
        if bound > self.bound:
            self.bound, self.certificate = bound, certificate

    def _gather(self) -> None:
        if self.values is not None and not self.budget.spent():
            with self.budget.part(_GATHERING):
                found = gather(self.best, self.load, self.values, self._near(), self.budget)
            self._offer(found, self.method if "gathered" in self.method else f"{self.method}, then gathered")

    def _guide(self) -> None:
        """Plan in rounded lengths (`guide`), and fill this plan with the real lengths (`fill`).

        The operations of filling are charged before `guide` runs. If they are more than half of what is left of the
        budget, nothing is done, and all that is left is charged.
        """
        filling = FILLING * int(self.load.counts.sum())
        if filling > self.budget.left // 2:
            self.budget.charge(max(0, self.budget.left))
            return
        self.budget.charge(filling)
        with self.budget.part(_GUIDING):
            plan = guide(self.load, self.budget)
        if plan is not None:
            made = fill(plan, self.load, self.align, self.budget)
            self._offer(made.strategies(self.load.lengths), "column generation")
