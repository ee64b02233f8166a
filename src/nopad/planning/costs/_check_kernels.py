"""The compiled loop that checks a certificate of tokens and squares. It shares no code with the planner."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def most_valuable(tokens: NDArray[Any], squares: NDArray[Any], values: NDArray[Any], room: int, most: int) -> int:
    """Return the highest total of `values` in a pack of `room` and `most`; `tokens` ascend from 1 or more."""
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
