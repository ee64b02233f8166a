"""One SDPA call per sequence: nothing is computed for padding or across sequences.

The cost is O(sum of l^2) for lengths l, plus about 15 microseconds per sequence and layer for the call. It is the
fastest backend on a CPU; on a GPU the calls cost more than they save. A sequence never reads another sequence's values,
not even NaN.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from nopad.batch.device import Cross, Placement
from nopad.model.backends.core import Heads, allowed, attend

__all__ = ["segments"]


def segments(query: Tensor, key: Tensor, value: Tensor, placed: Placement | Cross, heads: Heads) -> Tensor:
    """Compute attention sequence by sequence; return ``[R, L, H, D]``, 0 in padding.

    `query` is ``[R, H, L, D]``. `key` and `value` may have fewer heads, and in cross attention (`Cross`) other R and L.

    Raises:
        BatchError: `attend` does not support the settings in `heads`, or a sequence is longer than the position bias.
    """
    queries, keys, pairs = _sides(placed)
    # Split, not sliced: the backward pass of each slice would allocate a gradient of the whole stream.
    parts = _split(query, queries)
    others = list(zip(_split(key, keys), _split(value, keys), strict=True))
    full = replace(heads, causal=False, window=None)
    out = []
    for at, mine in enumerate(parts):
        theirs, values = others[pairs[at]]
        keep = _keep(placed, mine.shape[2], mine.device, heads) if not heads.plain else None
        out.append(attend(mine, theirs, values, keep, full)[0].transpose(0, 1))
    return queries.rows(torch.cat(out)) if out else query.transpose(1, 2)


def _sides(placed: Placement | Cross) -> tuple[Placement, Placement, range | list[int]]:
    if isinstance(placed, Cross):
        return placed.queries, placed.keys, placed.pairs
    return placed, placed, range(placed.layout.sequences)


def _split(states: Tensor, placed: Placement) -> tuple[Tensor, ...]:
    """Split states ``[R, H, L, D]`` into one ``[1, H, length, D]`` per sequence, in stream order: row after row."""
    if placed.index is not None:
        states = placed.stream(states.transpose(1, 2)).transpose(0, 1)[None]
    return torch.split(states, [end - begin for begin, end in pairwise(placed.bounds)], dim=2)


def _keep(placed: Placement | Cross, length: int, device: torch.device, heads: Heads) -> Tensor | None:
    """Return which tokens each token sees in a sequence of this length, bool ``[length, length]``; None: all tokens."""
    if isinstance(placed, Cross) or length == 1:
        return None

    def make() -> Tensor | None:
        places = torch.arange(length, device=device)
        return allowed(places, places, heads)

    kept: Tensor | None = placed.keep(("seen", length, heads.causal, heads.window), make)
    return kept
