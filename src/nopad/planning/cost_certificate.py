"""`CostCertificate`: values of lengths that prove how many packs are needed under limits on tokens and squared lengths.

This is like `nopad.planning.Certificate`, but a pack has two limits: `capacity` for its tokens, and `squares` for the
sum of its squared lengths. These limits are divided into T units of tokens and S units of squares. Each length weighs
``floor(length * T / capacity)`` units of tokens (where the length is first rounded up to a multiple of `align`) and
``floor(length^2 * S / squares)`` units of squares. Since both weights are rounded down, the weights in a pack add up to
at most T and S. So a knapsack with the capacities T and S finds a value, `best`, that no pack exceeds. The sequences
need at least as many packs as their total value, divided by `best`. If the certificate says so, a depth that can limit
a pack counts too: the knapsack then takes at most so many lengths. Of the steps with equal weights, only the one with
the highest value is tried. The check takes O(weights x T x S), times the depth if it counts.

A certificate is refused in these cases:

* checking it takes more than `MAX_WORK` comparisons (half a minute), or a table of more than `MAX_TABLE` numbers
* the values in one pack might add up to 2^62 or more
* a length with a value weighs 0 units of tokens, and no depth counts

Source: dual feasible functions for vector packing, Alves, Valerio de Carvalho, Clautiaux, Rietz, "Multidimensional
dual-feasible functions and fast lower bounds for the vector packing problem", 2014.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nopad.errors import FormatError
from nopad.histogram import Histogram

__all__ = ["CostCertificate"]

MAX_VALUE = 2**40
MAX_UNITS = 2**20
MAX_TABLE = 2**26  # 64-bit integers, half a gigabyte
MAX_WORK = 2**36
_MAX_WORTH = 2**62


@dataclass(frozen=True)
class CostCertificate:
    """Values of lengths that prove a lower bound on the number of packs, under limits on tokens and squared lengths.

    Attributes:
        steps: pairs ``(from length, value)``; lengths and values both rise. A length has the value of the last step
            that begins at or below it, and 0 if there is none.
        units: ``(T, S)``: the numbers of units into which a pack's limits on tokens and on squared lengths are divided.
            The check counts the weights of lengths in these units, rounded down.
        by_depth: whether the check counts a depth limit too, which takes as many times as long; otherwise the bound
            holds for any depth.

    Raises:
        ValueError: a number is not an integer; a length is below 1; a value is outside 1 to 2^40; lengths or values do
            not rise; or T or S is outside 1 to 2^20.

    In the example, a pack holds one length of 6, or up to four of 3, so it is worth at most 4. The five sequences are
    worth 11, so they need at least 3 packs:

    >>> proof = CostCertificate(((3, 1), (6, 4)), (12, 40))
    >>> proof.best(capacity=12, squares=40)
    4
    >>> proof.bound(Histogram.from_lengths([6, 6, 3, 3, 3]), capacity=12, squares=40)
    3
    """

    steps: tuple[tuple[int, int], ...]
    units: tuple[int, int]
    by_depth: bool = False

    def __post_init__(self) -> None:
        """Check the steps and units.

        Raises:
            ValueError: a number is not an integer, lengths or values do not rise, or a number is out of range.
        """
        numbers = [number for pair in (*self.steps, self.units) for number in pair]
        if any(type(number) is not int for number in numbers) or type(self.by_depth) is not bool:
            raise ValueError("a cost certificate needs integers, and true or false for by_depth")
        rising = all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(self.steps))
        if not rising or (self.steps and (min(self.steps[0]) < 1 or self.steps[-1][1] > MAX_VALUE)):
            raise ValueError(f"cost certificate: steps must rise, from length 1 and value 1 up to {MAX_VALUE}")
        if not all(1 <= unit <= MAX_UNITS for unit in self.units):
            raise ValueError(f"cost certificate: units are from 1 to {MAX_UNITS}")

    @classmethod
    def of(
        cls, values: Iterable[tuple[int, int]], units: tuple[int, int], *, by_depth: bool = False
    ) -> CostCertificate:
        """Make a certificate from ``(length, value)`` pairs in ascending order of length.

        A pair is dropped if its value is not above 0, or not above the value of a shorter length: it begins no new
        step. `units` and `by_depth` are those of the class.

        Raises:
            ValueError: as for the class.
        """
        steps: list[tuple[int, int]] = []
        for length, value in values:
            if value > (steps[-1][1] if steps else 0):
                steps.append((length, value))
        return cls(tuple(steps), units, by_depth)

    def _weights(self, capacity: int, squares: int, align: int) -> list[tuple[int, int, int]]:
        """Return ``(units of tokens, units of squares, value)`` of the steps whose first length fits into a pack.

        The units are the weights of this first length. To count its tokens, the length is rounded up to a multiple of
        `align`. Of the steps with the same weights, only the last one, which has the highest value, is returned.
        """
        room, most = self.units
        heaviest = {
            (-(-length // align) * align * room // capacity, length * length * most // squares): value
            for length, value in self.steps
            if length <= capacity and length * length <= squares
        }
        return [(*weights, value) for weights, value in heaviest.items()]

    def _layers(self, weights: list[tuple[int, int, int]], depth: int | None) -> int:
        """Return how many lengths the knapsack takes at most; 0 if the depth does not count, or cannot limit a pack."""
        lightest = weights[0][0]
        if not self.by_depth or depth is None or (lightest and depth >= self.units[0] // lightest):
            return 0
        return depth

    def work(self, capacity: int, squares: int, align: int = 1, depth: int | None = None) -> int:
        """Return the number of comparisons that `best` makes, about a third of a nanosecond each.

        The limits of a pack are as for `problem`.
        """
        weights = self._weights(capacity, squares, align)
        if not weights:
            return 0
        return len(weights) * (self.units[0] + 1) * (self.units[1] + 1) * max(1, self._layers(weights, depth))

    def problem(self, capacity: int, squares: int, align: int = 1, depth: int | None = None) -> str | None:
        """Return why this certificate cannot be checked under these limits, as text; None if it can be checked.

        A pack holds at most `capacity` tokens, with each length rounded up to a multiple of `align`, and at most
        `depth` sequences (None: unlimited). Its squared lengths add up to at most `squares`.
        """
        weights = self._weights(capacity, squares, align)
        if not weights:
            return None
        (room, most), lightest, layers = self.units, weights[0][0], self._layers(weights, depth)
        table = (room + 1) * (most + 1) * (2 if layers else 1)
        work = self.work(capacity, squares, align, depth)
        if not lightest and not layers:
            return (
                f"the cost certificate gives a value to lengths that weigh 0 units of tokens (it has {room} for a "
                f"capacity of {capacity})"
            )
        if table > MAX_TABLE or work > MAX_WORK:
            return (
                f"checking the cost certificate takes {work:,} comparisons of {table:,} numbers; "
                f"nopad makes at most {MAX_WORK:,} of {MAX_TABLE:,}"
            )
        pieces = layers or room // lightest
        if pieces * weights[-1][2] >= _MAX_WORTH:
            return (
                f"the values of the cost certificate, up to {weights[-1][2]}, add up to more than 64 bits in one pack"
            )
        return None

    def best(self, capacity: int, squares: int, align: int = 1, depth: int | None = None) -> int:
        """Return an upper bound on the total value of one pack, an integer; the limits of a pack are as for `problem`.

        Raises:
            FormatError: the certificate cannot be checked; `problem` says why.
        """
        problem = self.problem(capacity, squares, align, depth)
        if problem is not None:
            raise FormatError(problem)
        weights = self._weights(capacity, squares, align)
        if not weights:
            return 0
        from nopad.planning._certificate_kernels import most_valuable_of_two, most_valuable_of_two_within

        table, layers = np.array(weights, dtype=np.int64), self._layers(weights, depth)
        sizes, values = table[:, :2].copy(), table[:, 2].copy()
        if layers:
            return int(most_valuable_of_two_within(sizes, values, *self.units, layers))
        return int(most_valuable_of_two(sizes, values, *self.units)[self.units])

    def bound(self, histogram: Histogram, capacity: int, squares: int, align: int = 1, depth: int | None = None) -> int:
        """Return the number of packs that this certificate proves to be necessary for the sequences of `histogram`.

        The limits of a pack are as for `problem`. The result is 0 if no length that fits into a pack has a value.

        Raises:
            FormatError: the certificate cannot be checked; `problem` says why.
        """
        best = self.best(capacity, squares, align, depth)
        starts = np.array([length for length, _ in self.steps], dtype=np.int64)
        values = [0, *(value for _, value in self.steps)]
        at = np.searchsorted(starts, histogram.lengths, side="right").tolist()
        worth = sum(values[i] * count for i, count in zip(at, histogram.counts.tolist(), strict=True))
        return -(-worth // best) if best else 0
