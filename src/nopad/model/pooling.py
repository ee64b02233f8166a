"""Pool token states into one state per sequence: its first or last token's, or the mean over its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nopad.batch.device import Placement, place
from nopad.batch.guard import PackedMask
from nopad.errors import BatchError, OptionError
from nopad.losses.checks import check_batch, check_tensors
from nopad.options import shown

if TYPE_CHECKING:
    from nopad.batch import PackedBatch

__all__ = ["last_true", "mine", "pool", "pooled", "static_pooled"]


def pooled(states: Tensor, batch: PackedBatch, how: str = "mean") -> Tensor:
    """Pool the states that a pack-safe model gave for a batch, one result per sequence.

    Args:
        states: ``[R, L, ...]``, such as `last_hidden_state`.
        batch: the batch that the model was called with.
        how: the "first" or "last" token of each sequence, or the "mean" over its tokens.

    Returns:
        ``[S, ...]`` for S sequences, in the order in which they were given; same device, and same dtype, except that
            the mean of integers is a float.

    Raises:
        BatchError: the states are not a dense tensor of real numbers, their shape does not begin with ``[R, L]``, or
            the batch has targets or is not a `PackedBatch`.
        OptionError: `how` is not "first", "last" or "mean".

    >>> import nopad, torch
    >>> from nopad.model import pooled
    >>> batch = nopad.PackedBatch.from_sequences([[5, 6], [7]])
    >>> pooled(torch.tensor([[[1.0], [3.0], [8.0]]]), batch, "mean").tolist()
    [[2.0], [8.0]]
    """
    if how not in ("first", "last", "mean"):
        raise OptionError(f"unknown pooling {shown(how)}; it is 'first', 'last' or 'mean'")
    check_tensors(states=states)
    check_batch(batch)
    if tuple(states.shape[:2]) != batch.layout.shape:
        raise BatchError(
            f"cannot pool states of shape {tuple(states.shape)}; expected one per slot of the batch, "
            f"[{batch.layout.shape[0]}, {batch.layout.shape[1]}, ...]"
        )
    guard: PackedMask = batch["attention_mask"]
    return pool(states, place(guard, states.device, "segments"), how)


def pool(states: Tensor, placed: Placement, how: str) -> Tensor:
    """Pool states ``[R, L, ...]`` to one entry per sequence, ``[S, ...]``, by `how`: "first", "last" or "mean".

    "first" and "last" take the state of that token of the sequence, "mean" the mean over its tokens.

    Raises:
        BatchError: `how` is not "first", "last" or "mean".
    """
    flat = states.reshape(-1, *states.shape[2:])
    if how == "first":
        return flat[placed.first]
    if how == "last":
        return flat[placed.last]
    if how == "mean":
        stream = placed.stream(states)
        lens = placed.lens
        total = stream.new_zeros(lens.numel(), *stream.shape[1:]).index_add(0, placed.owner, stream)
        return total / lens.reshape(-1, *[1] * (total.dim() - 1)).to(total.dtype)
    raise BatchError(f"unknown pooling {shown(how)}; it is 'first', 'last' or 'mean'")


def static_pooled(states: Tensor, ids: Tensor, most: int, how: str) -> Tensor:
    """Pool states ``[R, L, ...]`` to one entry per sequence, ``[most, ...]``: the same shape for every batch.

    `how` is "first" or "last" for the state of that token, or "mean" for the mean over the tokens. `ids` is the number
    of each slot's sequence, from 1, and 0 in padding; ``[R, 1, 1, L]``. `most` is the largest number of sequences that
    a batch may have; entries beyond the batch's last sequence are meaningless.
    """
    flat = states.reshape(-1, *states.shape[2:])
    owned = mine(ids, most)
    if how == "mean":
        shares = owned.to(flat.dtype) / owned.sum(1, keepdim=True).clamp(min=1).to(flat.dtype)
        return (shares @ flat.reshape(flat.shape[0], -1)).reshape(most, *flat.shape[1:])
    if how == "first":
        return flat[owned.int().argmax(1)]
    return flat[last_true(owned)]


def mine(ids: Tensor, most: int) -> Tensor:
    """Return which slots belong to each of the sequences 1 to `most`; bool ``[most, R x L]``.

    `ids` is the number of each slot's sequence, 0 in padding; any shape with R x L entries.
    """
    numbers = torch.arange(1, most + 1, device=ids.device, dtype=ids.dtype)
    return ids.reshape(1, -1) == numbers[:, None]


def last_true(real: Tensor) -> Tensor:
    """Return the index of the last True in each row of bool ``[n, L]`` (L - 1 if there is none), int64 ``[n]``."""
    return real.shape[1] - 1 - real.flip(1).int().argmax(1)  # argmax finds the first True
