"""Pricing: given a value for each item, find the most valuable pattern, and the best pattern that contains each item.

An item stands for all sequences of one size. A pattern is a multiset of items that fits into a pack; its value is the
sum of its items' values. Values are integers, so the result is exact, and so is the bound made from it. For k items and
a capacity of C, this takes O(k * C) without a depth limit and O(depth * k * C) with one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SCALE", "Items", "Pattern", "price"]

SCALE = 2**40  # the integer for a dual value of 1, which is the cost of a pack; sums in a pack stay far below 2^63

Pattern = tuple[int, ...]


@dataclass(frozen=True)
class Items:
    """The items to pack: item i has the size ``sizes[i]``, and must be packed ``demand[i]`` times.

    Sizes and capacity are in tokens, or in another common unit.

    Attributes:
        sizes: size of each item, ascending, distinct, from 1 to `capacity`; int64 ``[k]``.
        demand: how many of each item there are, >= 1; int64 ``[k]``.
        capacity: the most that the sizes in a pack may add up to.
        depth: most items per pack, >= 1.
    """

    sizes: NDArray[np.int64]
    demand: NDArray[np.int64]
    capacity: int
    depth: int

    @classmethod
    def of(cls, sizes: NDArray[np.int64], demand: NDArray[np.int64], capacity: int, depth: int | None) -> Items:
        """Return `Items` with these sizes (ascending) and this demand, both int64 ``[k]``.

        A `depth` above the number of items of the smallest size that fit into a pack is lowered to this number. So is a
        `depth` of None, which means unlimited.
        """
        most = capacity // int(sizes[0])
        return cls(sizes, demand, capacity, most if depth is None else min(depth, most))

    @property
    def unlimited(self) -> bool:
        """Whether the depth never limits a pack, since a pack is full before it holds more than `depth` items."""
        return self.depth >= self.capacity // int(self.sizes[0])

    def steps(self, *, loose: bool = False) -> int:
        """Return about how many operations one call of `price` takes for these items, with the same `loose`."""
        return self.sizes.size * self.capacity * (1 if loose or self.unlimited else self.depth) // 2


def price(items: Items, values: NDArray[np.int64], most: int, *, loose: bool = False) -> tuple[int, list[Pattern]]:
    """Return the value of the best pattern, and up to `most` distinct patterns with a value above `SCALE`, best first.

    `values` are int64 ``[k]``, >= 0. A pattern is a tuple of item numbers, largest first; each one returned is a most
    valuable pattern of those that contain a certain item.

    With `loose`, the search ignores the depth limit, which takes less work. The value returned is then only an upper
    bound. Patterns found that break the limit are dropped, so patterns better than those returned may exist.
    """
    from nopad.planning.optimal import _kernels

    loose = loose or items.unlimited
    deepest = items.capacity // int(items.sizes[0]) if loose else items.depth
    table = np.empty((2 if loose else items.depth + 1, items.capacity + 1), dtype=np.int64)
    _kernels.knapsack(items.sizes, values, loose, table)
    best = int(table[-1, -1])
    around = values + table[-2, items.capacity - items.sizes]  # value of the best pattern with item i
    candidates = np.flatnonzero(around > SCALE)
    candidates = candidates[np.argsort(-around[candidates], kind="stable")][: 4 * most]
    out = np.empty((candidates.size, deepest + 1), dtype=np.int64)
    used = np.empty(candidates.size, dtype=np.int64)
    _kernels.patterns_with(items.sizes, values, loose, table, candidates, out, used)
    kept = used <= items.depth
    found: dict[Pattern, None] = {}
    for row, n in zip(out[kept], used[kept].tolist(), strict=True):  # most of a row is unused
        found.setdefault(tuple(sorted(row[:n].tolist(), reverse=True)))
        if len(found) == most:
            break
    return best, list(found)
