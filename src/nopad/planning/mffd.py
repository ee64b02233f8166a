"""MFFD, modified first-fit decreasing: FFD that first finds good partners for lengths above half the capacity.

Lengths are large (above 1/2 of the capacity), medium (above 1/3), small (above 1/6) or tiny. Five phases:

1. each large length opens a pack, longest first
2. forward through these packs, least room first: each takes the longest medium length that fits
3. backward, most room first: each pack without a medium length takes the shortest small length, and the longest small
   length that fits beside it; a pack without room for the two shortest small lengths is skipped
4. forward: each pack takes the longest length that fits, repeatedly
5. the remaining lengths are packed into new packs by first-fit decreasing

A depth limit holds in every phase: with depth 2, phase 3 adds nothing. The algorithm runs on the histogram, with equal
packs as one class. The first four phases take O((k + c) * d * log k) for k distinct lengths, c classes of packs and d
distinct lengths in a pack; the last one takes the time of FFD.

Without a depth limit, MFFD needs at most 71/60 times as many packs as the optimum, plus a constant (FFD: 11/9 times).
In practice it is no better than FFD: on Wikipedia-512 and SQuAD it needs exactly as many packs as FFD and LPFHP, at
depths 2, 3 and 8, and without a depth limit.

Source: Johnson, Garey, "A 71/60 theorem for bin packing", Journal of Complexity 1(1), 1985.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from nopad.histogram import Histogram
from nopad.planning.ffd import ffd
from nopad.planning.open_packs import Content, lengths_of

__all__ = ["mffd"]


@dataclass(slots=True)
class _Class:
    """`count` equal packs that follow one another; each has `room` free tokens and holds `used` sequences.

    `content` is what one of these packs holds, a chain ``(below, length, copies)``: `copies` sequences of `length`, on
    top of the longer lengths in `below`, which is such a chain too, or None.
    """

    room: int
    count: int
    content: Content
    used: int

    def split(self, count: int, *adding: tuple[int, int]) -> _Class:
        """Take `count` packs out of this class, put sequences into each, and return these packs as a new class.

        `adding` are ``(length, copies)`` pairs: each pack gets `copies` sequences of each `length`. This class has
        `count` packs fewer afterwards.
        """
        part = _Class(self.room, count, self.content, self.used)
        self.count -= count
        for length, copies in adding:
            part.room -= copies * length
            part.content = (part.content, length, copies)
            part.used += copies
        return part


class _Stock:
    """The sequences that are not placed yet: ``counts[length]`` of each length."""

    def __init__(self, histogram: Histogram) -> None:
        self.counts = histogram.to_dict()
        self._lengths: list[int] = histogram.lengths.tolist()  # ascending, those with a count

    def longest(self, most: int) -> int:
        """Return the longest length left that is at most `most`; 0 if there is none."""
        at = bisect_right(self._lengths, most)
        return self._lengths[at - 1] if at else 0

    def two_shortest(self, above: int) -> list[int]:
        """Return the lengths of the two shortest sequences longer than `above`; fewer if there are not two."""
        at = bisect_right(self._lengths, above)
        return [length for length in self._lengths[at : at + 2] for _ in range(min(2, self.counts[length]))][:2]

    def take(self, length: int, count: int) -> None:
        """Remove `count` sequences of this length."""
        self.counts[length] -= count
        if not self.counts[length]:
            del self.counts[length]
            del self._lengths[bisect_right(self._lengths, length) - 1]


def mffd(histogram: Histogram, capacity: int, depth: int | None) -> list[tuple[int, tuple[int, ...]]]:
    """Return ``(count, lengths longest first)`` pairs, `count` packs of each, that cover `histogram` exactly.

    A `depth` of None is unlimited.

    >>> mffd(Histogram.from_lengths([7, 6, 5, 4, 3, 2, 2, 1]), 12, None)
    [(1, (7, 5)), (1, (6, 4, 2)), (1, (3, 2, 1))]
    """
    most = depth if depth is not None else capacity
    stock = _Stock(histogram)
    packs = []
    while (length := stock.longest(capacity)) > capacity // 2:
        packs.append(_Class(capacity - length, stock.counts[length], (None, length, 1), 1))
        stock.take(length, stock.counts[length])
    if most >= 2:
        packs = _add_medium(packs, stock, capacity)
    if most >= 3:
        packs = _add_two_small(packs, stock, capacity)
    packs = _fill(packs, stock, most)
    rest = ffd(Histogram.from_counts(stock.counts), capacity, depth)
    return [*((entry.count, lengths_of(entry.content)) for entry in packs), *rest]


def _add_medium(packs: list[_Class], stock: _Stock, capacity: int) -> list[_Class]:
    """Phase 2: in order, each pack takes the longest medium length that fits; return the packs.

    Medium lengths are above a third of the capacity; large ones are placed already. What packs take is removed from
    `stock`.
    """
    done = []
    for entry in packs:
        while entry.count and (length := stock.longest(entry.room)) > capacity // 3:
            count = min(entry.count, stock.counts[length])
            done.append(entry.split(count, (length, 1)))
            stock.take(length, count)
        if entry.count:
            done.append(entry)
    return done


def _add_two_small(packs: list[_Class], stock: _Stock, capacity: int) -> list[_Class]:
    """Phase 3: in reverse order, each pack of one sequence takes two small lengths, if two fit; return the packs.

    One is the shortest small length left; the other is the longest small length left that fits beside it. Small lengths
    are above a sixth and up to a third of the capacity. What packs take is removed from `stock`. The packs returned are
    in their original order.
    """
    done = []
    for entry in reversed(packs):
        while entry.count and entry.used == 1:
            two = stock.two_shortest(capacity // 6)
            if len(two) < 2 or two[1] > capacity // 3 or sum(two) > entry.room:
                break
            low = two[0]
            high = stock.longest(min(entry.room - low, capacity // 3))
            count = min(entry.count, stock.counts[low] // (1 + (low == high)), stock.counts[high])
            done.append(entry.split(count, (high, 1), (low, 1)))
            stock.take(high, count)
            stock.take(low, count)
        if entry.count:
            done.append(entry)
    return done[::-1]


def _fill(packs: list[_Class], stock: _Stock, most: int) -> list[_Class]:
    """Phase 4: in order, each pack takes the longest length that fits, again and again; return the packs.

    A pack holds at most `most` sequences. What packs take is removed from `stock`.
    """
    done = []
    for entry in packs:
        while entry.count:
            room, places, longest, adding = entry.room, most - entry.used, entry.room, []
            while places and (length := stock.longest(min(room, longest))):
                copies = min(room // length, places, stock.counts[length])
                adding.append((length, copies))
                room, places, longest = room - copies * length, places - copies, length - 1
            if not adding:
                done.append(entry)
                break
            count = min(entry.count, *(stock.counts[length] // copies for length, copies in adding))
            done.append(entry.split(count, *adding))
            for length, copies in adding:
                stock.take(length, copies * count)
    return done
