"""Open a fixed number of packs at the start; put each sequence, longest first, into the emptiest that is not closed.

A pack is closed when it holds as many sequences as the depth allows.

A length that fits into no such pack is placed by best-fit, which opens further packs. This helps where packs reach the
depth before they are full: best-fit puts long lengths together, while here every pack gets long and short lengths, if
as many packs are opened as the lower bound asks for. It is poor where lengths are near a third of the capacity.
O(k log k) for k distinct lengths.

Source: worst-fit with a fixed number of bins, as in Graham's LPT rule with a cardinality limit (Dell'Amico, Iori,
Martello, "Heuristic algorithms and scatter search for the cardinality constrained P||Cmax problem", 2004).
"""

from __future__ import annotations

from nopad.histogram import Histogram
from nopad.planning.algorithm import Strategies
from nopad.planning.open_packs import OpenPacks

__all__ = ["spread"]


def spread(histogram: Histogram, capacity: int, depth: int | None, packs: int) -> Strategies:
    """Return ``(count, lengths longest first)`` pairs that cover `histogram` exactly.

    The longest sequences, `packs` in number, open a pack each; the others follow as the module says.

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
