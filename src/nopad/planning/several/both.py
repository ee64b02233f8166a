"""Packs for two kinds of size: deal sequences to the slots of patterns evenly, then repair packs that are over a limit.

The tighter kind of size is the one that needs more packs by itself. Patterns come from a plan for this kind alone, or
from the linear program. A slot is a place for one sequence in a pack. It has a label, and takes sequences with the same
label: a size of the tighter kind, or a class of the program. Of the sequences with one label, the largest go to the
packs whose sequences so far are furthest below their planned size. Packs that are then over a limit swap sequences with
other packs, or give sequences away. Sequences that were given away, or had no slot, go to the fullest or the emptiest
pack that has room for them.

If a plan made for the tighter kind is not near its bound, `nopad.planning.costs.spread` is tried too, which considers
both kinds from the start.

A `Packing` maps each pack, a tuple of indices of sizes in the task, to its number of copies. While packs are made, they
are a `Packed` of `nopad.planning.costs.spread`. Its item i is the size ``order[i]`` of the task; `order` sorts sizes by
the larger of their two shares of the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.costs.spread import UNLIMITED, Load, Packed, spread
from nopad.planning.optimal import nearly
from nopad.planning.optimal.budget import Budget
from nopad.planning.several.classes import Classes
from nopad.planning.several.relax import Column, Relaxed
from nopad.planning.several.task import Packing, Task

__all__ = ["MOST_DEALT", "dealing", "follow", "pack_both"]

MOST_DEALT = 2**22  # most sequences that are dealt out one by one
_DEALING, _LISTING = 1000, 800  # operations per sequence, to deal it out and mend its pack; and to list it
_LOOKS = 2 * 10**7  # limit on the steps of each kernel call, and roughly on those of all swaps
_PASSES = 3  # most passes of swaps
_NEAR = 1e-4  # a plan above its bound by at most this share is good enough


def dealing(task: Task) -> int:
    """Return the approximate number of operations of dealing out the sequences of `task` and listing their packs."""
    return (_DEALING + _LISTING) * min(task.sequences, MOST_DEALT)


def pack_both(task: Task, j: int, budget: Budget) -> Packing:
    """Return packs of capacity `j` for all sequences of `task`: of two ways to make them, the one with fewer packs.

    The first way, `_by_one`, deals sequences out to a plan for the tighter kind of size. It is not tried if there are
    too many sequences for it. The second way, `_spread`, is tried if the first was not. It is also tried if the result
    of the first is not near the lower bound, and the budget is not spent.
    """
    limits = task.capacities[j].clip(1)  # a limit of 0 becomes 1, since limits are divided by
    loads = [load / limit for load, limit in zip(task.loads, limits.tolist(), strict=True)]
    bound = max(1, -(-task.loads[0] // int(limits[0])), -(-task.loads[1] // int(limits[1])))
    found: list[tuple[Packed, NDArray[np.int64]]] = []
    if task.sequences <= MOST_DEALT:
        found.append(_by_one(_only(task, j), limits, int(np.argmax(loads)), budget))
    if not found or (found[0][0].packs > bound + int(bound * _NEAR) and not budget.spent()):
        found.append(_spread(task, limits, bound, budget))
    return _packing(task, *min(found, key=lambda one: one[0].packs), budget)


def _spread(task: Task, limits: NDArray[np.int64], bound: int, budget: Budget) -> tuple[Packed, NDArray[np.int64]]:
    """Pack by `nopad.planning.costs.spread`; return ``(packs, order)``.

    Item i of `packs` is the size with the index ``order[i]`` in `task`. `bound` is a lower bound on the number of
    packs; the search ends if a plan reaches it.
    """
    parts = task.sizes / limits
    order = np.lexsort((parts.sum(axis=1), parts.max(axis=1)))
    return spread(_load(task, limits, order), bound, bound, budget), order


def _load(task: Task, limits: NDArray[np.int64], order: NDArray[np.int64]) -> Load:
    sizes = task.sizes[order]
    most = np.array([*limits.tolist(), UNLIMITED], dtype=np.int64)
    return Load(np.arange(order.size), sizes[:, 0].copy(), sizes[:, 1].copy(), task.counts[order], most)


def _packing(task: Task, made: Packed, order: NDArray[np.int64], budget: Budget) -> Packing:
    """Return the packs `made` as a `Packing` of `task`; item i of `made` is the size ``order[i]`` of `task`.

    The operations of listing the packs are charged to `budget`.
    """
    budget.charge(_LISTING * min(task.sequences, made.links.shape[0]))
    packing: Packing = Counter()
    for count, held in made.strategies(order):
        packing[held[::-1]] += count
    return packing


def _by_one(task: Task, limits: NDArray[np.int64], tight: int, budget: Budget) -> tuple[Packed, NDArray[np.int64]]:
    """Plan the tight kind of size alone, deal out sequences evenly by the other kind, and repair packs over a limit.

    The tight kind needs more packs by itself; its index is `tight` (0 or 1). `task` has one capacity, with the two
    `limits`. Returns ``(packs, order)``: item i of `packs` is the size ``order[i]`` of `task`.
    """
    own, other = task.sizes[:, tight], task.sizes[:, 1 - tight].astype(np.float64)
    lengths, label = np.unique(own, return_inverse=True)
    totals = np.zeros(lengths.size, dtype=np.int64)
    np.add.at(totals, label.ravel(), task.counts)
    begin = int(lengths[0] == 0)  # a histogram has no length 0; the tight kind has sizes above 0 too
    histogram = Histogram(lengths[begin:], totals[begin:])
    with budget.part(0.5):
        made = nearly(histogram, int(limits[tight]), None, budget=budget, share=_NEAR)
    number = dict(zip(lengths.tolist(), range(lengths.size), strict=True))
    slots = _Slots.of([(count, tuple(number[length] for length in held)) for count, held in made])
    budget.charge(_DEALING * task.sequences)
    items = slots.deal(label.ravel(), task.counts, other, np.zeros(lengths.size))
    return _finished(task, slots, items, np.broadcast_to(limits, (slots.packs, 2)))


def follow(task: Task, classes: Classes, columns: list[Column], relaxed: Relaxed, budget: Budget) -> Packing:
    """Pack all sequences of `task` as the solution of a linear program says; return the packs.

    In this program, the mean size of a class stands for all sizes of the class. A column is a pair: the index of a
    capacity, and the classes of the sequences in one pack. `relaxed` is the solution: it uses column c
    ``relaxed.times[c]`` times. The whole part of this number is the number of packs made like the column. Sequences are
    dealt out to the slots of these packs. If a pack is then above a limit, sequences are swapped or taken out.
    Sequences that were taken out, or had no slot, are packed afterwards.
    """
    whole = np.floor(relaxed.times + 1e-6).astype(np.int64)
    taken = [columns[at] for at in np.flatnonzero(whole).tolist()]
    counts = whole[whole > 0].tolist()
    slots = _Slots.of([(count, held) for count, (_, held) in zip(counts, taken, strict=True)])
    rates = relaxed.rates if relaxed.rates.any() else 1 / task.capacities.max(axis=0).clip(1)
    planned = (classes.corners * rates).sum(axis=1)
    items = slots.deal(classes.of_size, task.counts, (task.sizes * rates).sum(axis=1), planned)
    limits = task.capacities[np.repeat([j for j, _ in taken], counts)] if taken else task.capacities[:0]
    budget.charge(_DEALING * task.sequences)
    return _within_one(task, _packing(task, *_finished(task, slots, items, limits), budget), budget)


@dataclass(frozen=True, eq=False)
class _Slots:
    """The slots of all packs, pack after pack; a slot is the place of one sequence in a pack.

    Attributes:
        pack: the pack of each slot, ascending; int64 ``[n]``.
        label: the label of each slot; a slot takes only sequences with its label (see the module); int64 ``[n]``.
        packs: number of packs.
    """

    pack: NDArray[np.int64]
    label: NDArray[np.int64]
    packs: int

    @classmethod
    def of(cls, patterns: list[tuple[int, tuple[int, ...]]]) -> _Slots:
        """Return the slots of all packs of `patterns`; a pattern is ``(count, labels)``, for `count` equal packs."""
        held = np.array([len(labels) for _, labels in patterns], dtype=np.int64)
        counts = np.array([count for count, _ in patterns], dtype=np.int64)
        each = [np.tile(np.array(labels, dtype=np.int64), count) for count, labels in patterns]
        sizes = np.repeat(held, counts)
        label = np.concatenate(each) if each else np.zeros(0, dtype=np.int64)
        return cls(np.repeat(np.arange(sizes.size), sizes), label, sizes.size)

    def deal(
        self,
        label: NDArray[np.int64],
        counts: NDArray[np.int64],
        measure: NDArray[np.float64],
        planned: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Deal sequences out to the slots; return the index of the size that each slot gets (-1: none), int64 ``[n]``.

        There are ``counts[i]`` sequences of size i. They have the label ``label[i]`` (negative: no slot takes them) and
        the measure ``measure[i]``, a number that says how large they are. A slot with label l is planned for a measure
        of ``planned[l]``.

        Labels are dealt out from the last to the first. Of each label, the sequences with the highest measure go to the
        packs whose total measure is furthest below what was planned for their slots so far. If a pack has several slots
        of one label, the label is dealt out in several turns (`_turns`). If a label has more sequences than slots, only
        some of them get a slot: those at even distances in the order of measures.
        """
        queue = np.lexsort((-measure, label))
        queue = queue[label[queue] >= 0]
        waiting = np.repeat(queue, counts[queue])
        kinds = np.arange(planned.size + 1)
        begins = np.searchsorted(label[waiting], kinds)
        # If a pack has several slots of one label, each of them is dealt out in another turn
        order = np.lexsort((self.pack, self.label))
        first = np.ones(order.size, dtype=bool)
        first[1:] = (self.pack[order][1:] != self.pack[order][:-1]) | (self.label[order][1:] != self.label[order][:-1])
        at = np.arange(order.size)
        again = np.empty(order.size, dtype=np.int64)
        again[order] = at - np.maximum.accumulate(np.where(first, at, 0))
        order = np.lexsort((again, self.label))
        ends = np.searchsorted(self.label[order], kinds)
        items, load = np.full(order.size, -1, dtype=np.int64), np.zeros(self.packs)
        for one in range(planned.size - 1, -1, -1):
            slots, here = order[ends[one] : ends[one + 1]], waiting[begins[one] : begins[one + 1]]
            if here.size > slots.size:  # sequences without a slot are packed by `_completed`
                here = here[np.linspace(0, here.size - 1, slots.size).astype(np.int64)]
            for turn, part in _turns(slots, again, here):
                emptiest = turn[np.argsort(load[self.pack[turn]], kind="stable")][: part.size]
                items[emptiest] = part
                load[self.pack[emptiest]] += measure[part] - planned[one]
        return items


def _turns(
    slots: NDArray[np.int64], again: NDArray[np.int64], here: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield ``(slots, sequences)`` for each turn of dealing out one label.

    In a turn, at most one slot of each pack is filled; every turn gets its share of large and small sequences. `slots`
    are those of one label, in the order of turns, and ``again[s]`` is the turn of slot s. `here` has the index of the
    size of each sequence to deal out, highest measure first. A turn may have fewer sequences than slots.
    """
    if not slots.size or not here.size:
        return
    turns = np.split(slots, np.flatnonzero(np.diff(again[slots])) + 1)
    if len(turns) == 1:
        yield turns[0], here
        return
    places = np.concatenate([np.linspace(0, 1, one.size) for one in turns])
    rank = np.argsort(np.argsort(places, kind="stable"), kind="stable")
    begin = 0
    for one in turns:
        ranks = np.sort(rank[begin : begin + one.size])
        begin += one.size
        yield one, here[ranks[ranks < here.size]]


def _finished(
    task: Task, slots: _Slots, items: NDArray[np.int64], limits: NDArray[np.int64]
) -> tuple[Packed, NDArray[np.int64]]:
    """Repair the packs that are above their limits, then pack all sequences that have no slot.

    There are two ways to pack these sequences (`_completed`); the one that gives fewer packs is taken.

    ``items[s]`` is the index in `task.sizes` of the size in slot s (-1: none), and ``limits[p]`` are the two limits of
    pack p. Returns ``(packs, order)``: item i of `packs` is the size ``order[i]`` of `task`.
    """
    used = items >= 0
    items, pack = items[used], slots.pack[used]
    items = _swapped(task, limits, items, pack)
    kept = _mended(task, limits, items, pack)
    items, pack = items[kept], pack[kept]
    left = task.counts - np.bincount(items, minlength=task.counts.size)
    tries = [_completed(task, limits, items, pack, left, evenly=evenly) for evenly in (False, True)]
    return min(tries, key=lambda one: one[0].packs)


def _swapped(
    task: Task, limits: NDArray[np.int64], items: NDArray[np.int64], pack: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Swap sequences between packs above a limit and packs with much room; return the size in each slot afterwards.

    ``items[s]`` is the size in slot s before the swaps, as an index into `task.sizes`; the result is of the same kind,
    int64 ``[n]``. ``pack[s]`` is the pack of slot s, and ``limits[p]`` are the two limits of pack p. Without packs
    above a limit, `items` itself is returned.
    """
    from nopad.planning.several import _kernels

    free = limits.copy()
    np.subtract.at(free, pack, task.sizes[items])
    over = np.flatnonzero((free < 0).any(axis=1))
    if not over.size:
        return items
    most = task.capacities.max(axis=0).clip(1)
    over = over[np.argsort((free[over] / most).min(axis=1), kind="stable")]
    tight = int(np.argmin((free[over] / most).sum(axis=0)))  # the kind of size with the largest excess in all
    roomy = np.argsort(-free[:, tight], kind="stable")
    roomy = roomy[: max(1, roomy.size // 2)]
    begins = np.searchsorted(pack, np.arange(len(limits) + 1))
    items = items.copy()
    for _ in range(_PASSES):
        _kernels.swap_over(
            task.sizes, items, begins, free, over, roomy, _LOOKS // (50 * _PASSES * (over.size + 1)) + 50
        )
        over = np.flatnonzero((free < 0).any(axis=1))
        if not over.size:
            break
        roomy = np.argsort(-free[:, tight], kind="stable")[: roomy.size]
    return items


def _mended(
    task: Task, limits: NDArray[np.int64], items: NDArray[np.int64], pack: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Choose sequences to take out of packs above a limit; return which slots keep their sequence, bool ``[n]``.

    From such a pack, the sequence that lowers the excess most is taken out, again and again, until no limit is
    exceeded. ``task.sizes[items[s]]`` is the size in slot s, ``pack[s]`` the slot's pack (ascending), and ``limits[p]``
    the two limits of pack p.
    """
    kept = np.ones(items.size, dtype=bool)
    sums = np.zeros_like(limits)
    np.add.at(sums, pack, task.sizes[items])
    begins = np.searchsorted(pack, np.arange(len(limits) + 1)).tolist()
    over = sums - limits
    for p in np.flatnonzero((over > 0).any(axis=1)).tolist():
        slots = np.arange(begins[p], begins[p + 1])
        excess = over[p].copy()
        while (excess > 0).any():
            own = task.sizes[items[slots]]
            relief = np.minimum(own, excess.clip(0)) / task.capacities.max(axis=0).clip(1)
            # The size that reduces the excess most; of several such sizes, the smallest
            best = np.lexsort((own.sum(axis=1), -relief.sum(axis=1)))[0]
            kept[slots[best]] = False
            excess -= own[best]
            slots = np.delete(slots, best)
    return kept


def _completed(
    task: Task,
    limits: NDArray[np.int64],
    items: NDArray[np.int64],
    pack: NDArray[np.int64],
    left: NDArray[np.int64],
    *,
    evenly: bool = False,
) -> tuple[Packed, NDArray[np.int64]]:
    """Put ``left[i]`` sequences of each size i into the fullest packs with room, or into new packs.

    With `evenly`, sequences go to the emptiest packs first, as far as they fit there. Pack p has the two limits
    ``limits[p]``. Slot s already holds a sequence of the size ``items[s]``, and is in pack ``pack[s]``. For each kind
    of size, new packs have the largest limit of any capacity. Returns ``(packs, order)``: item i of `packs` is the size
    ``order[i]`` of `task`.
    """
    from nopad.planning.costs import _kernels

    most = task.capacities.max(axis=0).clip(1)
    parts = task.sizes / most
    order = np.lexsort((parts.sum(axis=1), parts.max(axis=1)))
    number = np.argsort(order)
    free, packs = limits.copy(), len(limits)
    np.subtract.at(free, pack, task.sizes[items])
    classes = np.empty((packs + 2 * task.counts.size + 16, 5), dtype=np.int64)
    classes[:packs, :2], classes[:packs, 2], classes[:packs, 3], classes[:packs, 4] = free, UNLIMITED, 1, -1
    links = np.ones((items.size + task.counts.size + 16, 3), dtype=np.int64)
    slots = np.arange(items.size)
    first = np.ones(items.size, dtype=bool)
    first[1:] = pack[1:] != pack[:-1]
    links[: items.size, 0], links[: items.size, 1] = np.where(first, -1, slots - 1), number[items]
    last = np.ones(items.size, dtype=bool)
    last[:-1] = first[1:]
    classes[pack[last], 4] = slots[last]
    load, left, used, linked = _load(task, most, order), left[order], packs, items.size
    made: Any
    if evenly and packs:
        made = _kernels.spread_out(
            load.sizes, load.costs, left, classes, used, links, linked, load.limits, 0, _kernels.SMALLEST, 1.0, _LOOKS
        )
        classes, used, links, linked, _ = made
    made = _kernels.best_fit(load.sizes, load.costs, left, classes, used, links, linked, load.limits, _LOOKS)
    classes, used, links, linked, _ = made
    return Packed(classes[:used], links[:linked]), order


def _within_one(task: Task, packing: Packing, budget: Budget) -> Packing:
    """Remove from `packing` the packs that fit into no capacity, and pack their sequences again; return all packs.

    Such packs exist because the two limits of a new pack may come from different capacities. `packing` is changed in
    place. In the result, every pack fits into a capacity; it is `packing` itself if nothing had to be packed again.
    """
    packs = list(packing)
    outside = np.flatnonzero(task.capacity_of(packs) < 0).tolist()
    if not outside:
        return packing
    counts = np.zeros(task.counts.size, dtype=np.int64)
    for at in outside:
        np.add.at(counts, list(packs[at]), packing.pop(packs[at]))
    return packing + _alone(task, counts, budget)


def _alone(task: Task, counts: NDArray[np.int64], budget: Budget) -> Packing:
    """Return a packing of ``counts[i]`` sequences of each size i, by best-fit.

    Each sequence goes into a pack of the cheapest capacity that holds the sequence.
    """
    packing: Packing = Counter()
    used = task.cheapest(task.sizes)
    for j in task.by_price:
        chosen = np.flatnonzero((used == j) & (counts > 0))
        if chosen.size:
            names = chosen.tolist()
            part = task.part(chosen, counts[chosen])
            limits = np.broadcast_to(part.capacities[j], (0, 2))
            own = _completed(_only(part, j), limits, chosen[:0], chosen[:0], part.counts)
            made = _packing(part, *own, budget)
            packing.update({tuple(names[i] for i in held): count for held, count in made.items()})
    return packing


def _only(task: Task, j: int) -> Task:
    """Return the same task, but with capacity `j` as its only capacity."""
    return replace(task, capacities=task.capacities[j : j + 1], prices=task.prices[j : j + 1])
