"""Plans under two limits: tokens and cost, where the cost of a pack is the sum of the squares of its lengths.

`within` plans with both limits from the start, for `auto` and `optimal`. The other algorithms plan by tokens, and packs
above the limit on cost are cut afterwards (`nopad.planning.conditions.within_squares`).
"""

from __future__ import annotations

from collections.abc import Callable

from nopad.histogram import Histogram
from nopad.planning.algorithm import Planned, Strategies
from nopad.planning.cost_certificate import CostCertificate
from nopad.planning.costs.even import broken_evenness, described, even_out, spreads
from nopad.planning.costs.guide import FILLING, MOST_CAPACITY, MOST_FILLED, Guide, certify, fill, fits_memory, guide
from nopad.planning.costs.spread import Load, Packed, bound_of, load_of, spread
from nopad.planning.optimal.budget import Budget

__all__ = ["Packed", "bound_of", "broken_evenness", "described", "even_out", "load_of", "spreads", "within"]

_NEAR = 10_000  # one pack in so many above the bound is near enough for `auto`
_GOOD = 2_000  # and where it is one in so many, slower methods are not tried
_WORTHWHILE = 2_000  # a certificate is made where the linear program promises so much
_FAR = 100  # where it is more, few sequences share a pack: dealing out is not for them
_SPREADING, _BY_TOKENS, _GUIDING, _CERTIFYING = 0.3, 0.35, 0.65, 0.9  # shares of what is left of the budget


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
    """Return the best plan found whose packs have at most `capacity` tokens, and `squares` as sum of squared lengths.

    The search ends within one pack in 10,000 of the bound; with `exact` at the bound; or when the budget is spent, of
    which each method gets a part. `by_tokens` makes a plan by tokens, cut to both limits: the better one where few
    packs are too dear.

    >>> load = Histogram.from_lengths([5, 5, 2, 2, 2, 2])
    >>> within(load, 9, None, 33, budget=Budget(1), exact=True).strategies
    [(2, (5, 2, 2))]
    """
    load = load_of(histogram, capacity, depth, squares, align)
    if not load.counts.size:
        return Planned(strategies=[], facts={"method": "spread"})
    bound = bound_of(load)
    near = 0 if exact else 1 + bound // _NEAR
    with budget.part(_SPREADING):
        made = spread(load, bound, bound + near, budget)
    best, packs, method = made.strategies(load.lengths), made.packs, "spread"
    certificate: CostCertificate | None = None
    notes: list[str] = []
    good = bound + max(near, bound // _GOOD)
    if packs > bound + bound // _FAR and by_tokens is not None and not budget.spent():
        with budget.part(_BY_TOKENS):
            cut = by_tokens()
        if (total := sum(count for count, _ in cut)) < packs:
            best, packs, method = cut, total, "by tokens, then cut"
    if packs > good:
        if not fits_memory(load):
            notes.append(
                f"no column generation: a capacity above {MOST_CAPACITY:,}, or more than {MOST_FILLED:,} sequences"
            )
        elif (plan := _guided(load, budget)) is not None:
            if plan.relaxed > bound + bound // _WORTHWHILE:
                with budget.part(_CERTIFYING):
                    certificate = certify(plan, load, align, budget)
            filled = fill(plan, load, align, budget)
            if filled.packs < packs:
                best, packs, method = filled.strategies(load.lengths), filled.packs, "column generation"
    if packs > bound + near and not (budget.spent() and budget.out_of_time):
        notes.append("no better plan within its budget: a larger one (effort) may find one, or a better bound")
    return Planned(strategies=best, certificate=certificate, facts={"method": method}, notes=tuple(notes))


def _guided(load: Load, budget: Budget) -> Guide | None:
    """Return a plan in units, if the budget allows to give its slots real lengths, too."""
    filling = FILLING * int(load.counts.sum())
    if filling > budget.left // 2:
        budget.charge(budget.left)
        return None
    budget.charge(filling)
    with budget.part(_GUIDING):
        return guide(load, budget)
