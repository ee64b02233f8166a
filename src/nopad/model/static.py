"""Calls of static shapes: what `nopad.model.static_inputs` gives, eager or while compiling.

Their mask is the sequence numbers and nothing hangs on it, so one graph serves every batch of the same rows. No check
here may depend on a tensor's values; those of the batch are in `static_inputs`.
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
    """Open a call with this mask, of these token ids; `frame`: in which the module is called, None while compiling."""
    static = cell.static
    if not torch.compiler.is_compiling():
        cell.calls.stack.append(None)
        static.frame = frame
    static.tokens = tokens
    static.ids = numbers  # no slice here: hooks of the whole model are frames, and graphs, of their own


def leave_static(model: Any, cell: Cell, head: Head, output: Any) -> Any:
    """Close the call; give what it returned ``[most, ...]`` where it has one entry per row."""
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
