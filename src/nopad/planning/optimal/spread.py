"""Open a fixed number of packs at the start, and put each sequence, longest first, into the emptiest open pack.

A pack is closed when it holds as many sequences as the depth limit allows. A sequence that fits into none of the open
packs opens a new one. This method helps if packs reach the depth limit before they are full. Best-fit puts long
sequences together; here every pack gets long and short sequences, provided that the number of packs opened at the start
is that of the lower bound. The method is poor if lengths are near a third of the capacity. The time depends on the
numbers of distinct lengths and of classes of equal packs, not on the number of sequences.

Source: worst-fit with a fixed number of bins, as in Graham's LPT rule with a cardinality limit (Dell'Amico, Iori,
Martello, "Heuristic algorithms and scatter search for the cardinality constrained P||Cmax problem", 2004).
"""

from __future__ import annotations

from nopad.histogram import Histogram
from nopad.planning.optimal.listed import Listed

__all__ = ["spread"]


def spread(histogram: Histogram, capacity: int, depth: int | None, packs: int) -> Listed:
    """Return packs that cover `histogram` exactly.

    The `packs` longest sequences open a pack each; the others are placed as the module describes. `depth` None means
    unlimited.

    >>> histogram = Histogram.from_lengths([4, 4, 2, 2, 1, 1])
    >>> spread(histogram, 8, 3, packs=2).strategies()
    [(2, (4, 2, 1))]
    """
    return Listed.placed(histogram, capacity, depth, packs)
