"""Models whose layers do not call a registered attention (DeBERTa, MPNet): hooks around their own.

With `mask` the encoder gets a dense block mask. With `segments` and `repack` each attention module gets one sequence a
row, as PopRT does: unpack before it, its own attention on ``[S, longest]``, pack again behind it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nopad.batch.device import ATTRIBUTE, Placement, carried_by
from nopad.errors import BatchError
from nopad.model import attention
from nopad.model.backends.core import Heads
from nopad.model.backends.mask import block_mask
from nopad.model.backends.repack import padded_mask
from nopad.model.calls import bound
from nopad.model.families import Family

__all__ = ["encoder_mask", "hook_encoder"]

REPACKED = "nopad_repacked"


def hook_encoder(model: Any, family: Family) -> list[Any]:
    """Hook the attention modules of a model's encoder; return the handles."""
    base = getattr(model, model.base_model_prefix, model)
    around = _Around(base.encoder, family)
    handles = []
    for module in base.encoder.modules():
        if type(module).__name__ in family.attention:
            handles.append(module.register_forward_pre_hook(around.before, with_kwargs=True))
            handles.append(module.register_forward_hook(around.after, with_kwargs=True))
    return handles


def encoder_mask(placed: Placement, family: Family, dtype: torch.dtype) -> Any:
    """Return what the encoder of such a model gets as its mask."""
    if placed.backend in ("flex", "varlen"):
        raise BatchError(f"this model's attention is its own and has no {placed.backend!r}; use 'mask' or 'segments'")
    if placed.backend != "mask":
        return placed.mask()
    if placed.layout.crossing:
        raise BatchError("sequences go on in the next row here; use backend='repack' or 'segments'")
    keep = block_mask(placed.ids, Heads())
    mask = keep if family.mask == "bool" else _additive(keep, dtype)
    setattr(mask, ATTRIBUTE, placed)
    return mask


def _additive(keep: Any, dtype: torch.dtype) -> Any:
    return torch.zeros_like(keep, dtype=dtype).masked_fill(~keep, torch.finfo(dtype).min)


class _Around:
    """The pair of hooks around each attention module."""

    def __init__(self, encoder: nn.Module, family: Family) -> None:
        self.encoder, self.family = encoder, family

    def before(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Unpack."""
        named = bound(module, args, kwargs)
        placed = carried_by(named.get("attention_mask"))
        if not isinstance(placed, Placement):
            return None
        attention.tell(module)
        if placed.backend == "mask":
            return None
        hidden = placed.to_padded(placed.stream(named["hidden_states"]))
        method, name = self.family.bias
        keep = padded_mask(placed)
        padded = keep if self.family.mask == "bool" else _additive(keep, hidden.dtype)
        setattr(padded, REPACKED, placed)
        named |= {"hidden_states": hidden, "attention_mask": padded}
        if named.get(name) is not None:
            named[name] = getattr(self.encoder, method)(hidden)
        return (), named

    def after(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """Pack again."""
        placed = getattr(kwargs.get("attention_mask"), REPACKED, None)
        if placed is None:
            return None
        return (placed.rows(placed.from_padded(output[0])), *output[1:])
