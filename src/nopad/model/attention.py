"""The attention that nopad registers with transformers: one function for every model that goes through its interface.

It gets what the model passes (causality, window, scale, position bias) and the placement that hangs on the mask, and
hands both to a backend. A batch that is not packed goes to transformers' own SDPA: a pack-safe model still runs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from nopad.batch.device import carried_by
from nopad.errors import UnsupportedModelError
from nopad.model.backends import BACKENDS
from nopad.model.backends.core import Heads, allowed, attend
from nopad.model.backends.mask import block_mask

__all__ = ["NAME", "begin", "end", "packed_attention", "register", "tell", "watched"]

NAME = "nopad"
KNOWN = ("s_aux", "position_ids", "cache_position")  # s_aux: sinks; positions are in queries and keys already

_watch: ContextVar[Callable[[nn.Module], None] | None] = ContextVar("nopad_watch", default=None)
_inside: ContextVar[list[int] | None] = ContextVar("nopad_inside", default=None)  # layers that attended so far


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer: ``[R, L, H, D]`` of queries, keys and values ``[R, H, L, D]``.

    Raises:
        UnsupportedModelError: the layer wants what no backend has, or does not say how it attends.
    """
    causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    if causal is None:
        raise UnsupportedModelError(
            f"{type(module).__name__} does not say whether it attends causally (is_causal), and nopad does not guess; "
            "run its sequences padded, without nopad.packed"
        )
    packed = attention_mask is not None and attention_mask.dtype == torch.int32
    if not packed:
        if not torch.compiler.is_compiling() and _inside.get() is not None:
            raise UnsupportedModelError(
                f"{type(module).__name__} lost the layout of a packed batch on its way, and would let sequences see "
                "each other; report this model, please"
            )
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        if softcap is not None or others.get("s_aux") is not None:  # SDPA has neither; such models run eagerly
            heads = Heads(scaling, bool(causal), sliding_window, dropout, position_bias, softcap, others.get("s_aux"))
            return _eager(query, key, value, attention_mask, heads), None
        alone: tuple[Tensor, None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            position_bias=position_bias,
            softcap=softcap,
            **others,
        )
        return alone
    kinds, layer = getattr(getattr(module, "config", None), "layer_types", None), getattr(module, "layer_idx", None)
    if kinds and layer is not None and kinds[layer] == "sliding_attention" and sliding_window is None:
        raise UnsupportedModelError(
            f"{type(module).__name__} of layer {layer} attends within a window and does not tell its attention of it; "
            "run its sequences padded, without nopad.packed"
        )
    # A tensor without dimensions says nothing of tokens: a loss's denominator comes along, for one.
    unknown = [name for name, one in others.items() if isinstance(one, Tensor) and one.dim() and name not in KNOWN]
    if unknown:
        raise UnsupportedModelError(
            f"{type(module).__name__} hands {', '.join(unknown)} to its attention, of which nopad's knows nothing; run "
            "its sequences padded, without nopad.packed"
        )
    if not torch.compiler.is_compiling():
        tell(module)
    heads = Heads(
        scaling=scaling,
        causal=bool(causal),
        window=sliding_window,
        dropout=dropout,
        bias=position_bias,
        softcap=softcap,
        sinks=others.get("s_aux"),
    )
    assert attention_mask is not None
    placed = None if torch.compiler.is_compiling() else carried_by(attention_mask)
    if placed is None:  # in a compiled graph only the numbers arrive
        keep = block_mask(attention_mask[:, 0, 0], heads)
        return attend(query, key, value, keep, heads).transpose(1, 2), None
    return BACKENDS[placed.backend](query, key, value, placed, heads).contiguous(), None


def _eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, heads: Heads) -> Tensor:
    """Attention of a batch that is not packed, for what SDPA does not have; ``[B, L, H, D]``."""
    if mask is not None and mask.dtype != torch.bool:
        raise UnsupportedModelError("a model with softcap or sinks that is pack-safe takes masks of bool only")
    keep = None if mask is None else mask[..., : key.shape[2]]
    if keep is None:
        places = torch.arange(key.shape[2], device=query.device)
        keep = allowed(places[-query.shape[2] :], places, heads)
    return attend(query, key, value, keep, heads).transpose(1, 2).contiguous()


def register() -> None:
    """Make the attention known to transformers, under one name, once."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def tell(module: nn.Module) -> None:
    """Tell whoever watches that this layer attends to a packed batch."""
    inside, watch = _inside.get(), _watch.get()
    if inside is not None:
        inside[0] += 1
    if watch is not None:
        watch(module)


def begin() -> Any:
    """Enter a packed call: every attention inside must know its layout."""
    return None if torch.compiler.is_compiling() else _inside.set([0])


def end(token: Any) -> int:
    """Leave a packed call; return how many layers attended in it."""
    if token is None:
        return 0
    attended = _inside.get()
    _inside.reset(token)
    return attended[0] if attended else 0


@contextmanager
def watched(seen: Callable[[nn.Module], None]) -> Any:
    """Tell `seen` of every layer that attends to a packed batch inside; for the audit."""
    token = _watch.set(seen)
    try:
        yield
    finally:
        _watch.reset(token)
