"""The compiled loop that checks a certificate. Written apart from the solver's: it must not share its mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def most_valuable(lengths: NDArray[Any], values: NDArray[Any], capacity: int) -> int:
    """Return the most that any number of lengths (ascending, each as often as wanted) of one pack are worth."""
    worth = np.zeros(capacity + 1, dtype=np.int64)  # worth[room]
    for room in range(lengths[0], capacity + 1):
        best = worth[room - 1]
        for i in range(lengths.shape[0]):
            if lengths[i] > room:
                break
            best = max(best, worth[room - lengths[i]] + values[i])
        worth[room] = best
    return int(worth[capacity])
