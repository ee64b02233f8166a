"""Assign sequences to the packs of a plan.

This takes O(n) time for n sequences, and about 16 bytes of memory per sequence besides the result. There are two
orders:

* "random", the default: the random generator of `nopad.random` decides the order of the packs. It also decides which of
  several sequences of equal length goes into which pack. So a training run does not meet the packs sorted by the
  lengths in them, which would harm it.
* "source": the packs stay close to the order in which the sequences arrived. The sequence numbers in a pack ascend, and
  packs are in the order of their first sequences. Of two sequences of equal length, the later one never gets an earlier
  pack.

The same lengths, plan, seed and order give the same packs on every machine.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad import random
from nopad.errors import PlanMismatchError
from nopad.histogram import Histogram, as_lengths
from nopad.options import check_choice, check_sizes
from nopad.packs import Packs, index_dtype
from nopad.planning.conditions import check_conditions
from nopad.planning.front import plan
from nopad.planning.plan import Plan
from nopad.planning.registry import ARRIVAL_ALGORITHMS, check_algorithm, complete_options
from nopad.planning.summary import pack_arrivals

__all__ = ["Order", "assign", "check_cover", "pack"]

Order = Literal["random", "source"]


def pack(
    lengths: ArrayLike,
    capacity: int,
    *,
    depth: int | None = None,
    algorithm: str = "auto",
    seed: int = 0,
    order: Order = "random",
    **options: Any,
) -> Packs:
    """Plan which lengths share packs, and assign the sequences to these packs; return `Packs`.

    Most algorithms plan from a histogram, which says how many sequences have each length. With such an algorithm, this
    is short for `nopad.plan` and `nopad.assign`, and `Packs.notes` holds the notes of the plan. An arrival-order
    algorithm packs the sequences themselves instead, as they come, and there is no plan.

    Args:
        lengths: length of each sequence in tokens; integers ``[n]``, each from 1 to `capacity`.
        capacity: most tokens a pack may hold.
        depth: most sequences a pack may hold; None: unlimited.
        algorithm: one of `nopad.ALGORITHMS`.
        seed: random seed, used only if `order` is "random". It decides the order of the packs. Unless `algorithm` is an
            arrival-order algorithm, it also decides which of several sequences of equal length goes into which pack.
        order: "random" (by `seed`) or "source" (close to the order of arrival).
        options: options of the algorithm, and conditions on packs; see `nopad.plan`.

    Raises:
        LengthError: lengths are not integers ``[n]``; or a length is below 1 or above `capacity`, or the square of a
            length is above `max_squares`.
        OptionError: capacity, depth, seed, order, algorithm or an option has an invalid value; the algorithm has no
            such option; a condition cannot be met; or there are too many sequences or strategies for the algorithm (for
            the limits, see `nopad.plan`).

    Three packs hold the five sequences:

    >>> import nopad
    >>> packs = nopad.pack([5, 3, 4, 2, 8], capacity=8)
    >>> len(packs), packs.sequences
    (3, 5)
    """
    capacity, depth = check_sizes(capacity, depth, seed)
    check_algorithm(algorithm)
    checked = as_lengths(lengths, capacity)
    check_choice("order", order, Order)
    if algorithm not in ARRIVAL_ALGORITHMS:
        made = plan(checked, capacity, depth=depth, algorithm=algorithm, **options)
        return _assigned(made, checked, seed, order).made_for(checked)
    own, conditions = complete_options(algorithm, options)
    check_conditions(conditions, Histogram.from_lengths(checked), capacity)
    packs = pack_arrivals(checked, capacity, depth, algorithm, own, conditions)
    if order == "source":
        return packs.made_for(checked)
    numbers = np.arange(len(packs), dtype=packs.indptr.dtype)
    _kernels().shuffle(numbers, np.uint64(random.key(seed, random.STREAM_PACK_ORDER)))
    return packs.take(numbers).made_for(checked)


def assign(plan: Plan, lengths: ArrayLike, *, seed: int = 0, order: Order = "random") -> Packs:
    """Assign the sequences of these lengths to the packs of a plan; return `Packs`.

    Sequence i has ``lengths[i]`` tokens; `lengths` are integers ``[n]``. With `order` "random", the random seed `seed`
    decides the order of the packs, and which of several sequences of equal length goes into which pack. With `order`
    "source", the packs stay close to the order in which the sequences arrived, and `seed` is not used.

    Raises:
        PlanMismatchError: the plan does not cover exactly these lengths; the message names the shortest length whose
            number of sequences differs.
        OptionError: `order` or `seed` has an invalid value.
        LengthError: lengths are not integers ``[n]``, or a length is below 1 or above the plan's capacity.

    The sequences 0 and 1 (5 and 3 tokens) share the first pack, and the other two share the second:

    >>> import nopad
    >>> plan = nopad.plan([5, 3, 4, 2], capacity=8)
    >>> [p.tolist() for p in nopad.assign(plan, [5, 3, 4, 2], order="source")]
    [[0, 1], [2, 3]]
    """
    check_choice("order", order, Order)
    check_sizes(plan.capacity, plan.depth, seed)
    checked = as_lengths(lengths, plan.capacity)
    return _assigned(plan, checked, seed, order).made_for(checked)


def _assigned(plan: Plan, checked: NDArray[np.int32], seed: int, order: Order) -> Packs:
    """Assign valid lengths to the packs of a plan; return `Packs` without `Packs.lengths_sha256`.

    `checked` are the lengths, int32 ``[n]``. `order` is "random" (by `seed`) or "source" (close to the order of
    arrival). All arguments are valid.

    Raises:
        PlanMismatchError: the plan does not cover exactly these lengths.
    """
    check_cover(plan, checked)
    dtype = index_dtype(checked.size)
    indptr = np.zeros(plan.packs + 1, dtype=dtype)
    sequence = np.empty(checked.size, dtype=dtype)
    # The compiled loops read this array in random order, twice as fast if it fits into the cache.
    strategy_of_pack = np.empty(plan.packs, dtype=np.int16 if plan.counts.size < 2**15 else np.int32)
    ranks = _ranks(checked, plan.histogram)
    bounds = np.concatenate([[0], np.cumsum(plan.histogram.counts)]).astype(np.int64)
    bucket = np.empty(checked.size, dtype=dtype)  # sequence numbers grouped by length, in arrival order within
    _kernels().group_by_rank(ranks, bounds, bucket)
    strategies = plan.indptr, np.searchsorted(plan.histogram.lengths, plan.lengths)
    if order == "random":
        del ranks  # frees 4 bytes per sequence
        keys = random.keys(plan.histogram.lengths, seed, random.STREAM_WITHIN_LENGTH)
        _deal_kernels().shuffle_segments(bucket, bounds, keys)
        strategy_of_pack[:] = np.repeat(np.arange(plan.counts.size, dtype=strategy_of_pack.dtype), plan.counts)
        _kernels().shuffle(strategy_of_pack, np.uint64(random.key(seed, random.STREAM_PACK_ORDER)))
        _deal_kernels().deal(strategy_of_pack, *strategies, bucket, bounds[:-1].copy(), indptr, sequence)
    else:
        _deal_kernels().spread(plan.counts, plan.packs, strategy_of_pack)
        begin, holders = _packs_by_rank(plan, strategy_of_pack, *strategies)
        free = bounds[:-1].copy()
        _deal_kernels().deal_in_order(
            ranks, bucket, free, holders, begin, strategy_of_pack, *strategies, indptr, sequence
        )
        _kernels().sort_within_packs(indptr, sequence)
    return Packs(plan.capacity, plan.depth, indptr, sequence, notes=plan.notes)


def _ranks(lengths: NDArray[np.int32], histogram: Histogram) -> NDArray[np.int32]:
    """Return the rank of each length among the distinct lengths of `histogram`; int32 ``[n]``.

    The histogram must have each of the lengths.
    """
    ranks = np.empty(lengths.size, dtype=np.int32)
    if histogram.max_length <= 1 << 22:
        table = np.zeros(histogram.max_length + 1, dtype=np.int32)
        table[histogram.lengths] = np.arange(histogram.lengths.size, dtype=np.int32)
        _deal_kernels().look_up_ranks(lengths, table, ranks)
    else:
        ranks[:] = np.searchsorted(histogram.lengths, lengths)
    return ranks


def _packs_by_rank(
    plan: Plan, strategy_of_pack: NDArray[Any], indptr: NDArray[np.int64], ranks: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return ``(begin, packs)``: for each distinct length, the numbers of the packs that hold it, ascending.

    The list of the k-th distinct length begins at ``packs[begin[k]]``. `begin` is int64 ``[distinct lengths]``, and
    `packs` is int32. Strategy s has the lengths ``ranks[indptr[s]:indptr[s + 1]]``, each given as its rank among the
    distinct lengths. Pack p has the strategy ``strategy_of_pack[p]``.
    """
    first = np.ones(ranks.size, dtype=bool)  # whether each begins a run of equal lengths in its strategy
    first[1:] = ranks[1:] != ranks[:-1]
    first[indptr[:-1]] = True
    holders = np.zeros(plan.histogram.lengths.size + 1, dtype=np.int64)
    np.add.at(holders, ranks[first] + 1, np.repeat(plan.counts, np.diff(indptr))[first])
    begin = np.cumsum(holders)
    packs = np.empty(int(begin[-1]), dtype=np.int32)
    _deal_kernels().packs_by_rank(strategy_of_pack, indptr, ranks, begin, packs)
    return begin[:-1].copy(), packs


def check_cover(plan: Plan, lengths: NDArray[np.int32]) -> None:
    """Check that a plan covers exactly these lengths, int32 ``[n]``: each length as often as it occurs in `lengths`.

    Raises:
        PlanMismatchError: the plan does not; the message names the shortest length whose number of sequences differs.
    """
    covered, given = plan.histogram, Histogram.from_lengths(lengths)
    if covered == given:
        return
    planned, present = covered.to_dict(), given.to_dict()
    length = min(n for n in {**planned, **present} if planned.get(n, 0) != present.get(n, 0))
    raise PlanMismatchError(
        f"the plan covers {planned.get(length, 0):,} sequences of length {length}, the lengths have "
        f"{present.get(length, 0):,} (in all {covered.sequences:,} and {given.sequences:,}); plan these lengths instead"
    )


def _kernels() -> Any:
    """Return the module `nopad._kernels`; it is imported only when this is called.

    Importing it imports Numba, which takes longer than importing the rest of nopad.
    """
    from nopad import _kernels

    return _kernels


def _deal_kernels() -> Any:
    from nopad import _deal_kernels

    return _deal_kernels
