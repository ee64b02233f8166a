"""Improve the certificate of a linear program: raise the values of single sizes as far as packs allow.

The program has only one value for each class (`nopad.planning.several.classes`). A sequence that is larger than the
corner (the smallest size) of its class leaves less room for others, so its value may be raised. There is a limit: take
the value of the sequence, and the highest value that can fill the room left beside it in a pack. In every capacity, the
two together must not exceed what a pack may be worth without lowering the bound. The values of sizes are raised one
after the other, roughly the most common size first; a raised value counts when the next one is raised. Dual feasible
functions are made maximal in the same way; here each size takes a pass over one table.

Source: Alves, Clautiaux, Valério de Carvalho and Rietz, "Dual-Feasible Functions for Integer Programming and
Combinatorial Optimization", 2016 (maximality).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from nopad.planning.several.certificate import MAX_VALUE, PriceCertificate
from nopad.planning.several.task import Task

__all__ = ["lifted", "lifting"]

_MOST = {1: 2000, 2: 500}  # most sizes whose values are raised: if the table has one column, and if it has more


def lifting(cells: int, places: int) -> int:
    """Return the approximate number of operations of `lifted`.

    `cells` is the number of cells of the pricing table, `places` the number of its columns: 1 if only the first size is
    limited.
    """
    return _MOST[1 if places == 1 else 2] * cells + 10**6


def lifted(task: Task, proof: PriceCertificate) -> PriceCertificate:
    """Return a certificate whose bound for `task` is at least that of `proof`.

    It must be possible to check `proof`. If no size is picked to be raised (`_picked`), the result is `proof` itself.
    Otherwise the result has the extras of `proof`, perhaps raised, and further ones. Extras of `proof` that fit into no
    capacity are left out. If all that remain have a second size of 0, each extra that is not above the extra of a
    smaller size is left out too.
    """
    from nopad.planning.several import _kernels

    units = np.array(proof.units, dtype=np.int64)
    limits = task.capacities // units
    extras = np.array(proof.extras, dtype=np.int64).reshape(-1, 3)
    extras = extras[task.cheapest(extras[:, :2]) >= 0]
    table = np.empty(limits.max(axis=0) + 1, dtype=np.int64)
    _kernels.knapsack(extras[:, :2] // units, extras[:, 2].copy(), table)
    rates = [proof.rates[0] * a + proof.rates[1] * b for a, b in task.capacities.tolist()]
    inside = [int(table[a, b]) for a, b in limits.tolist()]
    # The highest ratio of value to price of any capacity: if no pack exceeds it, the bound stays the same
    ratio = max(Fraction(rate + best, price) for rate, best, price in zip(rates, inside, task.prices, strict=True))
    room = [ratio * price // 1 - rate for rate, price in zip(rates, task.prices, strict=True)]
    slack = np.array([min(one, MAX_VALUE) for one in room], dtype=np.int64)
    sizes, own, counts = _sizes(task, proof, units)
    picked = _picked(sizes, own, counts, table, slack, limits)
    if not picked.size:
        return proof
    heard = np.add.reduceat(counts, picked)  # sequences from each size to the next
    picked = picked[np.argsort(-heard, kind="stable")]
    values = own[picked].copy()
    _kernels.lift(sizes[picked], values, table, slack, limits)
    found = {(a, b): value for a, b, value in extras.tolist()}
    tokens = (sizes[picked] * units).tolist()
    for (a, b), value, before in zip(tokens, values.tolist(), own[picked].tolist(), strict=True):
        if value > before:
            found[a, b] = max(value, found.get((a, b), 0))
    return PriceCertificate(proof.rates, _needed(found), proof.units)


def _sizes(
    task: Task, proof: PriceCertificate, units: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the distinct sizes of `task` in `units`, the extra of each in `proof`, and its number of sequences.

    Sizes are rounded down to whole units. The arrays are int64 ``[n, 2]``, int64 ``[n]`` and float64 ``[n]``. A size of
    0 units in both kinds is left out.
    """
    sizes, at = np.unique(task.sizes // units, axis=0, return_inverse=True)
    counts = np.bincount(at.ravel(), task.counts.astype(np.float64), minlength=len(sizes))
    room = sizes.any(axis=1)
    sizes, counts = sizes[room], counts[room]
    return sizes, proof.extras_of(sizes * units), counts


def _picked(
    sizes: NDArray[np.int64],
    own: NDArray[np.int64],
    counts: NDArray[np.float64],
    table: NDArray[np.int64],
    slack: NDArray[np.int64],
    limits: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the indices of the sizes whose values are to be raised, ascending.

    These are all sizes whose value could rise if a pack held just one sequence of the size; if there are too many, a
    selection of them. The selection is denser where the values of many sequences could rise by much. There are
    ``counts[i]`` sequences of ``sizes[i]`` (int64 ``[n, 2]``), whose extra is ``own[i]`` now. ``table[r, q]`` is the
    highest value of extras that fit into the limits r and q. The extras in a pack of capacity j, with the two limits
    ``limits[j]``, may be worth up to ``slack[j]`` together. Sizes and limits are in units.
    """
    most = np.full(len(sizes), MAX_VALUE, dtype=np.int64)
    for j, limit in enumerate(limits):
        fits = (sizes <= limit).all(axis=1)
        rest = limit - sizes[fits]
        most[fits] = np.minimum(most[fits], slack[j] - table[rest[:, 0], rest[:, 1]])
    gain = np.where(most > own, (most - own) * counts, 0.0)
    wanted = _MOST[1 if table.shape[1] == 1 else 2]
    rising = np.flatnonzero(gain)
    if rising.size <= wanted:
        return rising
    upto = np.cumsum(gain)
    return np.unique(np.searchsorted(upto, np.linspace(0, upto[-1], wanted, endpoint=False), side="right"))


def _needed(extras: dict[tuple[int, int], int]) -> tuple[tuple[int, int, int], ...]:
    """Return extras as triples in ascending order of size; `extras` maps each pair of sizes to a value.

    If all second sizes are 0, an extra is left out if its value is not above that of a smaller size.
    """
    kept: list[tuple[int, int, int]] = []
    alone = not any(b for _, b in extras)
    highest = 0
    for (a, b), value in sorted(extras.items()):
        if not alone or value > highest:
            kept.append((a, b, value))
            highest = value
    return tuple(kept)
