"""Make whole packs from the linear program in which every size is a class: by diving, then by an integer program.

A column is a pair: the index of a capacity, and the indices of the sizes in one pack. The solution of the linear
program says how often each column is used. A step of a dive takes the whole part of this number as packs. If all whole
parts are 0, it takes one pack of each of the columns with the largest fractions. Then the program is solved again for
the sequences left, and the next step follows. After each step, the sequences left are also packed in a quick way, which
completes a plan; the cheapest such plan is kept. If the task is small, an integer program then chooses among all
columns found (`choose`).

A `Packing` maps each pack, a tuple of indices of sizes in the task, to its number of copies.
"""

from __future__ import annotations

from collections import Counter

import highspy
import numpy as np
from numpy.typing import NDArray

from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.solver import SolverError, columns_of, new_model, run
from nopad.planning.several.fit import MOST_FITTED, best_fit
from nopad.planning.several.relax import Column, Master, Relaxed
from nopad.planning.several.split import pack_each, split_alone
from nopad.planning.several.task import Pack, Packing, Task

__all__ = ["choose", "dive", "pack_rest"]

_WHOLE = 1e-6  # a number this close to an integer counts as one
_ROUNDS = 6  # rounds of pricing after each step
_PARTS = 10  # of n columns with fractions, a step uses the 1 + n // _PARTS largest
_MOST_COLUMNS = 1500  # most columns of an integer program
_MOST_CELLS = 5 * 10**4  # most columns x rows of an integer program
_MOST_CHOSEN = 5000  # most sequences of an integer program
_NODES = 400  # most nodes of the branch-and-bound tree: a limit that does not depend on the machine
_NODE_CELLS = 10**6  # most rows x columns of all nodes together
_NODE_STEPS = 300  # operations of each node, per row and column


def pack_rest(task: Task, left: NDArray[np.int64]) -> Packing:
    """Return a packing of ``left[i]`` sequences of each size i, made in a quick way; `left` is int64 ``[k]``.

    Up to `MOST_FITTED` (3,000) sequences are packed by best-fit into all capacities at once. If there are more, each
    goes to the cheapest capacity that holds it, and each capacity is packed by itself (`pack_each`).
    """
    chosen = np.flatnonzero(left)
    if not chosen.size:
        return Counter()
    part = task.part(chosen, left[chosen])
    made = (
        best_fit(part, part.counts)
        if part.sequences <= MOST_FITTED
        else pack_each(part, split_alone(part), Budget(0), quick=True)
    )
    names = chosen.tolist()
    return Counter({tuple(names[i] for i in pack): count for pack, count in made.items()})


def dive(task: Task, master: Master, relaxed: Relaxed, goal: int, budget: Budget) -> Packing:
    """Dive, as the module says; return the cheapest complete packing.

    A complete packing holds all sequences. One is made before the first step, and one after each step.

    The dive ends when no sequence is left, when the cheapest packing after a step costs at most `goal`, when a step can
    make no pack, or when `budget` is spent. `master` is the linear program, and `relaxed` its solution; the demand and
    the columns of `master` are changed in place. If the solver fails, the dive ends, and `Budget.trouble` says why.
    """
    left, taken = task.counts.copy(), Packing()
    best = pack_rest(task, left)
    price = task.price(best)
    times = relaxed.times
    while left.any():
        whole = np.floor(times + _WHOLE).astype(np.int64)
        if not whole.any():
            used = np.flatnonzero(times > _WHOLE)
            whole[used[np.argsort(-times[used], kind="stable")][: 1 + used.size // _PARTS]] = 1
        if not _take(master.columns, whole, left, taken):
            break
        complete = taken + pack_rest(task, left)
        found = task.price(complete)
        if found < price:
            best, price = complete, found
        if price <= goal or not left.any():
            break
        master.demand(left.astype(np.float64), (0.0, 0.0))
        try:
            solved = master.relax(budget, rounds=_ROUNDS)
        except SolverError as error:
            budget.trouble = str(error)
            break
        if solved is None:
            break
        times = solved.times
    return best


def _take(columns: list[Column], times: NDArray[np.int64], left: NDArray[np.int64], taken: Packing) -> bool:
    """Add ``times[c]`` packs of each column c to `taken`; return whether any was added.

    Their sequences are subtracted from `left`, the number of sequences left of each size. If too few are left, a pack
    holds fewer sequences than its column; empty packs are not added. Both `left` and `taken` are changed in place.
    """
    before = taken.total()
    for at in np.flatnonzero(times).tolist():
        copies = int(times[at])
        while copies:
            held = Counter({i: min(n, int(left[i])) for i, n in Counter(columns[at][1]).items()})
            held = +held
            if not held:
                break
            equal = min(copies, *(int(left[i]) // n for i, n in held.items()))
            taken[tuple(sorted(held.elements()))] += equal
            for i, n in held.items():
                left[i] -= equal * n
            copies -= equal
    return taken.total() > before


def every_column(task: Task) -> list[Column] | None:
    """Return all possible packs of `task`, each as a column: the cheapest capacity that holds the pack, and its sizes.

    A possible pack is a multiset of sizes that fits into a capacity, with no size more often than there are sequences
    of it. All multisets within the largest limit of each kind of size are tried; the result is None if there are more
    than about 1,500 of them.
    """
    most = task.capacities.max(axis=0).tolist()
    sizes, counts = task.sizes.tolist(), task.counts.tolist()
    found: list[Pack] = []
    waiting: list[tuple[Pack, int, int]] = [((), most[0], most[1])]
    while waiting:
        pack, room, place = waiting.pop()
        for item in range(pack[-1] if pack else 0, len(sizes)):
            first, second = sizes[item]
            if first <= room and second <= place and pack.count(item) < counts[item]:
                waiting.append(((*pack, item), room - first, place - second))
        found += [pack] if pack else []
        if len(found) + len(waiting) > _MOST_COLUMNS:
            return None
    fits = zip(task.capacity_of(found).tolist(), found, strict=True)
    return [(j, pack) for j, pack in fits if j >= 0]  # -1: within the largest limit of each size, but in no capacity


def choose(task: Task, columns: list[Column], budget: Budget) -> Packing | None:
    """Return a cheap packing of all sequences, whose packs an integer program chose among `columns`.

    If the possible packs are few enough for `every_column`, the program chooses among all of these instead. If it
    chooses more places for a size than there are sequences, some packs hold fewer sequences than their columns.

    The result is None if there are no columns, or if the program would be too large (columns, rows or sequences). It is
    also None if the program finds no packing, or if the budget does not allow one node of its search.
    """
    if task.sequences > _MOST_CHOSEN or budget.spent():
        return None
    columns = every_column(task) or columns
    if not columns or len(columns) > _MOST_COLUMNS or len(columns) * task.counts.size > _MOST_CELLS:
        return None
    cells = len(columns) * task.counts.size
    nodes = min(_NODES, 1 + _NODE_CELLS // cells, budget.most // (_NODE_STEPS * cells))
    if nodes < 1:
        return None
    model = new_model(mip_max_nodes=nodes, mip_rel_gap=0.0)
    k, none, c = task.counts.size, np.empty(0, dtype=np.int32), len(columns)
    model.addRows(k, task.counts.astype(float), np.full(k, highspy.kHighsInf), 0, none, none, np.empty(0))
    starts, rows, values = columns_of([held for _, held in columns])
    dearest = max(task.prices)
    costs = np.array([task.prices[j] / dearest for j, _ in columns])
    most = np.full(c, float(task.sequences))
    model.addCols(c, costs, np.zeros(c), most, rows.size, starts, rows, values)
    model.changeColsIntegrality(c, np.arange(c, dtype=np.int32), np.full(c, highspy.HighsVarType.kInteger))
    run(model)
    budget.charge(nodes * _NODE_STEPS * cells)
    if model.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    left, taken = task.counts.copy(), Packing()
    _take(columns, np.round(np.array(model.getSolution().col_value)).astype(np.int64), left, taken)
    return taken + pack_rest(task, left)
