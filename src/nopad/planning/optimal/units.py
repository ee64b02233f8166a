"""Plan many distinct lengths: round them to units of several tokens, plan, then fill the slots with real lengths.

An item stands for all sequences of one rounded length, and a pattern is a multiset of items that fits into a pack. A
pack has 128 to 2,048 units. Lengths are rounded to the nearest unit, up or down, so that rounding errors cancel instead
of adding up. The patterns found are only a guide: their items are slots for real lengths, and the last slot of each
pack takes the longest length that still fits. Sequences without a slot are packed by best-fit. So every pack holds real
lengths within the capacity, and there are nearly as few packs as in the plan in units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram, exact_sum
from nopad.planning.certificate import Certificate
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.listed import Listed
from nopad.planning.optimal.master import Master
from nopad.planning.optimal.pricing import Items, Pattern
from nopad.planning.optimal.rounding import Packing
from nopad.planning.optimal.search import Solved, relax, solve

__all__ = ["MOST_CELLS", "RESOLUTIONS", "Units", "certify", "divide", "fill", "patterns_of", "plan_in_units"]

_MOST_SIZES = 700  # distinct sizes that a linear program can have and still be quick
MOST_CELLS = 2**25  # limit on distinct sizes x units x depth, to which the time of pricing is proportional
RESOLUTIONS = (2048, 1024, 512, 256, 128)  # units per pack
_REST = 10  # `divide` puts about one in this many sequences of each length into the remainder
_MOST_FILLED = 2**18  # most sequences that are put into slots at a time
_ROUNDS, _LEAST_ROUNDS = 20, 2  # rounds of pricing in tokens: the most, and the fewest that the budget must allow
_WITHIN = 1e-4  # a packing in units may exceed its bound by this share: filling its slots changes the plan by more
_MOST_TABLE = 2**26  # entries of the table of pricing in tokens, 8 bytes each


@dataclass(frozen=True)
class Units:
    """Lengths rounded to units of several tokens.

    Attributes:
        items: the rounded sizes in units, the number of sequences of each, and the limits of a pack in units.
        edges: item i stands for the lengths from ``edges[i]`` up to ``edges[i + 1]`` (exclusive); int64 ``[k + 1]``.
        middle: the size of item i in tokens, about the middle of these lengths; float64 ``[k]``.
    """

    items: Items
    edges: NDArray[np.int64]
    middle: NDArray[np.float64]

    @classmethod
    def of(cls, histogram: Histogram, capacity: int, depth: int | None, finest: int = RESOLUTIONS[0]) -> Units:
        """Return lengths rounded to units; a pack has as many units as pricing has time for, from 128 to `finest`.

        A pack also has at most as many units as tokens, except that 128 units are always allowed.
        """
        for resolution in [n for n in RESOLUTIONS if n <= max(min(capacity, finest), RESOLUTIONS[-1])]:
            nearest = np.floor(histogram.lengths * (resolution / capacity) + 0.5).astype(np.int64)
            sizes, first, item = np.unique(np.maximum(nearest, 1), return_index=True, return_inverse=True)
            most = 1 if depth is None else min(depth, resolution // int(sizes[0]))
            if sizes.size <= _MOST_SIZES and sizes.size * resolution * most <= MOST_CELLS:
                break
        demand = np.zeros(sizes.size, dtype=np.int64)
        np.add.at(demand, item, histogram.counts)
        edges = np.append(histogram.lengths[first], histogram.max_length + 1)
        middle = sizes * (capacity / resolution)
        return cls(Items.of(sizes, demand, resolution, depth), edges, middle)


def patterns_of(packing: Packing, before: Units, units: Units) -> Iterator[Pattern]:
    """Yield the patterns of `packing`, converted from the item numbers of `before` to those of `units`.

    A pattern is left out if one of its sizes is not a size of `units`. Nothing is yielded if a pack does not have the
    same number of units in `before` and in `units`.
    """
    number = {size: item for item, size in enumerate(units.items.sizes.tolist())}
    sizes = before.items.sizes.tolist()
    if before.items.capacity == units.items.capacity:
        for pattern in packing:
            if all(sizes[item] in number for item in pattern):
                yield tuple(number[sizes[item]] for item in pattern)


def divide(histogram: Histogram) -> tuple[int, Histogram, Histogram]:
    """Divide a histogram into copies of a smaller one; return (number of copies, smaller histogram, remainder).

    Usually, the number of copies is the smallest power of two that is at least the number of sequences divided by
    262,144. Then a copy has at most 262,144 sequences, few enough to be put into slots one by one. If most counts are
    too small to be divided by this number, there are fewer copies, with more sequences each.

    With one copy, the remainder is empty. Otherwise the remainder has about one in ten sequences of each length, so
    that it packs as well as the full histogram. The remainder also has the sequences that are left when counts are
    divided by the number of copies. In total, it has at most half of all sequences.
    """
    copies = 1
    while histogram.sequences > copies * _MOST_FILLED:
        copies *= 2
    counts = histogram.counts
    while copies > 1:
        each = (counts - counts // _REST) // copies
        if 2 * exact_sum(each) * copies >= histogram.sequences:
            return copies, _histogram(histogram, each), _histogram(histogram, counts - each * copies)
        copies //= 2
    return 1, histogram, _histogram(histogram, np.zeros_like(counts))


def _histogram(like: Histogram, counts: NDArray[np.int64]) -> Histogram:
    present = np.flatnonzero(counts)
    return Histogram(like.lengths[present], counts[present])


def fill(packing: Packing, units: Units, histogram: Histogram, capacity: int, depth: int | None) -> Listed:
    """Return packs of the real lengths of `histogram`, by filling the slots of a packing of the items of `units`.

    Each item in a pattern of `packing` is a slot for one real length. Sequences without a slot are packed by best-fit.
    `capacity` is in tokens.
    """
    from nopad.planning.optimal import _kernels

    patterns = sorted(packing.items(), reverse=True)
    indptr = np.cumsum([0, *(len(pattern) for pattern, _ in patterns)])
    slots = np.array([item for pattern, _ in patterns for item in pattern])
    copies = np.array([count for _, count in patterns])
    available = np.zeros(capacity + 2, dtype=np.int64)
    available[histogram.lengths] = histogram.counts
    places = np.arange(capacity + 2)
    present = available > 0
    present[[0, -1]] = True
    below = np.maximum.accumulate(np.where(present, places, 0))
    above = np.minimum.accumulate(np.where(present, places, capacity + 1)[::-1])[::-1].copy()
    lengths = np.empty(histogram.sequences, dtype=np.int32)
    bounds = np.empty(int(copies.sum()) + 1, dtype=np.int64)
    packs = _kernels.fill_slots(
        slots, indptr, copies, units.edges, units.middle, capacity, available, below, above, lengths, bounds
    )
    filled = Listed(lengths[: bounds[packs]], bounds[: packs + 1], np.ones(packs, dtype=np.int64))
    rest = np.flatnonzero(available)
    return Listed.joined([filled, Listed.placed(Histogram(rest, available[rest]), capacity, depth)])


def plan_in_units(
    histogram: Histogram, capacity: int, depth: int | None, budget: Budget, finest: int
) -> tuple[Listed, tuple[Solved, Units] | None]:
    """Plan in rounded lengths (`Units`); return ``(packs of real lengths, guide)``.

    `guide` is the first solved linear program and its `Units`, as `certify` needs them. A pack has at most `finest`
    units.

    A large histogram is planned in parts (`divide`), and each remainder is divided again. Parts for which the budget
    allows no linear program are packed by best-fit; if these are all parts, `guide` is None.

    Raises:
        SolverError: HiGHS did not reach an optimum.
    """
    guide: tuple[Solved, Units] | None = None
    packs: list[Listed] = []
    rest = histogram
    while rest.sequences:
        copies, part, rest = divide(rest)
        units = Units.of(part, capacity, depth, finest)
        seeds = patterns_of(guide[0].packing, guide[1], units) if guide else ()
        solved = solve(units.items, budget, within=_WITHIN, seeds=seeds)
        if solved is None:
            filled = Listed.placed(part, capacity, depth)
        else:
            guide = guide or (solved, units)
            filled = fill(solved.packing, units, part, capacity, depth)
        packs.append(filled.take(np.repeat(np.arange(filled.copies.size), filled.copies), copies))
    return Listed.joined(packs), guide


def certify(solved: Solved, units: Units, capacity: int, depth: int | None, budget: Budget) -> Certificate | None:
    """Return a certificate from a linear program in tokens, in which an item has the shortest length it stands for.

    The program begins with those patterns of `solved`, the linear program in `units`, that fit into a pack in tokens.
    The result is None if pricing in tokens would take too long or too much memory, or if the budget is spent.

    Raises:
        SolverError: HiGHS did not reach an optimum.
    """
    items = Items.of(units.edges[:-1], units.items.demand, capacity, depth)
    table = capacity * (2 if items.unlimited else items.depth + 1)
    if table > _MOST_TABLE or items.steps() * _LEAST_ROUNDS > budget.left:
        return None
    master = Master(items)
    sizes = items.sizes
    fitting = [p for p in solved.master.patterns if sizes[list(p)].sum() <= capacity and len(p) <= items.depth]
    master.add([*fitting, *((i,) for i in range(sizes.size))])
    relaxed = relax(master, budget, rounds=_ROUNDS)
    if relaxed is None:
        return None
    return Certificate.of(zip(sizes.tolist(), relaxed.values.tolist(), strict=True))
