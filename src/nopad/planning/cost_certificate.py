"""`CostCertificate`: values of lengths that prove how many packs are needed under limits on tokens and squared lengths.

This is like `nopad.planning.Certificate`, but a pack has two limits: `capacity` for its tokens, and `squares` for the
sum of its squared lengths. The check finds `best`, an upper bound on the value of any pack. The number of packs is at
least the total value of all sequences, divided by `best`. Lengths of equal value form a step. The check groups packs by
the step of their longest length. For each group it computes up to two upper bounds on the value of a pack, and the
lower one counts:

* *By rates*: the longest sequence counts exactly, and all others as if they could be divided. A rate is a value per
  token, per square or per sequence. At suitable rates, each length that fits beside the longest one is worth at most
  what its tokens and its square are worth. Then all these lengths together are worth at most what the free room is
  worth at these rates. Many rates are tried. This is nearly exact if a pack has one long sequence and many short ones.
* *By pairs*, if the certificate has units ``(T, S)``: the two longest sequences count exactly. So does the third in a
  pack of three. The other sequences of a larger pack count with sizes (tokens and square) that are rounded down. In a
  pack of four, the sizes of the other two are added, and rounded down to multiples of 1/4,096 of each limit. In a pack
  of five or more, the sizes of the others are rounded down to whole units: T units of tokens and S units of squares
  make up the limits of a pack. Wherever the real sizes fit, sizes rounded down fit too. So the highest value that the
  tables and a knapsack with two limits find is an upper bound. This is nearly exact if few sequences share a pack.

With `CostCertificate.by_depth`, a depth limit that can restrict a pack counts too. The check by rates then has a rate
per sequence, and the check by pairs limits the number of lengths in a pack. If there are more than `MAX_PAIRED` steps,
the check by pairs treats steps of equal units as one. The check by rates takes O(steps x rates). For k steps of
different units, the check by pairs takes O(steps^2 + k x T x S), or O(steps^2 + k x T x S x depth) if the depth counts.

A certificate is refused in these cases, unless all its steps begin at lengths that fit into no pack:

* checking it takes more than `MAX_WORK` comparisons (half a minute), or tables of more than `MAX_TABLE` numbers in
  total
* the values in one pack might add up to 2^62 or more
* it has units, no depth limit counts, and a length with a value has 0 units of tokens after rounding down

Source: dual feasible functions for vector packing, Alves, Valerio de Carvalho, Clautiaux, Rietz, "Multidimensional
dual-feasible functions and fast lower bounds for the vector packing problem", 2014.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopad.errors import FormatError
from nopad.histogram import Histogram

__all__ = ["CostCertificate"]

MAX_VALUE = 2**40
MAX_UNITS = 2**20
MAX_TABLE = 2**26  # 64-bit integers, half a gigabyte
MAX_WORK = 2**36
MAX_PAIRED = 8192
_MAX_WORTH = 2**62
_RATE_WORK, _PAIR_WORK, _CELL_WORK = 10, 40, 4  # comparisons for a step at one rate, a pair, an update of the knapsack
_LOWEST, _HIGHEST = -6, 12  # a rate per square is 0, or 2^_LOWEST to 2^_HIGHEST packs for all squares of a pack
_ROOTS, _ROOTS_BY_DEPTH = 5, 3  # these rates differ by the root of 2 that so many square roots give
_PLACES = 32  # number of rates per sequence above 0, from 1 / _PLACES packs to 1 pack for all sequences of a pack
# A value computed in floating point is raised by these shares, far above all rounding errors, and then rounded down. A
# rounding error in the value of one token counts as often as there are tokens in a pack.
_SURE, _SURE_PER_TOKEN = 1e-9, 1e-14


@dataclass(frozen=True)
class CostCertificate:
    """Values of lengths that prove a lower bound on the number of packs, under limits on tokens and squared lengths.

    The methods take the limits of a pack. A pack holds at most `capacity` tokens, where each length is rounded up to a
    multiple of `align`, and at most `depth` sequences (None: unlimited). Its squared lengths add up to at most
    `squares`.

    Attributes:
        steps: pairs ``(from length, value)``; lengths and values both rise. A length has the value of the last step
            that begins at or below it, and 0 if there is none.
        units: ``(T, S)``: the limit of a pack on tokens is divided into T units, and its limit on squared lengths into
            S units. The check by pairs counts the tokens and the square of each length in these units, rounded down.
            None: there is no check by pairs.
        by_depth: whether the check counts a depth limit too, which takes many times as long. If False, the bound holds
            for any depth.

    Raises:
        ValueError: a step or the units are no pair; a number is not an integer, or `by_depth` is not a boolean; a
            length is below 1; a value is outside 1 to 2^40; lengths or values do not rise; or T or S is outside 1 to
            2^20.

    In the example, a pack holds one length of 6, or up to four of 3, so it is worth at most 4. The five sequences are
    worth 11, so they need at least 3 packs:

    >>> proof = CostCertificate(((3, 1), (6, 4)), (12, 40))
    >>> proof.best(capacity=12, squares=40)
    4
    >>> proof.bound(Histogram.from_lengths([6, 6, 3, 3, 3]), capacity=12, squares=40)
    3
    """

    steps: tuple[tuple[int, int], ...]
    units: tuple[int, int] | None = None
    by_depth: bool = False

    def __post_init__(self) -> None:
        """Check the steps, the units and `by_depth`.

        Raises:
            ValueError: a step or the units are no pair, a number is not an integer or is out of range, `by_depth` is
                not a boolean, or lengths or values do not rise.
        """
        units = () if self.units is None else self.units
        pairs = [*self.steps, *([] if self.units is None else [units])]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("a cost certificate needs pairs: steps (length, value), and units (T, S) or None")
        if any(type(number) is not int for pair in pairs for number in pair) or type(self.by_depth) is not bool:
            raise ValueError("a cost certificate needs integers, and true or false for by_depth")
        rising = all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(self.steps))
        if not rising or (self.steps and (min(self.steps[0]) < 1 or self.steps[-1][1] > MAX_VALUE)):
            raise ValueError(f"cost certificate: steps must rise, from length 1 and value 1 up to {MAX_VALUE}")
        if not all(1 <= unit <= MAX_UNITS for unit in units):
            raise ValueError(f"cost certificate: units are from 1 to {MAX_UNITS}")

    @classmethod
    def of(
        cls, values: Iterable[tuple[int, int]], units: tuple[int, int] | None = None, *, by_depth: bool = False
    ) -> CostCertificate:
        """Make a certificate from ``(length, value)`` pairs in ascending order of length.

        A pair is dropped if its value is not above 0, or not above the value of a shorter length: it begins no new
        step. `units` and `by_depth` are those of the class.

        Raises:
            ValueError: a number is not an integer or is out of range, `units` is no pair, `by_depth` is not a boolean,
                or the lengths of the steps do not rise.
        """
        steps: list[tuple[int, int]] = []
        for length, value in values:
            if value > (steps[-1][1] if steps else 0):
                steps.append((length, value))
        return cls(tuple(steps), units, by_depth)

    def _fitting(self, capacity: int, squares: int, align: int) -> list[tuple[int, int, int]]:
        """Return ``(tokens, square, value)`` of the steps whose first length fits into a pack by itself.

        The tokens are this first length, rounded up to a multiple of `align`.
        """
        return [
            (-(-length // align) * align, length * length, value)
            for length, value in self.steps
            if length <= capacity and length * length <= squares
        ]

    def _weights(self, capacity: int, squares: int, align: int) -> list[tuple[int, int, int]]:
        """Return ``(units of tokens, units of squares, value)`` of the steps whose first length fits into a pack.

        Of the steps with the same units, only the last one, which has the highest value, is returned. The certificate
        must have units.
        """
        one, other = self._parts(capacity, squares)
        heaviest = {
            (tokens // one, square // other): value for tokens, square, value in self._fitting(capacity, squares, align)
        }
        return [(*weights, value) for weights, value in heaviest.items()]

    def _parts(self, capacity: int, squares: int) -> tuple[int, int]:
        """Return how many tokens make one unit of tokens, and how many squares one unit of squares; both rounded up.

        Without units in the certificate, one unit is the whole limit.
        """
        room, most = self.units or (1, 1)
        return -(-capacity // room), -(-squares // most)

    def _layers(self, shortest: int, capacity: int, depth: int | None) -> int:
        """Return the depth if it counts and can limit a pack, otherwise 0.

        `shortest` is the number of tokens of the first step that fits into a pack.
        """
        return 0 if not self.by_depth or depth is None or depth >= capacity // shortest else depth

    def work(self, capacity: int, squares: int, align: int = 1, depth: int | None = None) -> int:
        """Return an estimate of how many comparisons `best` makes under these limits of a pack (see the class).

        A comparison takes about a third of a nanosecond.
        """
        fitting = self._fitting(capacity, squares, align)
        if not fitting:
            return 0
        layers = self._layers(fitting[0][0], capacity, depth)
        work = _RATE_WORK * len(fitting) * len(_rates(1.0, 1, layers))
        if self.units is None:
            return work
        one, other = self._parts(capacity, squares)
        weights = len(self._weights(capacity, squares, align))
        paired = len(fitting) if len(fitting) <= MAX_PAIRED else weights
        cells = (capacity // one + 1) * (squares // other + 1)
        return work + _PAIR_WORK * paired * (paired + 1) // 2 + _CELL_WORK * weights * cells * max(1, layers - 4)

    def problem(self, capacity: int, squares: int, align: int = 1, depth: int | None = None) -> str | None:
        """Return why this certificate cannot be checked under these limits, as text; None if it can be checked.

        The class describes the limits of a pack.
        """
        fitting = self._fitting(capacity, squares, align)
        if not fitting:
            return None
        layers = self._layers(fitting[0][0], capacity, depth)
        pieces = layers or capacity // fitting[0][0]
        work, table = self.work(capacity, squares, align, depth), 1
        if self.units is not None:
            one, other = self._parts(capacity, squares)
            lightest = fitting[0][0] // one
            table = (capacity // one + 1) * (squares // other + 1) * (3 if layers else 2)
            if not lightest and not layers:
                return (
                    f"the cost certificate gives a value to lengths that weigh 0 units of tokens (it has "
                    f"{self.units[0]} for a capacity of {capacity})"
                )
            pieces = layers or 2 + capacity // one // lightest
        if table > MAX_TABLE or work > MAX_WORK:
            return (
                f"checking the cost certificate takes {work:,} comparisons of {table:,} numbers; "
                f"nopad makes at most {MAX_WORK:,} of {MAX_TABLE:,}"
            )
        if pieces * fitting[-1][2] >= _MAX_WORTH:
            return (
                f"the values of the cost certificate, up to {fitting[-1][2]}, add up to more than 64 bits in one pack"
            )
        return None

    def best(self, capacity: int, squares: int, align: int = 1, depth: int | None = None) -> int:
        """Return an upper bound on the total value of one pack under these limits (see the class); an integer.

        Raises:
            FormatError: the certificate cannot be checked; `problem` says why.
        """
        return max(self.worths(capacity, squares, align, depth).tolist(), default=0)

    def worths(self, capacity: int, squares: int, align: int = 1, depth: int | None = None) -> NDArray[np.int64]:
        """Return, for each step that fits, an upper bound on the value of a pack whose longest length is of this step.

        The result is int64 ``[m]``: it covers only the m steps whose first length fits into a pack. The class describes
        the limits of a pack.

        Raises:
            FormatError: the certificate cannot be checked; `problem` says why.
        """
        problem = self.problem(capacity, squares, align, depth)
        if problem is not None:
            raise FormatError(problem)
        fitting = self._fitting(capacity, squares, align)
        if not fitting:
            return np.empty(0, dtype=np.int64)
        from nopad.planning._cost_certificate_kernels import worth_by_rates

        layers = self._layers(fitting[0][0], capacity, depth)
        tokens, square, values = np.array(fitting, dtype=np.int64).T.copy()
        limits, none = (capacity, squares), np.zeros((1, 2))
        share, power = math.frexp(worth_by_rates(tokens, square, values, limits, layers, none).max())
        packs = math.ldexp(1.0, power - (share == 0.5))  # the next power of two
        worth = worth_by_rates(tokens, square, values, limits, layers, _rates(packs, squares, layers))
        raised = worth * (1 + _SURE + _SURE_PER_TOKEN * capacity)
        most = np.minimum(np.floor(raised), _MAX_WORTH).astype(np.int64)
        return most if self.units is None else np.minimum(most, self._by_pairs(tokens, square, values, limits, layers))

    def _by_pairs(
        self,
        tokens: NDArray[np.int64],
        square: NDArray[np.int64],
        values: NDArray[np.int64],
        limits: tuple[int, int],
        layers: int,
    ) -> NDArray[np.int64]:
        """Return, for each step given, an upper bound on the value of a pack whose longest length is of this step.

        The bounds are computed by pairs, as the module describes. `tokens`, `square` and `values` belong to the m steps
        whose first length fits into a pack. These arrays and the result are int64 ``[m]``. `limits` are the most tokens
        and squares of a pack. `layers` is the depth if it counts and can limit a pack, otherwise 0.
        """
        from nopad.planning import _cost_certificate_kernels as kernels

        parts = self._parts(*limits)
        units = np.stack([tokens // parts[0], square // parts[1]], axis=1)
        first = np.flatnonzero(np.append(True, (np.diff(units, axis=0) != 0).any(axis=1)))
        highest = values[np.append(first[1:] - 1, values.size - 1)]
        names = np.arange(values.size)
        if values.size > MAX_PAIRED:
            names = np.searchsorted(first, names, side="right") - 1
            tokens, square, values = tokens[first], square[first], highest
        half = (limits[0] // 2, limits[1] // 2)
        fine = (-(-limits[0] // kernels.FINE), -(-limits[1] // kernels.FINE))
        two = kernels.pairs(tokens, square, values, half, fine)
        more = kernels.pairs(tokens, square, values, limits, parts)
        more = kernels.three_or_more(more, units[first], highest, max(1, layers - 2) if layers else 0)
        worth: NDArray[np.int64] = kernels.worth_by_pairs(
            tokens, square, values, limits, (two, *fine), (more, *parts), layers
        )
        return worth[names]

    def bound(self, histogram: Histogram, capacity: int, squares: int, align: int = 1, depth: int | None = None) -> int:
        """Return the number of packs that this certificate proves to be necessary for the sequences of `histogram`.

        The class describes the limits of a pack. The result is 0 if no length that fits into a pack has a value.

        Raises:
            FormatError: the certificate cannot be checked; `problem` says why.
        """
        best = self.best(capacity, squares, align, depth)
        starts = np.array([length for length, _ in self.steps], dtype=np.int64)
        values = [0, *(value for _, value in self.steps)]
        at = np.searchsorted(starts, histogram.lengths, side="right").tolist()
        worth = sum(values[i] * count for i, count in zip(at, histogram.counts.tolist(), strict=True))
        return -(-worth // best) if best else 0


def _rates(packs: float, squares: int, layers: int) -> NDArray[np.float64]:
    """Return the rates that the check of a certificate tries; float64 ``[n, 2]``.

    A row holds a rate per square and a rate per sequence. `packs` is about the value of one pack, as a power of two, so
    that a small change of the values changes no rate. `squares` is a pack's limit on squares. `layers` is a pack's
    limit on sequences; with 0 there is no limit, and all rates per sequence are 0. The rates are made by roots and
    products, which every machine rounds alike, not by powers.
    """
    roots = _ROOTS_BY_DEPTH if layers else _ROOTS
    root = 2.0
    for _ in range(roots):
        root = math.sqrt(root)
    octave = list(itertools.accumulate([1.0] + [root] * (2**roots - 1), operator.mul))
    powers = [0.0, *(math.ldexp(one, power) for power in range(_LOWEST, _HIGHEST) for one in octave)]
    powers.append(math.ldexp(1.0, _HIGHEST))
    places = [place / _PLACES * packs / layers for place in range(_PLACES + 1)] if layers else [0.0]
    return np.array([(power * packs / squares, place) for power in powers for place in places])
