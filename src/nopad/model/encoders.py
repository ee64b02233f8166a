"""Hooks for models that do not use transformers' registered attention (DeBERTa, MPNet), around their own attention.

With the backend `mask`, the encoder gets a dense block mask. With `segments` and `repack`, each attention module gets
one sequence per row, as in PopRT: the states are unpacked before the module, its own attention runs on
``[S, longest]``, and its output is packed again. Gradient checkpointing runs attention again after the call has ended,
so these hooks read the layout from the mask and not from the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nopad.batch.device import ATTRIBUTE, OPAQUE, Placement, carried_by
from nopad.errors import BatchError
from nopad.model import attention
from nopad.model.backends.core import Heads
from nopad.model.backends.mask import block_mask
from nopad.model.backends.repack import padded_mask
from nopad.model.calls import bound
from nopad.model.families import Family

__all__ = ["encoder_mask", "pack_again", "unpack_first"]

AROUND = "nopad_around"
REPACKED = "nopad_repacked"


@dataclass(frozen=True)
class _Around:
    """What the hooks around attention modules read from the mask: the encoder, and the facts about the model type."""

    encoder: Any
    family: Family


def encoder_mask(placed: Placement, family: Family, dtype: torch.dtype, encoder: nn.Module, compiled: bool) -> Any:
    """Return the attention mask for the encoder of a model with its own attention, with `placed` attached to it.

    `family` says whether the mask is bool or additive; `dtype` is the dtype of an additive mask. `compiled` says
    whether layers are compiled.

    Raises:
        BatchError: the backend cannot run this model's attention, its compiled layers, or rows filled end to end.
    """
    if placed.backend in ("flex", "varlen"):
        raise BatchError(f"this model's attention is its own and has no {placed.backend!r}; use 'mask' or 'segments'")
    if placed.backend != "mask":
        if compiled:
            raise BatchError(
                f"compiled layers of this model cannot unpack for {placed.backend!r}; use backend='mask', or do not "
                "compile them"
            )
        mask = placed.mask(opaque=True)
    elif placed.layout.crossing:
        raise BatchError("sequences go on in the next row here; use backend='repack' or 'segments'")
    else:
        keep = block_mask(placed.ids, Heads())
        mask = keep if family.mask == "bool" else _additive(keep, dtype)
        setattr(mask, ATTRIBUTE, placed)
    setattr(mask, AROUND, _Around(encoder, family))
    return mask


def unpack_first(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return an attention module's arguments with one sequence per row, ``(args, kwargs)``; None: unchanged.

    Raises:
        UnsupportedModelError: a packed call's mask came without the layout.
    """
    if torch.compiler.is_compiling():
        return None  # with `mask` only, where there is nothing to unpack
    named = bound(module, args, kwargs)
    mask = named.get("attention_mask")
    placed, around = carried_by(mask), getattr(mask, AROUND, None)
    if not isinstance(placed, Placement) or around is None:
        if attention.inside() is not None or getattr(mask, "dtype", None) == OPAQUE:
            raise attention.lost(module)
        return None
    attention.tell(module)
    if placed.backend == "mask":
        return None
    hidden = placed.to_padded(placed.stream(named["hidden_states"]))
    method, name = around.family.bias
    keep = padded_mask(placed)
    padded = keep if around.family.mask == "bool" else _additive(keep, hidden.dtype)
    setattr(padded, REPACKED, placed)
    named |= {"hidden_states": hidden, "attention_mask": padded}
    if named.get(name) is not None:
        named[name] = getattr(around.encoder, method)(hidden)
    return (), named


def pack_again(kwargs: dict[str, Any], output: Any) -> Any:
    """Return an attention module's output packed into the batch's rows again; None: its input was not unpacked.

    `kwargs` are the module's keyword arguments, and `output` is a tuple that begins with the states.
    """
    placed = getattr(kwargs.get("attention_mask"), REPACKED, None)
    if placed is None:
        return None
    return (placed.rows(placed.from_padded(output[0])), *output[1:])


def _additive(keep: Any, dtype: torch.dtype) -> Any:
    return torch.zeros_like(keep, dtype=dtype).masked_fill(~keep, torch.finfo(dtype).min)
