"""Losses of packed batches that equal those of the sequences by themselves: value and gradient.

A mean needs a denominator, and a pack must not be one: packs hold different numbers of tokens and sequences. So every
loss here is a sum over what counts, divided by how much counts: in the batch, or wherever the caller says
(`denominator`: all batches of a step, on all ranks), which makes accumulated steps and many ranks exact.

``per="token"`` (the default): every labelled token weighs the same, as in transformers' losses of padded batches, so
packing changes nothing that users know. ``per="sequence"``: mean over each sequence's labelled tokens first, then over
sequences, so that a short sequence weighs as much as a long one: the loss of the packing papers (arXiv 2107.02027,
section 3.3). `weights` weigh sequences in either. Needs the extra ``nopad[torch]``.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nopad.batch import PackedBatch
from nopad.errors import BatchError, OptionError

__all__ = ["items", "token_loss"]

IGNORED = -100

Per = Literal["token", "sequence"]


def token_loss(
    logits: Tensor,
    labels: Tensor,
    batch: PackedBatch,
    *,
    per: Per = "token",
    causal: bool = False,
    weights: Tensor | None = None,
    denominator: float | Tensor | None = None,
) -> Tensor:
    """Cross-entropy of a head that gives a result per token (masked and causal language models, token classification).

    Args:
        logits: ``[R, L, C]``.
        labels: ``[R, L]``, -100 where nothing is to be learnt.
        batch: whose layout both have.
        per: what weighs the same, see above.
        causal: the logits of a token are for the next one's label; none are for a sequence's first.
        weights: of sequences, ``[S]`` in stream order; None: all 1.
        denominator: divide by this instead of by `items` of this batch.

    Raises:
        BatchError: a shape that does not fit the batch.
        OptionError: another `per`.

    >>> import nopad, torch
    >>> from nopad.losses import token_loss
    >>> batch = nopad.PackedBatch.from_sequences([[1, 2, 3], [4]])
    >>> logits, labels = torch.zeros(1, 4, 8), torch.tensor([[1, -100, 3, 4]])
    >>> round(token_loss(logits, labels, batch).item(), 4), items(labels, batch)
    (2.0794, tensor(3., dtype=torch.float64))
    """
    number, wanted = _labelled(labels, batch, causal)
    _check(logits.shape[:2] == torch.Size(batch.layout.shape), "logits", logits, batch)
    flat = logits.reshape(-1, logits.shape[-1])
    if causal:
        flat = flat.roll(1, 0)  # the logits for a token stand at the one before it, in its own sequence
    each = cross_entropy(flat, wanted, ignore_index=IGNORED, reduction="none")
    scale = _scale(number, wanted, batch, per, weights).to(each)
    total = (each * scale).sum()
    return total / (
        items(labels, batch, per=per, causal=causal, weights=weights) if denominator is None else denominator
    )


def items(
    labels: Tensor, batch: PackedBatch, *, per: Per = "token", causal: bool = False, weights: Tensor | None = None
) -> Tensor:
    """What `token_loss` divides by: labelled tokens, or sequences with any, each times its weight.

    For accumulated steps and many ranks, add these up (over ranks by ``all_reduce``), give the sum to every call as
    `denominator`, and add up the losses; with DDP, which averages gradients, multiply by the number of ranks.
    """
    number, wanted = _labelled(labels, batch, causal)
    return _scale(number, wanted, batch, per, weights).sum()


def _labelled(labels: Tensor, batch: PackedBatch, causal: bool) -> tuple[Tensor, Tensor]:
    """The number of each slot's sequence (0: padding), and its label where it counts, else -100; ``[R x L]`` each."""
    at = batch.layout
    _check(tuple(labels.shape) == at.shape, "labels", labels, batch)
    number = torch.from_numpy(at.sequence_ids).to(labels.device).reshape(-1).long()
    wanted = labels.reshape(-1).masked_fill(number == 0, IGNORED)
    if causal:
        first = torch.from_numpy(at.index[at.cu_seqlens[:-1]]).to(labels.device)
        wanted = wanted.index_fill(0, first, IGNORED)
    return number, wanted


def _scale(number: Tensor, wanted: Tensor, batch: PackedBatch, per: str, weights: Tensor | None) -> Tensor:
    """What each slot's loss is multiplied by; sums to the denominator. ``[R x L]``."""
    sequences = batch.layout.sequences
    counts = (wanted != IGNORED).double()
    if per == "sequence":
        mine = counts.new_zeros(sequences + 1).index_add(0, number, counts)
        counts = counts / mine[number].clamp(min=1)
    elif per != "token":
        raise OptionError(f"unknown per {per!r}; it is 'token' or 'sequence'")
    if weights is None:
        return counts
    if tuple(weights.shape) != (sequences,):
        raise BatchError(f"weights have the shape {list(weights.shape)}; wanted [{sequences}], one a sequence")
    return counts * torch.cat([weights.new_zeros(1), weights]).double()[number]


def _check(fits: bool, name: str, value: Any, batch: PackedBatch) -> None:
    if not fits:
        rows, width = batch.layout.shape
        raise BatchError(f"{name} have the shape {list(value.shape)}; wanted [{rows}, {width}, ...]")
