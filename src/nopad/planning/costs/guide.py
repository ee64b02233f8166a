"""Plans with limits on tokens and cost by column generation: a plan in rounded lengths, filled with real ones.

This method is for packs of few sequences each, where it matters most which sequences share a pack. A pack has 128 to
1,024 units of tokens, and 64 to 256 units of cost. Lengths and their squares are rounded to the nearest unit, so that
errors cancel. The rounded lengths are the items of a linear program. Its patterns (multisets of items that fit into a
pack) are found by an exact knapsack with both limits. The knapsack also counts the depth, unless the depth limits no
pattern, or is at least about twice the mean number of sequences in a pack. The whole parts of the solution are packed,
and the linear program is solved again for the items left.

The patterns only guide the plan. Each item of a pattern is a slot, and a real length is put into each slot. The real
lengths keep to the limits.

Source: the sources of `nopad.planning.optimal`; the pricing is the two-constraint knapsack of Gilmore and Gomory,
"Multistage cutting stock problems of two and more dimensions", 1965.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.planning.costs.spread import LOOK, Load, Packed
from nopad.planning.optimal.budget import Budget

__all__ = ["FILLING", "MOST_CAPACITY", "MOST_FILLED", "Guide", "fill", "fits_memory", "guide"]

_MOST_SIZES = 700  # most distinct rounded lengths
_MOST_CELLS = 2**28  # sizes x units of tokens x units of cost x layers: what pricing once costs, at most
_RESOLUTIONS = ((1024, 256), (512, 256), (512, 128), (256, 128), (128, 64))  # units of tokens and of cost per pack
_COLUMNS = 80  # most patterns added per round of pricing
_ROUNDS, _AGAIN = 200, 3  # rounds of pricing: for the first linear program, and for each later one
_NEAR = 2e-5  # pricing ends when no pattern is worth this much more than a pack
_WHOLE = 1e-6  # a number this close to an integer counts as one
_SCALE = 2**40  # the integer for a dual value of 1
_FILLS, _FEW = 4, 40  # most plans in rounded lengths, each for the sequences left by the one before (at least _FEW)
_AGAIN_SHARE = 0.25  # share of the budget that is left, for each of these plans but the first
_LEAST_LOOKS = 10**6  # steps that the final best-fit may always take
_MOST_LAYERS = 32  # of the knapsack: one for each number of sequences in a pack
_SHALLOW = 2  # pricing ignores a depth of at least this many times the mean number of sequences in a pack
MOST_CAPACITY = 2**24  # filling slots takes 40 bytes per token of capacity
MOST_FILLED = 2**22  # sequences, of 64 bytes each
FILLING = 300  # operations per sequence for filling slots; the caller of `fill` charges them to the budget before

Pattern = tuple[int, ...]


def fits_memory(load: Load) -> bool:
    """Return whether the capacity and the number of sequences are small enough for the memory that `fill` needs."""
    return bool(load.limits[0] <= MOST_CAPACITY) and sum(load.counts.tolist()) <= MOST_FILLED


@dataclass(frozen=True)
class Units:
    """Lengths rounded to units of tokens, and their squares to units of cost.

    Attributes:
        sizes: units of tokens of each item, ascending; int64 ``[k]``.
        costs: units of cost of each item, ascending; int64 ``[k]``.
        demand: number of sequences of each item; int64 ``[k]``.
        room: three integers: units of tokens of a pack, units of cost of a pack, and layers of the knapsack table.
            There is one layer for each number of sequences in a pack, from 0 to the depth; or just one, if the depth is
            ignored.
        edges: item i stands for the lengths from ``edges[i]`` up to ``edges[i + 1]`` (exclusive); int64 ``[k + 1]``.
        middle: mean length of the sequences of each item, in tokens; float64 ``[k]``.
    """

    sizes: NDArray[np.int64]
    costs: NDArray[np.int64]
    demand: NDArray[np.int64]
    room: tuple[int, int, int]
    edges: NDArray[np.int64]
    middle: NDArray[np.float64]

    @classmethod
    def of(cls, load: Load, work: int) -> Units | None:
        """Return the finest units for which filling the knapsack table takes at most `work` updates.

        There may be at most 700 distinct sizes and 32 layers (see `room`). Returns None if even the coarsest units
        exceed a limit.
        """
        capacity, most, depth = load.limits.tolist()
        usual = -(-capacity * int(load.counts.sum()) // int((load.counts * load.sizes).sum()))  # sequences per pack
        for tokens, money in _RESOLUTIONS:
            nearest = np.maximum(np.floor(load.sizes * (tokens / capacity) + 0.5).astype(np.int64), 1)
            sizes, first, item = np.unique(nearest, return_index=True, return_inverse=True)
            layers = 1 if depth >= min(tokens // int(sizes[0]), _SHALLOW * usual) else depth + 1
            if sizes.size <= _MOST_SIZES and layers <= _MOST_LAYERS and sizes.size * tokens * money * layers <= work:
                break
        else:
            return None
        weights = load.counts.astype(np.float64)
        number = np.bincount(item, weights)
        demand = np.zeros(sizes.size, dtype=np.int64)
        np.add.at(demand, item, load.counts)
        middle = np.bincount(item, weights * load.lengths) / number
        square = np.bincount(item, weights * load.costs.astype(np.float64)) / number
        costs = np.minimum(np.floor(square * (money / most) + 0.5).astype(np.int64), money)
        edges = np.append(load.lengths[first], load.lengths[-1] + 1)
        return cls(
            np.minimum(sizes, tokens), np.maximum.accumulate(costs), demand, (tokens, money, layers), edges, middle
        )

    def price(self, duals: NDArray[np.float64], table: NDArray[np.int64]) -> tuple[float, list[Pattern]]:
        """Return the value of the best pattern, and up to 80 patterns with a value above 1, best first.

        A pattern is a tuple of item numbers, largest first. Its value is the sum of its items' values; a pack is worth
        1. The value of an item is its entry in `duals` (float64 ``[k]``), limited to 0..1, and raised to at least the
        value of each smaller item. The same pattern may occur twice. `table` is working memory, int64 ``[layers, tokens
        + 1, cost + 1]`` for the three numbers of `room`; it is overwritten.
        """
        from nopad.planning.costs import _guide_kernels

        values = np.maximum.accumulate(np.round(duals.clip(0, 1) * _SCALE).astype(np.int64))
        _guide_kernels.knapsack(self.sizes, self.costs, values, table)
        tokens, money, _ = self.room
        around = values + table[max(0, table.shape[0] - 2), tokens - self.sizes, money - self.costs]
        chosen = np.flatnonzero(around > _SCALE * (1 + 1e-9))
        chosen = chosen[np.argsort(-around[chosen], kind="stable")][:_COLUMNS]
        longest = tokens // int(self.sizes[0]) if table.shape[0] == 1 else table.shape[0] - 1
        out = np.empty((chosen.size, longest + 1), dtype=np.int64)
        used = np.empty(chosen.size, dtype=np.int64)
        _guide_kernels.patterns_with(self.sizes, self.costs, values, table, chosen, out, used)
        rows = zip(out.tolist(), used.tolist(), strict=True)
        return int(table[-1, -1, -1]) / _SCALE, [tuple(sorted(row[:n], reverse=True)) for row, n in rows if n]


@dataclass(frozen=True)
class Guide:
    """A plan in rounded lengths, whose patterns are then filled with real lengths.

    Attributes:
        units: the rounded lengths, which are the items, and the number of sequences of each.
        packing: maps each pattern to its number of packs; a pattern is a tuple of item numbers, largest first.
    """

    units: Units
    packing: Counter[Pattern]


def guide(load: Load, budget: Budget) -> Guide | None:
    """Return a plan in rounded lengths (`Units`); None if none is found.

    The result is None if the budget is too small, if even the coarsest units exceed a limit of `Units.of`, or if the
    solver fails at the first linear program. The plan may leave out sequences that fill about one pack, and more if the
    budget is spent or the solver fails later. If the solver failed, `Budget.trouble` says why.
    """
    from nopad.planning.optimal.master import Master, Optimum
    from nopad.planning.optimal.pricing import Items
    from nopad.planning.optimal.rounding import fill_demand
    from nopad.planning.optimal.solver import SolverError

    units = None if budget.spent() else Units.of(load, min(_MOST_CELLS, budget.left // 50))
    if units is None:
        return None
    tokens, money, layers = units.room
    step = units.sizes.size * tokens * money * max(1, layers - 1) // 2 + 10**7
    master = Master(Items(units.sizes, units.demand, tokens, tokens))
    depth = int(load.limits[2])
    alike = np.minimum(np.minimum(tokens // units.sizes, money // np.maximum(units.costs, 1)), min(depth, tokens))
    master.add([(i,) for i in range(units.sizes.size)])
    master.add([(i,) * n for i, n in enumerate(alike.tolist())])
    table = np.empty((layers, tokens + 1, money + 1), dtype=np.int64)
    packing: Counter[Pattern] = Counter()
    left = units.demand.copy()
    solved: Optimum | None = None
    rounds = _ROUNDS
    try:
        while left.any() and rounds:
            for _ in range(rounds):
                again = master.solve(budget)
                budget.charge(step)
                if again is None:
                    break
                solved = again
                best, found = units.price(solved.duals, table)
                if best <= 1 + _NEAR or not master.add(found):
                    break
            if solved is None:
                break
            rounds = _AGAIN if again is not None and solved.packs > 1 else 0
            whole = np.floor(solved.times + _WHOLE).astype(np.int64)
            if not whole.any():
                used = np.count_nonzero(solved.times > _WHOLE)
                largest = np.argsort(-solved.times, kind="stable")[: 1 + used // 10]
                whole[largest] = 1
            taken = fill_demand(master.patterns[: whole.size], whole, left)
            packing += taken
            for pattern, count in taken.items():
                np.subtract.at(left, list(pattern), count)
            master.demand(left)
    except SolverError as error:
        budget.trouble = str(error)  # what is packed so far is still a guide
    return Guide(units, packing) if packing else None


def fill(plan: Guide, load: Load, align: int, budget: Budget) -> Packed:
    """Return a plan of all sequences of `load`: the patterns of `plan`, filled with real lengths.

    In a pack, lengths are rounded up to multiples of `align`, as in `Load.sizes`.

    Each rounded length in a pattern of `plan` is a slot for one sequence. For sequences without a slot, if there are at
    least 40, `guide` makes a plan in rounded lengths again, up to three times. Sequences that still have no slot are
    placed by best-fit. The operations of `guide` and of best-fit are charged to `budget` here. The operations of
    filling slots (`FILLING`) must be charged by the caller. Best-fit always places all sequences: even with no budget
    left it may take a million steps to look for room, and then opens new packs.
    """
    from nopad.planning.costs import _kernels

    n = int(load.counts.sum())
    classes, links = np.empty((n + 16, 5), dtype=np.int64), np.empty((n + 16, 3), dtype=np.int64)
    used = linked = 0
    left = load.counts.copy()
    following: Guide | None = plan
    for fills_left in reversed(range(_FILLS)):
        if following is None:
            break
        packs, links_made = _filled(following, load, align, left, classes[used:], links[linked:])
        classes[used : used + packs, 4] += linked
        links[linked : linked + links_made, 0] += np.where(links[linked : linked + links_made, 0] >= 0, linked, 0)
        used, linked = used + packs, linked + links_made
        present = np.flatnonzero(left)
        if left.sum() < _FEW or not fills_left:
            break
        rest = Load(load.lengths[present], load.sizes[present], load.costs[present], left[present], load.limits)
        with budget.part(_AGAIN_SHARE):
            following = guide(rest, budget)
    made: Any = _kernels.best_fit(
        load.sizes, load.costs, left, classes, used, links, linked, load.limits, max(budget.left // LOOK, _LEAST_LOOKS)
    )
    classes, used, links, linked, looks = made
    budget.charge(LOOK * looks)
    return Packed(classes[:used], links[:linked])


def _filled(
    plan: Guide,
    load: Load,
    align: int,
    left: NDArray[np.int64],
    classes: NDArray[np.int64],
    links: NDArray[np.int64],
) -> tuple[int, int]:
    """Fill the slots of `plan` with real lengths; return the numbers of packs and links made.

    The slots are the rounded lengths of `plan`. ``left[i]`` sequences of the length ``load.lengths[i]`` are left to
    place; those used are subtracted, in place. The packs are written from the start of `classes`, and the links from
    the start of `links`, as the rows that `Packed` describes.
    """
    from nopad.planning.costs import _guide_kernels

    capacity = int(load.limits[0])
    patterns = sorted(plan.packing.items(), reverse=True)
    indptr = np.cumsum([0, *(len(pattern) for pattern, _ in patterns)])
    slots = np.array([item for pattern, _ in patterns for item in pattern])
    copies = np.array([count for _, count in patterns])
    available = np.zeros(capacity + 2, dtype=np.int64)
    available[load.lengths] = left
    places = np.arange(capacity + 2)
    present = available > 0
    present[[0, -1]] = True
    below = np.maximum.accumulate(np.where(present, places, 0))
    above = np.minimum.accumulate(np.where(present, places, capacity + 1)[::-1])[::-1].copy()
    units = plan.units
    packs, linked = _guide_kernels.fill_slots(
        slots, indptr, copies, units.edges, units.middle, load.limits, align, available, below, above, classes, links
    )
    links[:linked, 1] = np.searchsorted(load.lengths, links[:linked, 1])
    left[:] = available[load.lengths]
    return packs, linked
