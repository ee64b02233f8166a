"""From the linear program to packs: which sequences go to which capacity, then the packs of each by themselves.

The program says how many places of each class every capacity offers, and how much room for sand. Sequences are dealt
out to capacities in these shares, so each gets its part of every size. What is left is packing into one capacity, which
`auto` does nearly without loss for one kind, and `nopad.planning.costs.spread` for two.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.costs.spread import UNLIMITED, Load, spread
from nopad.planning.lpfhp import lpfhp
from nopad.planning.optimal import auto
from nopad.planning.several.classes import Classes
from nopad.planning.several.relax import Column
from nopad.planning.several.task import Packing, Task

__all__ = ["pack_each", "shares", "split_alone"]


def split_alone(task: Task) -> NDArray[np.int64]:
    """Return counts ``[k, K]``: every sequence goes to the cheapest capacity that holds it."""
    counts = np.zeros((task.counts.size, len(task.prices)), dtype=np.int64)
    counts[np.arange(task.counts.size), task.cheapest(task.sizes)] = task.counts
    return counts


def shares(task: Task, classes: Classes, columns: list[Column], times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return counts ``[k, K]``: how many sequences of each size go to each capacity, by a solved linear program."""
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
    """Return the share of each class that goes to each capacity."""
    total = places.sum(axis=1, keepdims=True)
    return np.where(total > 0, places / np.where(total > 0, total, 1.0), 0.0)


def _whole(task: Task, share: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return whole counts in about these shares, size by size; a capacity gets only what it holds."""
    holds = (task.sizes[:, None, :] <= task.capacities[None]).all(axis=2)
    share = np.where(holds, share, 0.0)
    alone = np.zeros_like(share)
    alone[np.arange(len(share)), task.cheapest(task.sizes)] = 1.0
    total = share.sum(axis=1, keepdims=True)
    share = np.where(total > 1e-12, share / np.where(total > 1e-12, total, 1.0), alone)
    # Rounded as running sums over sizes and capacities, so that nothing adds up
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


def pack_each(task: Task, counts: NDArray[np.int64], effort: float, *, quick: bool = False) -> Packing:
    """Pack what each capacity is given, with a budget of about `effort` seconds in all; `quick` by best-fit alone."""
    packing: Packing = Counter()
    used = np.flatnonzero(counts.any(axis=0)).tolist()
    for j in used:
        chosen = np.flatnonzero(counts[:, j])
        part = task.part(chosen, counts[chosen, j])
        made = _by_kinds(part, j, effort / len(used)) if task.kinds > 1 else _by_lengths(part, j, effort, quick)
        names = chosen.tolist()
        for held, count in made.items():
            packing[tuple(names[i] for i in held)] += count
    return packing


def _by_lengths(task: Task, j: int, effort: float, quick: bool) -> Packing:
    """Pack one kind into capacity j."""
    capacity, lengths = int(task.capacities[j, 0]), task.sizes[:, 0]
    histogram = Histogram(lengths, task.counts)
    made = (
        lpfhp(histogram, capacity, task.depth)
        if quick
        else auto(histogram, capacity, task.depth, effort=effort).strategies
    )
    number = dict(zip(lengths.tolist(), range(lengths.size), strict=True))
    packing: Packing = Counter()
    for count, held in made:
        packing[tuple(sorted(number[length] for length in held))] += count
    return packing


def _by_kinds(task: Task, j: int, effort: float) -> Packing:
    """Pack two kinds into capacity j."""
    limits = task.capacities[j].clip(1)  # a limit of 0 holds sizes of 0, and nobody divides by it
    parts = task.sizes / limits
    needs = (parts * task.counts[:, None].astype(np.float64)).sum(axis=0)
    order = np.lexsort((parts.sum(axis=1), parts.max(axis=1) if needs.min() > 0 else parts[:, 0]))
    sizes = task.sizes[order]
    load = Load(
        np.arange(order.size),
        sizes[:, 0].copy(),
        sizes[:, 1].copy(),
        task.counts[order],
        np.array([*limits.tolist(), UNLIMITED], dtype=np.int64),
    )
    loads = [sum(a * n for a, n in zip(own.tolist(), load.counts.tolist(), strict=True)) for own in sizes.T]
    bound = max(-(-load_ // limit) for load_, limit in zip(loads, limits.tolist(), strict=True))
    made = spread(load, max(1, bound), bound, int(effort * 10**9))
    names = order.tolist()
    packing: Packing = Counter()
    for count, held in made.strategies(np.arange(order.size)):
        packing[tuple(sorted(names[i] for i in held))] += count
    return packing
