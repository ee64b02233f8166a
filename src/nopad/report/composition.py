"""How many sequences share a pack, and whether their lengths are more alike than by chance.

The measure is the mean difference in length of two sequences. Packs with one sequence do not count. Two means are
compared: over pairs from one pack (a sequence is drawn, then another one of its pack), and over pairs drawn at random
from all sequences. If packs were filled at random, the two means would be about equal. Packing puts long sequences
with short ones, so the lengths in a pack often differ by more.

This takes O(n log n) for the n lengths of a plan's strategies. Sums are 64-bit floats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopad.planning import Plan
from nopad.properties import cached_property

__all__ = ["Composition", "Step"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """How many pairs of sequences differ in length by at most `difference` tokens, as shares from 0 to 1.

    `together` is the share among pairs from one pack. `at_random` is the share among pairs drawn from all sequences
    that are not alone in their packs.
    """

    difference: int
    together: float
    at_random: float


class Composition:
    """How many sequences share each pack of a plan, and how much their lengths differ.

    Attributes:
        in_company: number of sequences that share a pack with another one.
        alone: number of packs with one sequence.
        fewest, most: smallest and largest number of sequences in a pack.

    >>> import nopad
    >>> found = Composition(nopad.plan([6, 2, 6, 2, 4, 4], capacity=8))
    >>> found.in_company, found.together, round(found.at_random, 2)
    (6, 2.6666666666666665, 2.13)
    """

    def __init__(self, plan: Plan) -> None:
        """Count the sequences in the packs of `plan`; the plan must have at least one pack."""
        self._sizes = np.diff(plan.indptr)
        shared = self._sizes > 1
        self._packs = plan.counts.astype(np.float64)
        self._members = np.repeat(shared, self._sizes)
        self._lengths = plan.lengths[self._members]
        self._strategy = np.repeat(np.arange(self._sizes.size), self._sizes)[self._members]
        packs = [(int(n), int(count)) for n, count in zip(self._sizes, plan.counts, strict=True)]
        self.in_company = sum(n * count for n, count in packs if n > 1)  # sequences that share a pack with another
        self.alone = sum(count for n, count in packs if n == 1)  # packs of one sequence
        self.fewest, self.most = min(n for n, _ in packs), max(n for n, _ in packs)

    @cached_property
    def together(self) -> float:
        """Mean difference in length of two sequences of one pack, in tokens; 0 if no pack has two sequences."""
        if not self.in_company:
            return 0.0
        sizes = self._sizes[self._strategy]
        begins = np.cumsum(self._sizes) - self._sizes
        place = np.flatnonzero(self._members) - begins[self._strategy]  # from the longest
        parts = self._lengths * (sizes - 1 - 2.0 * place) * 2 / (sizes - 1)
        return float(parts @ self._packs[self._strategy]) / self.in_company

    @cached_property
    def at_random(self) -> float:
        """Mean difference in length of two sequences drawn at random, in tokens.

        They are drawn from all sequences that are not alone in their packs, and may be from different packs. The mean
        is 0 if each pack has only one sequence.
        """
        if not self.in_company:
            return 0.0
        lengths, counts = self._pool
        below = np.cumsum(counts) - counts
        above = self.in_company - below - counts
        return float((lengths * counts) @ (below - above)) * 2 / (self.in_company * (self.in_company - 1.0))

    @property
    def likeness(self) -> float:
        """Ratio of `together` to `at_random`: below 1, lengths in a pack are more alike than by chance; above 1, less.

        It is 0 if lengths differ between packs of several sequences, but never within one. It is 1 if all packs of
        several sequences hold one and the same length, or if there are no such packs.
        """
        return self.together / self.at_random if self.at_random else 1.0

    @cached_property
    def steps(self) -> list[Step]:
        """The `Step` of each difference 0, 1, 2, 4, 8, ..., and of the largest difference of any two lengths.

        Only the lengths in packs of several sequences count. The list is empty if all such packs hold one and the same
        length, or if there are no such packs.
        """
        lengths, _ = self._pool
        if lengths.size < 2:
            return []
        widest = int(lengths[-1] - lengths[0])
        differences = [0, *(1 << power for power in range((widest - 1).bit_length())), widest]
        together, at_random = self._together(differences), self._at_random(differences)
        rows = zip(differences, together, at_random, strict=True)
        return [Step(difference=d, together=a, at_random=b) for d, a, b in rows]

    @cached_property
    def _pool(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The distinct lengths of sequences that are not alone in a pack, ascending, and how many there are of each."""
        lengths, place = np.unique(self._lengths, return_inverse=True)
        counts = np.bincount(place, weights=self._packs[self._strategy], minlength=lengths.size)
        return lengths.astype(np.float64), counts.astype(np.float64)

    def _together(self, differences: list[int]) -> list[float]:
        """Return, for each d in `differences`, the share of pairs whose lengths differ by at most d tokens.

        A pair is two sequences of one pack. Pairs are weighted so that every sequence counts the same, no matter how
        many others its pack has.
        """
        span = 2 * int(self._lengths.max()) + 2  # so that no difference reaches into the next strategy
        keys = self._strategy * span + self._lengths
        order = np.argsort(keys, kind="stable")
        keys, strategy = keys[order], self._strategy[order]
        weights = 2 * self._packs[strategy] / (self._sizes[strategy] - 1) / self.in_company
        after = np.arange(1, keys.size + 1)
        return [float((np.searchsorted(keys, keys + d, side="right") - after) @ weights) for d in differences]

    def _at_random(self, differences: list[int]) -> list[float]:
        """Return, for each d in `differences`, the share of random pairs whose lengths differ by at most d tokens."""
        lengths, counts = self._pool
        upto = np.cumsum(counts)
        shares = []
        for difference in differences:
            last = np.searchsorted(lengths, lengths + difference, side="right") - 1
            pairs = counts @ (upto[last] - upto) + counts @ (counts - 1) / 2
            shares.append(float(pairs) * 2 / (self.in_company * (self.in_company - 1.0)))
        return shares
