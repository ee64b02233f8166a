"""What NNLSHP and ENNLSHP share: list strategies, solve, round, and repair into an exact cover.

The one step that is not integer is SciPy's solver. Its result is rounded with a margin, so that the last digits do not
decide; yet where several mixtures are equally good, another SciPy or processor may find another one. Such plans are
as valid, and a few packs apart (up to 9 of 40,787 seen on SQuAD-384). The same machine and SciPy repeat theirs.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.options import BOOLEAN, Option
from nopad.planning.algorithm import Planned, Strategies
from nopad.planning.enumeration import check_size, full_strategies, packing_matrix
from nopad.planning.exact_cover import fill, fit_remainder, over_cover, pad_remainder, take_complete
from nopad.planning.granularity import real_strategies, rounded_histogram, whole_capacity

__all__ = ["OPTIONS", "Choices", "System", "least_squares"]

# The packing matrix ``[units, strategies]`` and the demand ``[units]`` as the solver gets them, or before that.
System: TypeAlias = "tuple[NDArray[np.float64], NDArray[np.float64]]"
MakeSystem: TypeAlias = "Callable[[NDArray[np.float64], NDArray[np.float64]], System]"

MARGIN = 1e-6  # a mixture of 2.5 comes as 2.4999999 or 2.5000001: both mean 2.5

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
    "only_full": Option(
        default=False, choices=BOOLEAN, help="packs without padding only; the other sequences one a pack, and counted"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The options in common; see `OPTIONS`."""

    rounding: str
    remainder: str
    granularity: int
    only_full: bool


def least_squares(
    name: str,
    system: MakeSystem,
    copies: int,
    histogram: Histogram,
    capacity: int,
    depth: int | None,
    choices: Choices,
) -> Planned:
    """Plan with what `system` makes of matrix and demand: `copies` of the matrix, the mixture its first unknowns.

    Raises:
        OptionError: there are too many strategies.
    """
    depth = min(depth or capacity, capacity)
    rounded = rounded_histogram(histogram, choices.granularity, capacity)
    slots, mixture = np.zeros((0, 1), dtype=np.int32), np.zeros(0)
    notes: tuple[str, ...] = ()
    if histogram.sequences and depth > 1 and capacity >= 2 * choices.granularity:  # else there is nothing to choose
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
        "solver": f"scipy {version('scipy')}",
    }
    if choices.only_full:
        strategies, facts["only_full"] = _only_full(solution, slots, histogram, capacity, choices.granularity)
    else:
        strategies = _everything(solution, histogram, capacity, depth, choices)
    facts["packs_after_repair"] = sum(count for count, _ in strategies)
    return Planned(strategies=strategies, facts=facts, notes=notes)


def _solve(
    name: str, system: MakeSystem, rounded: Histogram, granularity: int, capacity: int, depth: int
) -> tuple[NDArray[np.int32], NDArray[np.float64], tuple[str, ...]]:
    """Return all strategies, how often to use each, and a note where the solver gives up: then zero times."""
    units = capacity // granularity
    strategies = full_strategies(units, min(depth, units))
    demand = np.zeros(units)
    demand[rounded.lengths // granularity - 1] = rounded.counts
    matrix, target = system(packing_matrix(strategies, units), demand)
    notes: tuple[str, ...] = ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ill-conditioned steps, which the repair makes harmless
            mixture, _ = nnls(matrix, target, maxiter=max(3 * matrix.shape[1], 1000))
    except (RuntimeError, np.linalg.LinAlgError) as error:
        mixture = np.zeros(len(strategies))
        notes = (f"{name}: the solver gave up ({str(error).rstrip('.')}); every sequence is remainder",)
    return strategies * np.int32(granularity), mixture[: len(strategies)], notes


def nnls(matrix: NDArray[np.float64], target: NDArray[np.float64], maxiter: int) -> tuple[NDArray[np.float64], float]:
    """SciPy's solver, imported on first use: it takes longer to import than all of nopad."""
    import scipy.optimize

    mixture, residual = scipy.optimize.nnls(matrix, target, maxiter=maxiter)
    return mixture, residual


def _whole(
    mixture: NDArray[np.float64], slots: NDArray[np.int32], rounding: str
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield how often each strategy is used, those never used left out, slots longest first."""
    shift = {"nearest": 0.5 + MARGIN, "floor": MARGIN, "ceil": 1 - MARGIN}[rounding]
    for strategy in np.flatnonzero(mixture + shift >= 1):
        count = math.floor(float(mixture[strategy]) + shift)
        yield count, tuple(slot for slot in reversed(slots[strategy].tolist()) if slot)


def _everything(solution: Strategies, histogram: Histogram, capacity: int, depth: int, choices: Choices) -> Strategies:
    """Cover the histogram exactly: the solution as far as sequences go, then the remainder."""
    rounded = Counter(rounded_histogram(histogram, choices.granularity, capacity).to_dict())
    packs = real_strategies(fill(solution, rounded), histogram, choices.granularity, capacity)
    left = _rest(histogram, packs)
    if choices.remainder == "pad":
        return packs + pad_remainder(left, capacity, depth)
    return fit_remainder(packs, left, capacity, depth)


def _only_full(
    solution: Strategies, slots: NDArray[np.int32], histogram: Histogram, capacity: int, granularity: int
) -> tuple[Strategies, dict[str, int]]:
    """Keep the packs without padding, add all that the rest still allows, and put every other sequence alone."""
    left = Counter(rounded_histogram(histogram, granularity, capacity).to_dict())
    packs = take_complete(solution, left)
    if len(slots) and granularity == 1:  # else a strategy that is full rounded is rarely full for real
        present = np.array([True] + [left[length] > 0 for length in range(1, capacity + 1)])
        possible = slots[present[slots].all(axis=1)].tolist()
        packs += take_complete(((None, tuple(slot for slot in reversed(row) if slot)) for row in possible), left)
    real = real_strategies(packs, histogram, granularity, capacity)
    full = [(count, lengths) for count, lengths in real if sum(lengths) == capacity]
    full += pad_remainder(Counter({capacity: _rest(histogram, full)[capacity]}), capacity, 1)
    rest = _rest(histogram, full)
    told = {
        "packs": sum(count for count, _ in full),
        "sequences": histogram.sequences - rest.total(),
        "tokens": sum(count * capacity for count, _ in full),
        "left_sequences": rest.total(),
        "left_tokens": sum(length * count for length, count in rest.items()),
    }
    return full + pad_remainder(rest, capacity, 1), told


def _rest(histogram: Histogram, packs: Strategies) -> Counter[int]:
    """Return the sequences that no pack holds yet."""
    left = Counter(histogram.to_dict())
    for count, lengths in packs:
        for length in lengths:
            left[length] -= count
    return left
