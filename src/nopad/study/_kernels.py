"""Compiled loops of the studies: simple simulations of two published ways to pack sequences for ranks.

As in `nopad._kernels`, arguments are plain arrays, and callers validate them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def first_fit_in_bins(lengths: NDArray[Any], capacity: int, bins: int, pack_of: NDArray[Any]) -> int:
    """Put each sequence into the first of `bins` open packs that has room; return the number of packs opened.

    The pack of each sequence is written to `pack_of`. If a sequence fits into no open pack, all open packs are closed
    and the same number of new ones is opened. So the result counts packs that stayed empty too.
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
    """Put each sequence into the emptiest pack, or into a new one if it does not fit there; return the number of packs.

    The pack of each sequence is written to `pack_of`. `packs`, at least 1, is the number of packs that are open from
    the start; they are counted even if they stay empty.
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
