"""What a batch costs: 16 sequences flat in <= 60 microseconds, in rows in <= 120, as a request or a step builds them.

Lengths are drawn from 5 to 200 by seed 0, capacity 512. Beside it, on the same sequences and in turn: laying the ids
end to end alone (NumPy's concatenate, which nothing can do without), planning by `nopad.pack`, which a handful of
sequences does without, and what transformers does for a padded batch (`DataCollatorWithPadding`'s way, in NumPy).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from inputs import machine

import nopad
from nopad import PackedBatch, Rows

COUNTS = (16, 64, 256)
CAPACITY = 512
TURNS = 15
FLAT, ROWS = "flat", "in rows"
TARGETS = {(16, FLAT): 60, (16, ROWS): 120}  # microseconds


def padded(sequences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Pad to the longest, with a mask."""
    longest = max(map(len, sequences))
    ids = np.zeros((len(sequences), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return ids, mask


def ways(sequences: list[np.ndarray]) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    lists = [sequence.tolist() for sequence in sequences]
    lengths = [len(sequence) for sequence in sequences]
    batch = PackedBatch.from_sequences(sequences, Rows(CAPACITY))
    states = np.zeros((*batch.layout.shape, 8), dtype=np.float32)
    labelled = [{"input_ids": one, "attention_mask": [1] * len(one), "label": 0} for one in lists]
    return {
        FLAT: lambda: PackedBatch.from_sequences(sequences),
        ROWS: lambda: PackedBatch.from_sequences(sequences, Rows(CAPACITY)),
        "flat, of lists": lambda: PackedBatch.from_sequences(lists),
        "flat, of features": lambda: PackedBatch.from_features(labelled),
        "split into sequences": lambda: batch.unpack_tokens(states),
        "(padded)": lambda: padded(sequences),
        "(concatenate alone)": lambda: np.concatenate(sequences),
        "(nopad.pack alone)": lambda: nopad.pack(lengths, CAPACITY, algorithm="bfd", order="source"),
    }


def microseconds(function: Callable[[], Any]) -> float:
    """The mean of a run of calls that takes about two milliseconds."""
    calls = 0
    start = time.perf_counter()
    while calls < 3 or time.perf_counter() - start < 0.002:
        function()
        calls += 1
    return (time.perf_counter() - start) / calls * 1e6


print(f"a batch of sequences of 5 to 200 tokens, {machine()}; medians of {TURNS} turns, best in brackets")
for count in COUNTS:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(5, 30_000, n) for n in rng.integers(5, 201, count)]
    print(f"\n{count} sequences, {sum(map(len, sequences)):,} tokens")
    timed = ways(sequences)
    found: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(TURNS + 1):
        for name, way in timed.items():
            spent = microseconds(way)
            if turn:
                found[name].append(spent)
    for name, each in found.items():
        target = TARGETS.get((count, name))
        note = f"   target {target} us" if target else ""
        print(f"  {name:<24}{statistics.median(each):8.0f} us   ({min(each):.0f}){note}")
