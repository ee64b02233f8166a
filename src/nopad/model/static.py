"""Begin and end calls with the inputs of `nopad.model.static_inputs`, in eager code or while compiling.

The mask holds the sequence numbers and no layout is attached to it, so one graph serves all batches with the same
number and width of rows. No check here may depend on a tensor's values; `static_inputs` checks the batch's values.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch

from nopad.errors import BatchError
from nopad.model.batchwide import check_arguments
from nopad.model.calls import Cell
from nopad.model.fronts import refuse_static_front
from nopad.model.heads import Head
from nopad.model.mixers import refuse_compiled
from nopad.model.postconditions import check_static
from nopad.model.routers import refuse_static_routers

__all__ = ["enter_static", "leave_static"]


def enter_static(cell: Cell, head: Head, named: Mapping[str, Any], frame: FrameType | None) -> None:
    """Begin a call with static shapes, and store its state in `cell.static`.

    `named` are the arguments of the call by name. `frame` is the Python stack frame that calls the module; None while
    compiling. In eager code, `Calls.begin` must have been called before.

    Raises:
        UnsupportedModelError: the model cannot be compiled whole on packs.
        BatchError: the arguments include a cache of earlier tokens; a causal language model gets the denominator of its
            loss (``num_items_in_batch``); a model with results per token is asked for logits of routers; or the mask's
            shape does not fit the tokens.
    """
    static, numbers = cell.static, named["attention_mask"]
    refuse_static_front(head.model, head.family)
    refuse_compiled(head.model, head.family)
    if not torch.compiler.is_compiling():
        static.frame = frame
    check_arguments(named)
    if head.by_token:
        refuse_static_routers(head.model, named)
    head.enter_static(named)
    tokens = named.get("input_ids")
    given = named.get("inputs_embeds") if tokens is None else tokens
    if given is not None and tuple(numbers.shape) != (given.shape[0], 1, 1, given.shape[1]):
        raise BatchError(
            f"attention_mask of int32 has the shape {list(numbers.shape)}, and tokens have {list(given.shape[:2])}; "
            "nopad.model.static_inputs gives [R, 1, 1, L], so give your own masks as bool"
        )
    static.tokens = tokens
    static.ids = numbers  # not sliced here: hooks of the whole model compile to separate frames and graphs


def leave_static(model: Any, cell: Cell, head: Head, output: Any) -> Any:
    """End a call with static shapes; return the output with results per sequence in place of results per row.

    Results per sequence are ``[cell.most, ...]``, where `cell.most` is the largest number of sequences in a batch. If
    `cell.most` is None, results per row become None instead (`Head.leave_static`). `output` is None if the model raised
    an exception; then the result is None too.

    Raises:
        UnsupportedModelError: an output has another shape than it must have (`check_static`).
    """
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
