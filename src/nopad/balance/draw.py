"""Draw the order in which an epoch, or a part of it, takes its units (sequences or packs).

Step k takes ``order[k * per_step : (k + 1) * per_step]``, where ``order`` is the result of `draw`, and ``per_step`` is
`Shape.per_step`. Within a step, the units drawn for the first rank come first, then those for the second, and so on. So
the units of a node are adjacent. `deal` may then exchange units between ranks. The units left over, of which no further
step can be made, come last. Which units these are is random too; with draw "stratified", it is random within each range
of costs.

Drawing takes O(n) time; 16 million units take about a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad import random
from nopad.balance.costs import check_costs
from nopad.balance.methods import Balance
from nopad.balance.shape import Shape
from nopad.errors import BalanceError

__all__ = ["draw", "whole_steps"]

_STRATA = 4  # number of strata if no edges are given


def draw(costs: ArrayLike, shape: Shape, balance: Balance, key: int) -> NDArray[Any]:
    """Return the order in which an epoch takes its units: the units' indices, int32 ``[n]`` (int64 from 2^31 units on).

    `Balance.draw` says how units are drawn. With "stratified", each rank's micro-step takes a fixed number of units
    (the quota) from each range of costs (the stratum). Steps that are filled in this way come first, until a stratum
    has too few units for a further step; all units left follow in random order.

    Args:
        costs: cost of each unit, integers; ``[n]``.
        shape: the number of units that a step takes, and the ranks that share it.
        balance: the method of balance.
        key: a random key, such as ``nopad.random.key(seed, nopad.random.STREAM_LEG, epoch, leg)``. A leg is a part of
            an epoch in which the numbers of ranks and nodes, the size of a step and the balancing stay the same.

    Raises:
        BalanceError: there are fewer units than ranks; a stratum with a quota is empty; the quotas do not add up to
            ``shape.per_rank``; `Balance.quotas` is None, and the quota of a stratum that has units is rounded to 0; a
            cost is negative; or the sum of all costs does not fit into 64 bits.
        LengthError: costs are not integers, not one-dimensional, or masked.

    >>> order = draw(range(10), Shape(2, 1, 1, 2), Balance.named("karmarkar_karp"), key=0)
    >>> sorted(order.tolist()) == list(range(10))
    True
    """
    checked = check_costs(costs)
    if checked.size < shape.world_size:
        raise BalanceError(
            f"{checked.size} units are too few for {shape.world_size} ranks; each rank needs at least one"
        )
    order = np.arange(checked.size, dtype=np.int32 if checked.size < 2**31 else np.int64)
    _shuffle(order, random.key(key, 0))
    if balance.draw == "random":
        return order
    if balance.draw == "stratified":
        return _proven(_stratified(order, checked, shape, balance, key), checked.size)
    whole = order[: order.size - order.size % shape.per_step]
    if balance.draw == "sorted":
        _sort(whole, checked, shape, balance, random.key(key, 1))
    else:
        _stratify_by_quantile(whole, checked, shape, balance, random.key(key, 1))
    return _proven(order, checked.size)


def _proven(order: NDArray[Any], units: int) -> NDArray[Any]:
    """Return `order` after checking that it has each unit exactly once; `units` is their number.

    Raises:
        AssertionError: this check fails, which is a bug of nopad.
    """
    if order.size != units or not _balance_kernels().is_permutation(order):
        raise AssertionError("a draw must have every unit once")
    return order


def whole_steps(costs: ArrayLike, shape: Shape, balance: Balance) -> int:
    """Return how many whole steps the order from `draw` begins with; the units left over come after them.

    The result is ``n // shape.per_step`` for n units. If `Balance.draw` is "stratified", the result can be lower: a
    stratum (range of costs) may run out of units. For Wikipedia in sequences of up to 512 tokens, quotas of 6:3:2:5
    leave 6 % of the units over. If there are fewer units than ranks, the result is 0.

    Raises:
        BalanceError: a stratum with a quota is empty; the quotas do not add up to ``shape.per_rank``; `Balance.quotas`
            is None, and the quota of a stratum that has units is rounded to 0; a cost is negative; or the sum of all
            costs does not fit into 64 bits.
        LengthError: costs are not integers, not one-dimensional, or masked.

    In the example, each step takes one unit that costs more than 5. Only one unit does, so there is only one whole
    step:

    >>> whole_steps([1, 2, 9, 1, 1, 1], Shape(1, 1, 1, 2), Balance.named("stratified", edges=(5,), quotas=(1, 1)))
    1
    """
    checked = check_costs(costs)
    if checked.size < shape.world_size:
        return 0
    if balance.draw != "stratified":
        return checked.size // shape.per_step
    edges = _edges(checked, balance)
    counts = np.bincount(np.searchsorted(edges, checked), minlength=len(edges) + 1).tolist()
    return _batches(counts, _quotas(counts, edges, shape, balance)) // (shape.world_size * shape.accumulation)


def _batches(counts: list[int], quotas: tuple[int, ...]) -> int:
    """Return how many micro-steps of single ranks can take their quota of units from every stratum.

    ``counts[s]`` is the number of units in stratum s, and ``quotas[s]`` its quota; at least one quota is not 0.
    """
    return min(count // quota for count, quota in zip(counts, quotas, strict=True) if quota)


def _sort(units: NDArray[Any], costs: NDArray[np.int64], shape: Shape, balance: Balance, key: int) -> None:
    """Arrange the units in place so that the units of a step, or of a micro-step if ranks wait there, cost alike.

    In each window of `balance.window` steps (None: all steps), units are sorted by cost and cut into steps or
    micro-steps. If ranks wait at micro-steps, and a step has m of them, the sorted micro-steps are divided into m
    ranges. Each step gets one micro-step from each range, so that the steps differ little in cost. `key` decides at
    random the order of steps, which micro-step of a range a step gets, and the order within the step.

    `units` are indices into `costs`, and fill whole steps.
    """
    levels = shape.accumulation if balance.wait == "micro" else 1
    steps = units.size // shape.per_step
    window = min(balance.window or steps, steps)
    if not steps:
        return
    arrange = _balance_kernels().arrange_windows
    arrange(costs[units], units, window, levels, shape.per_step // levels, np.uint64(key))
    if levels > 1:  # from [step, micro-step, rank, unit] to the order of a step: rank by rank
        by_step = units.reshape(steps, shape.accumulation, shape.world_size, shape.per_rank)
        units[:] = by_step.transpose(0, 2, 1, 3).reshape(-1)


def _stratify_by_quantile(
    units: NDArray[Any], costs: NDArray[np.int64], shape: Shape, balance: Balance, key: int
) -> None:
    """Arrange the units in place so that in each step, every group of ranks has one unit of each stratum.

    `balance.within` says what a group is: one rank ("rank"), the ranks of a node ("node"), or all ranks ("world"). To
    make the strata, the units are sorted by cost and cut into equally large parts. There are as many strata as a group
    takes units per step. `units` are indices into `costs`, and fill whole steps. Which unit of a stratum goes where is
    random, by `key`.
    """
    from nopad._deal_kernels import shuffle_segments

    groups = {"rank": shape.world_size, "node": shape.nodes, "world": 1}[balance.within]
    strata = shape.per_step // groups
    of_units = costs[units]
    _balance_kernels().sort_by_cost(of_units, units, np.empty_like(of_units), np.empty_like(units))
    begin = np.arange(strata + 1) * (units.size // strata)
    shuffle_segments(units, begin, random.keys(np.arange(strata), key))
    units[:] = units.reshape(strata, -1).T.reshape(-1)


def _stratified(
    units: NDArray[Any], costs: NDArray[np.int64], shape: Shape, balance: Balance, key: int
) -> NDArray[Any]:
    """Return the units in an order in which each rank's micro-step has its quota of each stratum.

    The units left over come last, in random order by `key`. `units` are indices into `costs`.

    Raises:
        BalanceError: the quotas do not add up to ``shape.per_rank``; a stratum has a quota, but no unit; or a stratum
            has units, but its quota in proportion to them is 0.
    """
    edges = _edges(costs, balance)
    stratum = np.searchsorted(np.array(edges, dtype=np.int64), costs[units])
    members = [units[stratum == number] for number in range(len(edges) + 1)]
    counts = [len(some) for some in members]
    quotas = _quotas(counts, edges, shape, balance)
    batches = _batches(counts, quotas)
    batches -= batches % (shape.world_size * shape.accumulation)
    drawn = [some[: batches * quota].reshape(batches, quota) for some, quota in zip(members, quotas, strict=True)]
    rest = np.concatenate([some[batches * quota :] for some, quota in zip(members, quotas, strict=True)])
    _shuffle(rest, random.key(key, 1))
    return np.concatenate([np.concatenate(drawn, axis=1).reshape(-1), rest])


def _edges(costs: NDArray[np.int64], balance: Balance) -> tuple[int, ...]:
    if balance.edges is not None:
        return balance.edges
    largest = int(costs.max())
    return tuple(largest * part // _STRATA for part in range(1, _STRATA))


def _quotas(counts: list[int], edges: tuple[int, ...], shape: Shape, balance: Balance) -> tuple[int, ...]:
    """Return the quotas of the strata: those of `balance`, or if it has none, quotas in proportion to `counts`.

    ``counts[s]`` is the number of units in stratum s.

    A quota is the number of units per rank and micro-step. Proportional quotas are rounded down; the units still
    missing go to the strata with the largest remainders. `edges` are only used in error messages.

    Raises:
        BalanceError: the quotas do not add up to ``shape.per_rank``; a stratum has a quota, but no unit; or a stratum
            has units, but its proportional quota is 0.
    """
    quotas = balance.quotas
    if quotas is None:
        exact = [count * shape.per_rank / sum(counts) for count in counts]
        whole = [int(share) for share in exact]
        by_remainder = sorted(range(len(counts)), key=lambda at: (whole[at] - exact[at], at))
        for at in by_remainder[: shape.per_rank - sum(whole)]:
            whole[at] += 1
        quotas = tuple(whole)
        if any(count and not quota for count, quota in zip(counts, quotas, strict=True)):
            raise BalanceError(
                f"{shape.per_rank} units per rank are too few for strata of {counts} units: the quotas would be "
                f"{quotas}; give edges, or take more units per rank or another draw"
            )
    if sum(quotas) != shape.per_rank:
        raise BalanceError(
            f"quotas {quotas} add up to {sum(quotas)}, but each rank takes {shape.per_rank} units; change one of them"
        )
    for number, (count, quota) in enumerate(zip(counts, quotas, strict=True)):
        if quota and not count:
            low = edges[number - 1] if number else "none"
            high = edges[number] if number < len(edges) else "the largest"
            raise BalanceError(
                f"stratum {number + 1} (costs above {low}, up to {high}) has a quota of {quota} but holds no unit; "
                "move the edges or set its quota to 0"
            )
    return quotas


def _shuffle(items: NDArray[Any], key: int) -> None:
    from nopad import _kernels

    _kernels.shuffle(items, np.uint64(key))


def _balance_kernels() -> Any:
    from nopad.balance import _kernels

    return _kernels
