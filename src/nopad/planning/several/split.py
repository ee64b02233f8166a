"""Turn a solved linear program into packs: divide sequences among capacities, then pack each capacity by itself.

The solution says how many sequences of each class, and how much sand, the packs of each capacity hold
(`nopad.planning.several.classes`). Sequences of every size are divided among capacities in these proportions. Then each
capacity is packed by itself: for one kind of size, `nopad.planning.optimal.nearly` does this with hardly more packs
than its lower bound; for two, `pack_both` does it.

A `Packing` maps each pack, a tuple of indices of sizes in the task, to its number of copies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.lpfhp import lpfhp
from nopad.planning.optimal import nearly
from nopad.planning.optimal.budget import Budget
from nopad.planning.several.both import pack_both
from nopad.planning.several.classes import Classes
from nopad.planning.several.relax import Column
from nopad.planning.several.task import Pack, Packing, Task

__all__ = ["ease", "pack_each", "shares", "split_alone"]

_SMALL = 8  # a sequence is small if it is at most 1/8 of the smallest capacity
_FINE = (0.0, 0.01, 0.03)  # shares of a capacity's tokens that `ease` puts into small sequences, each tried in turn
_FEW = 4  # with more capacities than this, only one of these shares is tried
_MANY = 10_000  # a capacity with at least this many packs keeps the division of the linear program
_SLACK = 5e-4  # share of the room in whole packs that `ease` leaves free
_QUICK_STEPS = 5_000  # operations of best-fit for each distinct length
_NEAR = 2e-5  # the plan of one capacity may be above its bound by this share


def split_alone(task: Task) -> NDArray[np.int64]:
    """Return how many sequences of each size go to each capacity if each goes to the cheapest one that holds it.

    The result is int64 ``[k, K]`` for k sizes and K capacities.
    """
    counts = np.zeros((task.counts.size, len(task.prices)), dtype=np.int64)
    counts[np.arange(task.counts.size), task.cheapest(task.sizes)] = task.counts
    return counts


def shares(task: Task, classes: Classes, columns: list[Column], times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many sequences of each size go to each capacity, as a solved linear program says; int64 ``[k, K]``.

    ``times[c]`` is how often the program uses ``columns[c]``: a pair of the index of a capacity, and the classes in one
    pack. Sequences that belong to no class are divided in proportion to the room that the columns leave for sand. A
    sequence only goes to a capacity that holds it.
    """
    places, room = np.zeros((len(classes.corners), len(task.prices))), np.zeros((len(task.prices), 2))
    for (j, held), time in zip(columns, times.tolist(), strict=False):
        if time > 0:
            free = task.capacities[j].astype(np.float64)
            for i, copies in Counter(held).items():
                places[i, j] += copies * time
                free -= copies * classes.corners[i]
            room[j] += time * free
    inside = classes.of_size >= 0
    of_size = np.zeros((task.counts.size, len(task.prices)))
    of_size[inside] = _of_classes(places)[classes.of_size[inside]]
    loose = (room.clip(0) / task.capacities.max(axis=0).clip(1)).sum(axis=1)
    of_size[~inside] = loose / loose.sum() if loose.sum() > 0 else 0.0
    return _whole(task, of_size)


def _of_classes(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of each class that goes to each capacity; float64 ``[m, K]``.

    ``places[i, j]`` is how many sequences of class i the packs of capacity j take. If no capacity takes a class, all
    its shares are 0.
    """
    total = places.sum(axis=1, keepdims=True)
    return np.where(total > 0, places / np.where(total > 0, total, 1.0), 0.0)


def _whole(task: Task, share: NDArray[np.float64]) -> NDArray[np.int64]:
    """Divide the sequences of each size among the capacities; return how many go to each, int64 ``[k, K]``.

    ``share[i, j]`` is about the share of the sequences of size i that goes to capacity j; float64 ``[k, K]``. A
    capacity gets only sequences that fit into it. If all shares of a size are 0, its sequences go to the cheapest
    capacity that holds them.
    """
    holds = (task.sizes[:, None, :] <= task.capacities[None]).all(axis=2)
    share = np.where(holds, share, 0.0)
    alone = np.zeros_like(share)
    alone[np.arange(len(share)), task.cheapest(task.sizes)] = 1.0
    total = share.sum(axis=1, keepdims=True)
    share = np.where(total > 1e-12, share / np.where(total > 1e-12, total, 1.0), alone)
    # Running sums over sizes and capacities are rounded, so that rounding errors do not add up
    upto = np.cumsum(share, axis=1)
    running = np.floor(np.cumsum(upto * task.counts[:, None].astype(np.float64), axis=0) + 0.5)
    taken = np.diff(running, axis=0, prepend=0.0).astype(np.int64)
    taken = np.maximum.accumulate(np.clip(taken, 0, task.counts[:, None]), axis=1)
    taken[:, -1] = task.counts
    counts = np.diff(taken, axis=1, prepend=0)
    wrong = counts * ~holds  # by rounding
    counts -= wrong
    counts[np.arange(len(share)), task.cheapest(task.sizes)] += wrong.sum(axis=1)
    return counts


def ease(task: Task, counts: NDArray[np.int64], loose: NDArray[np.bool_], budget: Budget) -> NDArray[np.int64]:
    """Return `counts` after exchanges between capacities that make packs easier to fill; int64 ``[k, K]``.

    `task` has one kind of size. ``counts[i, j]`` is how many sequences of size i go to capacity j; `counts` itself is
    not changed. `loose` marks the sizes that may go to any capacity at no loss; bool ``[k]``.

    The giver is the capacity with most tokens in sequences of the marked sizes. The receivers are the other capacities
    that are used and have fewer than 10,000 packs. A receiver gets small sequences from the giver, which fill the room
    left in packs, and gives larger ones in exchange. Its tokens should end slightly below what a whole number of its
    packs can hold, which is not always possible. With up to four receivers, three amounts of small sequences are tried
    for each, and the cheapest is kept; these trials share the budget.
    """
    counts = counts.copy()
    lengths = task.sizes[:, 0].astype(np.float64)
    giver = int(np.argmax(lengths @ (counts * loose[:, None])))
    rate = task.prices[giver] / float(task.capacities[giver, 0])
    packs = (lengths @ counts) / task.capacities[:, 0]
    order = np.argsort(-task.capacities[:, 0], kind="stable").tolist()
    used = [j for j in order if j != giver and 0 < packs[j] < _MANY]
    tries = _FINE if len(used) <= _FEW else _FINE[1:2]
    for n, j in enumerate(used):
        ways = [_moved(task, counts, j, giver, loose, fine) for fine in tries]
        if len(ways) > 1:
            found = []
            for m, way in enumerate(ways):
                with budget.part(1 / ((len(used) - n) * len(tries) - m)):
                    found.append(_by_lengths(_given(task, way, j), j, budget).total())
            costs = [n * task.prices[j] - rate * float(lengths @ way[:, j]) for n, way in zip(found, ways, strict=True)]
            counts = ways[int(np.argmin(costs))]
        else:
            counts = ways[0]
    return counts


def _given(task: Task, counts: NDArray[np.int64], j: int) -> Task:
    """Return the task of packing only the sequences that go to capacity j: ``counts[i, j]`` of each size i."""
    chosen = np.flatnonzero(counts[:, j])
    return task.part(chosen, counts[chosen, j])


def _moved(
    task: Task, counts: NDArray[np.int64], j: int, giver: int, loose: NDArray[np.bool_], fine: float
) -> NDArray[np.int64]:
    """Return a copy of `counts` after an exchange: capacity `giver` gives small sequences to j, and gets larger ones.

    Afterwards, small sequences are at least about the share `fine` of the tokens in capacity j, as far as this is
    possible: `giver` gives at most half of its small sequences. Only sequences of the sizes marked in `loose` are
    exchanged.
    """
    counts = counts.copy()
    lengths = task.sizes[:, 0].astype(np.float64)
    small = loose & (task.sizes[:, 0] * _SMALL <= int(task.capacities[:, 0].min()))
    load, capacity = float(lengths @ counts[:, j]), float(task.capacities[j, 0])
    target = max(1.0, np.floor(load / capacity + 0.5)) * capacity * (1 - _SLACK)
    own, spare = float(lengths[small] @ counts[small, j]), float(lengths[small] @ counts[small, giver])
    wanted = min(max(fine * target - own, target - load, 0.0), spare / 2)
    taken = _part(counts[:, giver], small, wanted / spare if spare else 0.0)
    back = load + float(lengths @ taken) - target
    large = loose & ~small & (task.sizes <= task.capacities[giver]).all(axis=1)
    held = float(lengths[large] @ counts[large, j])
    given = _part(counts[:, j], large, min(1.0, max(0.0, back) / held) if held else 0.0)
    counts[:, j] += taken - given
    counts[:, giver] += given - taken
    return counts


def _part(counts: NDArray[np.int64], chosen: NDArray[np.bool_], share: float) -> NDArray[np.int64]:
    """Return about the share `share` of each count that `chosen` marks, and 0 for the others; int64 ``[k]``.

    The running sum is rounded to whole numbers, so that rounding errors do not add up.
    """
    running = np.floor(np.cumsum(np.where(chosen, counts, 0) * share) + 0.5).astype(np.int64)
    return np.clip(np.diff(running, prepend=0), 0, np.where(chosen, counts, 0))


def pack_each(task: Task, counts: NDArray[np.int64], budget: Budget, *, quick: bool = False) -> Packing:
    """Return a packing in which ``counts[i, j]`` sequences of each size i are meant for packs of capacity j.

    Capacities are packed one after another, those with the highest price per token first. Each may take an equal part
    of the budget that is left. With one kind of size, the room left in the packs of a capacity is then filled with
    sequences that were meant for later capacities. With one kind of size and `quick`, all packs are made by best-fit.
    With two kinds, `quick` has no effect; only a small `budget` makes `pack_both` quick.
    """
    counts, packing = counts.copy(), Counter[Pack]()
    rates = [price / limit for price, limit in zip(task.prices, task.capacities[:, 0].tolist(), strict=True)]
    used = sorted(np.flatnonzero(counts.any(axis=0)).tolist(), key=lambda j: -rates[j])
    for n, j in enumerate(used):
        if not counts[:, j].any():
            continue
        part, names = _given(task, counts, j), np.flatnonzero(counts[:, j]).tolist()
        with budget.part(1 / (len(used) - n)):
            made = pack_both(part, j, budget) if task.kinds > 1 else _by_lengths(part, j, budget, quick)
        own: Packing = Counter()
        for held, count in made.items():
            own[tuple(names[i] for i in held)] += count
        packing += _filled(task, j, own, counts, used[:n:-1]) if task.kinds == 1 else own
    return packing


def _filled(task: Task, j: int, packing: Packing, counts: NDArray[np.int64], others: list[int]) -> Packing:
    """Return `packing`, the packs of capacity j, with their free room filled by sequences meant for `others`.

    `others` are indices of capacities. The longest sequence that fits goes first; if several of `others` have sequences
    of that length, the one listed first gives its own first. What is taken is subtracted from `counts`, in place.
    `task` has one kind of size.
    """
    available = counts[:, others].sum(axis=1)
    if not available.any():
        return packing
    lengths, capacity = task.sizes[:, 0].tolist(), int(task.capacities[j, 0])
    depth, left = task.depth or capacity, available.tolist()
    least = lengths[int(np.argmax(available > 0))]
    filled: Packing = Counter()
    waiting = [(held, count, capacity - sum(lengths[i] for i in held)) for held, count in packing.items()]
    while waiting:
        held, count, free = waiting.pop()
        at = bisect_right(lengths, free) - 1 if free >= least and len(held) < depth else -1
        while at >= 0 and not left[at]:
            at -= 1
        if at < 0:
            filled[tuple(sorted(held))] += count
            continue
        taken = min(count, left[at])
        left[at] -= taken
        waiting.append(((*held, at), taken, free - lengths[at]))
        if count > taken:
            waiting.append((held, count - taken, free))
    gone = available - np.array(left, dtype=np.int64)
    for other in others:
        given = np.minimum(gone, counts[:, other])
        counts[:, other] -= given
        gone -= given
    return filled


def _by_lengths(task: Task, j: int, budget: Budget, quick: bool = False) -> Packing:
    """Return packs of capacity `j` for all sequences of `task`, which have one kind of size.

    With `quick`, they are packed by best-fit, otherwise by `nearly`.
    """
    capacity, lengths = int(task.capacities[j, 0]), task.sizes[:, 0]
    histogram = Histogram(lengths, task.counts)
    if quick:
        made = lpfhp(histogram, capacity, task.depth)
        budget.charge(_QUICK_STEPS * task.counts.size)
    else:
        made = nearly(histogram, capacity, task.depth, budget=budget, share=_NEAR)
    number = dict(zip(lengths.tolist(), range(lengths.size), strict=True))
    packing: Packing = Counter()
    for count, held in made:
        packing[tuple(sorted(number[length] for length in held))] += count
    return packing
