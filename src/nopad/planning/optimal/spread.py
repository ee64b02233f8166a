"""Open packs up front: all of them at once, then longest length first, each onto the emptiest pack with a free place.

The remedy for a binding depth limit, where best-fit fills packs with long lengths and runs out of places: with as many
packs as the lower bound allows, every pack gets its share of long and short. Poor where lengths are near a third of
the capacity. O(k log k) for k distinct lengths.

Source: worst-fit with a fixed number of bins, as in Graham's LPT rule with a cardinality limit (Dell'Amico, Iori,
Martello, "Heuristic algorithms and scatter search for the cardinality constrained P||Cmax problem", 2004).
"""

from __future__ import annotations

from nopad.histogram import Histogram
from nopad.planning.algorithm import Strategies
from nopad.planning.open_packs import OpenPacks

__all__ = ["spread"]


def spread(histogram: Histogram, capacity: int, depth: int | None, packs: int) -> Strategies:
    """Return ``(count, lengths)`` pairs that cover `histogram`, beginning with `packs` packs.

    >>> histogram = Histogram.from_lengths([4, 4, 2, 2, 1, 1])
    >>> spread(histogram, 8, 3, packs=2)
    [(2, (4, 2, 1))]
    """
    opened = OpenPacks(capacity, depth)
    empty = packs
    for length, left in zip(histogram.lengths[::-1].tolist(), histogram.counts[::-1].tolist(), strict=True):
        while left:
            if empty:
                count = min(empty, left)
                empty -= count
                opened.put(capacity - length, count, (None, length, 1), 1)
            elif (room := opened.emptiest()) >= length:
                available, content, used = opened.take(room)
                count = min(available, left)
                if available > count:
                    opened.put(room, available - count, content, used)
                opened.put(room - length, count, (content, length, 1), used + 1)
            else:
                opened.best_fit(length, left)
                break
            left -= count
    return opened.strategies()
