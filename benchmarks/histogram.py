"""Counting 16.28 M lengths: target <= 0.05 s; the limit is one plain `numpy.bincount`."""

from __future__ import annotations

import tempfile

import numpy as np
from inputs import PeakAnonymous, machine, show, shuffled_lengths, timed, wikipedia

from nopad import Histogram

histogram, name = wikipedia()
lengths = shuffled_lengths(histogram)
print(f"histogram: {lengths.size:,} lengths, {name}; {machine()}")
for dtype in (np.uint16, np.int32, np.int64):
    array = lengths.astype(dtype)
    ours = show(
        f"Histogram.from_lengths, {array.dtype}", timed(lambda a=array: Histogram.from_lengths(a)), "target <= 50 ms"
    )
    plain = show(f"numpy.bincount, {array.dtype}", timed(lambda a=array: np.bincount(a)))
    print(f"    ratio to bincount {ours / plain:.2f}")
with tempfile.NamedTemporaryFile(suffix=".bin") as file:
    repeats = -(-2_000_000_000 // lengths.size)
    short = lengths.astype(np.uint16)
    for _ in range(repeats):
        short.tofile(file)
    mapped = np.memmap(file.name, dtype=np.uint16, mode="r")
    with PeakAnonymous() as memory:
        before = memory.peak
        show(f"memory-mapped, {mapped.size:,} lengths", timed(lambda: Histogram.from_lengths(mapped), repeats=1))
    print(f"    anonymous memory grew by {(memory.peak - before) / 2**20:.1f} MiB")
