"""PyTorch's variable-length flash kernel on the stream without padding. It needs CUDA and half precision.

Cost O(sum of l^2) in one kernel. Source: `torch.nn.attention.varlen`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nopad.batch.device import Cross, Placement
from nopad.errors import BatchError
from nopad.model.backends.core import Heads

__all__ = ["varlen"]


def varlen(query: Tensor, key: Tensor, value: Tensor, placed: Placement | Cross, heads: Heads) -> Tensor:
    """Compute attention by the variable-length kernel; return ``[R, L, H, D]``, 0 in padding.

    `query` is ``[R, H, L, D]``. `key` and `value` may have fewer heads, and with `Cross` another R and L.

    Raises:
        BatchError: the kernel does not support the device, the dtype or a setting in `heads`, or `Cross` packs sources
            and targets in different orders.
    """
    if query.device.type != "cuda" or query.dtype not in (torch.float16, torch.bfloat16):
        raise BatchError(
            f"the varlen kernel runs on CUDA in float16 or bfloat16, and this is {query.device.type} in {query.dtype}; "
            "use backend='segments' or 'mask'"
        )
    if heads.bias is not None or heads.softcap is not None or heads.sinks is not None or heads.dropout:
        raise BatchError("the varlen kernel knows no position bias, softcap, sinks or dropout; use backend='mask'")
    from torch.nn.attention.varlen import varlen_attn

    queries, keys = (placed.queries, placed.keys) if isinstance(placed, Cross) else (placed, placed)
    if isinstance(placed, Cross) and placed.pairs != list(range(len(placed.pairs))):
        raise BatchError("sources and targets are packed in another order; use backend='segments' or nopad.Flat()")
    q, k, v = (at.stream(states.transpose(1, 2)) for states, at in ((query, queries), (key, keys), (value, keys)))
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    # The kernel counts visible neighbours on each side: -1 is no limit, and 0 on the right is causal.
    left = -1 if heads.window is None else heads.window - 1
    right = 0 if heads.causal else left
    out = varlen_attn(
        q,
        k,
        v,
        queries.cu_seqlens,
        keys.cu_seqlens,
        queries.layout.max_seqlen,
        keys.layout.max_seqlen,
        scale=heads.scaling,
        window_size=(left, right),
    )
    assert isinstance(out, Tensor)
    return queries.rows(out)
