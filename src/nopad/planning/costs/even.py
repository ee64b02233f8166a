"""Even packs: nearly as few as possible, with no pack far above the mean in cost or in number of sequences.

The cost of a pack is the sum of its squared lengths; a step of training waits for the pack with the highest cost. The
search starts from a plan with few packs, and may use one pack in `_ALLOWED` more. By bisection it finds the smallest
limit on cost, and then under that limit the smallest depth, for which a plan is found. A limit on cost is proven to be
impossible if the lower bound under this limit is more than the packs allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nopad.planning.algorithm import Strategies
from nopad.planning.costs.guide import fill, fits_memory, guide
from nopad.planning.costs.spread import Load, bound_of, spread

__all__ = ["broken_evenness", "described", "even_out", "least_cap", "spreads"]

_ALLOWED = 1000
_FINE = 500  # the bisection ends when the limit on cost is known to one part in so many


def least_cap(load: Load, packs: int) -> int:
    """Return a cost that the costliest pack of any plan with at most `packs` packs cannot be below.

    >>> lengths = np.array([2, 4])
    >>> load = Load(lengths, lengths, lengths**2, np.array([4, 2]), np.array([8, 64, 9]))
    >>> least_cap(load, 2), least_cap(load, 6)
    (24, 16)
    """
    pairs = zip(load.costs.tolist(), load.counts.tolist(), strict=True)
    total = sum(cost * count for cost, count in pairs)
    low: int = max(int(load.costs[-1]), -(-total // packs))
    high: int = max(low, int(load.limits[1]))
    if bound_of(_capped(load, low)) <= packs:
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
        work: about how many nanoseconds of steps one attempt may take.
        slow: number of further attempts that may solve linear programs.
        by_tokens: returns the strategies of a plan without a limit on cost, for a depth.
    """

    load: Load
    align: int
    packs: int
    work: int
    slow: int
    by_tokens: Callable[[int], Strategies]

    def attempt(self, most: int, depth: int) -> Strategies | None:
        """Return a plan whose packs cost at most `most` and hold at most `depth` sequences; None if none is found."""
        load = _capped(self.load, most, depth)
        bound = bound_of(load)
        if bound > self.packs:
            return None
        made = spread(load, bound, self.packs, self.work)
        if made.packs <= self.packs:
            return made.strategies(load.lengths)
        if self.slow and most >= load.limits[0] ** 2:
            self.slow -= 1
            strategies = self.by_tokens(depth)
            return strategies if sum(count for count, _ in strategies) <= self.packs else None
        if self.slow and fits_memory(load):
            self.slow -= 1
            plan = guide(load, 5 * self.work)
            if plan is not None and (made := fill(plan, load, self.align, self.work)).packs <= self.packs:
                return made.strategies(load.lengths)
        return None


def even_out(
    load: Load, start: Strategies, align: int, by_tokens: Callable[[int], Strategies], work: int, slow: int
) -> tuple[Strategies, dict[str, Any]]:
    """Return the most even plan found that has at most one pack in 1,000 more than `start`, and facts for `described`.

    The facts are ``most_packs``, the packs allowed; ``least_cap``, the cost that no plan of so many packs can go below;
    ``before``, the `spreads` of `start`. `align`, `by_tokens` and `work` are those of `_Search`; `slow` attempts may
    solve linear programs while the limit on cost is searched, and again `slow` for the depth.
    """
    packs = sum(count for count, _ in start)
    allowed = packs + packs // _ALLOWED
    best, cap = start, max(_squares(lengths) for _, lengths in start)
    deepest = max(len(lengths) for _, lengths in start)
    least = least_cap(load, allowed)
    search = _Search(load, align, allowed, work, slow, by_tokens)
    low, high, most, places = least, max(cap, least), least, int(load.limits[2])
    while True:
        found = search.attempt(most, places)
        if found is not None:
            best, high = found, max(least, max(_squares(lengths) for _, lengths in found))
        else:
            low = most
        if high - low <= max(1, high // _FINE):  # `low` is not attainable, or is the least
            break
        most = (low + high) // 2
    search.slow = slow
    deepest = max(len(lengths) for _, lengths in best)
    shallow = max(1, -(-int(load.counts.sum()) // allowed)) - 1
    while shallow + 1 < deepest:
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
    """Return the number of packs, the highest cost and the most sequences of a pack, and both divided by their means.

    The keys are packs, cap (highest cost), cost_to_mean, depth (most sequences) and depth_to_mean; a ratio of 1.0 means
    that all packs are alike. The cost of a pack is the sum of its squared lengths.
    """
    packs = sum(count for count, _ in strategies)
    cap = max(_squares(lengths) for _, lengths in strategies)
    depth = max(len(lengths) for _, lengths in strategies)
    cost = sum(count * _squares(lengths) for count, lengths in strategies)
    sequences = sum(count * len(lengths) for count, lengths in strategies)
    return {
        "packs": packs,
        "cap": cap,
        "cost_to_mean": round(cap * packs / cost, 4),
        "depth": depth,
        "depth_to_mean": round(depth * packs / sequences, 4),
    }


def described(facts: Mapping[str, Any]) -> str:
    """Return the note for the user from the facts of `even_out` and, as ``after``, the `spreads` of the final plan."""
    before, after = facts["before"], facts["after"]
    least = after["cost_to_mean"] * facts["least_cap"] / after["cap"]
    return (
        f"even packs: the highest cost of a pack is {after['cost_to_mean']:.4g} times the mean (before: "
        f"{before['cost_to_mean']:.4g}; with {facts['most_packs']:,} packs it cannot be below {least:.4g}), the most "
        f"sequences in a pack are {after['depth']:,} (before: {before['depth']:,}); this takes "
        f"{after['packs'] - before['packs']:,} packs more"
    )


def broken_evenness(facts: Mapping[str, Any], load: Load, strategies: Strategies) -> list[str]:
    """Check the facts of a plan of even packs; return one sentence for each wrong number.

    `facts` are those of `even_out` and, as ``after``, the `spreads` of the plan. They must equal what these strategies
    and the lower bounds for `load` give.
    """
    if not strategies:
        return []
    true = spreads(strategies)
    least, packs, after = facts.get("least_cap"), facts.get("most_packs"), facts.get("after")
    after = after if isinstance(after, dict) else {}
    numbers = [least, packs, *(after.get(name) for name in true)]
    if any(type(number) not in (int, float) for number in numbers) or not isinstance(packs, int) or packs < 1:
        return ["the facts about evenness are incomplete"]
    wrong = [name for name in true if after[name] != true[name]]
    found = [f"{name} of the packs is stated as {after[name]}, it is {true[name]}" for name in wrong]
    proven = least_cap(load, packs)
    if least != proven:
        found.append(f"the least cap of {packs:,} packs is stated as {least:,}, {proven:,} can be proven")
    return found
