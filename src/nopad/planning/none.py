"""No packing: one sequence per pack, as with padding to a fixed length.

This takes O(k) for k distinct lengths.
"""

from __future__ import annotations

from nopad.histogram import Histogram

__all__ = ["none"]


def none(histogram: Histogram, capacity: int, depth: int | None) -> list[tuple[int, tuple[int, ...]]]:
    """Return a pair ``(count, (length,))`` for each length in `histogram`; `capacity` and `depth` have no effect.

    >>> none(Histogram.from_lengths([5, 4, 4]), 8, None)
    [(2, (4,)), (1, (5,))]
    """
    pairs = zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True)
    return [(count, (length,)) for length, count in pairs]
