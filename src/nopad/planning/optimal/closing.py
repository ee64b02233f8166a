"""Remove the last packs that a plan has above its lower bound, by choosing among all patterns that are good enough.

An item stands for all sequences of one length, and a pattern is a multiset of items that fits into a pack. The dual
values of the linear program give every item a value. A pattern is worth the sum of its items' values. Let M be an upper
bound on the value of any pattern, W the sum of the values of all items, and T the number of packs that is wanted. The
loss of a pattern is M minus its value. In a plan of T packs, the losses add up to ``L = T * M - W``, so the loss of
each pack is at most L. If only few patterns have so small a loss, all of them are listed, and `times_of` or `cover`
looks for a choice that holds all items, with a total loss of at most L. In a large plan only some packs are packed
again in this way: some with free space and some full ones (`residuals`).

A packing maps each pattern (a tuple of item numbers, largest first) to its number of packs.

Source: reduced-cost fixing, as in Belov and Scheithauer, "A branch-and-cut-and-price algorithm for one-dimensional
stock cutting", 2006.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.histogram import Histogram, exact_dot
from nopad.planning.optimal.budget import NEAR, Budget
from nopad.planning.optimal.counting import times_of
from nopad.planning.optimal.cover import cover
from nopad.planning.optimal.listed import Listed
from nopad.planning.optimal.master import Master
from nopad.planning.optimal.pricing import Items, Pattern
from nopad.planning.optimal.rounding import Packing, best_fit, dive
from nopad.planning.optimal.search import relax

__all__ = ["close", "close_full", "pack_again", "patterns_above", "residuals"]

_MOST_PATTERNS = 20_000  # most patterns that are listed
_MOST_ITEMS = 2**22  # most items in all listed patterns together
_MOST_TABLE = 2**27  # most entries of the knapsack table, 8 bytes each
_SEARCHED = 2 * 10**7  # most steps of listing patterns
_SEARCH_STEP = 13  # operations of such a step
_COVERING, _MOST_COVERING = 0.3, 2 * 10**9  # share of the budget for one search of a cover; its most operations
_OPEN = 30  # most packs with free space that are packed again together
_FULL = (10, 20, 40, 80, 20, 40, 80)  # full packs that are packed again with these: one number for each attempt
_ROW_STEPS = 100  # operations per entry of a `Listed`, to divide it in two and to join the parts again
_WHOLE = 400  # a plan of at most this many packs is packed again as a whole, in the last attempt


def close(items: Items, target: int, budget: Budget, *, turn: int = 0) -> Packing | None:
    """Return a packing of all items into at most `target` packs; None if none was found.

    First, a linear program is solved and rounded by one dive (`nopad.planning.optimal.rounding`). If this gives more
    packs than `target`, packs are chosen among good patterns (`times_of` or `cover`). The result is also None if the
    linear program proves that `target` packs are too few, or if the budget ends first. `turn`, >= 0, is the seed of the
    random choices.

    Raises:
        SolverError: HiGHS gave up on a linear program.
    """
    master = Master(items)
    master.add(best_fit(items, items.demand))
    relaxed = relax(master, budget)
    if relaxed is None or relaxed.bound > target:
        return None
    dived = dive(master, relaxed.times, target, budget)
    if dived.total() <= target or budget.spent():
        return dived if dived.total() <= target else None
    by_value, by_size = (relaxed.values, relaxed.most), (items.sizes, items.capacity)
    values, most = min(by_value, by_size, key=lambda of: _loss(items, target, *of) / of[1])
    return _covered(items, target, values, most, budget, turn)


def close_full(items: Items, target: int, budget: Budget) -> Packing | None:
    """Return a packing of all items into at most `target` packs, found without dual values; None if none was found.

    This is for nearly full packs: with `target` packs, less than one token per pack is free on average. The sizes serve
    as the values of the items, and all patterns that are full enough are listed. Dual values would hardly tell these
    patterns apart.

    Nothing is tried in three cases: one token or more per pack would be free, `target` packs cannot hold the items, or
    the budget is too small.
    """
    if items.steps() > budget.most * _COVERING or not 0 <= _loss(items, target, items.sizes, items.capacity) < target:
        return None
    return _covered(items, target, items.sizes, items.capacity, budget, turn=0)


def _loss(items: Items, target: int, values: NDArray[np.int64], most: int) -> int:
    """Return the total loss of `target` packs that hold all items, as the module defines it, with `most` for M.

    ``values[i]`` is the value of item i; int64 ``[k]``. A result below 0 means that so few packs cannot hold the items.
    """
    return target * most - exact_dot(values, items.demand)


def _covered(
    items: Items, target: int, values: NDArray[np.int64], most: int, budget: Budget, turn: int
) -> Packing | None:
    """Return a packing of all items into at most `target` packs by `times_of` or `cover`; None if none was found.

    ``values[i]`` is the value of item i, int64 ``[k]``; no pattern is worth more than `most`. `turn`, >= 0, is the seed
    of the random choices.
    """
    loss = _loss(items, target, values, most)
    patterns = patterns_above(items, values, most - loss, budget)
    if not patterns:
        return None
    worth = np.fromiter((int(values[list(pattern)].sum()) for pattern in patterns), np.int64, len(patterns))
    with budget.part(_COVERING), budget.at_most(_MOST_COVERING):
        packing, decided = times_of(patterns, most - worth, items.demand, loss, budget)
        return packing if decided else cover(patterns, most - worth, items.demand, loss, target, budget, turn=turn)


def patterns_above(items: Items, values: NDArray[np.int64], least: int, budget: Budget) -> list[Pattern] | None:
    """Return all patterns that are worth at least `least` and hold no item more often than its demand.

    A pattern is a tuple of item numbers, worth the sum of their `values` (int64 ``[k]``). The result is None if there
    are more than 20,000 patterns, if they hold more than 2^22 items together, or if listing them takes too many
    operations or too much memory.
    """
    from nopad.planning.optimal import _kernels

    shape = (2 if items.unlimited else items.depth + 1, items.capacity + 1)
    if shape[0] * shape[1] > _MOST_TABLE or items.steps() > budget.most:
        return None
    table = np.empty(shape, dtype=np.int64)
    _kernels.knapsack(items.sizes, values, items.unlimited, table)
    flat = np.empty(min(_MOST_ITEMS, _MOST_PATTERNS * items.depth), dtype=np.int32)
    ends = np.empty(_MOST_PATTERNS + 1, dtype=np.int64)
    steps = max(1, min(_SEARCHED, budget.most // _SEARCH_STEP))
    found, taken = _kernels.patterns_above(
        items.sizes, items.demand, values, items.depth, items.unlimited, table, least, steps, flat, ends
    )
    budget.charge(items.steps() + taken * _SEARCH_STEP)
    if found < 0:
        return None
    held, cuts = flat[: ends[found]].tolist(), ends[: found + 1].tolist()
    return [tuple(held[cuts[p] : cuts[p + 1]]) for p in range(found)]


def pack_again(packs: Listed, capacity: int, depth: int | None, bound: int, budget: Budget) -> Listed | None:
    """Return a packing of the same sequences in fewer packs; None if none is found.

    Nothing is tried for a plan more than `NEAR` (64) packs above `bound`. A plan of at most 400 packs is first tried as
    a whole, by `close_full`. Then parts of the plan (`residuals`) are tried by `close`, one after another, until one of
    them needs fewer packs or the budget is spent. Usually the result has one pack fewer.

    Raises:
        SolverError: HiGHS gave up on a linear program.
    """
    if packs.packs > bound + NEAR:
        return None
    if packs.packs <= _WHOLE:
        histogram, items = _items(packs, capacity, depth)
        packing = close_full(items, bound, budget)
        if packing is not None:
            return _listed(packing, histogram)
    for turn, (inside, outside) in enumerate(residuals(packs, capacity)):
        if budget.spent():
            break
        histogram, items = _items(inside, capacity, depth)
        budget.charge(_ROW_STEPS * packs.copies.size)
        packing = close(items, inside.packs - 1, budget, turn=turn)
        if packing is not None:
            return Listed.joined([outside, _listed(packing, histogram)])
    return None


def _items(packs: Listed, capacity: int, depth: int | None) -> tuple[Histogram, Items]:
    """Return the sequences of `packs` as ``(histogram, items)``; item i has the i-th length of the histogram."""
    histogram = Histogram.from_lengths(np.repeat(packs.lengths, np.repeat(packs.copies, packs.sizes)))
    return histogram, Items.of(histogram.lengths, histogram.counts, capacity, depth)


def _listed(packing: Packing, histogram: Histogram) -> Listed:
    """Return a packing of items as packs of lengths; item i is the i-th distinct length of `histogram`."""
    lengths = histogram.lengths.tolist()
    return Listed.of([(count, tuple(lengths[item] for item in pattern)) for pattern, count in packing.items()])


def residuals(packs: Listed, capacity: int) -> Iterator[tuple[Listed, Listed]]:
    """Yield several ways to divide packs into ``(inside, outside)``: the packs to pack again, and all others.

    The packs inside are at most 30 packs with free space, the emptiest first, and up to 80 random full packs. If there
    are at most 400 packs, one more way comes last: all packs are inside.
    """
    from nopad import _kernels

    free = capacity - packs.tokens
    open_ = np.flatnonzero(free > 0)
    open_ = open_[np.argsort(-free[open_], kind="stable")]
    full = np.flatnonzero(free == 0)
    for turn, wanted in enumerate(_FULL):
        chosen = np.zeros_like(packs.copies)
        copies = np.minimum(packs.copies[open_], _OPEN)
        chosen[open_] = np.minimum(copies, np.maximum(0, _OPEN - np.append(0, np.cumsum(copies))[:-1]))
        _kernels.shuffle(full, np.uint64(random.key(turn, random.STREAM_WITHIN_LENGTH)))
        chosen[full[:wanted]] = 1
        inside, outside = np.flatnonzero(chosen), np.flatnonzero(packs.copies > chosen)
        yield packs.take(inside, chosen[inside]), packs.take(outside, (packs.copies - chosen)[outside])
    if packs.packs <= _WHOLE:
        yield packs, packs.take(outside[:0])
