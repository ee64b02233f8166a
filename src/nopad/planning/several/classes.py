"""`Classes`: groups of sizes for the linear program, and the units of its pricing table.

A class stands for all sizes from its corner (its smallest size) up to the next corners. The part of a sequence beyond
the corner counts as *sand*, which may be divided and put into any pack. Sequences below the smallest corner are sand
entirely. If every distinct size is a class of its own, there is no sand, and the linear program is that of Gilmore and
Gomory. With fewer classes, the program requires less than any real plan, so its bounds hold for every plan. (Some
classes have the mean of their sizes instead of a corner: they lead to better plans, but prove no bound.)

An *edge* is one of the two coordinates of a corner. Edges are placed just above a capacity, its half, its third and so
on, since a pack holds fewer than n sequences that are longer than 1/n of its capacity. Between these places, edges are
denser where there are more sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nopad.planning.several.certificate import PriceCertificate
from nopad.planning.several.task import Task

__all__ = ["Classes"]

_PARTS = 12  # corners just above 1/1, 1/2, ... of every capacity
_BESIDE = (0.0, 0.03, 0.15, 0.4)  # at an edge, only this share of all sequences (the smallest) still fits beside
_SAND = 16  # sizes below 1/16 of the smallest capacity are sand
_MOST_TABLE = 2**24  # most numbers in the pricing table
_FEW = 1.3  # second sizes all get an edge if there are at most this times the square root of the number of classes
_EVENLY = 0.1  # share of a token's value that counts as a rise, so that edges also lie where extras do not rise
_BINS = 2000  # bins in which sizes are counted to place edges


@dataclass(frozen=True, eq=False)
class Classes:
    """Groups of sizes for the linear program; see the module.

    Attributes:
        corners: the sizes at which classes begin, in lexicographic order; int64 ``[m, 2]``. If the classes were made by
            `along`, or by `of` with `middle`, the mean size of each class instead, in any order.
        of_size: the class of each distinct size of the task; int64 ``[k]``. -1: the size is below all classes, and is
            sand entirely.
        demand: number of sequences of each class; float64 ``[m]``.
        sand: total sand of the first and of the second size. Sand is what sequences have beyond the corners of their
            classes; the linear program may divide it among packs at will. For classes with mean sizes, only sequences
            below all classes are sand.
        units: the units in which the pricing table counts both sizes; int64 ``[2]``.
        exact: whether the classes were made by `every`: each distinct size is a class, and the table has units of 1.
    """

    corners: NDArray[np.int64]
    of_size: NDArray[np.int64]
    demand: NDArray[np.float64]
    sand: tuple[float, float]
    units: NDArray[np.int64]
    exact: bool

    @classmethod
    def every(cls, task: Task) -> Classes:
        """Return classes of which each stands for one distinct size of `task`; there is no sand."""
        k = task.counts.size
        one = np.ones(2, dtype=np.int64)
        return cls(task.sizes, np.arange(k), task.counts.astype(np.float64), (0.0, 0.0), one, True)

    @classmethod
    def of(cls, task: Task, most: int, cells: int, *, kinds: tuple[int, ...] = (0, 1), middle: bool = False) -> Classes:
        """Return about `most` classes, with units for which the pricing table has at most `cells` numbers.

        `kinds` are the sizes by which classes are divided: 0 stands for the first size, 1 for the second. With
        `middle`, the corner of a class is the mean of its sizes; such classes lead to good plans, but prove no bound.
        The table never has more than 2^24 numbers.
        """
        limits = task.capacities.max(axis=0)
        units = _units(limits, min(cells, _MOST_TABLE))
        none = np.zeros(1, dtype=np.int64)
        seconds = _second_edges(task, int(units[1]), most, kinds == (1,)) if 1 in kinds else none
        firsts = _edges(task, 0, most // seconds.size, int(units[0]), fine=seconds.size > 1) if 0 in kinds else none
        found = np.zeros_like(task.sizes)
        for kind, edges in enumerate((firsts, seconds)):
            found[:, kind] = edges[np.searchsorted(edges, task.sizes[:, kind], side="right") - 1]
        corners, of_size = np.unique(found, axis=0, return_inverse=True)
        of_size = of_size.ravel()
        if len(corners) and not corners[0].any():
            corners, of_size = corners[1:], of_size - 1
        weights = task.counts.astype(np.float64)
        inside = of_size >= 0
        demand: NDArray[np.float64] = np.bincount(of_size[inside], weights[inside], minlength=len(corners)).astype(
            float
        )
        if middle:
            return cls._middle(task, of_size, demand, units)
        one, other = (float(load) for load in task.loads)
        sand = (max(0.0, one - float(demand @ corners[:, 0])), max(0.0, other - float(demand @ corners[:, 1])))
        return cls(corners, of_size, demand, sand, units, False)

    @classmethod
    def along(cls, task: Task, most: int, cells: int, proof: PriceCertificate) -> Classes:
        """Return up to `most` classes by the first size: narrow where sequences are many and values of `proof` rise.

        The corner of a class is the mean of its sizes. Such classes lead to good plans, but prove no bound. Sizes below
        1/16 of the smallest capacity, or below one unit, belong to no class. The units are those for which the pricing
        table has at most `cells` numbers.
        """
        units = _units(task.capacities.max(axis=0), min(cells, _MOST_TABLE))
        rise = np.diff(proof.extras_of(task.sizes).astype(np.float64), prepend=0.0).clip(0)
        rise += _EVENLY * proof.rates[0] * np.diff(task.sizes[:, 0], prepend=0)
        sand = task.sizes[:, 0] < max(int(units[0]), int(task.capacities[:, 0].min()) // _SAND)
        upto = np.cumsum(np.where(sand, 0.0, np.sqrt(task.counts * rise)))
        label = np.searchsorted(np.linspace(0, upto[-1], most, endpoint=False)[1:], upto)
        of_size = np.full(sand.size, -1)
        if not sand.all():
            of_size[~sand] = np.unique(label[~sand], return_inverse=True)[1].ravel()
        inside = of_size >= 0
        demand = np.bincount(of_size[inside], task.counts[inside].astype(np.float64)).astype(np.float64)
        return cls._middle(task, of_size, demand, units)

    @classmethod
    def _middle(
        cls, task: Task, of_size: NDArray[np.int64], demand: NDArray[np.float64], units: NDArray[np.int64]
    ) -> Classes:
        """Return classes whose corners are the means of their sizes, rounded to multiples of `units`.

        A mean that would become 0 in both sizes gets one unit of the first size. `of_size`, `demand` and `units` are as
        in the class.
        """
        inside = of_size >= 0
        loads = task.sizes * task.counts[:, None].astype(np.float64)
        sums = [np.bincount(of_size[inside], loads[inside, kind], minlength=demand.size) for kind in (0, 1)]
        means = np.stack(sums, axis=1) / demand[:, None]
        corners = np.rint(means / units).astype(np.int64) * units
        corners[(corners == 0).all(axis=1), 0] = units[0]
        one, other = loads[~inside].sum(axis=0).tolist()
        return cls(corners, of_size, demand, (one, other), units, False)

    def within(self, task: Task) -> Classes:
        """Return a copy of these classes in which each corner fits into a capacity of `task`.

        Capacities are first rounded down to whole units. A corner that fits into none of them is lowered as little as
        possible. A corner that would become 0 in both sizes gets one unit of the first size.
        """
        limits = task.capacities // self.units * self.units
        least = np.full(len(self.corners), np.inf)
        corners = self.corners.copy()
        for limit in limits:
            cut = np.minimum(self.corners, limit)
            lost = (self.corners - cut).sum(axis=1)
            corners[lost < least] = cut[lost < least]
            least = np.minimum(least, lost)
        corners[(corners == 0).all(axis=1), 0] = self.units[0]  # a class always takes room
        return replace(self, corners=corners)


def _second_edges(task: Task, unit: int, most: int, alone: bool) -> NDArray[np.int64]:
    """Return the second sizes at which classes begin (edges), as ascending multiples of `unit`; int64 ``[edges]``.

    `most` is the number of classes wanted. If the second size has few values, each is an edge. Otherwise there are
    about ``sqrt(most) / 2`` edges, or about `most` with `alone`: classes are then divided by the second size only.
    """
    values = np.unique(np.append(0, task.sizes[:, 1] // unit * unit))
    if values.size <= max(1, most if alone else most**0.5 * _FEW):
        return values
    return _edges(task, 1, most if alone else max(4, round(most**0.5 / 2)), unit)


def _units(limits: NDArray[np.int64], cells: int) -> NDArray[np.int64]:
    """Return units (powers of two) for which a table up to both limits has at most `cells` numbers; int64 ``[2]``.

    Both units begin at 1. While the table is too large, one unit is doubled: the unit of the table's longer dimension.
    """
    units = np.ones(2, dtype=np.int64)
    while np.prod(limits // units + 1.0) > cells:
        units[np.argmax(limits // units)] *= 2
    return units


def _edges(task: Task, kind: int, most: int, unit: int, *, fine: bool = False) -> NDArray[np.int64]:
    """Return 0 and about `most` sizes at which classes begin (edges), as ascending multiples of `unit`; int64 ``[n]``.

    They are first sizes if `kind` is 0, second sizes if it is 1. Apart from 0, edges begin at 1/16 of the smallest
    capacity, since smaller sizes are sand. With `fine` they begin at `unit`, so that small sizes are told apart too.
    """
    limits = np.unique(task.capacities[:, kind])
    limits = limits[limits > 0]
    least = unit if fine else max(unit, int(limits[0]) // _SAND)
    own = task.sizes[:, kind]
    parts = (limits[:, None] // np.arange(1, max(2, min(_PARTS, most // (3 * limits.size))) + 1) + 1).ravel()
    small = _small(own, task.counts)
    fixed = np.concatenate([parts, (limits[:, None] + 1 - small).ravel(), small if fine else small[:0]])
    edges = np.append(fixed, _even(own, task.counts, least, max(most // 3, most - fixed.size)))
    edges = -(-edges // unit) * unit
    return np.unique(np.append(0, edges[(edges >= least) & (edges <= max(least, int(own.max(initial=1))))]))


def _small(own: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a size for each share in `_BESIDE`: about this share of all sequences have this size or a smaller one.

    There are ``counts[i]`` sequences of size ``own[i]``.
    """
    order = np.argsort(own, kind="stable")
    upto = np.cumsum(counts[order].astype(np.float64))
    found: NDArray[np.int64] = own[order][np.searchsorted(upto, np.array(_BESIDE) * upto[-1])]
    return found


def _even(own: NDArray[np.int64], counts: NDArray[np.int64], least: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` edges from `least` on, denser where there are more sequences.

    There are ``counts[i]`` sequences of size ``own[i]``. The density of edges is about proportional to the square root
    of the density of sequences. The part of a sequence beyond the edge below it is sand; these edges nearly minimise
    the total sand.
    """
    own, counts = own[own >= least], counts[own >= least]
    if most < 2 or not own.size:
        return np.zeros(0, dtype=np.int64)
    bins = np.unique(np.floor(np.geomspace(int(own.min()), int(own.max()) + 1, _BINS)).astype(np.int64))
    held = np.bincount(np.searchsorted(bins, own, side="right") - 1, counts.astype(np.float64), minlength=bins.size)
    wide = np.diff(bins, append=bins[-1] + 1)
    upto = np.cumsum(np.sqrt(held * wide))
    edges: NDArray[np.int64] = bins[np.searchsorted(upto, np.linspace(0, upto[-1], most, endpoint=False))]
    return edges
