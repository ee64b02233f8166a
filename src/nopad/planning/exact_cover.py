"""Turn the rounded solution of a least-squares solver into packs that hold each sequence exactly once.

The solution is a list of packs with slots. A slot is a place in a pack for a sequence of a given length. Least squares
gives some lengths too many slots and others too few. Slots without a sequence stay empty, packs without a sequence are
dropped, and sequences without a slot (the remainder) get packs of their own or go into packs with room. The time
depends on the numbers of strategies and of distinct lengths, not on the number of sequences. There are never more packs
than arXiv 2107.02027 and its supplement ("the papers") count for the same solution (`over_cover`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from nopad.planning.algorithm import Strategies
from nopad.planning.open_packs import Content, OpenPacks

__all__ = ["OverCover", "fill", "fit_remainder", "over_cover", "pad_remainder"]


class OverCover(NamedTuple):
    """Figures of a rounded solution before it is made to hold each sequence exactly once, counted as in the papers.

    A slot is a place in a pack for a sequence of a given length.

    Attributes:
        missing: number of sequences without a slot.
        over: number of slots without a sequence.
        packs: number of packs: those of the solution, and one for each sequence without a slot.
        strategies: number of different strategies among these packs.
    """

    missing: int
    over: int
    packs: int
    strategies: int


def over_cover(solution: Strategies, demand: Counter[int], capacity: int, depth: int) -> OverCover:
    """Return the figures of a rounded solution, counted as in the papers.

    The papers give each sequence without a slot a new pack; if `depth` is above 1, the remaining room of this pack (if
    any) is one more slot. `solution` are the packs before they are made to hold each sequence exactly once, and
    `demand` maps each length to its number of sequences.

    In the example, one sequence of 5 has no slot. Its new pack has room for one more slot of 3, the third of these;
    there is one sequence of 3, so two slots are over:

    >>> over_cover([(2, (5, 3))], Counter({5: 3, 3: 1}), 8, 2)
    OverCover(missing=1, over=2, packs=3, strategies=1)
    """
    supply = _supply(solution)
    missing = demand - supply
    supply.update(missing)
    if depth > 1:
        supply.update({capacity - length: count for length, count in missing.items() if length < capacity})
    packs = sum(count for count, _ in solution) + missing.total()
    paired = {n: (n, capacity - n) if depth > 1 and n < capacity else (n,) for n in missing}
    strategies = len({_longest_first(slots) for slots in (*paired.values(), *(slots for _, slots in solution))})
    return OverCover(missing.total(), (supply - demand).total(), packs, strategies)


def fill(solution: Strategies, left: Counter[int]) -> Strategies:
    """Put sequences into the slots of a solution; return the packs that are not empty, with the lengths they hold.

    `left` maps each length to its number of sequences; sequences that get a slot are subtracted, in place. A slot takes
    a sequence of exactly its length. Packs are filled one after another. Some lengths have more slots than sequences;
    packs with many tokens in slots of such lengths are filled last. So the empty slots are in few packs, and packs that
    get no sequence are dropped.

    >>> fill([(3, (5, 3)), (1, (3, 3, 2))], Counter({5: 2, 3: 3}))
    [(2, (5, 3)), (1, (3,))]
    """
    spare = _supply(solution) - left
    packs: Strategies = []
    for count, slots in sorted(solution, key=lambda pair: sum(slot for slot in pair[1] if slot in spare)):
        copies = Counter(slots)
        while count:
            held = {slot: min(wanted, left[slot]) for slot, wanted in copies.items() if left[slot]}
            if not held:
                break
            alike = min(count, *(left[slot] // taken for slot, taken in held.items()))
            for slot, taken in held.items():
                left[slot] -= alike * taken
            packs.append((alike, _longest_first(slot for slot, taken in held.items() for _ in range(taken))))
            count -= alike
    return packs


def pad_remainder(left: Counter[int], capacity: int, depth: int) -> Strategies:
    """Return packs for the sequences in `left`, which maps each length to its number of sequences.

    Each sequence gets a pack of its own, as in the papers. But if `depth` is above 1, two sequences that together fill
    a pack exactly share a pack. All numbers in `left` are set to 0, in place.

    >>> pad_remainder(Counter({5: 2, 3: 1, 4: 3}), 8, 2)
    [(1, (5, 3)), (1, (5,)), (1, (4, 4)), (1, (4,))]
    """
    packs: Strategies = []
    for length in sorted(left, reverse=True):
        other = capacity - length
        if depth > 1:
            pairs = left[length] // 2 if other == length else min(left[length], left[other])
            packs.append((pairs, _longest_first((length, other))))
            left.subtract({length: pairs})
            left.subtract({other: pairs})
        packs.append((left[length], (length,)))
        left[length] = 0
    return [(count, lengths) for count, lengths in packs if count]


def fit_remainder(packs: Strategies, left: Counter[int], capacity: int, depth: int) -> Strategies:
    """Put sequences, longest first, into the fullest of `packs` with room, or into new packs; return all packs.

    `left` maps each length to its number of sequences. The packs returned are in no particular order; `packs` and
    `left` are not changed.

    >>> fit_remainder([(2, (5,)), (1, (8,))], Counter({3: 1, 2: 2}), 8, 3)
    [(1, (8,)), (1, (5, 3)), (1, (5, 2)), (1, (2,))]
    """
    open_packs = OpenPacks(capacity, depth)
    for count, lengths in packs:
        content: Content = (None, lengths[0], 1)
        for length in lengths[1:]:
            content = (content, length, 1)
        open_packs.put(capacity - sum(lengths), count, content, len(lengths))
    for length in sorted(left, reverse=True):
        open_packs.best_fit(length, left[length])
    return [(count, _longest_first(lengths)) for count, lengths in open_packs.strategies()]


def _supply(solution: Strategies) -> Counter[int]:
    """Return the number of slots of each length in a solution."""
    supply: Counter[int] = Counter()
    for count, slots in solution:
        for slot in slots:
            supply[slot] += count
    return supply


def _longest_first(lengths: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(lengths, reverse=True))
