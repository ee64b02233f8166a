"""`Task`: the sequences to pack, the capacities and their prices, in exact integers.

In this package every sequence has two sizes, and every capacity two limits. With two kinds of size, the second size is
the second kind (such as images or edges). With one kind, the second size depends on the depth. If a depth limit may
restrict a pack (`task_of`), the second size of every sequence is 1, and the depth is the second limit of every
capacity. Otherwise, all second sizes and second limits are 0.

Prices are decimal numbers: a float stands for the decimal that Python prints, such as 4.3 for exactly 43/10. They are
converted to whole numbers without a common divisor, so that the price of a plan, and a lower bound on it, are whole
numbers too.

A `Pack` is a tuple of indices into `Task.sizes`, ascending. A `Packing` maps each pack to its number of copies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import exact_dot
from nopad.properties import cached_property

__all__ = ["Pack", "Packing", "Task", "number", "whole_prices"]

Pack = tuple[int, ...]  # indices into `Task.sizes`, ascending
Packing = Counter[Pack]


@dataclass(frozen=True, eq=False)
class Task:
    """The sequences to pack, the capacities and their prices.

    Attributes:
        sizes: distinct sizes, in lexicographic order; int64 ``[k, 2]``, the first at least 1.
        counts: number of sequences of each size, >= 1; int64 ``[k]``.
        capacities: both limits of each capacity; int64 ``[K, 2]``.
        prices: price of a pack of each capacity, as a multiple of `unit`: K integers without a common divisor.
        unit: the user's price that corresponds to 1 in `prices`; an exact fraction.
        kinds: number of kinds of size, 1 or 2.
        depth: most sequences in a pack; None: unlimited.
    """

    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    capacities: NDArray[np.int64]
    prices: tuple[int, ...]
    unit: Fraction
    kinds: int = 1
    depth: int | None = None

    @cached_property
    def loads(self) -> tuple[int, int]:
        """The sum of the first sizes of all sequences, and the sum of their second sizes."""
        first, second = (exact_dot(self.counts, self.sizes[:, kind]) for kind in (0, 1))
        return first, second

    @cached_property
    def sequences(self) -> int:
        """Number of sequences."""
        return sum(self.counts.tolist())

    @cached_property
    def by_price(self) -> list[int]:
        """The indices of the capacities worth using, cheapest first.

        A capacity is worth using unless another one holds as much and costs no more. Of capacities with equal limits
        and prices, the first is worth using.
        """
        held = self.capacities.tolist()
        order = sorted(range(len(held)), key=lambda j: (self.prices[j], [-limit for limit in held[j]], j))
        kept: list[int] = []
        for j in order:
            if not any(all(a >= b for a, b in zip(held[i], held[j], strict=True)) for i in kept):
                kept.append(j)
        return kept

    def cheapest(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, for each row of `sizes`, the index of the cheapest capacity that holds it; int64 ``[m]``.

        If none does, the index is -1. A row of `sizes` has a first and a second size; int64 ``[m, 2]``.
        """
        found = np.full(len(sizes), -1, dtype=np.int64)
        for j in reversed(self.by_price):
            found[(sizes <= self.capacities[j]).all(axis=1)] = j
        return found

    def capacity_of(self, packs: Sequence[Pack]) -> NDArray[np.int64]:
        """Return, for each pack, the index of the cheapest capacity that holds it, or -1; int64 ``[packs]``."""
        return self.cheapest(self.sums(packs))

    def sums(self, packs: Sequence[Pack]) -> NDArray[np.int64]:
        """Return the sums of the first and of the second sizes in each pack; int64 ``[packs, 2]``."""
        held = np.fromiter((len(pack) for pack in packs), dtype=np.int64, count=len(packs))
        if not held.size:
            return np.zeros((0, 2), dtype=np.int64)
        flat = np.fromiter((item for pack in packs for item in pack), dtype=np.int64, count=int(held.sum()))
        return np.add.reduceat(self.sizes[flat], np.append(0, np.cumsum(held)[:-1]), axis=0)

    def price(self, packing: Packing) -> int:
        """Return the total price of all packs, each in the cheapest capacity that holds it.

        Every pack must fit into a capacity.
        """
        packs = list(packing)
        used = self.capacity_of(packs).tolist()
        return sum(self.prices[j] * packing[pack] for j, pack in zip(used, packs, strict=True))

    def part(self, chosen: NDArray[np.int64], counts: NDArray[np.int64]) -> Task:
        """Return the task of packing only ``counts[i]`` sequences of each size ``sizes[chosen[i]]``.

        `chosen` ascends; both arguments are int64.
        """
        return Task(
            self.sizes[chosen], counts, self.capacities, self.prices, self.unit, kinds=self.kinds, depth=self.depth
        )


def whole_prices(prices: Sequence[int | float]) -> tuple[tuple[int, ...], Fraction]:
    """Return prices as integers without a common divisor, and the price that 1 stands for, as an exact fraction.

    >>> whole_prices([1, 4.3]), whole_prices([2048, 8192])
    (((10, 43), Fraction(1, 10)), ((1, 4), Fraction(2048, 1)))
    """
    exact = [Fraction(repr(price)) for price in prices]
    below = math.lcm(*(price.denominator for price in exact))
    whole = [int(price * below) for price in exact]
    common = math.gcd(*whole)
    return tuple(price // common for price in whole), Fraction(common, below)


def number(value: Fraction) -> int | float:
    """Return an exact value as an int if it is a whole number, otherwise as the nearest float.

    >>> number(Fraction(6, 2)), number(Fraction(43, 10))
    (3, 4.3)
    """
    return value.numerator if value.denominator == 1 else float(value)
