"""Deal units to ranks so that no rank exceeds a limit of tokens; ranks may get different numbers of units.

A unit is a sequence, or a pack of several.

`deal_under_cap` deals one step. `cut_under_cap` cuts the units of an epoch into steps that can be dealt under the
limit. `deal_step_under_cap` deals such a step to ranks and micro-steps, and always finds a way for a step that
`cut_under_cap` made. Cutting n units takes O(n log ranks); where the limit is tight, the units of a step are sorted up
to six times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.balance.costs import check_costs
from nopad.balance.deal import deal
from nopad.balance.methods import Balance
from nopad.balance.shape import Shape
from nopad.errors import BalanceError
from nopad.options import check_integer

__all__ = ["cut_under_cap", "deal_step_under_cap", "deal_under_cap", "first_over_cap"]

_MOST_LOOKS = 20_000_000  # most pairs of units that `deal_under_cap` compares: about 20 ms
_LOOKS_OF_A_STEP = 1_000_000  # most pairs that `deal_step_under_cap` compares: about 5 ms
_TRIES = 6  # most numbers of units that `cut_under_cap` tries for a step


def deal_under_cap(costs: ArrayLike, tokens: ArrayLike, world_size: int, cap: int) -> NDArray[np.int64]:
    """Deal units to ranks such that no rank has more than `cap` tokens; return the rank of each unit, int64 ``[n]``.

    Ranks may get different numbers of units, but each gets at least one. The cost of the costliest rank is kept low:
    units are placed in order of decreasing cost, each on the cheapest rank that has room. Then units of the costliest
    rank are moved to other ranks, or swapped with units of other ranks, while that helps. This ends early if the
    highest cost is within 1 part in 4,096 of a lower bound, or after comparing about 20 million pairs of units. The
    lower bound is the mean cost of a rank, rounded up, or the cost of the costliest unit if that is more.

    If a unit finds no room when the costliest are placed first, all units are placed again: by number of tokens, the
    largest first, or else in the given order.

    Args:
        costs: cost of each unit, integers; ``[n]``.
        tokens: number of tokens of each unit, rounded up if sequences are aligned (`round_up`), integers; ``[n]``.
        world_size: number of ranks.
        cap: most tokens a rank may get.

    Raises:
        BalanceError: a unit has more tokens than the cap; there are fewer units than ranks; `costs` and `tokens` differ
            in size; a cost or a number of tokens is negative; the sum of all costs, or of all tokens, does not fit into
            64 bits; or no way was found to keep to the cap.
        LengthError: costs or tokens are not integers, not one-dimensional, or masked.
        OptionError: `world_size` is not an integer from 1 to 2^31 - 1, or `cap` is not one from 1 to 2^63 - 1.

    >>> deal_under_cap([9, 5, 4, 1], [9, 5, 4, 1], world_size=2, cap=10).tolist()
    [0, 1, 1, 0]
    """
    world_size = check_integer("world_size", world_size)
    checked, sizes, cap = _fitting(costs, tokens, cap)
    if checked.size < world_size:
        raise BalanceError(f"{checked.size} units are too few for {world_size} ranks; each gets at least one")
    return _ranks(checked, sizes, world_size, cap, _MOST_LOOKS)


def _fitting(costs: ArrayLike, tokens: ArrayLike, cap: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return `costs` and `tokens` as int64 ``[n]`` after a check, and the cap to use.

    The cap to use is `cap`, or the sum of `tokens` if that is less.

    Raises:
        BalanceError: `costs` and `tokens` differ in size; a unit has more tokens than the cap; a cost or a number of
            tokens is negative; or the sum of all costs, or of all tokens, does not fit into 64 bits.
        LengthError: costs or tokens are not integers, not one-dimensional, or masked.
        OptionError: `cap` is not an integer from 1 to 2^63 - 1.
    """
    checked = check_costs(costs)
    sizes, cap = _sized(tokens, cap)
    if checked.size != sizes.size:
        raise BalanceError(f"{checked.size} costs for {sizes.size} units; give one each")
    if int(sizes.max(initial=0)) > cap:
        worst = int(sizes.argmax())
        raise BalanceError(
            f"unit {worst} has {int(sizes[worst])} tokens, the cap is {cap}; truncate or split it, or raise the cap"
        )
    return checked, sizes, cap


def _ranks(
    costs: NDArray[np.int64], sizes: NDArray[np.int64], world_size: int, cap: int, looks: int
) -> NDArray[np.int64]:
    rank_of = np.empty(costs.size, dtype=np.int64)
    if not _kernels().deal_capped(costs, sizes, world_size, cap, looks, rank_of):
        raise BalanceError(
            f"found no way to deal {costs.size} units of {int(sizes.sum())} tokens to {world_size} ranks of at most "
            f"{cap} tokens each; raise the cap or deal fewer units"
        )
    return rank_of


def cut_under_cap(tokens: ArrayLike, shape: Shape, cap: int, parts: int = 1) -> NDArray[np.int64]:
    """Divide a list of units, in its order, into steps that can be dealt with at most `cap` tokens per micro-step.

    A micro-step here is that of one rank. A step takes ``shape.per_step`` units, or fewer if no way was found to deal
    that many under the cap; the last step takes the units left. The result says where each step begins, and where the
    last step ends; int64 ``[steps + 1]``.

    Args:
        tokens: number of tokens of each unit, in the order that `draw` returned; ``[n]``. With `parts` above 1, number
            of tokens of each part; ``[n * parts]``.
        shape: the most units of a step, and the ranks and micro-steps that share them.
        cap: most tokens per rank and micro-step.
        parts: number of parts of each unit. The parts share the step, but may go to different ranks.

    Raises:
        BalanceError: a unit does not fit into a step even alone (the message has its index); a number of tokens is
            negative; or their sum does not fit into 64 bits.
        LengthError: tokens are not integers, not one-dimensional, or masked.
        OptionError: `cap` is not an integer from 1 to 2^63 - 1.

    In the example, the units of 3, 3 and 1 tokens fit into two ranks of 4 tokens. The next unit, of 4 tokens, does not
    fit beside them, so it begins the second step:

    >>> cut_under_cap([3, 3, 1, 4, 2, 2], Shape(2, 1, 1, 2), cap=4).tolist()
    [0, 3, 6]
    """
    sizes, cap = _sized(tokens, cap)
    bounds = np.zeros(sizes.size // parts + 1, dtype=np.int64)
    bins = shape.world_size * shape.accumulation
    room = min(bins * cap, int(sizes.sum()))
    steps = int(_kernels().cut_capped(sizes, parts, bins, shape.per_step, cap, room, _TRIES, bounds))
    if steps < 0:
        raise BalanceError(f"unit {-steps - 1} alone does not fit into a step of {bins} times {cap} tokens")
    return bounds[: steps + 1].copy()


def first_over_cap(tokens: ArrayLike, shape: Shape, cap: int, parts: int = 1) -> int | None:
    """Return the index of the first unit that does not fit into a step even alone; None if all units fit.

    A step has ``shape.world_size * shape.accumulation`` micro-steps of one rank each, with at most `cap` tokens in
    each.

    Args:
        tokens: number of tokens of each unit; ``[n]``. With `parts` above 1, number of tokens of each part;
            ``[n * parts]``.
        shape: the ranks and micro-steps that share a step.
        cap: most tokens per rank and micro-step.
        parts: number of parts of each unit. The parts share the step, but may go to different ranks.

    Raises:
        BalanceError: a number of tokens is negative, or their sum does not fit into 64 bits.
        LengthError: tokens are not integers, not one-dimensional, or masked.
        OptionError: `cap` is not an integer from 1 to 2^63 - 1.

    >>> from nopad.balance import Shape, first_over_cap
    >>> shape = Shape(world_size=1, node_size=1, accumulation=1, per_rank=1)
    >>> first_over_cap([5, 9, 3], shape, cap=8), first_over_cap([5, 3], shape, cap=8)
    (1, None)
    """
    sizes, cap = _sized(tokens, cap)
    if parts == 1:
        over = sizes > cap
        return int(over.argmax()) if over.any() else None
    found = int(_kernels().first_unfit(sizes, parts, min(shape.world_size * shape.accumulation, parts), cap))
    return None if found < 0 else found


def deal_step_under_cap(
    costs: ArrayLike, tokens: ArrayLike, shape: Shape, balance: Balance, cap: int
) -> NDArray[np.int64]:
    """Deal the units of a step with at most `cap` tokens per rank and micro-step.

    Returns the indices of the units of each micro-step, each unit once: int64 ``[world_size, accumulation, most]``,
    where ``most`` is the largest number of units of a micro-step. A micro-step with fewer units has -1 in the places
    that are left. If the step has fewer units than there are micro-steps on all ranks, some micro-steps have no unit.

    If the step has ``shape.per_step`` units and the result of `deal` keeps to the cap, that result is returned.
    Otherwise the units are divided under the cap into ``world_size * accumulation`` parts, one for each micro-step of
    each rank. The costs of the parts are kept alike, as in `deal_under_cap`. The parts are then dealt to all ranks by
    Karmarkar-Karp; of `balance`, only `wait` is used for this.

    Args:
        costs: cost of each unit, integers; ``[n]``.
        tokens: number of tokens of each unit; ``[n]``.
        shape: the ranks and micro-steps that share the step.
        balance: the method of balance.
        cap: most tokens per rank and micro-step.

    Raises:
        BalanceError: there is no unit; a unit has more tokens than the cap; `costs` and `tokens` differ in size; a cost
            or a number of tokens is negative; the sum of all costs, or of all tokens, does not fit into 64 bits; or no
            way was found to keep to the cap. For a step that `cut_under_cap` made, a way is always found.
        LengthError: costs or tokens are not integers, not one-dimensional, or masked.
        OptionError: `cap` is not an integer from 1 to 2^63 - 1.

    >>> deal_step_under_cap([3, 2, 2, 1], [3, 2, 2, 1], Shape(2, 1, 1, 2), Balance.named("none"), cap=4).tolist()
    [[[0, 3]], [[1, 2]]]
    """
    checked, sizes, cap = _fitting(costs, tokens, cap)
    if not checked.size:
        raise BalanceError("there is no unit to deal; a step has at least one")
    parts: NDArray[np.int64] | None = None
    if checked.size == shape.per_step:
        parts = deal(checked, shape, balance)
        if int(sizes[parts].sum(axis=2).max()) > cap:
            parts = None
    if parts is None:
        parts = _in_parts(checked, sizes, shape, balance, cap)
    return _proven(parts, sizes, cap)


def _in_parts(
    costs: NDArray[np.int64], sizes: NDArray[np.int64], shape: Shape, balance: Balance, cap: int
) -> NDArray[np.int64]:
    """Divide units under `cap` into one part for each micro-step of each rank; deal the parts by Karmarkar-Karp.

    `sizes` is the number of tokens of each unit. Of `balance`, only `wait` is used. The result holds the indices of the
    units of each micro-step, int64 ``[world_size, accumulation, most]``; -1: no unit.

    Raises:
        BalanceError: no way was found to keep to the cap.
    """
    bins = shape.world_size * shape.accumulation
    of_unit = np.arange(costs.size) if costs.size <= bins else _ranks(costs, sizes, bins, cap, _LOOKS_OF_A_STEP)
    cost_of = np.zeros(bins, dtype=np.int64)
    np.add.at(cost_of, of_unit, costs)
    whole = Shape(shape.world_size, shape.node_size, shape.accumulation, 1)
    order = deal(cost_of, whole, Balance(wait=balance.wait)).reshape(-1)  # the part of each rank's micro-step
    counts = np.bincount(of_unit, minlength=bins)
    place = np.empty(bins, dtype=np.int64)
    place[order] = np.arange(bins)
    units = np.argsort(place[of_unit], kind="stable")
    row = place[of_unit][units]
    begins = np.cumsum(counts[order]) - counts[order]
    parts = np.full((bins, int(counts.max(initial=1))), -1, dtype=np.int64)
    parts[row, np.arange(units.size) - begins[row]] = units
    return parts.reshape(shape.world_size, shape.accumulation, -1)


def _proven(parts: NDArray[np.int64], sizes: NDArray[np.int64], cap: int) -> NDArray[np.int64]:
    """Return `parts` if each unit occurs once, and no rank has more than `cap` tokens in any micro-step.

    `parts` has the indices of the units of each micro-step, int64 ``[ranks, micro-steps, most]``; -1: no unit. `sizes`
    is the number of tokens of each unit, int64 ``[n]``.

    Raises:
        AssertionError: this check fails, which is a bug of nopad.
    """
    dealt = parts[parts >= 0]
    tokens = np.where(parts >= 0, sizes[parts], 0).sum(axis=2)
    if not np.array_equal(np.sort(dealt), np.arange(sizes.size)) or int(tokens.max()) > cap:
        raise AssertionError("a deal under a cap must have every unit once, and no rank above the cap")
    return parts


def _sized(tokens: ArrayLike, cap: int) -> tuple[NDArray[np.int64], int]:
    """Return `tokens` as int64 ``[n]``, and the cap: `cap`, or the sum of `tokens` if that is less.

    A cap above the sum of `tokens` limits nothing, and adding to it could overflow.

    Raises:
        BalanceError: a number of tokens is negative, or their sum does not fit into 64 bits.
        LengthError: tokens are not integers, not one-dimensional, or masked.
        OptionError: `cap` is not an integer from 1 to 2^63 - 1.
    """
    sizes = check_costs(tokens)
    cap = check_integer("cap", cap, high=2**63 - 1)
    return sizes, min(cap, int(sizes.sum()))


def _kernels() -> Any:
    """Return the module of compiled loops.

    It is imported only when needed, since importing Numba takes longer than importing all of nopad.
    """
    from nopad.balance import _cap_kernels

    return _cap_kernels
