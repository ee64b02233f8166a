"""The steps that NNLSHP and ENNLSHP share: list strategies, solve, round, and repair the result into an exact cover.

A strategy is a list of slots that fill a pack; a slot is a place in a pack for a sequence of a given length. The only
step that does not use integers is SciPy's solver. Its result is rounded with a margin, so that its last digits do not
matter. But where several solutions are equally good, another version of SciPy or another processor may find another
one. Plans from different solutions are all valid, and their numbers of packs differ little (by up to 9 of 40,787 packs
on SQuAD-384). The same machine and the same version of SciPy always give the same plan.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.options import Option
from nopad.planning.algorithm import Planned, Strategies
from nopad.planning.enumeration import check_size, full_strategies, packing_matrix
from nopad.planning.exact_cover import fill, fit_remainder, over_cover, pad_remainder
from nopad.planning.granularity import real_strategies, rounded_histogram, whole_capacity

__all__ = ["OPTIONS", "Choices", "System", "least_squares"]

# What the solver gets: a matrix ``[rows, unknowns]`` and a target ``[rows]``.
System: TypeAlias = "tuple[NDArray[np.float64], NDArray[np.float64]]"
# Makes a `System` from the packing matrix ``[units, strategies]`` and the demand ``[units]``.
MakeSystem: TypeAlias = "Callable[[NDArray[np.float64], NDArray[np.float64]], System]"

MARGIN = 1e-6  # the solver returns 2.4999999 or 2.5000001 for 2.5; both must round alike

OPTIONS = {
    "rounding": Option(
        default="nearest", choices=("nearest", "ceil", "floor"), help="how a fractional number of packs becomes whole"
    ),
    "remainder": Option(
        default="pad",
        choices=("pad", "best_fit"),
        help="sequences without a slot: packs of their own with padding, or wherever they fit tightest",
    ),
    "granularity": Option(default=1, help="round lengths up to multiples of this many tokens: fewer strategies"),
}


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The options that NNLSHP and ENNLSHP both have.

    Attributes:
        rounding: how a fractional number of packs becomes whole: "nearest", "ceil" or "floor".
        remainder: where sequences without a slot go; a slot is a place that the solution has for a sequence in a pack.
            "pad": each into a pack of its own, with padding; but two that fill a pack exactly share one. "best_fit":
            into the fullest packs that have room, or into new packs.
        granularity: lengths are rounded up to multiples of this many tokens.
    """

    rounding: str
    remainder: str
    granularity: int


def least_squares(
    name: str,
    system: MakeSystem,
    copies: int,
    histogram: Histogram,
    capacity: int,
    depth: int | None,
    choices: Choices,
) -> Planned:
    """Return a plan by non-negative least squares, with facts on the solution and its repair.

    `system` is a function that makes the equations. Its arguments are the packing matrix, and the number of sequences
    of each rounded length, float64 ``[units]``; `units` is the capacity in multiples of the granularity. The packing
    matrix, float64 ``[units, strategies]``, says how often each strategy holds each rounded length. `system` returns
    two arrays: the matrix for the solver, with ``copies * units`` rows, and the target. The first unknowns of the
    equations are how often each strategy is used; others may follow. `name` is the algorithm's name, for messages. A
    `depth` of None is unlimited.

    Raises:
        OptionError: the matrix would be too large, since there are too many strategies (`check_size`).
    """
    depth = min(depth or capacity, capacity)
    rounded = rounded_histogram(histogram, choices.granularity, capacity)
    slots, mixture = np.zeros((0, 1), dtype=np.int32), np.zeros(0)
    notes: tuple[str, ...] = ()
    # If a pack holds only one sequence, there is nothing to solve: all sequences are the remainder.
    if histogram.sequences and depth > 1 and capacity >= 2 * choices.granularity:
        check_size(name, capacity, depth, choices.granularity, copies)
        slots, mixture, notes = _solve(name, system, rounded, choices.granularity, capacity, depth)
    solution = list(_whole(mixture, slots, choices.rounding))
    whole = whole_capacity(choices.granularity, capacity)
    covered = over_cover(solution, Counter(rounded.to_dict()), whole, depth)
    facts: dict[str, Any] = {
        "strategies_listed": len(slots),
        "strategies_used": len(solution),
        "sequences_without_slot": covered.missing,
        "over_cover": covered.over,
        "packs_before_repair": covered.packs,
        "strategies_before_repair": covered.strategies,
        "solver": _solver(),
    }
    strategies = _everything(solution, histogram, capacity, depth, choices)
    facts["packs_after_repair"] = sum(count for count, _ in strategies)
    return Planned(strategies=strategies, facts=facts, notes=notes)


@cache
def _solver() -> str:
    from importlib.metadata import version  # imported late: it takes a fifth of the time of `import nopad`

    return f"scipy {version('scipy')}"  # parses a file of metadata, which takes longer than a small plan


def _solve(
    name: str, system: MakeSystem, rounded: Histogram, granularity: int, capacity: int, depth: int
) -> tuple[NDArray[np.int32], NDArray[np.float64], tuple[str, ...]]:
    """Return ``(strategies, mixture, notes)``: all strategies that fill a pack, and how often to use each.

    A row of `strategies`, int32 ``[n, d]``, holds the lengths of one pack in tokens, ascending, then zeros; d is the
    smaller of `depth` and the capacity in multiples of `granularity`. `mixture` is float64 ``[n]``. If the solver
    failed, a note says so, and every strategy is used 0 times. `rounded` has the rounded lengths. `system` makes the
    equations (see `least_squares`), and `name` is the algorithm's name, for the note.
    """
    units = capacity // granularity
    strategies = full_strategies(units, min(depth, units))
    demand = np.zeros(units)
    demand[rounded.lengths // granularity - 1] = rounded.counts
    matrix, target = system(packing_matrix(strategies, units), demand)
    notes: tuple[str, ...] = ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about ill-conditioned steps; the repair corrects any solution
            mixture, _ = nnls(matrix, target, maxiter=max(3 * matrix.shape[1], 1000))
    except (RuntimeError, np.linalg.LinAlgError) as error:
        mixture = np.zeros(len(strategies))
        notes = (f"{name}: the solver gave up ({str(error).rstrip('.')}); every sequence is packed as remainder",)
    return strategies * np.int32(granularity), mixture[: len(strategies)], notes


def nnls(matrix: NDArray[np.float64], target: NDArray[np.float64], maxiter: int) -> tuple[NDArray[np.float64], float]:
    """Return ``(x, norm)``: the x >= 0 for which the norm of ``matrix @ x - target`` is smallest, and this norm.

    x is float64 ``[columns]``.

    SciPy's solver is imported only when needed, since importing it takes longer than importing all of nopad.

    Raises:
        RuntimeError: the solver did not end within `maxiter` iterations.
    """
    import scipy.optimize

    mixture, residual = scipy.optimize.nnls(matrix, target, maxiter=maxiter)
    return mixture, residual


def _whole(
    mixture: NDArray[np.float64], slots: NDArray[np.int32], rounding: str
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield ``(count, slots longest first)`` for each strategy that is used at least once after rounding.

    `mixture` is how often each strategy is used, a float64 array; the slots of strategy s are the lengths in
    ``slots[s]`` that are not 0. `rounding` is "nearest", "ceil" or "floor".
    """
    shift = {"nearest": 0.5 + MARGIN, "floor": MARGIN, "ceil": 1 - MARGIN}[rounding]
    for strategy in np.flatnonzero(mixture + shift >= 1):
        count = math.floor(float(mixture[strategy]) + shift)
        yield count, tuple(slot for slot in reversed(slots[strategy].tolist()) if slot)


def _everything(solution: Strategies, histogram: Histogram, capacity: int, depth: int, choices: Choices) -> Strategies:
    """Return packs that cover the histogram exactly: the filled solution, and packs for sequences without a slot.

    `solution` are ``(count, slots longest first)`` pairs. A slot takes one sequence whose rounded length
    (`rounded_histogram`) is the length of the slot. `choices.remainder` says where sequences without a slot go
    (`Choices`).
    """
    rounded = Counter(rounded_histogram(histogram, choices.granularity, capacity).to_dict())
    packs = real_strategies(fill(solution, rounded), histogram, choices.granularity, capacity)
    left = _rest(histogram, packs)
    if choices.remainder == "pad":
        return packs + pad_remainder(left, capacity, depth)
    return fit_remainder(packs, left, capacity, depth)


def _rest(histogram: Histogram, packs: Strategies) -> Counter[int]:
    """Return how many sequences of each length are in `histogram`, but in none of `packs`; the number may be 0."""
    left = Counter(histogram.to_dict())
    for count, lengths in packs:
        for length in lengths:
            left[length] -= count
    return left
