"""The compiled loops of the studies: two published ways to pack for ranks, as simple simulations.

Conventions as in `nopad._kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def first_fit_in_bins(lengths: NDArray[Any], capacity: int, bins: int, pack_of: NDArray[Any]) -> int:
    """Put each sequence into the first of a few open packs that has room; set its pack, return the number of packs.

    When a sequence fits into none, all are handed out and as many opened.
    """
    room = np.full(bins, capacity, dtype=np.int64)
    first = 0
    for i in range(lengths.shape[0]):
        chosen = -1
        for b in range(bins):
            if room[b] >= lengths[i]:
                chosen = b
                break
        if chosen < 0:
            for b in range(bins):
                room[b] = capacity
            first += bins
            chosen = 0
        room[chosen] -= lengths[i]
        pack_of[i] = first + chosen
    return first + bins


@njit(cache=True, nogil=True)
def worst_fit(lengths: NDArray[Any], capacity: int, packs: int, pack_of: NDArray[Any]) -> int:
    """Put each sequence into the emptiest pack, or a new one if it has no room; return the number of packs.

    `packs` are open from the start.
    """
    room = np.full(lengths.shape[0] + packs, capacity, dtype=np.int64)
    for i in range(lengths.shape[0]):
        chosen = 0
        for p in range(packs):
            if room[p] > room[chosen]:
                chosen = p
        if room[chosen] < lengths[i]:
            chosen = packs
            packs += 1
        room[chosen] -= lengths[i]
        pack_of[i] = chosen
    return packs
