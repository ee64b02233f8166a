"""`optimal` and `auto`: plans with a proven lower bound.

Packing a histogram is the cutting-stock problem. Heuristics are tried first (milliseconds): best-fit decreasing, and
with a depth limit `spread`, which opens all packs at the start. A plan with no more packs than a cheap lower bound (one
that needs no linear program) is optimal. Otherwise column generation (`search`) solves a linear program over all
patterns (multisets of lengths that fit into a pack). Its dual values prove a better bound, and its fractional solution
is rounded to whole packs (`rounding`). The items of the program are the distinct lengths if the budget allows this;
otherwise, lengths are rounded to a few hundred sizes (`units`). `gathering` then collects the free space of all packs
in a few packs, until these can be emptied. The last packs above the bound are removed in another way: all patterns that
a plan without these packs could use are listed (`closing`), and packs that hold all sequences are chosen among them
(`cover`).

The budget is counted in operations, so the plan is the same on every machine, unless a limit in seconds is set. `auto`
ends its main search at the first plan within one pack of the bound; `optimal` goes on until the bound is met, the
budget is spent, or all steps of the search are done.

Source: Gilmore and Gomory 1961; Farley 1990; Wascher and Gau, "Heuristics for the integer one-dimensional cutting stock
problem", 1996.
"""

from __future__ import annotations

from nopad.histogram import Histogram
from nopad.planning.algorithm import Planned, Strategies
from nopad.planning.optimal.budget import NEAR, Budget
from nopad.planning.optimal.depth import Search, shallower

__all__ = ["auto", "nearly", "optimal"]

_SHORT = 3  # effort of the first search, and of smaller depths after it; only if the budget is more than twice as large
_OTHER_DEPTHS = 5 * 10**8  # most operations for smaller depths in the middle of a search without a depth (see `_run`)


def optimal(
    histogram: Histogram,
    capacity: int,
    depth: int | None,
    *,
    effort: float = 30,
    seconds: int | None = None,
    budget: Budget | None = None,
) -> Planned:
    """Return the best plan found, with a certificate if a linear program proved more than the cheap lower bounds.

    The result's facts give the number of linear programs that the budget has counted, including those of other steps of
    planning that share this budget.

    Args:
        histogram: the sequences, by length.
        capacity: most tokens of a pack.
        depth: most sequences of a pack; None: unlimited.
        effort: the budget in seconds of an ordinary core, counted as 10^9 operations each.
        seconds: no new step begins after this many seconds on the clock; None: no time limit.
        budget: a budget shared with other steps of planning. It replaces `effort` and `seconds`; but `effort` still
            limits each search at a smaller depth that follows the main search. None: no shared budget.

    In the example, best-fit already meets the lower bound, so no linear program is solved:

    >>> made = optimal(Histogram.from_lengths([5, 5, 4, 4, 3, 3, 3, 3, 2]), 10, None)
    >>> sum(count for count, _ in made.strategies), made.facts
    (4, {'linear_programs': 0})
    """
    return _planned(histogram, capacity, depth, budget or Budget(effort, seconds), effort, within=0)


def auto(
    histogram: Histogram,
    capacity: int,
    depth: int | None,
    *,
    effort: float = 3,
    seconds: int | None = None,
    budget: Budget | None = None,
) -> Planned:
    """Return a plan as `optimal` does, but end the main search at the first plan within one pack of its lower bound.

    With what is left of the budget, smaller depths and `closing` may still remove that pack. A `depth` of None is
    unlimited. The budget is `effort` seconds of an ordinary core, counted as 10^9 operations each. No new step begins
    after `seconds` on the clock (None: no time limit). A `budget` shared with other steps of planning replaces `effort`
    and `seconds`; but `effort` still limits each search at a smaller depth that follows the main search.

    In the example, best-fit already meets the lower bound, so no linear program is solved:

    >>> made = auto(Histogram.from_lengths([5, 5, 4, 4, 3, 3, 3, 3, 2]), 10, None)
    >>> sum(count for count, _ in made.strategies), made.facts
    (4, {'linear_programs': 0})
    """
    return _planned(histogram, capacity, depth, budget or Budget(effort, seconds), effort, within=1)


def nearly(histogram: Histogram, capacity: int, depth: int | None, *, budget: Budget, share: float) -> Strategies:
    """Return a plan that is near its lower bound, or the best plan found if none is near.

    A plan is near its bound if it has at most k packs more than the bound. Here k is `share` (0 to 1) times the lower
    bound that is known before any linear program is solved, rounded down, but at least 1. The search ends at the first
    plan that is near. If the budget allows it, `Search.last_pack` then tries to remove the packs above the bound.
    Unlike in `optimal`, smaller depths are not tried, so a larger depth may need a few packs more than a smaller one.

    If the linear program over the exact lengths is probably too slow, rounded lengths are tried first
    (`Search.guided`). The full search then follows only if the best plan is at most 64 packs above the bound.
    """
    search = Search(histogram, capacity, depth, budget, within=1, less=False)
    search.within = max(1, int(share * search.bound))
    if search.hard():
        search.guided()
    if not search.hard() or search.best.packs <= search.bound + NEAR:
        search.run()
    search.last_pack()
    return search.best.strategies()


def _planned(
    histogram: Histogram, capacity: int, depth: int | None, budget: Budget, effort: float, *, within: int
) -> Planned:
    """Return the best plan found at the given depth and, if that plan is above its bound, at smaller depths.

    The main search ends at a plan of at most `within` packs above the bound. Each search at a smaller depth that
    follows it gets at most `effort` seconds of `budget`.
    """
    search = Search(histogram, capacity, depth, budget, within)
    _run(search)
    search.last_pack()
    if search.best.packs > search.bound:
        before = search.best
        _at_less(search, effort)
        if search.best is not before:
            search.last_pack()
    return Planned(
        strategies=search.best.strategies(),
        certificate=search.certificate,
        facts={"linear_programs": budget.programs},
        notes=tuple(_notes(search)),
    )


def _run(search: Search, *, less: bool = True) -> None:
    """Run a search; with a large budget, in two parts.

    A budget is large if it has more than twice `_SHORT` seconds of effort left. The first part gets `_SHORT` seconds of
    effort, and the second part gets all that is left by then. With `less`, smaller depths are searched between the two
    parts if the plan is not good after the first (`Search.good`). The second part is left out if the plan is good by
    then.
    """
    budget, short = search.budget, _SHORT * 10**9
    if budget.left <= 2 * short:
        search.run()
        return
    with budget.at_most(short):
        search.run()
    if less and not search.good():
        with budget.at_most(short if search.depth is not None else _OTHER_DEPTHS):
            _at_less(search, _SHORT)
    if not search.good():
        search.go_on()


def _at_less(search: Search, effort: float) -> None:
    """Search at smaller depths, and offer each plan found to `search`; such a plan keeps to the larger depth too.

    So a large depth should not need more packs than a small one. The depths are 2, 3, 4, 8, 16, ... (`shallower`). Each
    search has a budget of `effort` seconds, but at most what is left of the budget of `search`. No further depth is
    tried when the best plan meets the bound, or when the budget is spent.
    """
    for depth in shallower(search.histogram, search.capacity, search.depth, search.best.packs):
        packs = search.best.packs
        if packs <= search.bound or search.budget.spent():
            break
        other = Search(
            search.histogram, search.capacity, depth, search.budget.child(effort), search.within, fewer=packs
        )
        _run(other, less=False)
        other.last_pack()
        search.offer(other.best)


def _notes(search: Search) -> list[str]:
    """Return sentences for the user: the notes of a search or, if it has none, what ended the search early.

    If the limit in seconds has passed, a sentence on this is added.
    """
    budget, notes = search.budget, list(search.notes)
    spent = budget.spent()
    if notes:
        pass
    elif budget.trouble:
        notes.append(f"the linear-program solver gave up ({budget.trouble}): the best plan until then")
    elif not budget.programs and not search.good():
        notes.append("the budget allowed no linear program: best-fit, and the cheap bounds")
    elif spent and not budget.out_of_time and not search.good():
        notes.append(
            f"stopped by its budget after {budget.programs} linear programs: a larger one (effort) may find a better "
            "plan, or a better bound"
        )
    if budget.out_of_time:
        notes.append("stopped by the limit in seconds: another run may find another plan")
    return notes
