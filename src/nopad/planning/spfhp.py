"""SPFHP, shortest-pack-first histogram-packing: sequences are placed longest first, each into the emptiest open pack.

Equal packs are one class. For each length, every pack of the emptiest class takes one sequence, then every pack of the
class that is the emptiest now, and so on. Only the last of these classes is split, if it has more packs than sequences
remain. When no pack has room, each sequence left opens a pack of its own. So there are at most as many strategies as
distinct lengths. The time depends on the numbers of lengths and classes, not on the number of sequences. On
Wikipedia-512 without a depth limit, SPFHP needs 0.35 % more packs than LPFHP; its packs hold few sequences (at most
16).

Source: Krell, Kosec, Perez, Fitzgibbon, "Efficient Sequence Packing without Cross-contamination", arXiv 2107.02027,
section 3; worst-fit decreasing applied to a histogram.
"""

from __future__ import annotations

from nopad.histogram import Histogram
from nopad.planning.open_packs import OpenPacks

__all__ = ["spfhp"]


def spfhp(histogram: Histogram, capacity: int, depth: int | None) -> list[tuple[int, tuple[int, ...]]]:
    """Return ``(count, lengths longest first)`` pairs, `count` packs of each, that cover `histogram` exactly.

    A `depth` of None is unlimited.

    >>> spfhp(Histogram.from_lengths([5, 4, 3, 2, 2]), 8, None)
    [(1, (4, 3)), (1, (5, 2)), (1, (2,))]
    """
    packs = OpenPacks(capacity, depth)
    for length, left in zip(histogram.lengths[::-1].tolist(), histogram.counts[::-1].tolist(), strict=True):
        while left:
            room = packs.emptiest()
            if room < length:
                packs.put(capacity - length, left, (None, length, 1), 1)
                break
            count, content, used = packs.take(room)
            if count > left:
                packs.put(room, count - left, content, used)
                count = left
            packs.put(room - length, count, (content, length, 1), used + 1)
            left -= count
    return packs.strategies()
