"""One SDPA call per sequence: nothing is computed for padding or across sequences.

The cost is O(sum of l^2) for lengths l, plus about 15 microseconds per call and layer. Consecutive sequences of equal
length share a call, in which each is a row of its own. This is the fastest backend on a CPU; on a GPU the calls cost
more than they save. No sequence reads values of another sequence, so NaN in one never reaches another.

In inference on a CPU, one compiled loop of nopad computes all sequences instead, where it is faster (`tiled`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nopad.batch.device import Cross, Placement
from nopad.model.backends.core import Heads, allowed, attend
from nopad.model.backends.tiled import takes, tiled

__all__ = ["segments"]


def segments(query: Tensor, key: Tensor, value: Tensor, placed: Placement | Cross, heads: Heads) -> Tensor:
    """Compute attention sequence by sequence; return ``[R, L, H, D]``, 0 in padding.

    `query` is ``[R, H, L, D]``. `key` and `value` may have fewer heads, and in cross attention other R and L. `placed`
    is the batch's layout (`Cross`: the layouts of targets and sources), and `heads` are the layer's settings.

    Raises:
        BatchError: `attend` does not support the settings in `heads`, or `heads` has a position bias and a sequence is
            longer than the rows for which that bias was computed.
    """
    if not isinstance(placed, Cross) and takes(query, key, value, heads):
        return tiled(query, key, value, placed, heads)
    if isinstance(placed, Cross):
        queries, keys, pairs = placed.queries, placed.keys, placed.pairs
        of_queries, of_keys = _pieces(queries, together=False), _pieces(keys, together=False)
    else:
        queries = keys = placed
        of_queries = of_keys = placed.keep("pieces", lambda: _pieces(placed, together=True))
        pairs = list(range(len(of_queries.runs)))
    parts = _split(query, queries, of_queries)
    others = list(zip(_split(key, keys, of_keys), _split(value, keys, of_keys), strict=True))
    full = replace(heads, causal=False, window=None)
    out = []
    for at, mine in enumerate(parts):
        theirs, values = others[pairs[at]]
        keep = _keep(placed, mine.shape[2], mine.device, heads) if not heads.plain else None
        out.append(attend(mine, theirs, values, keep, full).transpose(1, 2).flatten(0, 1))
    return _joined(out, queries, of_queries) if out else query.transpose(1, 2)


@dataclass(frozen=True)
class _Pieces:
    """How states are cut into runs: groups of neighbouring sequences of the same length.

    Neighbours are sequences that follow each other in stream order, the order of `Placement.stream`: row after row.

    Attributes:
        runs: (number of sequences, their length) of each run, in stream order.
        gaps: number of padding slots before each run, and after the last run. None if the concatenated rows do not hold
            the sequences whole and in stream order; the states are then put into stream order before they are cut.
    """

    runs: list[tuple[int, int]]
    gaps: list[int] | None


def _pieces(placed: Placement, together: bool) -> _Pieces:
    """Return how a batch is cut into runs of sequences.

    With `together`, neighbouring sequences of the same length are one run, unless padding lies between them in the
    states that are cut. Without it, each sequence is a run of its own.
    """
    bounds = np.asarray(placed.bounds)
    lengths, index = np.diff(bounds), placed.layout.index
    within = np.diff(index) == 1
    within[bounds[1:-1] - 1] = True
    starts = index[bounds[:-1]]
    ends = starts + lengths
    gaps = starts - np.concatenate([[0], ends[:-1]])
    if not within.all() or (gaps < 0).any():  # a sequence in pieces, or rows in another order than the stream
        gaps = np.zeros(len(lengths), np.int64)
        found: list[int] | None = None
    else:
        found = []
    runs: list[tuple[int, int]] = []
    for length, gap in zip(lengths.tolist(), gaps.tolist(), strict=True):
        if together and runs and runs[-1][1] == length and not gap:
            runs[-1] = (runs[-1][0] + 1, length)
            continue
        runs.append((1, length))
        if found is not None:
            found.append(gap)
    if found is not None:
        found.append(placed.layout.slots - int(ends[-1]) if len(ends) else placed.layout.slots)
    return _Pieces(runs, found)


def _split(states: Tensor, placed: Placement, pieces: _Pieces) -> list[Tensor]:
    """Split states ``[R, H, L, D]`` into one ``[n, H, length, D]`` per run of n sequences, in stream order.

    `pieces` says how many sequences each run has, how long they are, and where padding lies.
    """
    by_token = states.transpose(1, 2)
    if pieces.gaps is None:
        flat, gaps = placed.stream(by_token), [0] * (len(pieces.runs) + 1)
    else:
        flat, gaps = by_token.flatten(0, 1), pieces.gaps
    if len(pieces.runs) == 1 and not any(gaps):  # nothing to cut, and the gradient needs no copy
        n, length = pieces.runs[0]
        return [flat.view(n, length, *flat.shape[1:]).transpose(1, 2)]
    sizes = [size for gap, (n, length) in zip(gaps, pieces.runs, strict=False) for size in (gap, n * length)]
    # Split, not sliced: the backward pass of each slice would allocate a gradient of the whole stream.
    parts = torch.split(flat, [*sizes, gaps[-1]])[1::2]
    return [
        part.view(n, length, *part.shape[1:]).transpose(1, 2)
        for part, (n, length) in zip(parts, pieces.runs, strict=True)
    ]


def _joined(out: list[Tensor], placed: Placement, pieces: _Pieces) -> Tensor:
    """Join the results of all runs, each ``[n * length, H, D]``, into rows ``[R, L, H, D]`` with 0 in padding.

    `pieces` says how many sequences each run has, how long they are, and where padding lies.
    """
    if pieces.gaps is None:
        return placed.rows(torch.cat(out))
    if len(out) == 1 and not any(pieces.gaps):
        return out[0].view(*placed.layout.shape, *out[0].shape[1:])
    padding = [out[0].new_zeros(gap, *out[0].shape[1:]) for gap in pieces.gaps]
    each = [part for gap, one in zip(padding, out, strict=False) for part in (gap, one) if len(part)]
    return torch.cat([*each, padding[-1]]).view(*placed.layout.shape, *out[0].shape[1:])


def _keep(placed: Placement | Cross, length: int, device: torch.device, heads: Heads) -> Tensor | None:
    """Return which tokens each token sees in a sequence of this length, bool ``[length, length]``.

    Entry ``[i, j]`` says whether token i sees token j. The result is None if each token sees all tokens of the
    sequence, and in cross attention, where each token sees all tokens of its source.
    """
    if isinstance(placed, Cross) or length == 1:
        return None

    def make() -> Tensor | None:
        places = torch.arange(length, device=device)
        return allowed(places, places, heads)

    kept: Tensor | None = placed.keep(("seen", length, heads.causal, heads.window), make)
    return kept
