"""Choose how many packs of each pattern to use, so that they hold each item as often as demanded: an integer program.

This is for few items with many copies each. `cover` chooses one pack after another, and can hardly prove that there is
no choice; branch and bound counts packs, and decides such small programs in milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import highspy
import numpy as np
from numpy.typing import NDArray

from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.pricing import Pattern
from nopad.planning.optimal.rounding import Packing
from nopad.planning.optimal.solver import columns_of, new_model, run

__all__ = ["times_of"]

_MOST_CELLS = 6_000  # most items x patterns of a program; the root of such a program takes at most 0.1 s
_MOST_NODES = 100
_ROOT_STEPS, _NODE_STEPS = 10_000, 1_000  # operations per item and pattern: of the root, of each node


def times_of(
    patterns: Sequence[Pattern], losses: NDArray[np.int64], demand: NDArray[np.int64], most_loss: int, budget: Budget
) -> tuple[Packing | None, bool]:
    """Search for a packing that holds item i exactly ``demand[i]`` times, and return ``(packing, decided)``.

    Each of `patterns`, tuples of item numbers, may be used any number of times. ``losses[p]`` is the loss of one use of
    pattern p. The losses of all packs together may be at most `most_loss`.

    The result is one of these:

    * ``(packing, True)``: such a packing, ``{pattern: number of packs}``
    * ``(None, True)``: no such packing exists
    * ``(None, False)``: nothing is known, since the program was too large for this method or for the budget, the solver
      gave up after at most 100 nodes, or the solver's solution is wrong by rounding
    """
    k, m = demand.size, len(patterns)
    cells = k * m
    nodes = min(_MOST_NODES, (budget.most // max(cells, 1) - _ROOT_STEPS) // _NODE_STEPS)
    if cells > _MOST_CELLS or nodes < 1:
        return None, False
    model = new_model(mip_max_nodes=nodes)
    none, exact = np.empty(0, dtype=np.int32), demand.astype(float)
    model.addRows(k, exact, exact, 0, none, none, np.empty(0))
    starts, rows, values = columns_of(patterns)
    often = np.full(m, float(demand.max()))
    model.addCols(m, np.zeros(m), np.zeros(m), often, rows.size, starts, rows, values)
    losing = np.flatnonzero(losses).astype(np.int32)
    model.addRow(-highspy.kHighsInf, float(most_loss), losing.size, losing, losses[losing].astype(float))
    model.changeColsIntegrality(m, np.arange(m, dtype=np.int32), np.full(m, highspy.HighsVarType.kInteger))
    run(model)
    budget.charge(cells * (_ROOT_STEPS + _NODE_STEPS * max(0, model.getInfo().mip_node_count)))
    status = model.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None, True
    if status != highspy.HighsModelStatus.kOptimal:
        return None, False
    times = np.round(np.array(model.getSolution().col_value)).astype(np.int64)
    packing: Packing = Counter({pattern: int(n) for pattern, n in zip(patterns, times, strict=True) if n > 0})
    right = _holds(packing, demand) and int(times @ losses) <= most_loss  # the solver counts in floating point
    return (packing, True) if right else (None, False)


def _holds(packing: Packing, demand: NDArray[np.int64]) -> bool:
    """Return whether a packing, ``{pattern: number of packs}``, holds item i exactly ``demand[i]`` times."""
    held: Counter[int] = Counter()
    for pattern, count in packing.items():
        for item in pattern:
            held[item] += count
    return held == Counter(dict(enumerate(demand.tolist())))
