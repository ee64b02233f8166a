"""The contrastive loss over the pairs of a batch on all ranks, which compares the vectors of sequences.

The loss is the cross-entropy of scaled similarities (multiple negatives ranking, InfoNCE). Each anchor should be nearer
to its own positive than to the other positives and the hard negatives in the batches of all ranks. The model keeps
sequences apart; only their vectors meet here. Ranks may hold different numbers of sequences. Vectors are gathered with
gradients: the gradient of a vector is the sum of its gradients from the losses of all ranks.

Equal texts should not be negatives of each other. `contents`, a number per text, says which texts are equal. With
``same="mask"`` (the default), candidates that would be such false negatives of an anchor are left out; with
``same="keep"``, they are negatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nopad.errors import BatchError
from nopad.losses.slots import wide

__all__ = [
    "ANCHOR",
    "NEGATIVE",
    "POSITIVE",
    "Pairs",
    "Same",
    "contrastive_sum",
    "false_negatives",
    "gathered",
    "gathered_rows",
    "paired",
]

ANCHOR, POSITIVE, NEGATIVE = 0, 1, 2
Same = Literal["mask", "keep"]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which sequences are anchors, which are their positives, and which are hard negatives.

    Attributes:
        anchors: indices of the p anchors among the sequences; int64 ``[p]``.
        positives: index of each anchor's positive; int64 ``[p]``.
        negatives: indices of all q hard negatives; int64 ``[q]``.
    """

    anchors: Tensor
    positives: Tensor
    negatives: Tensor

    @property
    def candidates(self) -> Tensor:
        """Indices of what anchors are compared with: all positives, then all hard negatives; int64 ``[p + q]``."""
        return torch.cat([self.positives, self.negatives])


def paired(roles: Tensor, pairs: Tensor, where: Tensor) -> Pairs:
    """Return which sequences are anchors, positives and hard negatives, with the positive of each anchor.

    The positive of an anchor has the same pair number, and is in the same batch. Both anchors and hard negatives are in
    the order of batches, and within a batch in the order of pair numbers.

    Args:
        roles: 0 for an anchor, 1 for a positive, 2 for a hard negative; int64 ``[S]``.
        pairs: pair number of each sequence, the same for an anchor and its positive; int64 ``[S]``. If a pair occurs
            twice, its first anchor belongs to its first positive.
        where: the number of each sequence's batch (rank); int64 ``[S]``.

    Raises:
        BatchError: an anchor has no positive in its batch, or a positive has no anchor in its batch.

    >>> import torch
    >>> found = paired(torch.tensor([0, 1, 0, 1]), torch.tensor([7, 5, 5, 7]), torch.zeros(4, dtype=torch.long))
    >>> found.anchors.tolist(), found.positives.tolist()
    ([2, 0], [1, 3])
    """

    def of(role: int) -> Tensor:
        number = (roles == role).nonzero()[:, 0]
        number = number[pairs[number].argsort(stable=True)]
        return number[where[number].argsort(stable=True)]

    anchors, positives = of(ANCHOR), of(POSITIVE)
    if anchors.shape != positives.shape or not bool(
        ((pairs[anchors] == pairs[positives]) & (where[anchors] == where[positives])).all()
    ):
        raise BatchError(
            f"a batch has {anchors.numel()} anchors and {positives.numel()} positives, and not each with its own; keep "
            "the sequences of a record in one batch: a loader of the task does, and groups= of nopad.PackedLoader"
        )
    return Pairs(anchors, positives, of(NEGATIVE))


def contrastive_sum(
    vectors: Tensor,
    found: Pairs,
    contents: Tensor,
    mine: Tensor,
    *,
    scale: float = 20.0,
    symmetric: bool = False,
    same: Same = "mask",
) -> Tensor:
    """Return the sum of the cross-entropies of anchors; a scalar, in float32 or wider.

    Args:
        vectors: the vectors of all sequences of all ranks; ``[S, H]``.
        found: which sequences are anchors, positives and hard negatives.
        contents: a number per sequence, such as a hash, that is equal for sequences with equal tokens; int64 ``[S]``.
        mine: True for each pair whose cross-entropy is summed; bool ``[p]`` for p pairs.
        scale: factor of the similarities, which are dot products.
        symmetric: whether to average two losses: that of anchors against candidates (all positives and hard negatives),
            and that of positives against all anchors.
        same: what happens to the false negatives of an anchor: "mask" leaves them out, "keep" takes them as negatives.
            A false negative is a candidate, other than the anchor's own positive, with the same tokens as the anchor or
            that positive; or the positive of another anchor, if both anchors have the same tokens. With `symmetric`,
            this also applies to anchors that are false negatives of a positive.

    Raises:
        BatchError: the vectors are not floats.
    """
    vectors = wide(vectors)
    wanted = mine.nonzero()[:, 0]
    total = _sum(vectors, found, contents, wanted, scale, same)
    if not symmetric:
        return total
    turned = Pairs(found.positives, found.anchors, found.negatives[:0])
    return (total + _sum(vectors, turned, contents, wanted, scale, same)) / 2


def _sum(vectors: Tensor, found: Pairs, contents: Tensor, wanted: Tensor, scale: float, same: Same) -> Tensor:
    logits = (vectors[found.anchors[wanted]] @ vectors[found.candidates].T) * scale
    if same == "mask":
        logits = logits.masked_fill(false_negatives(found, contents, wanted), float("-inf"))
    return cross_entropy(logits, wanted, reduction="sum")


def false_negatives(found: Pairs, contents: Tensor, wanted: Tensor) -> Tensor:
    """Return which candidates are false negatives of the n anchors `wanted`; bool ``[n, p + q]``.

    The candidates are all p positives, then all q hard negatives (`Pairs.candidates`). A candidate is a false negative
    of an anchor if it has the same tokens as the anchor or as the anchor's positive. If two anchors have the same
    tokens, the positive of each is also a false negative of the other. The anchor's own positive is never a false
    negative.

    Args:
        found: which sequences are anchors, positives and hard negatives.
        contents: a number per sequence, such as a hash, that is equal for sequences with equal tokens; int64 ``[S]``.
        wanted: indices into ``found.anchors``; int64 ``[n]``.
    """
    own, other, candidates = contents[found.anchors], contents[found.positives], contents[found.candidates]
    equal = (candidates == own[wanted, None]) | (candidates == other[wanted, None])
    equal[:, : own.numel()] |= own == own[wanted, None]
    equal[torch.arange(wanted.numel(), device=wanted.device), wanted] = False
    return equal


def gathered(mine: Tensor, group: Any = None) -> tuple[Tensor, Tensor]:
    """Gather the rows ``[n, ...]`` of all ranks, in the order of ranks, without gradients.

    Returns all rows, ``[N, ...]``, and the number of each row's rank, int64 ``[N]``. Without a process group of several
    ranks, the rows are `mine` itself (with gradients), and their rank is 0. Every rank must call this function.
    """
    if not _ranks(group):
        return mine, mine.new_zeros(mine.shape[0], dtype=torch.long)
    sizes = _sizes(mine, group)
    found = torch.cat([part[:size] for part, size in zip(_all(mine, max(sizes), group), sizes, strict=True)])
    where = torch.arange(len(sizes), device=mine.device).repeat_interleave(torch.tensor(sizes, device=mine.device))
    return found, where


def gathered_rows(mine: Tensor, group: Any = None) -> Tensor:
    """Gather the rows ``[n, H]`` of all ranks with gradients; return them in the order of ranks, ``[N, H]``.

    The gradient of a rank's rows is the sum of the gradients that all ranks compute for them. Every rank must call this
    function, and run the backward pass. Without a process group of several ranks, `mine` itself is returned.
    """
    if not _ranks(group):
        return mine
    found: Tensor = _Gather.apply(mine, _sizes(mine, group), group)  # type: ignore[no-untyped-call]
    return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor, sizes: list[int], group: Any) -> Tensor:
        """Return the rows of all ranks, in the order of ranks; ``sizes[r]`` is the number of rows of rank r."""
        ctx.group, ctx.rows = group, mine.shape[0]
        ctx.first = sum(sizes[: torch.distributed.get_rank(group)])
        parts = _all(mine, max(sizes), group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of this rank's rows, summed over the losses of all ranks."""
        total = gradients[0].contiguous().clone()
        torch.distributed.all_reduce(total, group=ctx.group)
        return total[ctx.first : ctx.first + ctx.rows], None, None


def _ranks(group: Any) -> bool:
    """Return whether there is a process group, and it has several ranks."""
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return there and torch.distributed.get_world_size(group) > 1


def _sizes(mine: Tensor, group: Any) -> list[int]:
    """Return how many rows each rank has; every rank must call this function."""
    number = torch.tensor([mine.shape[0]], device=mine.device)
    found = [torch.zeros_like(number) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(found, number, group=group)
    return [int(one) for one in found]


def _all(mine: Tensor, most: int, group: Any) -> list[Tensor]:
    """Return the rows of each rank, padded with zeros to `most` rows (at least 1).

    They are padded since all ranks must send equal numbers of rows.
    """
    filled = mine.new_zeros(max(most, 1), *mine.shape[1:])
    filled[: mine.shape[0]] = mine
    found = [torch.empty_like(filled) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(found, filled, group=group)
    return found
