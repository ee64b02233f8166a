"""Sort: next-fit on sequences sorted by length, longest first, like sorting a corpus and cutting it into batches.

It runs on the histogram: equal packs of one length are one step, so it takes O(k) for k distinct lengths. Equal lengths
share packs. Lengths just above half the capacity waste almost half of each pack, and lengths just above a third of it
waste almost a third. Sort needs 14.6 % more packs than LPFHP on Wikipedia-512, and 31 % more on SQuAD. On SQuAD,
next-fit in random order needs fewer packs than Sort.

Without a depth limit, Sort needs at most about 1.691 times as many packs as the optimum, plus a constant.

Source: next-fit decreasing; Baker, Coffman, "A tight asymptotic bound for next-fit-decreasing bin-packing", SIAM
Journal on Algebraic and Discrete Methods 2(2), 1981.
"""

from __future__ import annotations

from nopad.histogram import Histogram
from nopad.planning.open_packs import Content, lengths_of

__all__ = ["sort"]


def sort(histogram: Histogram, capacity: int, depth: int | None) -> list[tuple[int, tuple[int, ...]]]:
    """Return ``(count, lengths longest first)`` pairs, `count` packs of each, that cover `histogram` exactly.

    A `depth` of None is unlimited.

    >>> sort(Histogram.from_lengths([5, 4, 3, 2, 2]), 8, None)
    [(1, (5,)), (1, (4, 3)), (1, (2, 2))]
    """
    most = depth if depth is not None else capacity
    packs: list[tuple[int, Content]] = []
    content: Content | None = None  # content of the open pack
    room, places = 0, 0
    for length, left in zip(histogram.lengths[::-1].tolist(), histogram.counts[::-1].tolist(), strict=True):
        copies = min(room // length, places, left)
        if copies:
            content = (content, length, copies)
            room, places, left = room - copies * length, places - copies, left - copies
        if not left:
            continue
        if content is not None:
            packs.append((1, content))
        full = min(capacity // length, most)
        closed = (left - 1) // full  # the last pack stays open, even if it is full
        if closed:
            packs.append((closed, (None, length, full)))
        copies = left - closed * full
        content, room, places = (None, length, copies), capacity - copies * length, most - copies
    if content is not None:
        packs.append((1, content))
    return [(count, lengths_of(content)) for count, content in packs]
