"""Code that all backends share: a layer's attention settings (`Heads`), and attention under a mask (`attend`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nopad.errors import BatchError

__all__ = ["Heads", "allowed", "attend"]


@dataclass(frozen=True)
class Heads:
    """A layer's attention settings.

    Attributes:
        scaling: factor of the scores; None: 1 / sqrt(D), where D is the size of a head.
        causal: whether a token sees only itself and the tokens before it.
        window: a token sees only tokens fewer than this many positions away; None: all.
        dropout: probability of dropping an attention weight.
        bias: position bias ``[1, H, L, L]`` that is added to the scores and depends only on the distance (T5); None: no
            bias.
        softcap: bound of the absolute scores, applied by tanh (Gemma 2); None: no bound.
        sinks: one extra score per head, ``[H]``, that only takes part in the softmax (GPT-OSS); None: no sinks.
    """

    scaling: float | None = None
    causal: bool = False
    window: int | None = None
    dropout: float = 0.0
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether every token sees all tokens of its sequence: there is neither causality nor a window."""
        return not self.causal and self.window is None


def allowed(queries: Any, keys: Any, heads: Heads) -> Tensor | None:
    """Return which keys each query sees by the causality and the window of `heads`, as bool ``[Q, K]``.

    The result is None if each query sees all keys. `queries` are the positions of the queries, ``[Q]``; `keys` those of
    the keys, ``[K]``.
    """
    if heads.plain:
        return None
    distance = queries[:, None] - keys[None, :]
    seen = distance >= 0 if heads.causal else torch.ones_like(distance, dtype=torch.bool)
    return seen if heads.window is None else seen & (distance.abs() < heads.window)


def attend(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, heads: Heads) -> Tensor:
    """Compute attention of `query` ``[B, H, Q, D]`` to `key` and `value` ``[B, G, K, D]``; return ``[B, H, Q, D]``.

    There are B rows, Q queries and K keys. `query` has H heads of size D. `key` and `value` have G heads; each of these
    serves H / G heads of `query`. `keep` is a bool mask that broadcasts to ``[B, H, Q, K]``, True where a query sees a
    key; None: every query sees every key. `heads` gives scale, dropout, bias, softcap and sinks. Its causality and
    window are not read: they must be in `keep`.

    Raises:
        BatchError: `heads` has a position bias together with softcap or sinks, or a bias for fewer than Q queries or K
            keys.
    """
    groups = query.shape[1] // key.shape[1]
    if heads.softcap is not None or heads.sinks is not None:
        return _scored(query, _repeated(key, groups), _repeated(value, groups), keep, heads)
    mask = keep
    if heads.bias is not None:
        if heads.bias.shape[-2] < query.shape[2] or heads.bias.shape[-1] < key.shape[2]:
            raise BatchError(
                f"a sequence of {max(query.shape[2], key.shape[2])} tokens crosses rows of {heads.bias.shape[-1]}, and "
                "this model's position bias is only as wide as a row; give wider rows"
            )
        bias = heads.bias[..., : query.shape[2], : key.shape[2]].to(query.dtype)
        mask = bias if keep is None else bias.masked_fill(~keep, torch.finfo(query.dtype).min)
    if groups > 1:
        key, value = _repeated(key, groups), _repeated(value, groups)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=heads.dropout, scale=heads.scaling)


def _repeated(states: Tensor, groups: int) -> Tensor:
    return states if groups == 1 else states.repeat_interleave(groups, dim=1)


def _scored(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, heads: Heads) -> Tensor:
    """Compute attention as `attend` does, by matrix products; for softcap or sinks, which SDPA does not support.

    `key` and `value` have as many heads as `query`. `keep` is a bool mask (True: seen); None: all keys are seen.

    Raises:
        BatchError: `heads` has a position bias.
    """
    if heads.bias is not None:
        raise BatchError("attention with a softcap or with sinks takes no position bias here")
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if heads.scaling is None else heads.scaling)
    if heads.softcap is not None:
        scores = torch.tanh(scores / heads.softcap) * heads.softcap
    if keep is not None:
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
    if heads.sinks is not None:
        # A sink is a key without a value: it takes its share of the softmax and is cut off afterwards.
        sinks = heads.sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[2]]
    return torch.nn.functional.dropout(weights, heads.dropout) @ value
