"""Assign sequences to the packs of a plan for several capacities; this takes O(n log n) for n sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad import random
from nopad.errors import LengthError, PlanMismatchError
from nopad.options import check_sizes
from nopad.packs import Packs, index_dtype
from nopad.planning.several.given import distinct, shown, two_columns
from nopad.wording import counted

if TYPE_CHECKING:
    from nopad.planning.several.plan import SeveralPlan

__all__ = ["deal"]


def deal(plan: SeveralPlan, sizes: ArrayLike, seed: int) -> list[Packs]:
    """Assign sequences to packs at random; return the packs of each capacity, in the order of ``plan.capacities``.

    Packs hold indices into `sizes`, which are the sizes that were planned, integers ``[n]`` or ``[n, 2]``, in any
    order. Two things are drawn with `seed`: the order of the packs, and which of several sequences of equal size goes
    to which pack.

    Raises:
        PlanMismatchError: the plan does not cover exactly these sizes.
        LengthError: a size is not an integer or is out of range; `sizes` have another shape; or sequences do not have
            as many sizes each as those of the plan.
        OptionError: `seed` is not an integer from 0 to 2^64 - 1.
        RuntimeError: the result fails a check, which is a bug of nopad.
    """
    check_sizes(1, None, seed)
    given, kinds = two_columns(sizes)
    if given.size and kinds != plan.kinds:
        raise LengthError(f"sequences of this plan have {counted(plan.kinds, 'size')} each, these have {kinds}")
    found, ranks = distinct(given)
    counts = np.bincount(ranks, minlength=len(found)).astype(np.int64)
    _check_cover(plan, found, counts)
    from nopad import _deal_kernels, _kernels

    dtype = index_dtype(len(given))
    bounds = np.append(0, np.cumsum(counts)).astype(np.int64)
    bucket = np.empty(len(given), dtype=dtype)
    _kernels.group_by_rank(ranks.astype(np.int32), bounds, bucket)
    names = random.keys(np.arange(len(found), dtype=np.int64), seed, random.STREAM_WITHIN_LENGTH)
    _deal_kernels.shuffle_segments(bucket, bounds, names)
    strategy_of_pack = np.repeat(np.arange(plan.counts.size, dtype=np.int32), plan.counts)
    _kernels.shuffle(strategy_of_pack, np.uint64(random.key(seed, random.STREAM_PACK_ORDER)))
    indptr = np.zeros(strategy_of_pack.size + 1, dtype=dtype)
    sequence = np.empty(len(given), dtype=dtype)
    own = np.zeros((len(plan.sizes), 2), dtype=np.int64)
    own[:, : plan.kinds] = plan.sizes
    slots = np.searchsorted(_keys(found), _keys(own))
    _deal_kernels.deal(strategy_of_pack, plan.indptr, slots, bucket, bounds[:-1].copy(), indptr, sequence)
    used = plan.used[strategy_of_pack]
    every = [
        Packs(limits[0], plan.depth, indptr, sequence).take(np.flatnonzero(used == j))
        for j, limits in enumerate(plan.capacities)
    ]
    _check_dealt(plan, every, given)
    return every


def _keys(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    keys: NDArray[np.int64] = sizes[:, 0] * 2**31 + sizes[:, 1]
    return keys


def _check_cover(plan: SeveralPlan, sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    """Refuse a plan that was made for other sizes.

    There are ``counts[i]`` sequences of each pair of sizes ``sizes[i]``, which are distinct.

    Raises:
        PlanMismatchError: the plan does not cover exactly these sequences; the message names the first difference.
    """
    own = np.zeros((len(plan.sizes), 2), dtype=np.int64)
    own[:, : plan.kinds] = plan.sizes
    covered = dict(zip(map(tuple, distinct(own)[0].tolist()), plan.task.counts.tolist(), strict=True))
    present = dict(zip(map(tuple, sizes.tolist()), counts.tolist(), strict=True))
    if covered == present:
        return
    size = min(own for own in {**covered, **present} if covered.get(own, 0) != present.get(own, 0))
    raise PlanMismatchError(
        f"the plan covers {covered.get(size, 0):,} sequences of size {shown(size[: plan.kinds])}, there are "
        f"{present.get(size, 0):,} (in all {plan.sequences:,} and {int(counts.sum()):,}); plan these sizes instead"
    )


def _check_dealt(plan: SeveralPlan, every: list[Packs], sizes: NDArray[np.int64]) -> None:
    """Check that every sequence is in exactly one pack, and that no pack is empty or above its limits.

    Raises:
        RuntimeError: this check fails, which is a bug of nopad.
    """
    dealt = np.concatenate([packs.sequence for packs in every])
    right = dealt.size == len(sizes) and (np.bincount(dealt, minlength=len(sizes)) == 1).all()
    for packs, limits in zip(every, plan.capacities, strict=True):
        if right and len(packs):
            sums = np.add.reduceat(sizes[packs.sequence], packs.indptr[:-1], axis=0)
            right = bool((sums[:, : plan.kinds] <= limits).all() and (np.diff(packs.indptr) > 0).all())
            right = right and (plan.depth is None or int(np.diff(packs.indptr).max()) <= plan.depth)
    if not right:
        raise RuntimeError("sequences were not dealt out once each within the limits; please report it")
