"""A lower bound on the number of packs under limits on tokens and cost, computed from which lengths can share a pack.

Take a threshold t, and look only at sequences of length t or more. A length is *alone* if no such sequence fits beside
it, because tokens or cost would be above the limit, or because the depth is 1. Each sequence of such a length takes a
pack, and none of these packs holds another sequence of length t or more. The sequences whose lengths are not alone need
as many packs as their tokens, their cost or their number require. The bound is the sum of both numbers of packs, for
the t that makes the sum highest.

Where no length is alone, the smallest t gives the largest of ``ceil(tokens / capacity)``, ``ceil(cost / limit on
cost)`` and ``ceil(sequences / depth)``. All integers are exact.
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
    """Return a lower bound on the number of packs of any plan.

    There are ``counts[i]`` sequences of ``sizes[i]`` tokens and a cost of ``costs[i]`` each; sizes and costs ascend. A
    pack holds at most `capacity` tokens, at most a cost of `most`, and at most `depth` sequences (None: unlimited).
    Each sequence must fit into a pack by itself. All arrays are int64 ``[k]``. The result is an exact integer.

    In the example, a sequence of 6 tokens has a cost of 36, so nothing fits beside it. Five packs hold these sequences,
    and the ten others need at least one more:

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
