"""PyTorch's variable-length flash kernel, on all tokens in one stream without padding.

It needs CUDA and half precision. The cost is O(sum of l^2) for lengths l, in one call of the kernel per layer. Source:
`torch.nn.attention.varlen`, which supports windows from torch 2.11 on.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nopad.batch.device import Cross, Placement
from nopad.errors import BatchError
from nopad.model.backends.core import Heads
from nopad.model.backends.segments import segments

__all__ = ["HALF", "autocast_dtype", "automatic", "on_kernel", "varlen"]

HALF = (torch.float16, torch.bfloat16)
WIDEST = 256  # largest head size
STEP = 8  # the kernel takes head sizes that are multiples of this


def varlen(query: Tensor, key: Tensor, value: Tensor, placed: Placement | Cross, heads: Heads) -> Tensor:
    """Compute attention by the variable-length kernel; return ``[R, L, H, D]``, 0 in padding.

    `query` is ``[R, H, L, D]``. `key` and `value` may have fewer heads, and in cross attention other R and L. `placed`
    is the batch's layout (`Cross`: the layouts of targets and sources), and `heads` are the layer's settings.

    Raises:
        BatchError: the kernel does not support the device, the dtype, the size of a head or a setting in `heads`; or
            sources and targets are packed in different orders.
    """
    query, key, value = _cast(query, key, value)
    why = lacking(query, value, placed, heads)
    if why is not None:
        raise BatchError(why)
    queries, keys = (placed.queries, placed.keys) if isinstance(placed, Cross) else (placed, placed)
    q, k, v = (at.stream(states.transpose(1, 2)) for states, at in ((query, queries), (key, keys), (value, keys)))
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    # The kernel needs one head size, a multiple of STEP. Zeros at the end change no score, and are cut off the result.
    width = -(-max(q.shape[2], v.shape[2]) // STEP) * STEP
    scale = q.shape[2] ** -0.5 if heads.scaling is None else heads.scaling
    # The kernel counts visible neighbours on each side: -1 is no limit, and 0 on the right is causal.
    left = -1 if heads.window is None else heads.window - 1
    right = 0 if heads.causal else left
    out: Tensor = _kernel()(
        *(pad(states, (0, width - states.shape[2])) if states.shape[2] < width else states for states in (q, k, v)),
        queries.cu_seqlens,
        keys.cu_seqlens,
        queries.layout.max_seqlen,
        keys.layout.max_seqlen,
        scale=scale,
        window_size=(left, right),
    )
    return queries.rows(out[..., : v.shape[2]])


def automatic(query: Tensor, key: Tensor, value: Tensor, placed: Placement | Cross, heads: Heads) -> Tensor:
    """Compute attention by `varlen`, or by `segments` if the kernel cannot compute it; return ``[R, L, H, D]``.

    `lacking` decides which of the two is used.

    Raises:
        BatchError: `segments` is used, and does not support the batch or the settings in `heads`.
    """
    query, key, value = _cast(query, key, value)
    backend = varlen if lacking(query, value, placed, heads) is None else segments
    return backend(query, key, value, placed, heads)


def lacking(query: Tensor, value: Tensor, placed: Placement | Cross, heads: Heads) -> str | None:
    """Return a message for an error: why the kernel cannot compute this attention, and what to do.

    The result is None if the kernel can compute it.
    """
    if query.dtype not in HALF or not on_kernel(query.device):
        return (
            f"the varlen kernel runs on CUDA in float16 or bfloat16, and this is {query.device.type} in {query.dtype}, "
            f"torch {torch.__version__} (it needs torch 2.11, and an NVIDIA GPU of compute capability 8.0); use "
            "backend='segments' or 'mask'"
        )
    if heads.bias is not None or heads.softcap is not None or heads.sinks is not None or heads.dropout:
        return "the varlen kernel knows no position bias, softcap, sinks or dropout; use backend='mask'"
    widest = max(query.shape[-1], value.shape[-1])
    if widest > WIDEST:
        return f"the varlen kernel takes heads of at most {WIDEST}, and these have {widest}; use backend='mask'"
    if isinstance(placed, Cross) and placed.pairs != list(range(len(placed.pairs))):
        return "sources and targets are packed in another order; use backend='segments' or nopad.Flat()"
    return None


def on_kernel(device: torch.device) -> bool:
    """Return whether the kernel runs on a device: an NVIDIA GPU of compute capability 8.0 or above.

    The result is False for AMD GPUs, which are untested, and if torch has no kernel with windows.
    """
    if device.type != "cuda" or torch.version.hip is not None or _kernel() is None:
        return False
    return _capable(device.index)


@cache
def _capable(index: int | None) -> bool:
    return torch.cuda.get_device_capability(index) >= (8, 0)


@cache
def _kernel() -> Any:
    """Return PyTorch's kernel function; None if this version of torch has none that supports windows."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # before torch 2.10
        return None
    return varlen_attn if "window_size" in inspect.signature(varlen_attn).parameters else None


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype of autocast on a device; None if autocast is off or not available there."""
    if not torch.amp.is_autocast_available(device.type) or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def _cast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values in the dtype of autocast, as SDPA would get them; unchanged without autocast."""
    dtype = autocast_dtype(query.device)
    return (query, key, value) if dtype is None else (query.to(dtype), key.to(dtype), value.to(dtype))
