"""Values of lengths that are interpolated between a few chosen lengths, the knots.

A linear program with a row for each distinct length is slow. Here it only has a row for each knot: a length between two
knots counts as a share of each. Its dual values are the values of the knots, and all other lengths get interpolated
values. Interpolated values are a special case of values, so the bound that they prove is valid. It is only a little
lower than the bound of the slow program, since dual values are nearly linear between neighbouring knots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.cost_certificate import CostCertificate
from nopad.planning.costs.spread import UNLIMITED, Load
from nopad.planning.optimal.budget import Budget

__all__ = ["Knots", "prove"]

_BY_TOKENS, _BY_NUMBER = 0.5, 0.25  # shares of tokens and of sequences in where knots lie; the rest: distinct lengths
_ONE = 2**30  # the integer for a value of 1, in a certificate
_CHECK = 0.3  # operations per comparison of a check of a certificate


@dataclass(frozen=True)
class Knots:
    """Some of the lengths of a load, the shortest and the longest among them.

    Attributes:
        lengths: the knots, ascending; int64 ``[knots]``.
        chosen: index of each knot in the lengths of the load; int64 ``[knots]``.
    """

    lengths: NDArray[np.int64]
    chosen: NDArray[np.int64]

    @classmethod
    def of(cls, load: Load, most: int, *, bends: bool = True) -> Knots:
        """Return about `most` knots; all lengths are knots if there are at most `most` of them.

        The shortest length and the two longest are always knots: many sequences may have been cut to the longest.
        Without `bends`, the other knots are spread evenly: from each knot to the next there is about the same share of
        the load, a weighted mean of the shares of tokens, sequences and distinct lengths. With `bends`, this holds for
        half of the knots. A quarter form a geometric series from the shortest length to the longest, so they are dense
        among short lengths. Another quarter are dense near the longest length: their distances from it form a geometric
        series.
        """
        k = load.lengths.size
        counts = load.counts.astype(np.float64)
        tokens = counts * load.lengths
        share = _BY_TOKENS * tokens / tokens.sum() + _BY_NUMBER * counts / counts.sum()
        passed = np.cumsum(share + (1 - _BY_TOKENS - _BY_NUMBER) / k)
        even = np.searchsorted(passed, np.linspace(0, passed[-1], most // 2 if bends else most))
        low, high = float(load.lengths[0]), float(load.lengths[-1])
        ends = [np.geomspace(low, high, most // 4), high - np.geomspace(1, max(1.0, high - low), most // 4)]
        near = np.searchsorted(load.lengths, np.concatenate(ends))[: None if bends else 0]
        chosen = np.unique(np.concatenate([[0, k - 2, k - 1], even, near]).clip(0, k - 1))
        chosen = np.arange(k) if k <= most else chosen
        return cls(load.lengths[chosen], chosen)

    def shares(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return ``(at, share)``: how each length counts as shares of two neighbouring knots.

        Length i counts as ``1 - share[i]`` of knot ``at[i]``, and as ``share[i]`` of the next knot. `at` is int64,
        `share` is float64; both are ``[lengths]``. No length may be below the first knot or above the last.
        """
        if self.lengths.size == 1:
            return np.zeros(lengths.size, dtype=np.int64), np.zeros(lengths.size)
        at = np.searchsorted(self.lengths, lengths, side="right").clip(1, self.lengths.size - 1) - 1
        low, high = self.lengths[at], self.lengths[at + 1]
        return at, (lengths - low) / (high - low)

    def demand(self, lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the demand of each knot if there are ``counts[i]`` sequences of ``lengths[i]``; float64 ``[knots]``.

        Each sequence adds the two shares of its length (`shares`).
        """
        at, share = self.shares(lengths)
        size = self.lengths.size
        found = np.zeros(size)
        np.add.at(found, at, counts * (1 - share))
        np.add.at(found, np.minimum(at + 1, size - 1), counts * share)
        return found

    def values(self, duals: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the value of each length, interpolated; float64 ``[lengths]``.

        `duals` are the values of the knots, float64 ``[knots]``; they are limited to 0..1, and raised to at least the
        value of each shorter knot.
        """
        return np.interp(lengths, self.lengths, np.maximum.accumulate(duals.clip(0, 1)))


def prove(
    load: Load,
    align: int,
    values: NDArray[np.float64],
    units: tuple[int, int] | None,
    by_depth: bool,
    budget: Budget,
) -> tuple[int, CostCertificate | None]:
    """Return ``(bound, certificate)``: a proven lower bound on the number of packs, and the certificate that proves it.

    Values prove a bound if no pack is worth more than 1; a pack is worth the sum of the values of its lengths. The
    interpolated `values` may break this slightly, so they are corrected here. If a pack may be worth more than 1, the
    value of its longest length is lowered by the excess. Then each length with a higher value than a longer one is
    lowered to the value of the longer one.

    The result is ``(0, None)`` if all values are 0, given or corrected; if the certificate cannot be checked; or if
    `budget` does not allow the checks, which are charged to it.

    Args:
        load: the sequences, and the limits of a pack.
        align: lengths are rounded up to multiples of this in a pack.
        values: ``values[i]`` is the value of the length ``load.lengths[i]``; float64 ``[k]``. A length with a lower
            value than a shorter one is first raised to the value of the shorter one.
        units: ``(T, S)`` or None, as in `CostCertificate`. If given, a length that takes less than 1/T of the capacity
            gets the value 0.
        by_depth: whether the certificate counts the depth limit too; otherwise the bound holds for any depth.
        budget: what the checks may take.
    """
    limits, whole = _limits(load, align), _whole(load, values, units)
    proof = _certificate(load, whole, units, by_depth)
    work = int(_CHECK * proof.work(*limits))
    if work > budget.most or not proof.steps or proof.problem(*limits) is not None:
        return 0, None
    budget.charge(work)
    step = np.searchsorted([length for length, _ in proof.steps], load.lengths, side="right")
    excess = np.append(0, np.maximum(proof.worths(*limits) - _ONE, 0))[step]  # for each longest length
    proof = _certificate(load, np.minimum.accumulate((whole - excess).clip(0)[::-1])[::-1], units, by_depth)
    work = int(2 * _CHECK * proof.work(*limits))  # once here, and once when the plan is made
    if work > budget.most or not proof.steps:
        return 0, None
    budget.charge(work)
    histogram = Histogram(load.lengths[load.counts > 0], load.counts[load.counts > 0])
    return proof.bound(histogram, *limits), proof


def _limits(load: Load, align: int) -> tuple[int, int, int, int | None]:
    """Return the limits of a pack as ``(capacity, squares, align, depth)``; a depth of None is unlimited."""
    capacity, squares, depth = load.limits.tolist()
    return capacity, squares, align, None if depth == UNLIMITED else depth


def _whole(load: Load, values: NDArray[np.float64], units: tuple[int, int] | None) -> NDArray[np.int64]:
    """Return the values of lengths, rounded down to integers that do not fall with length; int64 ``[k]``.

    A value of 1 becomes 2^30. `values` are float64 ``[k]``. With `units` of ``(T, S)``, a length that takes less than
    1/T of the capacity gets the value 0.
    """
    whole = np.floor(values * _ONE).astype(np.int64)
    if units is not None:
        whole[load.sizes < -(-int(load.limits[0]) // units[0])] = 0
    return np.maximum.accumulate(whole)


def _certificate(
    load: Load, whole: NDArray[np.int64], units: tuple[int, int] | None, by_depth: bool
) -> CostCertificate:
    """Return a certificate in which the length ``load.lengths[i]`` has the value ``whole[i]``."""
    return CostCertificate.of(zip(load.lengths.tolist(), whole.tolist(), strict=True), units, by_depth=by_depth)
