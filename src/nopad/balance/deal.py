"""Deal the units of one step to the ranks.

`deal` gives every rank the same number of units. 16,384 units go to 1,024 ranks in less than a millisecond, all ranks'
parts included. `deal_under_cap` lets the numbers vary, and keeps each rank under a limit of tokens instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.balance.costs import check_costs
from nopad.balance.methods import Balance
from nopad.balance.shape import Shape
from nopad.errors import BalanceError
from nopad.options import Option

__all__ = ["deal", "deal_under_cap"]

_MOST_LOOKS = 20_000_000  # how many pairs of units are compared at most: about 20 ms


def deal(costs: ArrayLike, shape: Shape, balance: Balance) -> NDArray[np.int64]:
    """Deal a step's units to the ranks; return each rank's units, int64 ``[world_size, accumulation, per_rank]``.

    The result holds indices into `costs`, each exactly once. Where ranks wait at each micro-step, the units are sorted
    and cut into micro-steps of similar cost, and each micro-step is dealt by itself; the order of micro-steps within a
    step does not change what is learnt. Where ranks wait once per step, a rank's units are balanced in sum, and spread
    over its micro-steps.

    Args:
        costs: cost of each unit of the step, integers, in the order of `draw`; ``[shape.per_step]``.
        shape: how many units, on how many ranks.
        balance: the method.

    Raises:
        BalanceError: there are not ``shape.per_step`` costs, one is negative, or their sum does not fit into 64 bits.

    >>> deal([4, 1, 3, 2], Shape(2, 2, 1, 2), Balance.named("global_presort")).tolist()
    [[[0, 1]], [[2, 3]]]
    """
    checked = check_costs(costs)
    if checked.size != shape.per_step:
        raise BalanceError(f"a step of {shape} has {shape.per_step} units, got {checked.size} costs")
    result_shape = (shape.world_size, shape.accumulation, shape.per_rank)
    if balance.deal == "none":
        return np.arange(shape.per_step, dtype=np.int64).reshape(result_shape)
    return _proven(_dealt(checked, shape, balance).reshape(result_shape))


def _proven(parts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `parts` after proving that they have every unit once."""
    if not _kernels().is_permutation(parts.reshape(-1)):
        raise AssertionError("a deal must have every unit once")
    return parts


def _dealt(costs: NDArray[np.int64], shape: Shape, balance: Balance) -> NDArray[np.int64]:
    kernels = _kernels()
    how = {"raster": kernels.RASTER, "snake": kernels.SNAKE, "karmarkar_karp": kernels.KARMARKAR_KARP}[balance.deal]
    groups = shape.nodes if balance.within == "node" else 1
    blocks = shape.accumulation if balance.wait == "micro" else 1
    rows = shape.per_rank_step // blocks
    parts = np.empty((groups, blocks, shape.world_size // groups, rows), dtype=np.int64)
    kernels.deal_groups(costs, how, parts)
    if balance.wait == "micro":
        return np.ascontiguousarray(parts.transpose(0, 2, 1, 3))
    return _into_micro_steps(parts.reshape(shape.world_size, rows), shape)


def _into_micro_steps(parts: NDArray[np.int64], shape: Shape) -> NDArray[np.int64]:
    """Spread each rank's units, sorted by cost, over its micro-steps like a snake; ``[world, accumulation, per_rank]``.

    No micro-step then holds all of the longest, which would take the most memory.
    """
    rows = parts.reshape(shape.world_size, shape.per_rank, shape.accumulation).copy()
    rows[:, 1::2] = rows[:, 1::2, ::-1].copy()
    return np.ascontiguousarray(rows.transpose(0, 2, 1))


def deal_under_cap(costs: ArrayLike, tokens: ArrayLike, world_size: int, cap: int) -> NDArray[np.int64]:
    """Deal units to ranks in any numbers, with no rank above `cap` tokens; return the rank of each unit, int64 ``[n]``.

    Keeps the cost of the costliest rank low: units are dealt from the costliest on, each to the rank of the lowest cost
    that has room; then units of the costliest rank are moved or swapped while that helps, until it is within 1 in 4,096
    of the least possible. Where the cap is so tight that this finds no place for a unit, units are dealt by tokens
    first. Every rank gets a unit.

    Args:
        costs: cost of each unit, integers; ``[n]``.
        tokens: tokens of each unit, rounded up where they are aligned (`round_up`), integers; ``[n]``.
        world_size: number of ranks.
        cap: most tokens a rank may get.

    Raises:
        BalanceError: a unit has more tokens than the cap, there are fewer units than ranks, or no way was found to
            keep to the cap.

    >>> deal_under_cap([9, 5, 4, 1], [9, 5, 4, 1], world_size=2, cap=10).tolist()
    [0, 1, 1, 0]
    """
    world_size = Option(default=None, help="").check("world_size", world_size)
    cap = Option(default=None, help="", high=2**63 - 1).check("cap", cap)
    checked, sizes = check_costs(costs), check_costs(tokens)
    if checked.size != sizes.size:
        raise BalanceError(f"{checked.size} costs for {sizes.size} units; give one each")
    if checked.size < world_size:
        raise BalanceError(f"{checked.size} units are too few for {world_size} ranks; each gets at least one")
    if int(sizes.max()) > cap:
        worst = int(sizes.argmax())
        raise BalanceError(
            f"unit {worst} has {int(sizes[worst])} tokens, the cap is {cap}; truncate or split it, or raise the cap"
        )
    rank_of = np.empty(checked.size, dtype=np.int64)
    if not _kernels().deal_capped(checked, sizes, world_size, cap, _MOST_LOOKS, rank_of):
        raise BalanceError(
            f"found no way to deal {checked.size} units of {int(sizes.sum())} tokens to {world_size} ranks of at most "
            f"{cap} tokens each; raise the cap or deal fewer units"
        )
    return rank_of


def _kernels() -> Any:
    """Import the compiled loops at their first use, since importing numba takes longer than all of nopad."""
    from nopad.balance import _kernels

    return _kernels
