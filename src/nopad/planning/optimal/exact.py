"""Exact solutions of small inputs: an integer program over all patterns that fill a pack as far as they can.

Column generation ends within one pack of the optimum. For a few dozen sequences every pattern can be listed, and the
integer program over all of them is the packing problem itself.
"""

from __future__ import annotations

from collections import Counter

import highspy
import numpy as np

from nopad.planning.optimal.pricing import Items, Pattern
from nopad.planning.optimal.rounding import Packing, fill_demand

__all__ = ["all_patterns", "pack_exactly"]

MOST_PATTERNS = 5_000
_NODES = 10_000  # of the branch-and-bound tree: a budget that does not depend on the machine


def all_patterns(items: Items, most: int = MOST_PATTERNS) -> list[Pattern] | None:
    """Return all patterns to which no item can be added, by room or depth; None if there are more than `most`."""
    sizes, demand = items.sizes.tolist(), items.demand.tolist()
    found: list[Pattern] = []

    def extend(held: list[int], item: int, room: int) -> bool:
        fits = [i for i in range(len(sizes)) if sizes[i] <= room and held.count(i) < demand[i]]
        if not fits or len(held) == items.depth:
            found.append(tuple(held))
            return len(found) <= most
        return all(extend([*held, i], i, room - sizes[i]) for i in reversed(fits) if i <= item)

    return found if extend([], len(sizes) - 1, items.capacity) else None


def pack_exactly(items: Items) -> Packing | None:
    """Return a packing in as few packs as possible; None if there are too many patterns or HiGHS finds no optimum."""
    patterns = all_patterns(items)
    if patterns is None:
        return None
    model = highspy.Highs()
    for name, value in {"output_flag": False, "threads": 1, "random_seed": 0, "mip_max_nodes": _NODES}.items():
        model.setOptionValue(name, value)
    k, none = items.sizes.size, np.empty(0, dtype=np.int32)
    model.addRows(k, items.demand.astype(float), np.full(k, highspy.kHighsInf), 0, none, none, np.empty(0))
    for pattern in patterns:
        amounts = Counter(pattern)
        model.addCol(
            1.0, 0.0, highspy.kHighsInf, len(amounts), np.array(list(amounts), dtype=np.int32), list(amounts.values())
        )
    every = np.arange(len(patterns), dtype=np.int32)
    model.changeColsIntegrality(every.size, every, np.full(every.size, highspy.HighsVarType.kInteger))
    model.run()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    times = np.round(np.array(model.getSolution().col_value)).astype(np.int64)
    return fill_demand(patterns, times, items.demand)
