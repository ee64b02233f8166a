"""Plan with the packer of streams, which holds back a bounded number of sequences to fill packs exactly.

Best-fit decreasing uses up the short lengths that the last packs need; the packer of streams keeps a varied set of
lengths. With a depth limit, it finds plans that rounding a linear program misses. It makes one pass over the sequences,
in an order drawn with a fixed seed, and proves no bound. It takes 40 bytes per sequence, and 12 bytes per token of
capacity.

Source: the packer is that of `nopad.online.stream`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nopad import random
from nopad.histogram import Histogram
from nopad.planning.optimal.listed import Listed
from nopad.planning.optimal.units import divide

__all__ = ["streamed", "streaming"]

_HELD = 4_096  # sequences held back
_STEPS, _WORD_STEPS = 400, 30  # operations per sequence; and of each pack, for every 64 tokens of capacity


def streaming(histogram: Histogram, capacity: int) -> int:
    """Return an estimate of the number of operations that `streamed` takes, rather too high than too low."""
    parts = [part for _, part in _parts(histogram)]
    packs = sum(-(-part.tokens // capacity) for part in parts)
    return sum(part.sequences for part in parts) * _STEPS + packs * _WORD_STEPS * (capacity // 64)


def streamed(histogram: Histogram, capacity: int, depth: int | None) -> Listed:
    """Return packs of all sequences, packed in a random order with a fixed seed.

    A large histogram is divided into equal copies and a remainder (`divide`). One copy is packed, and its packs are
    used for all copies; the remainder is packed in the same way.
    """
    packed = [(copies, _packed(part, capacity, depth)) for copies, part in _parts(histogram)]
    return Listed.joined(packs.take(np.arange(packs.copies.size), copies) for copies, packs in packed)


def _parts(histogram: Histogram) -> list[tuple[int, Histogram]]:
    parts: list[tuple[int, Histogram]] = []
    while histogram.sequences:
        copies, part, histogram = divide(histogram)
        parts.append((copies, part))
    return parts


def _packed(histogram: Histogram, capacity: int, depth: int | None) -> Listed:
    """Pack all sequences of a histogram with the packer of streams, in a random order drawn with a fixed seed.

    In the result, each pack is an entry of its own, so equal packs are several entries.
    """
    from nopad import _kernels, _stream_kernels

    push: Any = _stream_kernels.push  # numba's types do not know unpacked arguments
    drain: Any = _stream_kernels.drain
    lengths = np.repeat(histogram.lengths.astype(np.int32), histogram.counts)
    _kernels.shuffle(lengths, np.uint64(random.key(0, random.STREAM_ARRIVAL)))
    n, most = lengths.size, capacity + 1 if depth is None else depth
    held = _stream_kernels.empty_buffer(capacity, _HELD)
    indptr, sequence = np.zeros(n + 1, dtype=np.int64), np.empty(n, dtype=np.int64)
    packs = push(*held, lengths, most, 2**62, 2**62, indptr, sequence)
    ends, numbers = np.zeros(n + 1, dtype=np.int64), np.empty(n, dtype=np.int64)
    last = drain(*held, most, ends, numbers)
    done = int(indptr[packs])
    order = np.concatenate([sequence[:done], numbers[: int(ends[last])]])
    bounds = np.concatenate([indptr[: packs + 1], done + ends[1 : last + 1]])
    return Listed(lengths[order], bounds, np.ones(packs + last, dtype=np.int64))
