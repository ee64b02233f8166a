"""Vectors of the sequences of a batch: a model's last hidden states, pooled and normalised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.batch.device import place
from nopad.batch.filling import MASK
from nopad.errors import LengthError, OptionError
from nopad.losses.checks import check_batch
from nopad.losses.slots import wide
from nopad.model.pooling import pool
from nopad.model.safety import bare, state_of
from nopad.options import shown
from nopad.tasks.folder import Pooling

if TYPE_CHECKING:
    from nopad.batch.device import Placement
    from nopad.batch.guard import PackedMask

__all__ = ["check_pooling", "embed"]


def check_pooling(pooling: str) -> None:
    """Check that `pooling` is "mean", "first" or "last".

    Raises:
        OptionError: it is not.
    """
    if pooling not in get_args(Pooling):
        raise OptionError(f"unknown pooling {shown(pooling)}; it is 'mean', 'first' or 'last'")


def embed(
    model: Any,
    batch: PackedBatch,
    *,
    pooling: Pooling = "mean",
    normalize: bool = True,
    skip: int | NDArray[np.int64] = 0,
) -> Tensor:
    """Return one vector per sequence of a batch, in the order of its sequences; ``[S, H]``.

    The dtype is that of the model's hidden states; with `normalize`, it is float32 or wider.

    Args:
        model: a pack-safe base model (`nopad.packed`).
        batch: a batch on the model's device.
        pooling: the vector is the "mean" of the last layer's hidden states over a sequence, or the hidden state of its
            "first" or "last" token.
        normalize: scale vectors to length 1, in float32 or wider.
        skip: number of tokens at the beginning of each sequence, such as a prompt, that are left out of the mean; an
            array has a number for each sequence, int64 ``[S]``.

    Raises:
        OptionError: the pooling is unknown; `skip` is neither an integer of at least 0 nor an array ``[S]`` of such
            integers, or is above 0 with another pooling than the mean; or the model has a head or is not pack-safe.
        LengthError: `skip` leaves no token of a sequence.
        BatchError: the batch is not a `PackedBatch`, is for an encoder-decoder model, or does not fit the model.

    >>> import nopad
    >>> from transformers import BertConfig, BertModel
    >>> from nopad.tasks import embed
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(BertModel(BertConfig(**sizes)).eval())
    >>> embed(model, nopad.PackedBatch.from_sequences([[101, 7, 102], [101, 102]])).shape
    torch.Size([2, 16])
    """
    check_pooling(pooling)
    check_batch(batch)
    skipped = skip if isinstance(skip, np.ndarray) else np.array(skip if type(skip) is int else -1)
    if (skipped < 0).any() or skipped.shape not in ((), (batch.layout.sequences,)):
        raise OptionError(f"skip is {shown(skip)}; it is a number of tokens, from 0, or one for each sequence")
    leaves_out = bool(skipped.any())
    if leaves_out and pooling != "mean":
        raise OptionError(f"first tokens are left out of means only, and this is pooling {shown(pooling)}")
    state_of(model)
    output = model(**batch)
    states = getattr(output, "last_hidden_state", None)
    if states is None:
        raise OptionError(f"{type(bare(model)).__name__} gives no last_hidden_state; embed with the base model")
    guard: PackedMask = batch._fields[MASK]
    placed = place(guard, states.device, "segments")
    found = _mean_behind(states, placed, skipped) if leaves_out else pool(states, placed, pooling)
    if normalize:
        found = torch.nn.functional.normalize(wide(found), dim=-1)
    return found


def _mean_behind(states: Tensor, placed: Placement, skipped: NDArray[np.int64]) -> Tensor:
    """Return the mean of each sequence's states without those of its first `skipped` tokens; ``[S, H]``.

    `states` are the last hidden states, and `placed` says where each sequence lies in them. `skipped` is one number for
    all sequences, or an array with a number for each sequence.

    Raises:
        LengthError: a sequence has no token after the first `skipped`.
    """
    at = placed.layout
    left = at.seq_lengths - skipped
    if int(left.min()) <= 0:
        short = int(left.argmin())
        raise LengthError(
            f"sequence {short} has {at.seq_lengths[short]} tokens, and the first {at.seq_lengths[short] - left[short]} "
            "are left out, so that nothing is left to pool; leave it out, or skip fewer"
        )
    skips = np.broadcast_to(skipped, at.seq_lengths.shape)[at.order]
    inside = np.arange(at.tokens) - np.repeat(at.cu_seqlens[:-1], at.stream_lengths)
    kept = torch.from_numpy(np.flatnonzero(inside >= np.repeat(skips, at.stream_lengths))).to(states.device)
    stream = placed.stream(states)[kept]
    total = stream.new_zeros(at.sequences, stream.shape[1]).index_add(0, placed.owner[kept], stream)
    return total / torch.from_numpy(left).to(total)[:, None]
