"""The compiled loop that checks a certificate of prices. It shares no code with the planner, and so no mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def most_valuable(sizes: NDArray[Any], values: NDArray[Any], rooms: int, places: int) -> Any:
    """Return ``worth[r, p]``, the highest total of `values` within two limits, up to `rooms` and `places`.

    `sizes` ``[m, 2]`` ascend in the first; none is 0 in both; each may be used repeatedly.
    """
    worth = np.zeros((rooms + 1, places + 1), dtype=np.int64)
    for r in range(rooms + 1):
        own = worth[r]
        fitting = np.searchsorted(sizes[:, 0], r, side="right")
        for i in range(fitting - 1, -1, -1):  # those of size 0 last: they build on this very row
            rest, place, value = worth[r - sizes[i, 0]], sizes[i, 1], values[i]
            for p in range(place, places + 1):
                own[p] = max(own[p], rest[p - place] + value)
    return worth
