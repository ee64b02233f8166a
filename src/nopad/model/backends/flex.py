"""Compiled FlexAttention. It skips blocks in which no query and key belong to the same sequence.

It is for GPUs, and for inference on CPUs (PyTorch has no backward pass for FlexAttention on CPUs). The first call with
each shape compiles.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from nopad.batch.device import Cross, Placement
from nopad.errors import BatchError
from nopad.model.backends.core import Heads

__all__ = ["flex"]

NARROWEST = 16  # smallest head size on a GPU


def flex(query: Tensor, key: Tensor, value: Tensor, placed: Placement | Cross, heads: Heads) -> Tensor:
    """Compute attention of `query`, `key` and `value` ``[R, H, L, D]`` by FlexAttention; return ``[R, L, H, D]``.

    `key` and `value` may have fewer heads. `placed` is the batch's layout, and `heads` are the layer's settings.

    Raises:
        BatchError: the attention is cross attention, or the batch has rows filled end to end; `heads` has a position
            bias, sinks or dropout; a gradient is needed on a CPU; or the head size is below 16 (`NARROWEST`) on a GPU.
    """
    if isinstance(placed, Cross) or placed.layout.crossing:
        raise BatchError("FlexAttention here knows neither cross attention nor rows filled end to end; use 'segments'")
    if heads.bias is not None or heads.sinks is not None or heads.dropout:
        raise BatchError("FlexAttention here knows no position bias, sinks or dropout; use 'segments' or 'mask'")
    if query.device.type == "cpu" and torch.is_grad_enabled() and query.requires_grad:
        raise BatchError("FlexAttention has no backward pass on a CPU; use backend='segments', or torch.no_grad()")
    if query.device.type != "cpu" and min(query.shape[-1], value.shape[-1]) < NARROWEST:
        raise BatchError(
            f"FlexAttention takes heads of at least {NARROWEST} on a GPU, and these have {query.shape[-1]}; use "
            "backend='mask'"
        )
    blocks = placed.keep(("flex", heads.causal, heads.window), lambda: _blocks(placed.ids, heads))
    cap = heads.softcap or 1.0

    def squash(score: Tensor, b: Any, h: Any, q: Any, k: Any) -> Tensor:
        return cap * torch.tanh(score / cap)

    out: Tensor = _compiled()(
        query,
        key,
        value,
        score_mod=None if heads.softcap is None else squash,
        block_mask=blocks,
        scale=heads.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.transpose(1, 2)


@cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _blocks(ids: Tensor, heads: Heads) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        keep = ids[b, q] == ids[b, k]
        if heads.causal:
            keep = keep & (q >= k)
        if heads.window is not None:
            keep = keep & ((q - k).abs() < heads.window)
        return keep

    rows, width = ids.shape
    return create_block_mask(seen, rows, None, width, width, device=str(ids.device))
