"""Plan with few distinct lengths: round lengths up to multiples of g, plan, and put the real lengths in their place.

This works with any algorithm: plan ``rounded_histogram(histogram, g, capacity)`` at capacity ``whole_capacity(g,
capacity)``; then `real_strategies` puts a real length in the place of each rounded one. Packs that fit with rounded
lengths also fit with real ones, even if each sequence of a pack begins at a multiple of g. This takes O(k + strategies)
for k distinct lengths. Rounding up adds about (g - 1) / 2 tokens of padding per sequence, unless this room is filled
with other sequences afterwards.

Source: the supplement to arXiv 2107.02027, D.5.1, proposes even lengths to make depth 4 feasible.
"""

from __future__ import annotations

from collections import Counter

from nopad.histogram import Histogram
from nopad.planning.algorithm import Strategies

__all__ = ["real_strategies", "rounded_histogram", "whole_capacity"]


def whole_capacity(granularity: int, capacity: int) -> int:
    """Return the largest multiple of `granularity` up to `capacity`; `granularity` itself if there is none.

    >>> whole_capacity(8, 20), whole_capacity(8, 5)
    (16, 8)
    """
    return max(capacity // granularity, 1) * granularity


def rounded_histogram(histogram: Histogram, granularity: int, capacity: int) -> Histogram:
    """Return the histogram of lengths rounded up to multiples of `granularity`.

    Lengths above `whole_capacity` are rounded down to it.

    >>> rounded_histogram(Histogram.from_counts({3: 5, 8: 1, 9: 1, 18: 2}), 8, 20).to_dict()
    {8: 6, 16: 3}
    """
    counts: Counter[int] = Counter()
    for length, count in histogram.to_dict().items():
        counts[_rounded(length, granularity, capacity)] += count
    return Histogram.from_counts(counts)


def real_strategies(rounded: Strategies, histogram: Histogram, granularity: int, capacity: int) -> Strategies:
    """Return strategies with real lengths in place of the rounded ones; each sequence is used at most once.

    `rounded` are strategies in rounded lengths (`rounded_histogram`, with the same `granularity` and `capacity`), and
    `histogram` has the real lengths. Of the sequences with one rounded length, the longest are used first; if the
    strategies need fewer sequences than there are, the shortest are left over. If packs of one strategy get different
    lengths, that strategy becomes several. The number of strategies that this adds is at most twice
    the number of distinct lengths.

    Raises:
        ValueError: the strategies need a length more often than the histogram has it.

    >>> real_strategies([(2, (8, 8))], Histogram.from_counts({3: 1, 6: 3}), 8, 16)
    [(1, (6, 6)), (1, (6, 3))]
    """
    waiting: dict[int, list[list[int]]] = {}  # per rounded length: [length, number left], longest last
    for length, count in histogram.to_dict().items():
        waiting.setdefault(_rounded(length, granularity, capacity), []).append([length, count])
    real: Strategies = []
    for count, slots in rounded:
        copies = Counter(slots)
        while count:
            lengths, packs = _next_alike(copies, waiting, count)
            real.append((packs, tuple(sorted(lengths, reverse=True))))
            count -= packs
    return real


def _rounded(length: int, granularity: int, capacity: int) -> int:
    return min(-(-length // granularity) * granularity, whole_capacity(granularity, capacity))


def _next_alike(copies: Counter[int], waiting: dict[int, list[list[int]]], most: int) -> tuple[list[int], int]:
    """Choose real lengths for the next pack; return the lengths, and how many packs (at most `most`) get them.

    `copies` maps each rounded length to the number of its slots in a pack. `waiting` maps each rounded length to the
    real lengths that no pack has yet, as lists ``[length, count]``, longest last. What the packs get is subtracted from
    the counts, in place.

    Raises:
        ValueError: a pack has more slots of a rounded length than sequences are waiting.
    """
    takes: list[tuple[list[int], int]] = []
    for slot, needed in copies.items():
        for entry in reversed(waiting.get(slot, [])):
            take = min(needed, entry[1])
            takes.append((entry, take))
            needed -= take
            if not needed:
                break
        if needed:
            raise ValueError(f"strategies need length {slot} more often than the histogram has it")
    # A slot length that takes several real lengths in one pack empties an entry, so the next pack differs.
    mixed = len(takes) > len(copies)
    packs = 1 if mixed else min(most, *(entry[1] // take for entry, take in takes))
    for entry, take in takes:
        entry[1] -= packs * take
    for slot in copies:
        while waiting[slot] and not waiting[slot][-1][1]:
            waiting[slot].pop()
    return [entry[0] for entry, take in takes for _ in range(take)], packs
