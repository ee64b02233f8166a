"""`plan_several` and `pack_several`, the entry points: they check the arguments and the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.errors import LengthError, OptionError
from nopad.histogram import Histogram, integers
from nopad.planning.several.bounds import price_bound
from nopad.planning.several.given import (
    EFFORT,
    MOST_SEQUENCES,
    Capacity,
    Price,
    check_capacities,
    check_depth,
    check_prices,
    distinct,
    histogram_columns,
    shown,
    task_of,
    two_columns,
)
from nopad.planning.several.plan import SeveralPlan
from nopad.planning.several.task import Task

if TYPE_CHECKING:
    from nopad.packs import Packs
    from nopad.planning.several.search import Found

__all__ = ["pack_several", "plan_several"]

_MISMATCH = {
    1: "the sequences have one size each, and a capacity of {0} two limits: give sizes [n, 2], or one limit, {1}",
    2: "the sequences have two sizes each, and a capacity of {0} one limit: give pairs of limits",
}


def plan_several(
    sizes: Histogram | ArrayLike,
    capacities: Any,
    prices: Any = None,
    *,
    counts: ArrayLike | None = None,
    depth: int | None = None,
    effort: int = 3,
) -> SeveralPlan:
    """Plan packs of several capacities, so that the total price of all packs is low.

    Use this for training with several row lengths, where a long row costs more than a short one. Or use it if a pack
    has two limits at once ("two kinds of size"), such as tokens and images, or nodes and edges.

    Args:
        sizes: the length of each sequence in tokens, integers ``[n]`` of any int dtype, from 1 to 2^31 - 1; or a
            `Histogram` of them. For two kinds of size, integers ``[n, 2]``; the second size may be 0.
        capacities: the most that a pack of each capacity may hold; integers ``[K]``, or ``[K, 2]`` for two kinds of
            size; K is at most 64.
        prices: what one pack of each capacity costs, such as seconds per step; numbers ``[K]`` from 1e-100 to 1e100, at
            most a factor of 10^9 apart. A float stands for the decimal that Python prints. None: a single capacity
            costs 1. With one kind of size, each of several capacities costs its number of tokens, so that the plan has
            few slots (tokens and padding) in total. With two kinds of size, several capacities need prices.
        counts: number of sequences of each size in `sizes`; integers ``[n]``, >= 0. None: one of each. Not allowed with
            a `Histogram`.
        depth: most sequences that a pack may hold; None: unlimited. Only for one kind of size.
        effort: the budget of the search, in seconds of an ordinary core; an integer >= 0. It is counted in operations,
            so the plan is the same on every machine.

    Returns:
        The cheapest plan that was found, with a proven lower bound on the price of any plan.

    Raises:
        LengthError: one of these:

            * a size or count is not an integer or is out of range, or `sizes` have another shape
            * there is not one count for each size, or `counts` are given with a `Histogram`
            * a sequence fits into no capacity
            * there are more than 2^62 sequences
            * there are more than 2^20 distinct sizes, and several capacities or two kinds of size
        OptionError: capacities, prices, depth or effort have an invalid value, or do not match each other or `sizes`.

    Source: Gilmore and Gomory 1961 (column generation); `docs/internals/algorithms.md` describes the method.

    >>> import nopad
    >>> plan = nopad.plan_several([9, 7, 3, 2, 2], capacities=[8, 16], prices=[1, 2.5])
    >>> plan.packs, plan.price, plan.lower_bound
    ({8: 1, 16: 1}, 3.5, 3.5)
    >>> nopad.plan_several([[5, 1], [4, 0], [3, 2]], capacities=[8, 2]).packs
    Traceback (most recent call last):
    nopad.errors.OptionError: the sequences have two sizes each, and a capacity of 8 one limit: give pairs of limits
    """
    limits = check_capacities(capacities)
    costs = check_prices(prices, limits)
    depth, effort = check_depth(depth, len(limits[0])), EFFORT.check("effort", effort)
    if isinstance(sizes, Histogram):
        if counts is not None:
            raise LengthError("a histogram has counts of its own; give sizes and counts, or a histogram")
        own, number, kinds = *histogram_columns(sizes), 1
    else:
        given, kinds = two_columns(sizes)
        own, at = distinct(given)
        number = np.zeros(len(own), dtype=np.int64)
        np.add.at(number, at, _counted(counts, len(given)))
        own, number = own[number > 0], number[number > 0]
    if len(own) and kinds != len(limits[0]):
        raise OptionError(_MISMATCH[kinds].format(shown(limits[0]), limits[0][0]))
    task = task_of(own, number, limits, costs, depth)
    from nopad.planning.several.search import search  # this imports the solver

    plan = _plan_of(task, limits, costs, depth, search(task, effort))
    _check_made(plan, task)
    return plan


def pack_several(
    sizes: ArrayLike,
    capacities: Any,
    prices: Any = None,
    *,
    depth: int | None = None,
    effort: int = 3,
    seed: int = 0,
) -> dict[Any, Packs]:
    """Plan packs of several capacities, and assign each sequence to a pack; return ``{capacity: Packs}``.

    Packs hold positions in `sizes`. A capacity is an integer, or a pair of integers for two kinds of size. This is
    short for ``plan_several(...).assign(sizes, seed=seed)``; `plan_several` says more about the arguments.

    Args:
        sizes: the length of each sequence in tokens, integers ``[n]``; for two kinds of size, integers ``[n, 2]``. A
            `Histogram` is not allowed.
        capacities: the most that a pack of each capacity may hold; integers ``[K]``, or ``[K, 2]`` for two kinds of
            size.
        prices: what one pack of each capacity costs; numbers ``[K]``. None: a single capacity costs 1. With one kind
            of size, each of several capacities costs its number of tokens; with two kinds, they need prices.
        depth: most sequences that a pack may hold; None: unlimited. Only for one kind of size.
        effort: the budget of the search, in seconds of an ordinary core; an integer >= 0.
        seed: seed of the random choices of `SeveralPlan.assign`, from 0 to 2^64 - 1.

    Raises:
        LengthError: `sizes` are not integers, have another shape or are out of range; a sequence fits into no capacity;
            or there are too many distinct sizes.
        OptionError: another argument has an invalid value, or arguments do not match each other or `sizes`.

    In the example, the sequences of 9 and 7 tokens share the only pack of 16 tokens:

    >>> import nopad
    >>> packs = nopad.pack_several([9, 7, 3, 2, 2], capacities=[8, 16], prices=[1, 2.5])
    >>> sorted(sorted(pack.tolist()) for pack in packs[16])
    [[0, 1]]
    """
    return plan_several(sizes, capacities, prices, depth=depth, effort=effort).assign(sizes, seed=seed)


def _counted(counts: ArrayLike | None, n: int) -> NDArray[np.int64]:
    """Return `counts` after a check, int64 ``[n]``; if `counts` is None, an array of ones.

    Raises:
        LengthError: `counts` are not n integers from 0 to 2^62, or add up to more than 2^62.
    """
    if counts is None:
        return np.ones(n, dtype=np.int64)
    checked = integers(counts, "counts")
    if checked.shape != (n,):
        raise LengthError(f"there are {n:,} sizes and {checked.size:,} counts; give one for each")
    if n and not 0 <= int(checked.min()) <= int(checked.max()) <= MOST_SEQUENCES:
        i = int(np.argmax((checked < 0) | (checked > MOST_SEQUENCES)))
        raise LengthError(f"counts are integers from 0 to {MOST_SEQUENCES:,}, got {int(checked[i])} at index {i}")
    if sum(checked.tolist()) > MOST_SEQUENCES:
        raise LengthError(f"more than {MOST_SEQUENCES:,} sequences are too many: plans are exact up to this number")
    return checked.astype(np.int64)


def _unused(task: Task, capacities: tuple[Capacity, ...]) -> tuple[str, ...]:
    """Return a note for each capacity that is never worth using, since another one holds as much and costs no more."""
    found = []
    for j in range(len(capacities)):
        if j not in task.by_price:
            i = int(task.cheapest(task.capacities[j][None])[0])
            names = shown(capacities[j]), shown(capacities[i])
            found.append("the capacity {} is not used: {} holds as much and costs no more".format(*names))
    return tuple(found)


def _plan_of(
    task: Task,
    capacities: tuple[Capacity, ...],
    prices: tuple[Price, ...],
    depth: int | None,
    found: Found,
) -> SeveralPlan:
    """Return the plan of the packing in `found`.

    Its strategies are sorted by capacity, in the order of `capacities`; those of one capacity are sorted by their
    sizes, in descending order.
    """
    packs = list(found.packing)
    used = task.capacity_of(packs).tolist()
    order = sorted(range(len(packs)), key=lambda p: packs[p][::-1], reverse=True)
    order.sort(key=used.__getitem__)
    flat = np.array([item for p in order for item in reversed(packs[p])], dtype=np.int64)
    return SeveralPlan(
        capacities=capacities,
        prices=prices,
        depth=depth,
        indptr=np.cumsum([0, *(len(packs[p]) for p in order)], dtype=np.int64),
        sizes=task.sizes[flat][:, : task.kinds],
        counts=np.array([found.packing[packs[p]] for p in order], dtype=np.int64),
        used=np.array([used[p] for p in order], dtype=np.int64),
        bound=price_bound(task, found.certificate),
        notes=_unused(task, capacities) + found.notes,
    )


def _check_made(plan: SeveralPlan, task: Task) -> None:
    """Check a plan before it is returned.

    Every sequence of `task` must be packed once, every pack must keep to its capacity and the depth, and the price must
    not be below the lower bound.

    Raises:
        RuntimeError: the plan fails this check, which is a bug of the search.
    """
    made = plan.task
    covered = np.array_equal(made.sizes, task.sizes) and np.array_equal(made.counts, task.counts)
    sums = np.add.reduceat(plan.sizes, plan.indptr[:-1], axis=0) if plan.counts.size else plan.sizes
    fits = (sums <= np.array(plan.capacities, dtype=np.int64)[plan.used]).all()
    deep = plan.depth is not None and int(np.diff(plan.indptr).max(initial=0)) > plan.depth
    if not covered or not fits or deep or plan.whole_price < plan.bound.price:
        raise RuntimeError("the search made a plan that does not pack these sequences; please report it")
