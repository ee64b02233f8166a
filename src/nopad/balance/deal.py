"""Deal the units (sequences or packs) of one step to the ranks, the same number to each.

Dealing 16,384 units to 1,024 ranks takes less than a millisecond. `nopad.balance.cap` deals under a limit of tokens per
rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.balance.costs import check_costs
from nopad.balance.methods import Balance
from nopad.balance.shape import Shape
from nopad.errors import BalanceError

__all__ = ["deal"]


def deal(costs: ArrayLike, shape: Shape, balance: Balance) -> NDArray[np.int64]:
    """Deal a step's units to the ranks; return each rank's units, int64 ``[world_size, accumulation, per_rank]``.

    The result holds indices into `costs`, each exactly once. If `Balance.deal` is "none", units stay in the given
    order. Otherwise:

    * If ranks wait at each micro-step (`Balance.wait`), the units are sorted by cost and cut into micro-steps, so that
      the units of a micro-step have similar costs. The units of each micro-step are then dealt to the ranks. The order
      of micro-steps within a step does not change what is learnt.
    * If ranks wait once per step, the units of the step are dealt so that the ranks have similar total costs. The units
      of each rank are then spread over its micro-steps.

    If `Balance.within` is "node", this is done for each node by itself.

    Args:
        costs: cost of each unit of the step, integers, in the order of `draw`; ``[shape.per_step]``.
        shape: the number of units of the step, and the ranks that share it.
        balance: the method of balance.

    Raises:
        BalanceError: there are not ``shape.per_step`` costs, a cost is negative, or their sum does not fit into 64
            bits.
        LengthError: costs are not integers, not one-dimensional, or masked.

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
    """Return `parts` after checking that each unit occurs in it exactly once.

    Raises:
        AssertionError: this check fails, which is a bug of nopad.
    """
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
    """Deal the units of each rank to its micro-steps; return them, int64 ``[world_size, accumulation, per_rank]``.

    `parts` has a row for each rank: its units, sorted by cost. They are dealt to the micro-steps in turn, and every
    second turn is reversed. So the costliest units of a rank are spread over its micro-steps. A micro-step that had
    them all would need the most memory.
    """
    rows = parts.reshape(shape.world_size, shape.per_rank, shape.accumulation).copy()
    rows[:, 1::2] = rows[:, 1::2, ::-1].copy()
    return np.ascontiguousarray(rows.transpose(0, 2, 1))


def _kernels() -> Any:
    """Return the module of compiled loops.

    It is imported only when needed, since importing Numba takes longer than importing all of nopad.
    """
    from nopad.balance import _kernels

    return _kernels
