"""Attention with one sequence per row: unpack, attend, and pack again; for rows filled end to end.

The cost is O(S longest^2) for S sequences, the longest of `longest` tokens, in one SDPA call. The backend pays off for
rows in which a sequence may go on in the next row, if one SDPA call per sequence (`segments`) would be expensive.
Graphcore's PopRT computes attention on packs in the same way.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nopad.batch.device import Cross, Placement
from nopad.model.backends.core import Heads, allowed, attend

__all__ = ["repack"]


def repack(query: Tensor, key: Tensor, value: Tensor, placed: Placement | Cross, heads: Heads) -> Tensor:
    """Compute attention with one sequence per row; return ``[R, L, H, D]``, 0 in padding.

    `query` is ``[R, H, L, D]``. `key` and `value` may have fewer heads, and in cross attention other R and L. `placed`
    is the batch's layout (`Cross`: the layouts of targets and sources), and `heads` are the layer's settings.

    Raises:
        BatchError: `attend` does not support the settings in `heads`, or `heads` has a position bias and a sequence is
            longer than the rows for which that bias was computed.
    """
    queries, keys = (placed.queries, placed.keys) if isinstance(placed, Cross) else (placed, placed)
    q = _unpacked(query, queries)
    k, v = _unpacked(key, keys), _unpacked(value, keys)
    if isinstance(placed, Cross):  # both are in the order given, so a sequence and its target have the same number
        keep = _padded_mask(keys)
    else:
        keep = placed.keep(("padded mask", heads.causal, heads.window), lambda: _padded_mask(keys, heads))
    out = attend(q, k, v, keep, replace(heads, causal=False, window=None))
    return queries.rows(queries.from_padded(out.transpose(1, 2)))


def _padded_mask(placed: Placement, heads: Heads | None = None) -> Tensor:
    """Return which keys each query sees, with one sequence per row; bool ``[S, 1, longest, longest]``.

    S is the number of sequences, `longest` the length of the longest. The last two dimensions are queries and keys. If
    `heads` is None, or has neither a window nor causality, all tokens of a sequence see each other, and the result is
    ``[S, 1, 1, longest]``.
    """
    places = torch.arange(placed.layout.max_seqlen, device=placed.ids.device)
    keep = (places < placed.lens[:, None])[:, None, None, :]
    seen = None if heads is None else allowed(places, places, heads)
    if seen is None:
        return keep
    keep = keep & seen
    # Padding may see nothing within a window: let every slot see itself, since softmax over no score gives NaN.
    return keep | torch.eye(places.numel(), dtype=torch.bool, device=keep.device)


def _unpacked(states: Tensor, placed: Placement) -> Tensor:
    """Turn states ``[R, H, L, D]`` into one sequence per row, ``[S, H, longest, D]``.

    The rows are in the order in which the sequences were given to the batch.
    """
    return placed.to_padded(placed.stream(states.transpose(1, 2))).transpose(1, 2)
