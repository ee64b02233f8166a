"""Whether a batch fits a model. What does not is refused before the model starts, with the way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from nopad.batch.layout import Layout
from nopad.errors import BatchError
from nopad.model.batchwide import check_arguments, check_rope, check_scales
from nopad.model.families import Family
from nopad.model.positions import padding_index

__all__ = ["check_call", "check_layout", "device_of", "positions_of"]

RELATIVE = ("t5", "deberta-v2", "deberta")  # positions without a table, as far as their configuration has none


def check_call(model: Any, family: Family, most: int | None, named: Mapping[str, Any], layout: Layout) -> None:
    """Check the arguments of a packed call, by name, against the batch's layout and the model.

    Raises:
        BatchError: the input's shape, device or dtype is another one, or `check_layout` refuses.
        UnsupportedModelError: a layer quantises the activations of a whole batch together.
    """
    check_arguments(named)
    check_scales(model)
    ids = named.get("input_ids")
    if ids is None:
        ids = named.get("inputs_embeds")
    device, dtype = device_of(model), next(model.parameters()).dtype
    if ids is None or tuple(ids.shape[:2]) != layout.shape:
        got = "none" if ids is None else tuple(ids.shape)
        raise BatchError(f"input_ids have the shape {got}; the batch is laid out in {layout.shape}")
    if ids.device != device:
        raise BatchError(f"the batch is on {ids.device} and the model on {device}; use batch.to({str(device)!r})")
    if ids.is_floating_point() and ids.dtype != dtype:
        raise BatchError(f"inputs_embeds are {ids.dtype} and the model is {dtype}; convert one of them")
    check_layout(model, family, most, layout)
    rescales = getattr(model.config, "token_dropout", False) and ids is named.get("input_ids")
    if rescales and bool((ids == model.config.mask_token_id).any()):
        raise BatchError(
            "this model rescales embeddings by the share of masked tokens in a row (token_dropout), which is not "
            "that of a sequence; set config.token_dropout = False, or run sequences with <mask> alone"
        )


def check_layout(model: Any, family: Family, most: int | None, layout: Layout) -> None:
    """Check how many sequences a batch has, and how long they are.

    Raises:
        BatchError: no token at all, more sequences than `most`, one longer than the model has positions, rows wider
            than it takes, or rotary frequencies that would depend on the longest of them.
    """
    if not layout.tokens:
        raise BatchError("the batch has no token at all; leave it out")
    if most is not None and layout.sequences > most:
        raise BatchError(
            f"the batch has {layout.sequences} sequences, and this model was made pack-safe for {most}; "
            "plan with fewer a pack (max_depth), take fewer rows, or raise max_sequences in nopad.packed"
        )
    check_rope(model, layout)
    limit = positions_of(model, family)
    if limit is not None and layout.max_seqlen > limit:
        at = int(layout.order[layout.seq_lengths.argmax()])
        raise BatchError(
            f"sequence {at} has {layout.max_seqlen} tokens, and {type(model).__name__} has {limit} positions; "
            "truncate it or split it"
        )
    if family.narrow and limit is not None and layout.shape[1] > limit:
        raise BatchError(
            f"rows of this batch are {layout.shape[1]} slots wide, and {type(model).__name__} takes none wider than "
            f"its {limit} positions; build the batch with form='rows' and a capacity of at most {limit}"
        )


def positions_of(model: Any, family: Family) -> int | None:
    """How long a sequence may be; None: as long as one likes."""
    config = model.config
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    relative = getattr(config, "model_type", "") in RELATIVE and not getattr(config, "position_biased_input", False)
    if limit is None or relative:
        return None
    padding = padding_index(model, family)
    return int(limit) if padding is None else int(limit) - padding - 1


def device_of(module: nn.Module) -> torch.device:
    """Where a model's parameters are."""
    return next(module.parameters()).device
