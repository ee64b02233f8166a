"""Lower bounds on the number of packs that any plan of a histogram needs.

All bounds are exact integers at any size. For k distinct lengths, the first four take O(k log k) time at most:

* tokens: ``ceil(tokens / capacity)``
* big lengths (Martello and Toth's L2): two lengths above half the capacity cannot share a pack. Also, for any threshold
  t, a length above capacity - t cannot share a pack with a length of at least t. Of all t, the one with the highest
  bound is used
* depth: each sequence that fits beside no other needs a pack, and the n remaining ones need ``ceil(n / depth)`` packs
* pairs, only at depth 2: the number of sequences, less the largest number of pairs that fit into packs (a maximum
  matching, found by two pointers); this bound is the optimum itself
* certificate: an algorithm has given a value to each length, and these values prove a bound
  (`nopad.planning.certificate`)

Source: Martello and Toth, "Knapsack Problems", 1990, section 8.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nopad.histogram import Histogram
from nopad.planning.certificate import Certificate
from nopad.planning.cost_certificate import CostCertificate

__all__ = ["Bound", "lower_bound"]


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on the number of packs.

    Attributes:
        packs: the bound; no plan has fewer packs than this.
        proof: name of the bound: "tokens", "big lengths", "depth", "pairs" or "certificate" (see the module); or, under
            conditions (`nopad.planning.conditions`), "max_squares", "cost certificate" or "pack_multiple".
        certificate: the values of lengths that prove the bound; None if no values are needed. If `proof` is
            "max_squares" or "pack_multiple", a certificate that is not None proves only a smaller bound.

    >>> import nopad
    >>> bound = nopad.plan([5, 5, 5], capacity=8).bound
    >>> bound.packs, bound.proof
    (3, 'big lengths')
    """

    packs: int
    proof: str
    certificate: Certificate | CostCertificate | None = field(default=None, repr=False)


def lower_bound(
    histogram: Histogram, capacity: int, depth: int | None, certificate: Certificate | None = None
) -> Bound:
    """Return the highest lower bound on the number of packs that hold the sequences of `histogram`.

    These bounds of the module are compared:

    * "tokens" and "big lengths", always
    * "depth", unless `depth` is None (unlimited)
    * "pairs", if `depth` is 2
    * "certificate", if `certificate` is given

    If several bounds are equally high, the first of them in this order is returned. Lengths are not checked: if one is
    above the capacity, no packs hold the sequences, and the bound says nothing.

    Raises:
        FormatError: `certificate` cannot be checked at this capacity and depth (`Certificate.problem` says why).

    >>> lower_bound(Histogram.from_lengths([5, 5, 5]), 8, None)
    Bound(packs=3, proof='big lengths')
    """
    bounds = [
        Bound(-(-histogram.tokens // capacity), "tokens"),
        Bound(_big_lengths(histogram, capacity), "big lengths"),
    ]
    if depth is not None:
        bounds.append(Bound(_depth(histogram, capacity, depth), "depth"))
        if depth == 2:
            bounds.append(Bound(_pairs(histogram, capacity), "pairs"))
    if certificate is not None:
        bounds.append(Bound(certificate.bound(histogram, capacity, depth), "certificate", certificate))
    return max(bounds, key=lambda bound: bound.packs)


def _big_lengths(histogram: Histogram, capacity: int) -> int:
    """Return Martello and Toth's lower bound L2 on the number of packs, the maximum over all thresholds t.

    The bound for one t is the sum of three numbers of packs:

    * one pack for each sequence longer than capacity - t, since no length >= t fits beside it
    * one pack for each other sequence longer than half the capacity
    * the packs needed for the tokens of all sequences from length t to half the capacity, less the tokens that fit into
      the free room of the packs that the second number counts
    """
    # int64 if no product below can overflow; otherwise Python integers in object arrays
    exact: Any = np.int64 if histogram.sequences < 2**62 // (2 * capacity) else object
    lengths, counts = histogram.lengths, histogram.counts.astype(exact)
    items = np.concatenate([[0], np.cumsum(counts)])
    tokens = np.concatenate([[0], np.cumsum(counts * lengths)])
    k = lengths.size
    half = int(np.searchsorted(lengths, capacity // 2, side="right"))  # first length above half the capacity
    big = items[k] - items[half]
    # thresholds: the present lengths up to half the capacity
    alone = np.maximum(half, np.searchsorted(lengths, capacity - lengths[:half], side="right"))
    room = (items[alone] - items[half]) * capacity - (tokens[alone] - tokens[half])
    middle = tokens[half] - tokens[:half]
    return int(big + max(0, (-((room - middle) // capacity)).max(initial=0)))


def _depth(histogram: Histogram, capacity: int, depth: int) -> int:
    """Return the lower bound on the number of packs that follows from the limit of `depth` sequences per pack.

    It is one pack for each sequence that is too long to share a pack with the shortest length, and ``ceil(n / depth)``
    packs for the n others.
    """
    if not histogram.lengths.size:
        return 0
    alone = total = 0
    shortest = int(histogram.lengths[0])
    for length, count in zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True):
        total += count
        if length + shortest > capacity:
            alone += count
    return alone - (-(total - alone) // depth)


def _pairs(histogram: Histogram, capacity: int) -> int:
    """Return the fewest packs possible at depth 2, where a pack holds one sequence or a pair.

    This is the number of sequences, less the largest possible number of pairs. The pairs are found by matching the
    longest length with the shortest.
    """
    lengths, counts = histogram.lengths.tolist(), histogram.counts.tolist()
    packs, low, high = 0, 0, len(lengths) - 1
    while low < high:
        if lengths[low] + lengths[high] > capacity:
            packs += counts[high]
            high -= 1
            continue
        pairs = min(counts[low], counts[high])
        packs += pairs
        counts[low] -= pairs
        counts[high] -= pairs
        low += counts[low] == 0
        high -= counts[high] == 0
    if low == high:
        packs += -(-counts[low] // 2) if 2 * lengths[low] <= capacity else counts[low]
    return packs
