"""Pricing: the most valuable pattern under given values of items, and the best pattern that contains each single item.

A pattern is a multiset of items that fits into a pack. Values are integers, so the result is exact, and so is the bound
made from it. O(k * C) without a depth limit and O(depth * k * C) with one, for k items and a capacity of C units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SCALE", "Items", "Pattern", "price"]

SCALE = 2**40  # a dual of 1 (an item that fills a pack) in integers; a pack's worth stays far below 2^63

Pattern = tuple[int, ...]


@dataclass(frozen=True)
class Items:
    """The items to pack: `demand[i]` items of `sizes[i]` units.

    Attributes:
        sizes: units of each item, ascending, distinct, 1..capacity; int64 ``[k]``.
        demand: number of each item, >= 1; int64 ``[k]``.
        capacity: units per pack.
        depth: most items per pack, at least 1, and never more than fit.
    """

    sizes: NDArray[np.int64]
    demand: NDArray[np.int64]
    capacity: int
    depth: int

    @classmethod
    def of(cls, sizes: NDArray[np.int64], demand: NDArray[np.int64], capacity: int, depth: int | None) -> Items:
        """Return items with `depth` lowered to the most that fit into a pack; None is no limit."""
        most = capacity // int(sizes[0])
        return cls(sizes, demand, capacity, most if depth is None else min(depth, most))

    @property
    def unlimited(self) -> bool:
        """Whether the depth never limits a pack, since packs of the smallest item are full first."""
        return self.depth >= self.capacity // int(self.sizes[0])

    @property
    def steps(self) -> int:
        """Operations of pricing these items once."""
        return self.sizes.size * self.capacity * (1 if self.unlimited else self.depth)


def price(items: Items, values: NDArray[np.int64], most: int) -> tuple[int, list[Pattern]]:
    """Return the value of the best pattern, and up to `most` patterns with a value above `SCALE`, best first.

    A pattern is a tuple of item numbers, largest item first.
    """
    from nopad.planning.optimal import _kernels

    rows = 2 if items.unlimited else items.depth + 1
    table = np.empty((rows, items.capacity + 1), dtype=np.int64)
    _kernels.knapsack(items.sizes, values, items.unlimited, table)
    best = int(table[-1, -1])
    around = values + table[-2, items.capacity - items.sizes]  # best pattern with item i
    candidates = np.flatnonzero(around > SCALE)
    candidates = candidates[np.argsort(-around[candidates], kind="stable")][: 4 * most]
    out = np.empty((candidates.size, items.depth + 1), dtype=np.int64)
    used = np.empty(candidates.size, dtype=np.int64)
    _kernels.patterns_with(items.sizes, values, items.unlimited, table, candidates, out, used)
    found: dict[Pattern, None] = {}
    for row, n in zip(out, used.tolist(), strict=True):  # rows are as long as the deepest pack: mostly unused
        found.setdefault(tuple(sorted(row[:n].tolist(), reverse=True)))
        if len(found) == most:
            break
    return best, list(found)
