"""Best-fit decreasing into several capacities at once, for a few thousand sequences; `dive` uses it.

One capacity is the preferred one. Sequences come largest first. Each goes to the fullest open pack in which both sizes
of the sequence fit. If there is none, the sequence opens a pack of the preferred capacity; if it is too large for that,
it opens a pack of the cheapest capacity that holds it. In the end, each pack gets the cheapest capacity that holds its
sequences. All this is done several times: each capacity that is worth using is the preferred one once. The cheapest
result is kept. For n sequences, each result takes O(n x packs) operations of NumPy.

A `Packing` maps each pack, a tuple of indices of sizes in the task, to its number of copies.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from nopad.planning.several.task import Packing, Task

__all__ = ["MOST_FITTED", "best_fit"]

MOST_FITTED = 3000  # sequences for which this is fast enough


def best_fit(task: Task, counts: NDArray[np.int64]) -> Packing:
    """Return the cheapest of several packings of ``counts[i]`` sequences of each size i.

    Each capacity worth using is the preferred one of one packing (see the module).
    """
    return min((_prefer(task, counts, j) for j in task.by_price), key=task.price)


def _prefer(task: Task, counts: NDArray[np.int64], preferred: int) -> Packing:
    most = task.capacities.max(axis=0).clip(1)
    parts = task.sizes / most
    order = np.lexsort((parts.sum(axis=1), parts.max(axis=1)))[::-1]
    items = np.repeat(order, counts[order])
    opens = task.cheapest(task.sizes)
    opens[(task.sizes <= task.capacities[preferred]).all(axis=1)] = preferred
    free = np.empty((items.size, 2), dtype=np.int64)
    held: list[list[int]] = []
    for item in items.tolist():
        size = task.sizes[item]
        room = free[: len(held)]
        fits = np.flatnonzero((room >= size).all(axis=1))
        if fits.size:
            at = int(fits[np.argmin((room[fits] / most).sum(axis=1))])
        else:
            at = len(held)
            free[at] = task.capacities[opens[item]]
            held.append([])
        held[at].append(item)
        free[at] -= size
    return Counter(tuple(sorted(pack)) for pack in held)
