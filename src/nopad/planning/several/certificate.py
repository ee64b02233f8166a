"""`PriceCertificate`: values of sequences that prove a lower bound on the price of any plan for several capacities.

A sequence of sizes (a, b) is worth ``rates . (a, b)``, plus an extra. The certificate has triples
``(from a, from b, value)``; the extra is the highest value of the triples with ``from a <= a`` and ``from b <= b``, or
0 if there is none. Let W be the total value of all sequences, and ``best[j]`` a value that no pack of capacity j
exceeds. Such a pack costs ``prices[j]``, so a price of 1 buys at most ``best[j] / prices[j]`` of value in capacity j.
Any plan therefore costs at least the smallest of ``W * prices[j] / best[j]`` over all capacities j.

No solver is needed to compute `best`: the rates give at most ``rates . capacity``, since sizes add up. The most that
extras add is found by a knapsack recursion over the sizes at which they begin, with one table for all capacities. To
keep the table small, sizes are counted in units, and rounded down for extras and capacities alike. Sizes that fit into
a capacity also fit after rounding, so the knapsack finds at least the highest value of any pack. All sums are exact
integers.

A certificate is refused in these cases:

* checking it takes more than `MAX_WORK` comparisons (a minute), or a table of more than `MAX_TABLE` numbers
* the extras in one pack might add up to 2^62 or more
* an extra begins at sizes of 0 units

Source: duality of the cutting-stock linear program with several stock lengths, Gilmore and Gomory 1961; Farley, "A note
on bounding a class of linear programming problems", 1990.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nopad.errors import FormatError

__all__ = ["PriceCertificate"]

MAX_VALUE = 2**50
MAX_RATE = 2**64
MAX_UNIT = 2**31
MAX_TABLE = 2**26  # 64-bit integers, half a gigabyte
MAX_WORK = 2**36
_MAX_WORTH = 2**62


@dataclass(frozen=True)
class PriceCertificate:
    """Values of sequences that prove a lower bound on the price of all packs, as the module describes.

    Attributes:
        rates: value of one token (or other unit) of the first and of the second size; two integers from 0 to 2^64.
        extras: triples ``(from a, from b, value)``, in ascending order of their sizes, which are distinct. A sequence
            whose sizes are at least ``(from a, from b)`` is worth this value more than the rates give it; if several
            extras apply, only the highest counts. Sizes are integers from 0 to 2^31, values from 1 to 2^50.
        units: the units in which the table of the check counts both sizes, rounded down; two integers from 1 to 2^31.

    Raises:
        ValueError: a number is not an integer or is out of range; `rates`, `units` or an extra has too many or too few
            numbers; or extras do not ascend.

    In the example, a token is worth 1, and a sequence of 5 or more tokens is worth 2 more. A pack of 8 tokens holds one
    such sequence, so it is worth at most 8 + 2 = 10; a pack of 16 tokens holds three: 16 + 3 * 2 = 22. The sequences,
    four of 5 tokens and one of 3, are worth 4 * 7 + 3 = 31. A pack of 8 tokens costs 1. A pack of 16 tokens costs 3,
    which buys less value for its price. So the packs cost at least 31 / 10, rounded up to 4:

    >>> proof = PriceCertificate((1, 0), ((5, 0, 2),))
    >>> proof.best([(8, 0), (16, 0)])
    [10, 22]
    >>> proof.bound(np.array([[5, 0], [3, 0]]), [4, 1], [(8, 0), (16, 0)], [1, 3])
    4
    """

    rates: tuple[int, int]
    extras: tuple[tuple[int, int, int], ...] = ()
    units: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: a number is not an integer or is out of range; `rates`, `units` or an extra has too many or too
                few numbers; or extras are not in ascending order of size.
        """
        numbers = [*self.rates, *self.units, *(number for extra in self.extras for number in extra)]
        if any(type(number) is not int for number in numbers) or any(len(extra) != 3 for extra in self.extras):
            raise ValueError("a price certificate needs integers, three for each extra")
        if len(self.rates) != 2 or not all(0 <= rate <= MAX_RATE for rate in self.rates):
            raise ValueError(f"price certificate: two rates, from 0 to {MAX_RATE}")
        if len(self.units) != 2 or not all(1 <= unit <= MAX_UNIT for unit in self.units):
            raise ValueError(f"price certificate: two units, from 1 to {MAX_UNIT}")
        sizes = [extra[:2] for extra in self.extras]
        valid = all(0 <= size <= MAX_UNIT for pair in sizes for size in pair)
        valid = valid and all(1 <= value <= MAX_VALUE for *_, value in self.extras)
        if not valid or any(a >= b for a, b in pairwise(sizes)):
            raise ValueError(f"price certificate: sizes of extras must rise, with values from 1 to {MAX_VALUE}")

    def _table(self, capacities: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int, int]], int, int]:
        """Return ``(extras, rooms, places)``: the extras that fit into a capacity, and the largest limit of each size.

        An extra is ``(first size, second size, value)``. All sizes and limits are in units, rounded down.
        """
        one, other = self.units
        rooms, places = max(c[0] for c in capacities) // one, max(c[1] for c in capacities) // other
        fitting = [
            (a // one, b // other, value)
            for a, b, value in self.extras
            if any(a <= limit[0] and b <= limit[1] for limit in capacities)
        ]
        return fitting, rooms, places

    def problem(self, capacities: Sequence[tuple[int, int]]) -> str | None:
        """Return why this certificate cannot be checked for these capacities, as text; None if it can be checked.

        Capacities are pairs of limits. Whether there are too many sizes for the extras is not checked here
        (`extras_of`).
        """
        fitting, rooms, places = self._table(capacities)
        if not fitting:
            return None
        if any(a == b == 0 for a, b, _ in fitting):
            return f"the price certificate has an extra that takes no room in units of {self.units[0]}, {self.units[1]}"
        table = (rooms + 1) * (places + 1)
        if table > MAX_TABLE or table * len(fitting) > MAX_WORK:
            return (
                f"checking the price certificate takes {table * len(fitting):,} comparisons of {table:,} numbers; "
                f"nopad makes at most {MAX_WORK:,} of {MAX_TABLE:,}"
            )
        pieces = rooms // min((a for a, _, _ in fitting if a), default=rooms + 1)
        pieces += places // min((b for a, b, _ in fitting if not a), default=places + 1)
        if pieces * max(value for *_, value in fitting) >= _MAX_WORTH:
            return "the values of the price certificate add up to more than 64 bits in one pack"
        return None

    def best(self, capacities: Sequence[tuple[int, int]]) -> list[int]:
        """Return, for each of these capacities (pairs of limits), an upper bound on the value of one pack.

        Raises:
            FormatError: the certificate cannot be checked; `problem` says why.
        """
        problem = self.problem(capacities)
        if problem is not None:
            raise FormatError(problem)
        rates = [sum(rate * limit for rate, limit in zip(self.rates, held, strict=True)) for held in capacities]
        fitting, rooms, places = self._table(capacities)
        if not fitting:
            return rates
        from nopad.planning._certificate_kernels import most_valuable_of_two

        table = np.array(sorted(fitting), dtype=np.int64)
        worth = most_valuable_of_two(table[:, :2].copy(), table[:, 2].copy(), rooms, places)
        one, other = self.units
        return [rate + int(worth[a // one, b // other]) for rate, (a, b) in zip(rates, capacities, strict=True)]

    def worth(self, sizes: NDArray[np.int64], counts: Sequence[int]) -> int:
        """Return the total value of ``counts[i]`` sequences of each pair of sizes ``sizes[i]``; an exact integer.

        `sizes` are int64 ``[k, 2]``.

        Raises:
            FormatError: extras depend on the second size too, and there are more than `MAX_WORK` combinations of an
                extra and a pair of sizes to check.
        """
        extra = self.extras_of(sizes)
        one, other = self.rates
        rows = zip(sizes.tolist(), extra.tolist(), counts, strict=True)
        return sum((one * a + other * b + more) * count for (a, b), more, count in rows)

    def extras_of(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the extra of a sequence of each pair of sizes, 0 if none applies; int64 ``[k]``.

        `sizes` are int64 ``[k, 2]``.

        Raises:
            FormatError: extras depend on the second size too, and there are more than `MAX_WORK` combinations of an
                extra and a pair of sizes to check.
        """
        extra = np.zeros(len(sizes), dtype=np.int64)
        begins = np.array(self.extras, dtype=np.int64).reshape(-1, 3)
        if not begins[:, 1].any():  # extras by the first size alone
            highest = np.append(0, np.maximum.accumulate(begins[:, 2]))
            return highest[np.searchsorted(begins[:, 0], sizes[:, 0], side="right")]
        if len(begins) * len(sizes) > MAX_WORK:
            raise FormatError(f"the price certificate has {len(begins):,} extras for {len(sizes):,} sizes: too many")
        for a, b, value in begins[np.argsort(begins[:, 2], kind="stable")].tolist():
            extra[(sizes[:, 0] >= a) & (sizes[:, 1] >= b)] = value
        return extra

    def bound(
        self,
        sizes: NDArray[np.int64],
        counts: Sequence[int],
        capacities: Sequence[tuple[int, int]],
        prices: Sequence[int],
    ) -> int:
        """Return a lower bound on the price of any plan for ``counts[i]`` sequences of each size ``sizes[i]``.

        `sizes` are int64 ``[k, 2]``, and `capacities` are pairs of limits. A pack of capacity j costs ``prices[j]``.
        Prices and the bound are integers.

        Raises:
            FormatError: the certificate cannot be checked; see `problem` and `worth`.
        """
        worth = self.worth(sizes, counts)
        best = self.best(capacities)
        bounds = [-(-worth * price // most) for price, most in zip(prices, best, strict=True) if most]
        return min(bounds, default=0)
