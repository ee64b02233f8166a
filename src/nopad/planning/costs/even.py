"""Make packs even: lower the highest cost and the largest number of sequences of a pack, with hardly more packs.

The cost of a pack is the sum of its squared lengths; a step of training waits for the pack with the highest cost. The
search starts from a plan with few packs, and may add one pack for every 1,000 packs. By bisection it looks for the
smallest limit on cost (to within 1/500) for which it finds a plan. Then it looks for the smallest depth under that
limit.

A limit on cost is proven to be impossible if, under this limit, the lower bound is above the number of packs allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nopad.planning.algorithm import Strategies
from nopad.planning.costs.guide import FILLING, fill, fits_memory, guide
from nopad.planning.costs.spread import Load, bound_of, spread
from nopad.planning.optimal.budget import Budget
from nopad.wording import counted

__all__ = ["EVEN", "STOPPED", "broken_evenness", "described", "even_out", "least_cap", "packs_allowed", "spreads"]

EVEN = "even packs"  # the first words of the note on evenness
STOPPED = "evenness was stopped by its budget: a larger one (effort) may find packs more alike"
_ALLOWED = 1000  # an even plan may have one pack more for every 1,000 packs of the plan before
_MOST = 2**127  # the costs of all packs of a plan add up to less: facts with larger numbers are wrong
_LOOK = 200  # operations per distinct length for one lower bound
_ATTEMPTS, _SLOW_ATTEMPTS = 8, 4  # an attempt by `spread` gets 1/8 of the budget, one by linear programs 1/4
_FINE = 500  # the bisection ends when the limit on cost is known to 1/500 of its value


def packs_allowed(packs: int, sequences: int, multiple: int) -> int:
    """Return the most packs that an even plan may have; `packs` is the number of packs before it is made even.

    First, `packs` is rounded up to a multiple of `multiple`, and one pack is added for every 1,000. If this is more
    than `sequences`, the number of sequences, it is lowered to that. The result is this number, rounded down to a
    multiple of `multiple`. But if no multiple lies between `packs` and `sequences`, the result is `packs`.

    >>> packs_allowed(5000, 10**6, 1), packs_allowed(5000, 10**6, 7), packs_allowed(3, 10, 2), packs_allowed(7, 8, 5)
    (5005, 5005, 4, 7)
    """
    least = -(-packs // multiple) * multiple
    return max(packs, min(least + least // _ALLOWED, sequences) // multiple * multiple)


def least_cap(load: Load, packs: int) -> int:
    """Return a lower bound on the highest cost of a pack, for any plan of `load` with at most `packs` packs.

    In the example, four sequences cost 4 each, and two cost 16 each. Two packs cost 24 each on average. However many
    packs there are, a pack with one of the costlier sequences costs at least 16:

    >>> lengths = np.array([2, 4])
    >>> load = Load(lengths, lengths, lengths**2, np.array([4, 2]), np.array([8, 64, 9]))
    >>> least_cap(load, 2), least_cap(load, 6)
    (24, 16)
    """
    pairs = zip(load.costs.tolist(), load.counts.tolist(), strict=True)
    total = sum(cost * count for cost, count in pairs)
    low: int = max(int(load.costs[-1]), -(-total // packs))
    high: int = max(low, int(load.limits[1]))
    if low == high or bound_of(_capped(load, low)) <= packs:
        return low
    while low + 1 < high:  # with `low` as the limit on cost, the lower bound is above `packs`
        middle = (low + high) // 2
        low, high = (low, middle) if bound_of(_capped(load, middle)) <= packs else (middle, high)
    return high


def _capped(load: Load, most: int, depth: int | None = None) -> Load:
    tokens, _, places = load.limits.tolist()
    return replace(load, limits=np.array([tokens, most, places if depth is None else depth], dtype=np.int64))


@dataclass
class _Search:
    """The search for tighter limits under which `load` still packs into at most `packs` packs.

    Attributes:
        load: the sequences, and the limits of a pack to begin with.
        align: lengths are padded to multiples of this.
        packs: most packs of a plan.
        by_tokens: a function that takes a depth, and returns the strategies of a plan without a limit on cost; it
            charges `budget` itself.
        budget: what all attempts together may take. In an attempt, each method gets at most a fixed part of what was
            left when the search began.
        slow: number of further attempts that may solve linear programs.
    """

    load: Load
    align: int
    packs: int
    by_tokens: Callable[[int], Strategies]
    budget: Budget
    slow: int

    def __post_init__(self) -> None:
        self.all = self.budget.left

    def attempt(self, most: int, depth: int) -> Strategies | None:
        """Return a plan of at most `packs` packs, each with a cost of at most `most` and at most `depth` sequences.

        `spread` is tried first, then linear programs if `slow` is not 0. The result is None if no such plan is found,
        or if the budget is spent before.
        """
        load = _capped(self.load, most, depth)
        bound = bound_of(load)
        self.budget.charge(_LOOK * load.sizes.size)
        if bound > self.packs or self.budget.spent():
            return None
        with self.budget.at_most(self.all // _ATTEMPTS):
            made = spread(load, bound, self.packs, self.budget)
        if made.packs <= self.packs:
            return made.strategies(load.lengths)
        if not self.slow or self.budget.spent():
            return None
        with self.budget.at_most(self.all // _SLOW_ATTEMPTS):
            return self._by_programs(load, most, depth)

    def _by_programs(self, load: Load, most: int, depth: int) -> Strategies | None:
        """Return a plan of at most `packs` packs within the limits of `load`, found by linear programs.

        The result is None if no such plan is found, or if the programs would take too much memory or budget. `load` has
        `most` and `depth` as limits. If `most` is at least the squared capacity, it limits no pack, and `by_tokens`
        makes the plan. `slow` is lowered by 1, unless memory or budget keeps the programs from being tried.
        """
        if most >= load.limits[0] ** 2:
            self.slow -= 1
            strategies = self.by_tokens(depth)
            return strategies if sum(count for count, _ in strategies) <= self.packs else None
        filling = FILLING * int(load.counts.sum())
        if fits_memory(load) and 2 * filling <= self.budget.left:
            self.slow -= 1
            self.budget.charge(filling)
            plan = guide(load, self.budget)
            if plan is not None and (made := fill(plan, load, self.align, self.budget)).packs <= self.packs:
                return made.strategies(load.lengths)
        return None


def even_out(
    load: Load,
    start: Strategies,
    align: int,
    by_tokens: Callable[[int], Strategies],
    budget: Budget,
    *,
    slow: int,
    multiple: int = 1,
) -> tuple[Strategies, dict[str, Any]]:
    """Return the most even plan found that has hardly more packs than the plan `start`, and facts for `described`.

    If no other plan is found, `start` itself is returned. `start` must not be empty. The facts are:

    * ``most_packs``: the number of packs allowed, as `packs_allowed` gives it for `start` and `multiple`
    * ``least_cap``: a lower bound on the highest cost of a pack, for any plan of at most ``most_packs`` packs
    * ``before``: the `spreads` of `start`

    `load` has the sequences, and the limits of a pack. Lengths are padded to multiples of `align`. `by_tokens` is a
    function that takes a depth, and returns the strategies of a plan without a limit on cost; it charges `budget`
    itself. `budget` is what all attempts together may take. At most `slow` attempts may solve linear programs while a
    limit on cost is searched for, and `slow` more while a depth is searched for.
    """
    sequences = int(load.counts.sum())
    allowed = packs_allowed(sum(count for count, _ in start), sequences, multiple)
    best, cap = start, max(_squares(lengths) for _, lengths in start)
    least = least_cap(load, allowed)
    search = _Search(load, align, allowed, by_tokens, budget, slow)
    low, high, most, places = least, max(cap, least), least, int(load.limits[2])
    while not budget.spent():
        found = search.attempt(most, places)
        if found is not None:
            best, high = found, max(least, max(_squares(lengths) for _, lengths in found))
        else:
            low = most
        if high - low <= max(1, high // _FINE):  # no plan was found with the limit `low`, or `low` is the lower bound
            break
        most = (low + high) // 2
    search.slow = slow
    deepest = max(len(lengths) for _, lengths in best)
    shallow = max(1, -(-sequences // allowed)) - 1
    while shallow + 1 < deepest and not budget.spent():
        depth = (shallow + deepest) // 2
        found = search.attempt(high, min(depth, places))
        if found is None:
            shallow = depth
        else:
            best, deepest = found, max(len(lengths) for _, lengths in found)
    return best, {"most_packs": allowed, "least_cap": least, "before": spreads(start)}


def _squares(lengths: tuple[int, ...]) -> int:
    return sum(length * length for length in lengths)


def spreads(strategies: Strategies) -> dict[str, Any]:
    """Return figures on how much the packs of a plan differ; the plan must not be empty.

    The cost of a pack is the sum of its squared lengths. The keys are:

    * ``packs``: number of packs
    * ``cap``: highest cost of a pack
    * ``cost_to_mean``: ``cap`` divided by the mean cost of a pack, rounded to four decimals
    * ``depth``: largest number of sequences in a pack
    * ``depth_to_mean``: ``depth`` divided by the mean number of sequences in a pack, rounded to four decimals
    """
    return _to_mean(
        packs=sum(count for count, _ in strategies),
        cap=max(_squares(lengths) for _, lengths in strategies),
        depth=max(len(lengths) for _, lengths in strategies),
        cost=sum(count * _squares(lengths) for count, lengths in strategies),
        sequences=sum(count * len(lengths) for count, lengths in strategies),
    )


def _to_mean(packs: int, cap: int, depth: int, cost: int, sequences: int) -> dict[str, Any]:
    """Return the figures of `spreads` for `packs` packs.

    `cap` is the highest cost of a pack, and `depth` the largest number of sequences in a pack. `cost` and `sequences`
    are the totals of all packs.
    """
    return {
        "packs": packs,
        "cap": cap,
        "cost_to_mean": round(cap * packs / cost, 4),
        "depth": depth,
        "depth_to_mean": round(depth * packs / sequences, 4),
    }


def described(facts: Mapping[str, Any]) -> str:
    """Return a note on evenness for the user, as text.

    `facts` are the facts that `even_out` returns, and the `spreads` of the final plan as ``after``.
    """
    before, after = facts["before"], facts["after"]
    least = max(1.0, after["cost_to_mean"] * facts["least_cap"] / after["cap"])
    more = after["packs"] - before["packs"]
    return (
        f"{EVEN}: the highest cost of a pack (the sum of its squared lengths) is {after['cost_to_mean']:.4g} times the "
        f"mean (before: {before['cost_to_mean']:.4g}; with {counted(facts['most_packs'], 'pack')} it cannot be below "
        f"{least:.4g}), the most sequences in a pack are {after['depth']:,} (before: {before['depth']:,}); this takes "
        f"{counted(more, 'more pack') if more else 'no more packs'}"
    )


def broken_evenness(
    options: Mapping[str, Any], facts: Mapping[str, Any], notes: Sequence[str], load: Load, strategies: Strategies
) -> list[str]:
    """Check the figures on evenness that a plan states; return one sentence for each problem.

    `options`, `facts`, `notes` and `strategies` are those of the plan; `load` holds the plan's sequences and limits.
    ``facts["even"]`` should have the facts of `even_out` and, as ``after``, the `spreads` of the plan. These are
    checked:

    * ``after`` must be the `spreads` of `strategies`, and ``least_cap`` the result of `least_cap` for `load` and
      ``most_packs``.
    * ``most_packs`` must follow from the number of packs before (`packs_allowed`), and the plan must not have more.
    * The plan from which `even_out` started is not stored. Its figures (``before``) must be possible, and must agree
      with each other.
    * The note that `described` returns must be among `notes`; this is checked only if nothing else is wrong.

    Nothing is checked if the plan is empty, or has neither the option `even` nor such facts. If figures are missing or
    malformed, or the plan has such facts without the option `even`, the result is one sentence: the facts are
    incomplete.
    """
    even: Any = facts.get("even")
    if not strategies or (even is None and not options.get("even")):
        return []
    true = spreads(strategies)
    if not options.get("even") or not _complete(even, true):
        return ["the facts about evenness are incomplete"]
    least, packs, before, after = (even[name] for name in ("least_cap", "most_packs", "before", "after"))
    wrong = [name for name in true if after[name] != true[name]]
    found = [f"{name} of the packs is stated as {after[name]}, it is {true[name]}" for name in wrong]
    sequences = sum(count * len(lengths) for count, lengths in strategies)
    if packs != packs_allowed(before["packs"], sequences, options.get("pack_multiple", 1)) or true["packs"] > packs:
        found.append(f"{packs:,} packs are not what {before['packs']:,} packs of the plan before allow")
    proven = least_cap(load, packs)
    if least != proven:
        found.append(f"the least cap of {packs:,} packs is stated as {least:,}, {proven:,} can be proven")
    possible = least_cap(load, before["packs"]) <= before["cap"] <= int(load.limits[1])
    possible = possible and sequences <= before["depth"] * before["packs"] and before["packs"] >= bound_of(load)
    possible = possible and before["depth"] <= int(load.limits[2])
    cost = sum(count * _squares(lengths) for count, lengths in strategies)
    if not possible or before != _to_mean(before["packs"], before["cap"], before["depth"], cost, sequences):
        found.append("the facts about the plan before contradict each other")
    if not found and described(even) not in notes:
        found.append("the plan lacks the note that describes its evenness")
    return found


def _complete(even: Any, true: Mapping[str, Any]) -> bool:
    """Return whether `even`, the facts on evenness in a plan file, has every number, each of the right type.

    ``before`` and ``after`` must have the same keys as `true`, a result of `spreads`, with values of the same types.
    Whole numbers must be at least 1 and below `_MOST`.
    """
    if type(even) is not dict or any(type(even.get(name)) is not dict for name in ("before", "after")):
        return False
    whole = [even.get("least_cap"), even.get("most_packs")]
    for part in (even["before"], even["after"]):
        if part.keys() != true.keys() or any(type(part[name]) is not type(value) for name, value in true.items()):
            return False
        whole += [part["packs"], part["cap"], part["depth"]]
    return all(type(number) is int and 1 <= number < _MOST for number in whole)
