"""The compiled loop that checks a `CostCertificate`. It shares no code with the planner."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def most_valuable(tokens: NDArray[Any], squares: NDArray[Any], values: NDArray[Any], room: int, most: int) -> int:
    """Return the highest total value of items whose tokens add up to at most `room`, and squares to at most `most`.

    Item i, which may be used repeatedly, has ``tokens[i]`` (>= 1, ascending), ``squares[i]`` and ``values[i]``; int64.
    """
    worth = np.zeros((room + 1, most + 1), dtype=np.int64)
    for r in range(tokens[0], room + 1):
        own, above = worth[r], worth[r - 1]
        for q in range(most + 1):
            own[q] = max(own[q], above[q])
        for i in range(tokens.shape[0]):
            if tokens[i] > r:
                break
            rest, weight, value = worth[r - tokens[i]], squares[i], values[i]
            for q in range(weight, most + 1):
                own[q] = max(own[q], rest[q - weight] + value)
    return int(worth[room, most])
