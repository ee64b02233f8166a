"""A local search on finished packs: the free space of many packs is gathered in few, until these can be emptied.

A pack with much free space gives a sequence away and takes a shorter one in return, so that the other pack is full
afterwards; or it gives a sequence to a pack in which it fits. When nothing more can be done, the free space is moved to
other packs at random, and the search begins again. Depth is respected: exchanges are one for one.

On plans made in units, which are a few tokens short of full in every pack, this removes nearly all of the packs above
the bound, at any capacity, in about ten microseconds per pack. It proves nothing.
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
_SHARE = 4_000  # operations of the budget for each of them
_PROGRESS = 0.8  # share of these sequences that may be left over, or the search ends
_SWEEPS, _SWEEP_SHARE = 12, 10**8  # sweeps over all packs, and one more for each such part of the budget
_STEPS = 1_000  # most steps per sequence
_STEP = 20  # operations per step
_LISTING = 300  # operations per sequence


def gather(packs: Listed, capacity: int, depth: int | None, goal: int, budget: Budget) -> Listed:
    """Return the same sequences in fewer packs; the search ends when no more than `goal` are left.

    Packs with many copies are searched as a part that stands for all; what is left over of the copies is searched again
    as a whole.
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
            break  # nearly all packs differ: no part stands for the whole
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
    """Return full packs that take part, since random exchanges need them: at most `most` sequences."""
    held = np.cumsum(packs.sizes[full] * part[full])
    return full[: int(np.searchsorted(held, most, side="right"))]


def _shuffled(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    from nopad import _kernels

    _kernels.shuffle(numbers, np.uint64(random.key(0, random.STREAM_WITHIN_LENGTH)))
    return numbers


def _search(packs: Listed, capacity: int, depth: int | None, goal: int, budget: Budget) -> Listed:
    """Search packs of which each occurs once."""
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
