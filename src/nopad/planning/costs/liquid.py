"""Values of lengths from a linear program in which the longest sequence of a pack is whole, and the rest is liquid.

A pack has one longest sequence; the free tokens, cost and places beside this sequence are filled with any amounts of
sequences that are not longer, whole or not. So there is no list of patterns: one small linear program over some lengths
(`Knots`) is enough. If all lengths are knots, its optimum is at most the number of packs of any plan; with fewer knots,
this holds up to small errors. The optimum is nearly the fewest packs possible if each pack has one long sequence and
many short ones. If the longest sequence takes nearly all the cost of a pack, the program knows that only short
sequences are cheap enough to fill the pack.

Source: the linear relaxation of assignment formulations, where a bin is named by its largest item, as in Valerio de
Carvalho, "LP models for bin packing and cutting stock problems", 2002.
"""

from __future__ import annotations

import highspy
import numpy as np
from numpy.typing import NDArray

from nopad.planning.costs.knots import Knots
from nopad.planning.costs.spread import UNLIMITED, Load
from nopad.planning.optimal.budget import Budget

__all__ = ["liquid"]

_KNOTS, _ROUGH = 140, 60  # number of knots, with and without `exact`
_LEAST = 2 * 10**8  # operations of a usual program: it is not begun with fewer


def liquid(load: Load, budget: Budget, *, exact: bool) -> NDArray[np.float64] | None:
    """Return a value for each length of `load`, float64 ``[k]``; or None if the budget ends first, or the solver fails.

    The values of the sequences in a pack add up to at most about 1. With `exact`, there are more knots, some of them
    dense near the shortest and the longest length, and values are lowered to the limits of `_beside`. Such values prove
    the highest bounds. Without `exact`, the values of lengths near the longest may be too high; but with such values
    `gather` finds better plans. If the solver failed, `Budget.trouble` says why.
    """
    from nopad.planning.optimal.solver import SolverError

    if budget.most < _LEAST:
        return None
    try:
        return _solved(load, Knots.of(load, _KNOTS if exact else _ROUGH, bends=exact), budget, exact=exact)
    except SolverError as error:
        budget.trouble = str(error)
        return None


def _solved(load: Load, knots: Knots, budget: Budget, *, exact: bool) -> NDArray[np.float64] | None:
    """Solve the linear program with these knots; return a value for each length, or None if the budget ends first.

    With `exact`, values are lowered to the limits of `_beside`.

    Raises:
        SolverError: HiGHS ended without an optimum.
    """
    from nopad.planning.optimal.master import OPTIONS
    from nopad.planning.optimal.solver import new_model, solve_linear

    demand = knots.demand(load.lengths, load.counts)
    limited = bool(load.limits[2] < UNLIMITED)
    starts, rows, amounts, packs = _columns(load, knots, limited=limited)
    model = new_model(**OPTIONS)
    none, k = np.empty(0, dtype=np.int32), knots.lengths.size
    lower = np.append(demand * (1e4 / demand.sum()), np.zeros((3 if limited else 2) * k))
    upper = np.full(lower.size, highspy.kHighsInf)
    model.addRows(lower.size, lower, upper, 0, none, none, np.empty(0))
    ends = np.full(packs.size, highspy.kHighsInf)
    model.addCols(packs.size, packs, np.zeros(packs.size), ends, rows.size, starts, rows, amounts)
    if not solve_linear(model, budget):
        return None
    duals = np.array(model.getSolution().row_dual)
    values = knots.values(duals[:k], load.lengths)
    return np.minimum(values, _beside(load, knots, duals[k:].reshape(-1, k).clip(0))) if exact else values


def _beside(load: Load, knots: Knots, rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an upper limit on the value of each length, at most 1; float64 ``[k]``.

    Consider a pack whose longest sequence is knot x. In this pack, ``rates[0, x]`` is the value of the whole limit on
    tokens, and ``rates[1, x]`` the value of the whole limit on cost. If there is a third row, ``rates[2, x]`` is the
    value of one place. Beside knot x, a length is worth its tokens, its cost and its place at these rates. The upper
    limit is the lowest of these values, over all knots that are not shorter than the length and leave room for it.
    Between two knots this limit is below the interpolated value, since cost is a square.
    """
    capacity, most, _ = load.limits.tolist()
    found = np.ones(load.lengths.size)
    tokens, cost = load.sizes / capacity, load.costs / most
    for x, at in enumerate(knots.chosen.tolist()):
        room, space = capacity - load.sizes[at], most - load.costs[at]
        fitting = np.searchsorted(load.sizes, room, side="right"), np.searchsorted(load.costs, space, side="right")
        end = min(at + 1, *(int(number) for number in fitting))
        value = rates[0, x] * tokens[:end] + rates[1, x] * cost[:end]
        found[:end] = np.minimum(found[:end], value + rates[2, x] if rates.shape[0] > 2 else value)
    return found


def _columns(
    load: Load, knots: Knots, *, limited: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """Return the columns of the linear program: ``(starts, rows, amounts, packs)``.

    First there is a row for each of the k knots. Then there are k rows for free tokens, k for free cost and, if
    `limited`, k for free places. Row x of each of these kinds is for the packs whose longest sequence is knot x. Tokens
    and cost are counted as shares of a pack's limits. There are three kinds of columns, in this order:

    * a pack, named by its longest sequence, holds this sequence and gives free tokens, cost and places
    * a sequence beside a longest one takes some of the free tokens, cost and places
    * a slot for a knot is used for the next shorter knot instead

    Column c has the numbers ``amounts[starts[c]:starts[c + 1]]`` in the rows ``rows[starts[c]:starts[c + 1]]``. For
    the last column, both slices go to the end. Column c counts as ``packs[c]`` packs: 1 for the first kind of column,
    otherwise 0.
    """
    k = knots.lengths.size
    limits = load.limits.astype(np.float64)
    tokens = load.sizes[knots.chosen] / limits[0]
    cost = load.costs[knots.chosen] / limits[1]
    longest, other = np.nonzero(np.tri(k, dtype=bool))
    # A length between two knots may fit where the longer knot does not: the longer one is then allowed too
    before = np.maximum(other - 1, 0)
    fits = (tokens[longest] + tokens[before] <= 1) & (cost[longest] + cost[before] <= 1)
    longest, other = longest[fits], other[fits]
    every, n = np.arange(k), longest.size
    packs = [every, k + every, 2 * k + every]
    gives = [np.ones(k), 1 - tokens, 1 - cost]
    beside = [other, k + longest, 2 * k + longest]
    takes = [np.ones(n), -tokens[other], -cost[other]]
    if limited:
        packs.append(3 * k + every)
        gives.append(np.full(k, limits[2] - 1))
        beside.append(3 * k + longest)
        takes.append(-np.ones(n))
    parts = [np.stack(packs, 1), np.stack(beside, 1), np.stack([every[:-1], every[1:]], 1)]
    filled = [np.stack(gives, 1), np.stack(takes, 1), np.tile([1.0, -1.0], (k - 1, 1))]
    sizes = np.concatenate([np.full(len(part), part.shape[1]) for part in parts])
    starts = np.append(0, np.cumsum(sizes))[:-1]
    rows = np.concatenate([part.ravel() for part in parts])
    amounts = np.concatenate([part.ravel() for part in filled])
    return starts.astype(np.int32), rows.astype(np.int32), amounts, np.append(np.ones(k), np.zeros(n + k - 1))
