"""A local search on finished packs: the free space of many packs is gathered in few, until these can be emptied.

A pack with much free space exchanges a sequence for a shorter one of another pack, so that the other pack is then full;
or it gives a sequence to a pack in which it fits. When no such step is left, the free space is moved to other packs at
random, and the search begins again. The depth is kept: exchanges are one for one, and no pack at the depth is given a
sequence.

A plan made with rounded lengths (`nopad.planning.optimal.units`) leaves a few tokens free in every pack. From such
plans the search removes nearly all packs above the bound, at any capacity, in about ten microseconds per pack. It
proves no bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.histogram import exact_dot
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.listed import Listed

__all__ = ["gather"]

_MOST = 2**21  # sequences that are searched at a time, about 40 bytes each
_SHARE = 4_000  # operations that the budget must have for each of them
_PROGRESS = 0.8  # the search ends when a round leaves more than this share of the sequences in packs with free space
_SWEEPS, _SWEEP_SHARE = 12, 10**8  # sweeps over all packs, and one more for so many operations of the budget
_STEPS = 1_000  # most steps per sequence
_STEP = 20  # operations per step
_LISTING = 300  # operations per sequence, to set up the search and to read its result


def gather(packs: Listed, capacity: int, depth: int | None, goal: int, budget: Budget) -> Listed:
    """Return the same sequences in fewer packs, or as they are; the search ends when at most `goal` packs are left.

    If there are too many sequences to search at once, one c-th of the copies of each pack is searched, and the result
    is used c times; the packs left over by the division are searched with the result in the next round.
    """
    before = 0
    while packs.packs > goal and not budget.spent():
        room = capacity > packs.tokens
        sequences = exact_dot(packs.sizes[room], packs.copies[room])
        if before and sequences > before * _PROGRESS:
            break
        before = sequences
        most = min(_MOST, max(1, budget.left // _SHARE))
        copies = max(1, -(-sequences // most))
        part = packs.copies // copies
        open_ = np.flatnonzero(room & (part > 0))
        if copies > 1 and int(packs.sizes[open_] @ part[open_]) * 4 < most:
            break  # most packs have fewer than `copies` copies: a c-th of the plan is not like the whole
        helpers = _helpers(packs, part, np.flatnonzero(~room & (part > 0)), most // 2)
        searched = np.concatenate([open_, helpers])
        numbers = np.repeat(searched, part[searched])
        tokens = int(packs.tokens[searched] @ part[searched])
        least = goal - (packs.packs - numbers.size) if copies == 1 else -(-tokens // capacity)
        found = _search(packs.take(_shuffled(numbers)), capacity, depth, least, budget)
        left = packs.copies.copy()
        left[searched] -= part[searched] * copies
        others = np.flatnonzero(left)
        again = packs.take(others, left[others])
        packs = Listed.joined([again, Listed(found.lengths, found.indptr, found.copies * copies)])
        if copies == 1:
            break
    return packs


def _helpers(packs: Listed, part: NDArray[np.int64], full: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the longest first part of `full` (entry numbers) whose packs hold at most `most` sequences together.

    Entry e counts as ``part[e]`` packs. The search moves free space into these packs when it finds nothing else to do.
    """
    held = np.cumsum(packs.sizes[full] * part[full])
    return full[: int(np.searchsorted(held, most, side="right"))]


def _shuffled(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    from nopad import _kernels

    _kernels.shuffle(numbers, np.uint64(random.key(0, random.STREAM_WITHIN_LENGTH)))
    return numbers


def _search(packs: Listed, capacity: int, depth: int | None, goal: int, budget: Budget) -> Listed:
    """Run the compiled search on packs that occur once each; return the same sequences in at most as many packs."""
    from nopad._bit_kernels import empty_set
    from nopad.planning.optimal import _gather_kernels

    n = packs.lengths.size
    pack = np.empty(n, dtype=np.int32)
    most = min(_STEPS * n, budget.left // _STEP)
    steps = _gather_kernels.gather(
        packs.lengths,
        packs.indptr,
        capacity,
        n if depth is None else depth,
        goal,
        _SWEEPS + min(budget.left // _SWEEP_SHARE, 5 * _SWEEPS),
        most,
        empty_set(capacity),
        pack,
    )
    budget.charge(steps * _STEP + n * _LISTING)
    order = np.argsort(pack, kind="stable")
    sizes = np.bincount(pack)
    indptr = np.append(0, np.cumsum(sizes[sizes > 0]))
    return Listed(packs.lengths[order], indptr, np.ones(indptr.size - 1, dtype=np.int64))
