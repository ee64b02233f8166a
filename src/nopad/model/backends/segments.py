"""One SDPA call per sequence: nothing is computed for padding or across sequences.

The cost is O(sum of l^2) for lengths l, plus about 15 microseconds per call and layer. Consecutive sequences of equal
length share a call, in which each is a row of its own. This is the fastest backend on a CPU; on a GPU the calls cost
more than they save. A sequence never reads another sequence's values, not even NaN.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise

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
    if isinstance(placed, Cross):
        queries, keys, pairs = placed.queries, placed.keys, placed.pairs
        of_queries, of_keys = (_alone(side) for side in (queries, keys))
    else:
        queries = keys = placed
        of_queries = of_keys = placed.keep("runs", lambda: _runs(placed))
        pairs = list(range(len(of_queries)))
    # Split, not sliced: the backward pass of each slice would allocate a gradient of the whole stream.
    parts = _split(query, queries, of_queries)
    others = list(zip(_split(key, keys, of_keys), _split(value, keys, of_keys), strict=True))
    full = replace(heads, causal=False, window=None)
    out = []
    for at, mine in enumerate(parts):
        theirs, values = others[pairs[at]]
        keep = _keep(placed, mine.shape[2], mine.device, heads) if not heads.plain else None
        out.append(attend(mine, theirs, values, keep, full).transpose(1, 2).flatten(0, 1))
    return queries.rows(torch.cat(out)) if out else query.transpose(1, 2)


def _runs(placed: Placement) -> list[tuple[int, int]]:
    """Return runs of consecutive sequences of equal length, as (number of sequences, their length)."""
    lengths = (end - begin for begin, end in pairwise(placed.bounds))
    return [(len(list(run)), length) for length, run in groupby(lengths)]


def _alone(placed: Placement) -> list[tuple[int, int]]:
    """Return every sequence as a run of its own: (1, its length)."""
    return [(1, end - begin) for begin, end in pairwise(placed.bounds)]


def _split(states: Tensor, placed: Placement, runs: list[tuple[int, int]]) -> list[Tensor]:
    """Split states ``[R, H, L, D]`` into one ``[n, H, length, D]`` per run of n sequences, without padding."""
    if placed.index is not None:
        states = placed.stream(states.transpose(1, 2)).transpose(0, 1)[None]
    parts = torch.split(states, [n * length for n, length in runs], dim=2)
    return [
        part if n == 1 else part[0].transpose(0, 1).view(n, length, *part.shape[1::2]).transpose(1, 2)
        for part, (n, length) in zip(parts, runs, strict=True)
    ]


def _keep(placed: Placement | Cross, length: int, device: torch.device, heads: Heads) -> Tensor | None:
    """Return which tokens each token sees in a sequence of this length, bool ``[length, length]``; None: all tokens."""
    if isinstance(placed, Cross) or length == 1:
        return None

    def make() -> Tensor | None:
        places = torch.arange(length, device=device)
        return allowed(places, places, heads)

    kept: Tensor | None = placed.keep(("seen", length, heads.causal, heads.window), make)
    return kept
