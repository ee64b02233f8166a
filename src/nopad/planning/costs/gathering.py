"""A local search on finished packs with two limits: it empties packs by filling others better.

A pack exchanges a sequence for a shorter one of another pack, so that the other pack becomes full, or nearly so; or it
gives a sequence to a pack that has room. When no such step is possible, free space is moved between packs at random,
and the search begins again. Which packs are full is decided by values of lengths, which add up to about 1 in a full
pack: the dual values of a linear program (`nopad.planning.costs.liquid`, `nopad.planning.costs.few`). Free tokens are
no loss in a pack whose cost is at its limit, and the values say so.

The search keeps to all limits: tokens, cost and depth. It proves no bound. It is the search of
`nopad.planning.optimal.gathering` with a second limit, and without handling several copies of a pack as one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopad.planning.algorithm import Strategies
from nopad.planning.costs.spread import Load
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.listed import Listed

__all__ = ["MOST_GATHERED", "gather"]

MOST_GATHERED = 2**22  # sequences, about 100 bytes each
_SCALE = 2**40  # the integer for a value of 1
_TIGHT = 1e-4  # a pack with a worth of at least 1 - _TIGHT is not emptied
_STEP, _LISTING = 7, 500  # operations per step; and per sequence, to set up the search and to read its result


def gather(strategies: Strategies, load: Load, values: NDArray[np.float64], goal: int, budget: Budget) -> Strategies:
    """Return the same sequences in fewer packs if possible, otherwise `strategies`; the search ends at `goal` packs.

    `load` has the limits of a pack. A sequence of the length ``load.lengths[i]`` takes ``load.sizes[i]`` tokens, and is
    worth ``values[i]``; float64 ``[k]``. The operations of the search are charged to `budget`. Nothing is done if the
    budget does not allow the search to begin, or for more than `MOST_GATHERED` sequences.
    """
    from nopad._bit_kernels import empty_set
    from nopad.planning.costs import _gather_kernels

    packs = Listed.of(strategies)
    n = int(packs.sizes @ packs.copies) if packs.packs <= MOST_GATHERED else MOST_GATHERED + 1
    most = (budget.most - _LISTING * n) // _STEP
    if n > MOST_GATHERED or most <= 0 or packs.packs <= goal or budget.spent():
        return strategies
    single = packs.take(np.repeat(np.arange(packs.copies.size), packs.copies))
    item = np.searchsorted(load.lengths, single.lengths)
    pack = np.empty(n, dtype=np.int32)
    limits = load.limits.copy()
    limits[2] = min(limits[2], n)
    steps = _gather_kernels.gather(
        single.lengths,
        load.sizes[item].astype(np.int32),
        np.round(values * _SCALE).astype(np.int64)[item],
        single.indptr,
        limits,
        goal,
        int(_SCALE * (1 - _TIGHT)),
        most,
        empty_set(int(single.lengths.max())),
        pack,
    )
    budget.charge(_STEP * steps + _LISTING * n)
    sizes = np.bincount(pack)
    sizes = sizes[sizes > 0]
    if sizes.size >= packs.packs:
        return strategies
    order = np.argsort(pack, kind="stable")
    return Listed(single.lengths[order], np.append(0, np.cumsum(sizes)), np.ones_like(sizes)).strategies()
