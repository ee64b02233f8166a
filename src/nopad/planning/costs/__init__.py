"""Plans under two limits: tokens and cost, where the cost of a pack is the sum of the squares of its lengths.

`within` plans with both limits from the start, for `auto` and `optimal`. The other algorithms plan by tokens, and packs
above the limit on cost are cut afterwards (`nopad.planning.conditions`).
"""

from __future__ import annotations

from collections.abc import Callable

from nopad.histogram import Histogram
from nopad.planning.algorithm import Planned, Strategies
from nopad.planning.cost_certificate import CostCertificate
from nopad.planning.costs.even import EVEN, STOPPED, broken_evenness, described, even_out, spreads
from nopad.planning.costs.guide import FILLING, MOST_CAPACITY, MOST_FILLED, Guide, certify, fill, fits_memory, guide
from nopad.planning.costs.spread import Load, Packed, bound_of, load_of, spread
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
_WORTHWHILE = 2_000  # a certificate is made where the linear program needs bound // _WORTHWHILE packs above the bound
_FAR = 100  # `by_tokens` is tried where `spread` needs bound // _FAR packs more: then few sequences share a pack
_LOOSE = 1.4  # a limit of at least so many times the mean cost is loose: few packs of a plan by tokens are above it
_SPREADING, _BY_TOKENS, _GUIDING, _CERTIFYING = 0.3, 0.35, 0.65, 0.9  # shares of the budget left as a method begins
_LOOSELY = 0.8  # the same share for `by_tokens`, where the limit is loose


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

    Up to three methods are tried in turn, and the plan with fewest packs is returned; its fact ``method`` names the
    method that made it. Each method gets a share of the operations left in `budget`; the second and third are not begun
    once the budget is spent. `bound` stands for a lower bound on the number of packs.

    1. `spread`, which opens all packs at the start. It ends when its plan is near the bound: with `exact`, no pack
       above it, otherwise at most ``1 + bound // 10,000`` packs above it. It also ends when its share of the budget is
       used.
    2. `by_tokens`, if the plan of the first method is more than ``bound // 100`` packs above the bound, or ``bound //
       2,000`` if `squares` is at least 1.4 times the mean cost of a pack.
    3. column generation, if the best plan is not good: with `exact`, any packs above the bound, otherwise more than
       ``bound // 2,000`` and more than ``1 + bound // 10,000``. The capacity and the number of sequences must be small
       enough for the memory of this method. It may also prove a higher bound; the result then has the certificate.

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
    bound = bound_of(load)
    near = 0 if exact else 1 + bound // _NEAR
    with budget.part(_SPREADING):
        made = spread(load, bound, bound + near, budget)
    best, packs, method = made.strategies(load.lengths), made.packs, "spread"
    certificate: CostCertificate | None = None
    notes: list[str] = []
    good = bound if exact else bound + max(near, bound // _GOOD)
    loose = squares * bound >= _LOOSE * sum(
        cost * count for cost, count in zip(load.costs.tolist(), load.counts.tolist(), strict=True)
    )
    if packs > bound + bound // (_GOOD if loose else _FAR) and by_tokens is not None and not budget.spent():
        with budget.part(_LOOSELY if loose else _BY_TOKENS):
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
    """Return a plan in rounded lengths (`guide`), or None.

    The caller then fills this plan with the real lengths (`fill`). The operations of filling are charged here, before
    `guide` runs. If they are more than half of what is left of `budget`, all that is left is charged instead, and the
    result is None. It is also None if `guide` finds no plan.
    """
    filling = FILLING * int(load.counts.sum())
    if filling > budget.left // 2:
        budget.charge(budget.left)
        return None
    budget.charge(filling)
    with budget.part(_GUIDING):
        return guide(load, budget)
