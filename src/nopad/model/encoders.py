"""Hooks around the attention of models that do not use transformers' registered attention (DeBERTa, MPNet).

With the backend `mask`, the encoder gets a dense block mask. With `repack`, each attention module gets one of the S
sequences per row: the states are unpacked before the module, its own attention runs on ``[S, longest]``, and its output
is packed again. With `segments`, this is done for groups of sequences of similar length (`nopad.model.groups`), one
after the other, since most of ``[S, longest]`` may be padding. Gradient checkpointing runs attention again after the
call has ended, so these hooks read the layout from the mask and not from the call.
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
from nopad.model.calls import bound
from nopad.model.families import Family
from nopad.model.groups import PENDING, Groups, How, Pending, groups_of, runs_once

__all__ = ["encoder_mask", "pack_again", "unpack_first"]

AROUND = "nopad_around"


@dataclass(frozen=True)
class _Around:
    """What hooks around attention modules read from the mask, besides the batch's layout.

    Attributes:
        encoder: the model's encoder.
        family: the facts about the model type.
    """

    encoder: Any
    family: Family


def encoder_mask(placed: Placement, family: Family, dtype: torch.dtype, encoder: nn.Module, compiled: bool) -> Any:
    """Return the attention mask for the encoder of a model with its own attention.

    Three objects are attached to the mask, for the hooks around attention modules: `placed` (the batch's layout), the
    `encoder`, and `family` (the facts about the model type). With the backend "mask", the result is a real mask
    ``[R, 1, L, L]``, bool or additive, as `family` says; `dtype` is the dtype of an additive mask. With "segments" and
    "repack", it is int16 zeros ``[R, 1, 1, L]`` that only carry the attached objects. `compiled` says whether layers
    are compiled.

    Raises:
        BatchError: the backend cannot run this model's attention or its compiled layers; or it is "mask", and rows are
            filled end to end.
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
    """Return an attention module's arguments for the first group of sequences, ``(args, kwargs)``.

    A group is a batch of sequences of similar length, one per row. There is a single group of all sequences with the
    backend "repack", and if FSDP lets the module run only once (`runs_once`). The arguments for the other groups are
    attached to the new mask, from which `pack_again` reads them. The result is None if the arguments stay as they are:
    with the backend "mask", in calls that are not packed, and while compiling.

    Raises:
        UnsupportedModelError: the mask of a packed call reached the module without the batch's layout.
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
    how: How = "one" if placed.backend == "repack" or runs_once(module) else "mixed"
    groups = placed.keep(("groups", how), lambda: groups_of(placed, how))
    first, *others = _pieces(named, placed, groups, around)
    setattr(first["attention_mask"], PENDING, Pending(placed, groups, others))
    return (), first


def _pieces(named: dict[str, Any], placed: Placement, groups: Groups, around: _Around) -> list[dict[str, Any]]:
    """Return an attention module's arguments, by name, for each group of sequences.

    `named` are the module's arguments by name. Each group gets its own states ``[n, l, H]`` (n sequences, padded to l
    tokens) and its own mask. If the module got relative positions or a position bias, each group gets its own of these,
    computed by the encoder in `around`.
    """
    method, bias = around.family.bias
    found = []
    parts = groups.cut(placed.stream(named["hidden_states"]))
    for hidden, lengths in zip(parts, groups.lengths, strict=True):
        keep = (torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None])[:, None, None, :]
        mask = keep if around.family.mask == "bool" else _additive(keep, hidden.dtype)
        one = named | {"hidden_states": hidden, "attention_mask": mask}
        if named.get(bias) is not None:
            one[bias] = getattr(around.encoder, method)(hidden)
        found.append(one)
    return found


def pack_again(module: nn.Module, kwargs: dict[str, Any], output: Any) -> Any:
    """Run an attention module on the groups of sequences that are left, and return its output in the batch's rows.

    The module has already run on the first group (`unpack_first`). `kwargs` are its keyword arguments in that run, and
    `output` is its output: a tuple that begins with the states of the first group. The other items of this tuple are
    returned unchanged. The result is None if `unpack_first` did not change the module's arguments.
    """
    pending: Pending | None = getattr(kwargs.get("attention_mask"), PENDING, None)
    if pending is None:
        return None
    delattr(kwargs["attention_mask"], PENDING)
    parts = [output[0], *(module.forward(**one)[0] for one in pending.others)]
    return (pending.placed.rows(pending.groups.join(parts)), *output[1:])


def _additive(keep: Any, dtype: torch.dtype) -> Any:
    return torch.zeros_like(keep, dtype=dtype).masked_fill(~keep, torch.finfo(dtype).min)
