"""Packs that are alike: nearly as few as possible, none much dearer than the mean, none much deeper.

A step of training waits for its dearest pack. From the best plan by packs, up to one pack in `_ALLOWED` more is spent
on evenness: first the smallest limit on the squares of a pack is looked for that can still be kept, by bisection, then
under this limit the smallest depth. What no plan can do is proven by the same bounds as everything else: a limit on
squares so low that the lower bound exceeds the packs allowed.
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
_FINE = 500  # the bisection of the limit ends at one part in so many


def least_cap(load: Load, packs: int) -> int:
    """Return a limit on the cost of a pack that no plan of at most `packs` packs can go below.

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
    while low + 1 < high:  # the bound of `low` is above `packs`
        middle = (low + high) // 2
        low, high = (low, middle) if bound_of(_capped(load, middle)) <= packs else (middle, high)
    return high


def _capped(load: Load, most: int, depth: int | None = None) -> Load:
    tokens, _, places = load.limits.tolist()
    return replace(load, limits=np.array([tokens, most, places if depth is None else depth], dtype=np.int64))


@dataclass
class _Search:
    """The search for limits that a plan of at most `packs` packs keeps; `slow` linear programs may be tried."""

    load: Load
    align: int
    packs: int
    work: int
    slow: int
    by_tokens: Callable[[int], Strategies]

    def attempt(self, most: int, depth: int) -> Strategies | None:
        """Return a plan within these limits; None if none is found."""
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
    """Return the most even plan found that has at most one pack in 1,000 more than `start`, and facts about the latter.

    `by_tokens` plans without a limit on squares, at a depth. One attempt takes about `work` steps; at most `slow`
    attempts, for the limit and for the depth each, use linear programs.
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
    """Return packs, the dearest and the deepest pack, and how far each of both is above the mean (1.0: all alike)."""
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
    """Return a note for the user."""
    before, after = facts["before"], facts["after"]
    least = after["cost_to_mean"] * facts["least_cap"] / after["cap"]
    return (
        f"even packs: the dearest costs {after['cost_to_mean']:.4g} times the mean ({before['cost_to_mean']:.4g} "
        f"before, at least {least:.4g} in {facts['most_packs']:,} packs), the deepest holds {after['depth']:,} "
        f"sequences ({before['depth']:,} before), for {after['packs'] - before['packs']:,} packs more"
    )


def broken_evenness(facts: Mapping[str, Any], load: Load, strategies: Strategies) -> list[str]:
    """Return one sentence for each number in `facts` that these strategies, or the bounds, do not bear out."""
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
