"""A local search on finished packs: it gathers the free space of many packs in a few packs, until these can be emptied.

A pack with much free space exchanges a sequence for a shorter one from another pack, so that the other pack becomes
full or nearly full. Or it gives a sequence to a pack that has room. When no such step is possible, free space is moved
between packs at random, and the search begins again. The depth limit stays satisfied: exchanges are one for one, and a
pack at the limit gets no further sequence.

A plan made with rounded lengths (`nopad.planning.optimal.units`) leaves a few tokens free in every pack. From such
plans the search removes nearly all packs above the bound, at any capacity, in about ten microseconds per pack. The
search proves no bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.listed import Listed

__all__ = ["gather"]

_MOST = 2**21  # sequences that are searched at a time, about 40 bytes each
_SHARE, _LAST_SHARE = 0.3, 0.6  # shares of the budget left, for one level with c > 1 (see `gather`), and with c = 1
_PROGRESS = 0.3  # a level that removes less than this share of its packs above its goal is the last one
_LEVEL = 8  # c of one level, divided by c of the next
_HELPERS, _LEAST_HELPERS = 8, 2_000  # full packs that are searched too: for each pack with free space; and at least
_MOST_HELPERS = 2**18  # most sequences in these full packs
_ALIKE = 4  # most copies of the same full pack
_SWEEPS, _SWEEP_SHARE = 12, 10**8  # most sweeps: 12, and one more for each 10^8 operations left, but 72 at most
_STEPS = 1_000  # most steps per sequence
_STEP = 25  # operations per step
_LISTING = 300  # operations per sequence, to set up the search and to read its result


def gather(packs: Listed, capacity: int, depth: int | None, goal: int, budget: Budget) -> Listed:
    """Return the same sequences in fewer packs if possible, otherwise in as many; the search ends at `goal` packs.

    A pack holds at most `capacity` tokens and `depth` sequences (None: unlimited). The operations of the search are
    charged to `budget`.

    Packs with many copies are searched first: c of their copies are handled as one pack, and the result is used c
    times. The search with one value of c is a level. At the next level, c is smaller: packs that still have free space
    are searched again, together with packs that have fewer copies. The search ends after the level with c = 1, or when
    the budget is spent. It also ends when a level removes less than 30 % of the packs that it was to remove.
    """
    level = int(packs.copies[packs.tokens < capacity].max(initial=1))
    while packs.packs > goal and not budget.spent():
        budget.charge(_LISTING * packs.copies.size)
        chosen = _chosen(packs, capacity, level)
        searched = np.flatnonzero(chosen)
        numbers = np.repeat(searched, chosen[searched])
        if numbers.size:
            tokens = int(packs.tokens[searched] @ chosen[searched])
            least = max(-(-tokens // capacity), -(-(goal - packs.packs) // level) + numbers.size)
            with budget.part(_LAST_SHARE if level == 1 else _SHARE):
                found = _search(packs.take(_shuffled(numbers)), capacity, depth, least, budget)
            left = packs.copies - chosen * level
            others = np.flatnonzero(left)
            packs = Listed.joined([packs.take(others, left[others]), found.take(np.arange(found.packs), level)])
            if numbers.size - found.packs < _PROGRESS * (numbers.size - least):
                break
        if level == 1:
            break
        level = max(1, level // _LEVEL)
    return packs


def _chosen(packs: Listed, capacity: int, level: int) -> NDArray[np.int64]:
    """Return how often each entry of `packs` is searched, at most ``copies // level`` times; int64 ``[entries]``.

    `level` is the c of `gather`: this many copies of a pack are handled as one.

    Packs with free space are searched, up to `_MOST` sequences in total. Some full packs, drawn at random, are searched
    too: the search moves free space into them when it finds nothing else to do.
    """
    chosen = packs.copies // level
    full = np.flatnonzero((packs.tokens == capacity) & (chosen > 0))
    helpers = np.minimum(chosen[full], _ALIKE)
    chosen[full] = 0
    chosen[np.cumsum(packs.sizes * chosen) > _MOST] = 0
    order = _shuffled(np.arange(full.size))
    wanted = max(_LEAST_HELPERS, _HELPERS * int(chosen.sum()))
    order = order[: int(np.searchsorted(np.cumsum(helpers[order]), wanted, side="right"))]
    order = order[np.cumsum((packs.sizes[full] * helpers)[order]) <= _MOST_HELPERS]
    chosen[full[order]] = helpers[order]
    return chosen


def _shuffled(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Shuffle `numbers` in place with a fixed seed, and return them."""
    from nopad import _kernels

    _kernels.shuffle(numbers, np.uint64(random.key(0, random.STREAM_WITHIN_LENGTH)))
    return numbers


def _search(packs: Listed, capacity: int, depth: int | None, goal: int, budget: Budget) -> Listed:
    """Run the compiled search on packs with one copy each; return the same sequences in at most as many packs.

    A sweep is one pass over all packs. The search ends at `goal` packs, when sweeps stop helping, or after a limited
    number of steps and sweeps, which is smaller if little budget is left.
    """
    from nopad._bit_kernels import empty_set
    from nopad.planning.optimal import _gather_kernels

    n = packs.lengths.size
    pack = np.empty(n, dtype=np.int32)
    most = min(_STEPS * n, budget.most // _STEP)
    steps = _gather_kernels.gather(
        packs.lengths,
        packs.indptr,
        capacity,
        n if depth is None else depth,
        goal,
        _SWEEPS + min(budget.most // _SWEEP_SHARE, 5 * _SWEEPS),
        most,
        empty_set(capacity),
        pack,
    )
    budget.charge(steps * _STEP + n * _LISTING)
    order = np.argsort(pack, kind="stable")
    sizes = np.bincount(pack)
    indptr = np.append(0, np.cumsum(sizes[sizes > 0]))
    return Listed(packs.lengths[order], indptr, np.ones(indptr.size - 1, dtype=np.int64))
