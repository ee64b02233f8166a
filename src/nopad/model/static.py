"""Calls with the inputs of `nopad.model.static_inputs`, eager or while compiling.

The mask holds the sequence numbers and has nothing attached, so one graph serves all batches with the same rows. No
check here may depend on a tensor's values; `static_inputs` checks those of the batch.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from torch import Tensor

from nopad.model.calls import Cell
from nopad.model.heads import Head
from nopad.model.postconditions import check_static

__all__ = ["enter_static", "leave_static"]


def enter_static(cell: Cell, numbers: Tensor, tokens: Tensor | None, frame: FrameType | None) -> None:
    """Begin a call with static shapes; `numbers` is its mask, `tokens` its token ids or None.

    `frame` is the frame that calls the module; None while compiling.
    """
    static = cell.static
    if not torch.compiler.is_compiling():
        cell.calls.stack.append(None)
        static.frame = frame
    static.tokens = tokens
    static.ids = numbers  # not sliced here: hooks of the whole model compile to separate frames and graphs


def leave_static(model: Any, cell: Cell, head: Head, output: Any) -> Any:
    """End a call with static shapes: return the output with ``[most, ...]`` results in place of one per row."""
    static = cell.static
    numbers = static.ids
    try:
        if output is not None and numbers is not None:
            output = head.leave_static(cell, output)
            check_static(model, head, cell.most, (numbers.shape[0], numbers.shape[-1]), output)
    finally:
        static.clear()
        if not torch.compiler.is_compiling():
            cell.calls.stack.pop()
    return output
