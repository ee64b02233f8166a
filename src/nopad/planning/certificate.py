"""`Certificate`: values of lengths that prove a lower bound on the number of packs of any plan.

Give every length an integer value, such that a longer length never has a lower value. Let `best` be the highest total
value of the sequences in one pack. P packs are worth at most ``P * best``, and all sequences together are worth
``sum(count * value)``; so ``P >= sum(count * value) / best``. The values come from a linear program, but nothing here
needs to trust it: this module recomputes `best` by a plain knapsack recursion that shares no code with the solver.

Values are a step function of length: ``steps[i] = (from length, value)``; the lengths rise, and the values do not fall.
All lengths of one step have the same value, so the shortest of them is the best to put into a pack, and the recursion
considers only that one. It takes O(steps * capacity) without a depth limit, O(depth * steps * capacity) with one.

A certificate is refused in these cases, unless all its steps begin above the capacity:

* the capacity is above `MAX_CAPACITY`
* checking the certificate would take more than `MAX_WORK` comparisons (a minute or two)
* the values in one pack might add up to 2^62 or more

Source: duality of the cutting-stock linear program; Farley, "A note on bounding a class of linear programming
problems", Operations Research 38(5), 1990.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nopad.errors import FormatError
from nopad.histogram import Histogram

__all__ = ["Certificate"]

MAX_VALUE = 2**40
MAX_CAPACITY = 2**25  # a table has one 64-bit integer per token; with a depth limit there are two, 0.5 GB
MAX_WORK = 2**36  # comparisons
_MAX_WORTH = 2**62


@dataclass(frozen=True)
class Certificate:
    """Values of lengths that prove a lower bound on the number of packs.

    Attributes:
        steps: pairs ``(from length, value)``. A length has the value of the last step that begins at or below it; the
            value is 0 if there is none. The lengths rise, and the values do not fall.

    Raises:
        ValueError: a length is below 1 or not above the length before it; or a value is outside 0 to 2^40, or below the
            value before it.

    In the example, a pack of 8 tokens is worth at most 2 (one length of 6, or two of 3). The five sequences are worth
    7, so they need at least 4 packs:

    >>> proof = Certificate(((1, 0), (3, 1), (6, 2)))
    >>> proof.best(capacity=8, depth=None)
    2
    >>> proof.bound(Histogram.from_lengths([6, 6, 3, 3, 3]), capacity=8, depth=None)
    4
    """

    steps: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        """Check the steps.

        Raises:
            ValueError: a length is below 1, the lengths do not rise, a value is outside 0 to `MAX_VALUE`, or the values
                fall.
        """
        lengths, values = [a for a, _ in self.steps], [v for _, v in self.steps]
        rising = all(a < b for a, b in itertools.pairwise(lengths))
        rising = rising and all(a <= b for a, b in itertools.pairwise(values))
        if not rising or (lengths and (lengths[0] < 1 or values[0] < 0 or values[-1] > MAX_VALUE)):
            raise ValueError(
                f"certificate steps must rise in length, from 1 on, and not fall in value, from 0 to {MAX_VALUE}"
            )

    @classmethod
    def of(cls, values: Iterable[tuple[int, int]]) -> Certificate:
        """Make a certificate from ``(length, value)`` pairs in ascending order of length.

        A pair is dropped if its value is not above 0, or not above the value of a shorter length: it begins no new
        step.

        Raises:
            ValueError: the lengths of the steps do not rise or are below 1, or a value is above 2^40.
        """
        steps: list[tuple[int, int]] = []
        for length, value in values:
            if value > (steps[-1][1] if steps else 0):
                steps.append((length, value))
        return cls(tuple(steps))

    def problem(self, capacity: int, depth: int | None) -> str | None:
        """Return why this certificate cannot be checked at this capacity and depth, as text; None if it can be checked.

        A `depth` of None is unlimited.
        """
        steps = self._fitting(capacity)
        if not steps:
            return None
        if capacity > MAX_CAPACITY:
            return (
                f"the certificate has a capacity of {capacity}; above {MAX_CAPACITY}, the check takes too much memory"
            )
        pieces = capacity // steps[0][0]
        work = self.work(capacity, depth)
        if work > MAX_WORK:
            return f"checking the certificate takes {work:,} comparisons; nopad makes at most {MAX_WORK:,}"
        # A pack is worth at most its tokens times the highest value per token, or its sequences times the top value.
        by_tokens = max(capacity * value // length for length, value in steps)
        if min(by_tokens, steps[-1][1] * (pieces if depth is None else min(depth, pieces))) >= _MAX_WORTH:
            return f"the values of the certificate, up to {steps[-1][1]}, add up to more than 64 bits in one pack"
        return None

    def work(self, capacity: int, depth: int | None) -> int:
        """Return an upper limit on the comparisons that `best` makes; each takes at most about a nanosecond.

        >>> Certificate(((3, 1), (6, 2))).work(capacity=12, depth=3)
        72
        """
        steps = self._fitting(capacity)
        layers = 1 if depth is None or not steps or depth >= capacity // steps[0][0] else depth
        return len(steps) * capacity * layers

    def _fitting(self, capacity: int) -> list[tuple[int, int]]:
        return [(length, value) for length, value in self.steps if length <= capacity]

    def best(self, capacity: int, depth: int | None) -> int:
        """Return the highest total value that the sequences in one pack can have; an exact integer.

        A pack holds at most `capacity` tokens and `depth` sequences (None: unlimited).

        Raises:
            FormatError: the certificate cannot be checked; `problem` says why.
        """
        problem = self.problem(capacity, depth)
        if problem is not None:
            raise FormatError(problem)
        steps = self._fitting(capacity)
        if not steps:
            return 0
        from nopad.planning._certificate_kernels import most_valuable, most_valuable_within

        lengths, values = np.array(steps, dtype=np.int64).T.copy()
        if depth is None or depth >= capacity // steps[0][0]:
            return int(most_valuable(lengths, values, capacity))
        return int(most_valuable_within(lengths, values, capacity, depth))

    def worth(self, histogram: Histogram) -> int:
        """Return the total value of all sequences of `histogram`; an exact integer."""
        lengths = np.array([length for length, _ in self.steps], dtype=np.int64)
        values = [0, *(value for _, value in self.steps)]
        at = np.searchsorted(lengths, histogram.lengths, side="right").tolist()
        return sum(values[i] * count for i, count in zip(at, histogram.counts.tolist(), strict=True))

    def bound(self, histogram: Histogram, capacity: int, depth: int | None) -> int:
        """Return the number of packs that this certificate proves to be necessary for the sequences of `histogram`.

        The result is 0 if no length that fits into a pack has a value above 0.

        Raises:
            FormatError: the certificate cannot be checked; `problem` says why.
        """
        best = self.best(capacity, depth)
        return -(-self.worth(histogram) // best) if best else 0
