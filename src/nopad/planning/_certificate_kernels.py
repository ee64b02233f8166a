"""The compiled loop that checks a `Certificate`. It shares no code with the solver, and so no mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def most_valuable(lengths: NDArray[Any], values: NDArray[Any], capacity: int) -> int:
    """Return the highest total value of lengths that add up to at most `capacity`.

    ``lengths[i]`` (ascending, each usable repeatedly) is worth ``values[i]``; both int64.
    """
    worth = np.zeros(capacity + 1, dtype=np.int64)  # worth[room]
    for room in range(lengths[0], capacity + 1):
        best = worth[room - 1]
        for i in range(lengths.shape[0]):
            if lengths[i] > room:
                break
            best = max(best, worth[room - lengths[i]] + values[i])
        worth[room] = best
    return int(worth[capacity])
