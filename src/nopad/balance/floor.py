"""How evenly units (sequences or packs) are dealt to ranks, and how evenly they could be dealt.

A step takes as long as its costliest rank. However units are dealt, the cost of this rank is at least the mean cost of
all ranks. It is also at least the cost of the costliest unit, since one rank must take that unit. The larger of the two
gives the *floor*: a lower bound on the *waste*, the fraction by which a step takes longer than if all ranks had equal
costs. Only splitting a sequence over several ranks (context parallelism) gets below the floor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.balance.costs import check_costs
from nopad.errors import BalanceError
from nopad.options import check_integer

__all__ = ["Report", "floor", "needs_context_parallelism", "report"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """How evenly ranks share the work of steps; every attribute except `steps` is a mean over the steps.

    `least`, `most` and `mean` are costs, in the unit of the cost model; `waste`, `abr` and `floor` are fractions.

    If ranks wait at each micro-step, each micro-step has its own cheapest and costliest rank. The costs of a step's
    cheapest and costliest rank are then sums over its micro-steps.

    Attributes:
        steps: number of steps.
        least: cost of a step's cheapest rank.
        most: cost of a step's costliest rank, for which all ranks wait.
        mean: mean cost of a step's ranks.
        waste: the fraction by which a step takes longer than if all ranks had equal costs: ``costliest / mean - 1``,
            where ``costliest`` is the cost of a step's costliest rank.
        abr: the fraction of all ranks' time that is spent waiting: ``1 - mean / costliest``. It is the attention
            balance ratio of "Hierarchical Balance Packing" (arXiv 2503.07680), for any cost model.
        floor: a lower bound on `waste`, however the units are dealt; None if the costs of units are not known.

    >>> import numpy as np
    >>> from nopad.balance import Report
    >>> made = Report(steps=10, least=90.0, most=110.0, mean=100.0, waste=0.1, abr=0.09)
    >>> round(made.most / made.mean - 1, 2) == made.waste
    True
    """

    steps: int
    least: float
    most: float
    mean: float
    waste: float
    abr: float
    floor: float | None = None


def floor(costs: ArrayLike, world_size: int) -> float:
    """Return a lower bound on the waste of a step, however its units are dealt to `world_size` ranks.

    The waste is the fraction by which a step takes longer than if all ranks had equal costs. The bound is
    ``max(costliest, mean) / mean - 1``, where ``costliest`` is the cost of the costliest unit, and ``mean`` the mean
    cost of a rank. In ``max``, the mean is rounded up, since costs are integers. If all costs are 0, the bound is 0.0.

    Args:
        costs: cost of each unit that all ranks together take in a step (in a micro-step, if ranks wait for one
            another there); ``[n]``.
        world_size: number of ranks.

    Raises:
        BalanceError: there are no units, a cost is negative, or their sum does not fit into 64 bits.
        LengthError: costs are not integers, not one-dimensional, or masked.
        OptionError: `world_size` is not an integer from 1 to 2^31 - 1.

    >>> floor([6, 1, 1], world_size=2), floor([3, 3, 2], world_size=2)
    (0.5, 0.0)
    """
    checked = _some(costs)
    total, world = int(checked.sum()), check_integer("world_size", world_size)
    return max(int(checked.max()), -(-total // world)) * world / total - 1 if total else 0.0


def needs_context_parallelism(costs: ArrayLike, world_size: int, above: float = 0.10) -> NDArray[np.int64]:
    """Return the indices of units that cost more than ``1 + above`` times a rank's mean cost; int64 ``[k]``.

    The costliest unit comes first, the others follow by decreasing cost. Ranks wait for such a unit however units are
    dealt; only splitting it over several ranks (context parallelism) helps.

    Args:
        costs: cost of each unit that all ranks together take in a step (in a micro-step, if ranks wait for one
            another there); ``[n]``.
        world_size: number of ranks.
        above: the fraction by which a unit may exceed the mean cost of a rank; 0.1: 10 %.

    Raises:
        BalanceError: there are no units, a cost is negative, or their sum does not fit into 64 bits.
        LengthError: costs are not integers, not one-dimensional, or masked.
        OptionError: `world_size` is not an integer from 1 to 2^31 - 1.

    >>> needs_context_parallelism([1, 6, 1, 5, 1], world_size=4).tolist()
    [1, 3]
    """
    checked = _some(costs)
    limit = (1 + above) * int(checked.sum()) / check_integer("world_size", world_size)
    found = np.flatnonzero(checked > limit)
    return found[np.argsort(-checked[found], kind="stable")]


def report(costs_of_ranks: ArrayLike, floors: ArrayLike | None = None) -> Report:
    """Return a `Report` on how evenly ranks share steps, from the cost of each rank in each step.

    Args:
        costs_of_ranks: total cost of each rank's units; ``[steps, ranks]``. If ranks wait at each micro-step:
            ``[steps, micro-steps, ranks]``; the step then costs the sum over its micro-steps' costliest ranks.
        floors: a lower bound on the waste of each step, as `floor` returns it; ``[steps]``. None: `Report.floor` is
            None.

    Raises:
        BalanceError: there are no steps, `costs_of_ranks` has another shape, or a step has cost 0 on every rank.

    >>> result = report([[4, 2], [3, 3]])
    >>> round(result.waste, 4), round(result.abr, 4), result.most
    (0.1667, 0.125, 3.5)
    """
    costs = np.asarray(costs_of_ranks, dtype=np.float64)
    if costs.ndim not in (2, 3) or not costs.size:
        raise BalanceError(
            "costs of ranks must be [steps, ranks] or [steps, micro-steps, ranks] with at least one of each, got "
            f"{list(costs.shape)}"
        )
    costs = costs.reshape(costs.shape[0], -1, costs.shape[-1])
    least, most, mean = (of(axis=2).sum(axis=1) for of in (costs.min, costs.max, costs.mean))
    if not (mean > 0).all():
        raise BalanceError(f"step {int((mean <= 0).argmax())} has no cost on any rank; leave it out")
    return Report(
        steps=costs.shape[0],
        least=float(least.mean()),
        most=float(most.mean()),
        mean=float(mean.mean()),
        waste=float((most / mean).mean() - 1),
        abr=float((1 - mean / most).mean()),
        floor=None if floors is None else float(np.asarray(floors, dtype=np.float64).mean()),
    )


def _some(costs: ArrayLike) -> NDArray[np.int64]:
    checked = check_costs(costs)
    if not checked.size:
        raise BalanceError("there are no units")
    return checked
