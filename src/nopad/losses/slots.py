"""Functions that all losses use: the label that a slot's logits predict, the weight of its loss, and the division.

A slot holds a token or padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.errors import BatchError
from nopad.losses.checks import (
    check_batch,
    check_classes,
    check_floating,
    check_integers,
    check_per,
    check_tensors,
    is_plain,
)
from nopad.options import is_number
from nopad.sequences import IGNORED

__all__ = ["check_logits", "divided", "labelled", "slot_weights", "sparse", "wide"]

SPARSE = 0.5  # share of labelled slots up to which it is faster to copy their logits than to read those of all slots


def labelled(labels: Tensor, batch: PackedBatch, causal: bool) -> tuple[Tensor, Tensor]:
    """Return ``(sequence numbers, labels)`` for the logits of all slots, int64 ``[R * L]`` each.

    A slot holds a token or padding; `labels` are ``[R, L]``, for R rows of L slots. Sequence numbers begin at 1, in the
    order in which sequences were given, and are 0 in padding. Labels are -100 in padding, and where the loss ignores
    them. With `causal`, a slot gets the number and label of the next slot, since its logits predict the next token. For
    the last slot, the next slot is the first one. The label is -100 if a sequence begins in the next slot.

    Raises:
        BatchError: `labels` are not integers ``[R, L]``, or `batch` is not a `PackedBatch`, or has sources and targets.
    """
    check_tensors(labels=labels)
    check_batch(batch)
    at = batch.layout
    if tuple(labels.shape) != at.shape:
        raise BatchError(f"labels have the shape {list(labels.shape)}; expected {list(at.shape)}, one per slot")
    number = torch.from_numpy(at.sequence_ids).to(labels.device).reshape(-1).long()
    (labels,) = check_integers("numbers of classes", labels=labels)
    wanted = labels.reshape(-1).masked_fill(number == 0, IGNORED)
    if causal:
        first = torch.from_numpy(at.index[at.cu_seqlens[:-1]]).to(labels.device)
        # Logits stay where they are, since a copy of them is as large as the vocabulary.
        return number.roll(-1), wanted.index_fill(0, first, IGNORED).roll(-1)
    return number, wanted


def check_logits(logits: Tensor, labels: Tensor, batch: PackedBatch) -> None:
    """Check that logits are ``[rows, slots of a row, C]``, and that each label is -100 or one of the C classes.

    Raises:
        BatchError: logits or labels are not tensors, or not on one device; the logits have another shape; or a label is
            not a class (checked on the CPU only).
    """
    check_tensors(logits=logits, labels=labels)
    rows, width = batch.layout.shape
    if logits.dim() != 3 or tuple(logits.shape[:2]) != (rows, width) or not logits.shape[2]:
        raise BatchError(
            f"logits have the shape {list(logits.shape)}; expected [{rows}, {width}, C], C classes per slot"
        )
    check_classes(labels, logits.shape[2])


def slot_weights(number: Tensor, wanted: Tensor, batch: PackedBatch, per: str, weights: Tensor | None) -> Tensor:
    """Return the weight of the loss of each slot (token or padding), float64 ``[slots]``; it is 0 without a label.

    The sum of these weights is the denominator. `number` is the number of each slot's sequence, from 1, and 0 in
    padding; `wanted` is each slot's label, or -100. With `per` "token", each label has the same weight; with
    "sequence", the labels of each sequence have the weight 1 together. `weights`, ``[S]``, multiply these; None: all 1.

    Raises:
        OptionError: `per` is neither "token" nor "sequence".
        BatchError: `weights` are not a tensor ``[S]`` on the labels' device.
    """
    check_per(per)
    sequences = batch.layout.sequences
    counts = (wanted != IGNORED).double()
    if per == "sequence":
        mine = counts.new_zeros(sequences + 1).index_add(0, number, counts)
        counts = counts / mine[number].clamp(min=1)
    if weights is None:
        return counts
    check_tensors(weights=weights, labels=wanted)
    if tuple(weights.shape) != (sequences,):
        raise BatchError(f"weights have the shape {list(weights.shape)}; expected [{sequences}], one per sequence")
    return counts * torch.cat([weights.new_zeros(1), weights]).double()[number]


def sparse(wanted: Tensor) -> Tensor | None:
    """Return the indices of the labelled slots, int64 ``[N]``, if a loss is faster on these slots alone; else None.

    In masked language models most slots have no label, and their logits would be read and written several times for
    nothing. The result is None if more than half of the slots have a label, and while compiling. It is also None on
    other devices than the CPU, since the host would have to wait for the number of labels. `wanted` are the labels of
    all slots, -100 where there is none.
    """
    if wanted.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    at = (wanted != IGNORED).nonzero()[:, 0]
    return at if len(at) <= SPARSE * len(wanted) else None


def wide(logits: Tensor) -> Tensor:
    """Return logits or rewards in float32, as transformers computes losses; float64 stays float64.

    Raises:
        BatchError: they are not floats.
    """
    check_floating(logits=logits)
    return logits.float() if logits.dtype.itemsize < 4 else logits


def divided(total: Tensor, denominator: float | Tensor | None, usual: float | Tensor) -> Tensor:
    """Return the scalar `total`, divided by `denominator` (None: by `usual`), in the dtype of `total`.

    Raises:
        BatchError: `denominator` is not one real number.
    """
    if denominator is None:
        denominator = usual
    elif isinstance(denominator, Tensor) and is_plain(denominator) and denominator.numel() == 1:
        denominator = denominator.reshape(())
    elif not is_number(denominator):
        of = ""
        if isinstance(denominator, Tensor):
            of = (
                f" of shape {list(denominator.shape)}"
                if is_plain(denominator)
                else ", not dense or not of real numbers"
            )
        raise BatchError(f"the denominator is a {type(denominator).__name__}{of}; expected one number")
    return (total / denominator).to(total.dtype)
