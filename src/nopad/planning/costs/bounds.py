"""The lower bound for two resources: which lengths can share a pack at all, and what the others need at least.

For a threshold t, a length l is *alone* if no length of t or above fits beside it, by tokens or by cost. Two lengths
of at least t are then never in one pack if one of them is alone, so every alone length of at least t takes a pack, and
these packs hold no other length of at least t. The lengths from t up that are not alone need as many packs as their
tokens, their cost or their number ask for. The bound is the sum, for the best t. With t = 1 and no length alone this is
``max(ceil(tokens / capacity), ceil(cost / most), ceil(sequences / depth))``. All integers are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["fewest"]


def fewest(
    sizes: NDArray[np.int64],
    costs: NDArray[np.int64],
    counts: NDArray[np.int64],
    capacity: int,
    most: int,
    depth: int | None,
) -> int:
    """Return a number of packs that no plan can go below.

    There are ``counts[i]`` sequences of ``sizes[i]`` tokens and a cost of ``costs[i]``; both ascend, and each sequence
    fits into a pack by itself: `capacity` tokens, a cost of `most`, `depth` sequences.

    >>> fewest(np.array([1, 6]), np.array([1, 36]), np.array([10, 5]), capacity=10, most=36, depth=None)
    6
    """
    if not sizes.size:
        return 0
    # int64 if no sum below can overflow; otherwise Python integers in object arrays
    total = sum(int(cost) * int(count) for cost, count in zip(costs.tolist(), counts.tolist(), strict=True))
    exact: Any = np.int64 if max(total, int(sizes[-1]) * sum(counts.tolist())) < 2**62 else object
    number, tokens, cost = (
        np.concatenate([[0], np.cumsum(counts.astype(exact) * own)]) for own in (1, sizes.astype(exact), costs)
    )
    k = sizes.size
    low = np.arange(k)
    beside = np.minimum(
        np.searchsorted(sizes, capacity - sizes, side="right"), np.searchsorted(costs, most - costs, side="right")
    )
    alone = np.maximum(low, 0 if depth == 1 else beside)
    needs = np.maximum(-((tokens[low] - tokens[alone]) // capacity), -((cost[low] - cost[alone]) // most))
    if depth is not None:
        needs = np.maximum(needs, -((number[low] - number[alone]) // depth))
    return int((number[k] - number[alone] + needs).max())
