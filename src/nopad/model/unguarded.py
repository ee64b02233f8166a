"""What would undo the keeping apart before a packed call begins: a batch without its guard, heads that mix tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nopad.batch.guard import is_of_batch
from nopad.errors import BatchError, UnsupportedModelError

__all__ = ["check_rows", "refuse_unguarded"]

MIXING = (nn.RNNBase, nn.modules.conv._ConvNd, nn.MultiheadAttention, nn.TransformerEncoderLayer)


def refuse_unguarded(named: Mapping[str, Any]) -> None:
    """Refuse an ordinary call with a packed batch's tensors: its `attention_mask` is missing or another one.

    Told by the tensors themselves, which `PackedBatch` marks when it hands them out; and, without any mask, by
    positions that begin again inside a row.

    Raises:
        BatchError: it is one.
    """
    for name in ("input_ids", "inputs_embeds", "position_ids", "decoder_input_ids"):
        if is_of_batch(named.get(name)):
            raise BatchError(
                f"{name} is of a packed batch, and its attention_mask is not there: sequences would see each other. "
                "Call model(**batch), or give attention_mask=batch['attention_mask'] too"
            )
    positions = named.get("position_ids")
    if named.get("attention_mask") is None and isinstance(positions, Tensor) and _begin_again(positions):
        raise BatchError(
            "position_ids begin again inside a row and there is no attention_mask: sequences would see each other. "
            "Build the batch with nopad.PackedBatch, and call model(**batch)"
        )


def check_rows(model: nn.Module, base: Any) -> None:
    """Refuse a head that goes along rows, across the borders of sequences.

    Raises:
        UnsupportedModelError: it is recurrent, a convolution, or attends.
    """
    for child in model.children() if base is not model else ():
        for name, module in child.named_modules() if child is not base else ():
            if isinstance(module, MIXING):
                raise UnsupportedModelError(
                    f"the head of {type(model).__name__} has a {type(module).__name__}{f' ({name})' if name else ''}, "
                    "which goes along a row, across the borders of sequences; run the base model, and the head on each "
                    "sequence's states (batch.unpack)"
                )


def _begin_again(positions: Tensor) -> bool:
    if positions.dim() < 2 or positions.shape[-1] < 2 or torch.compiler.is_compiling():
        return False
    return bool((positions[..., 1:] <= positions[..., :-1]).any())
