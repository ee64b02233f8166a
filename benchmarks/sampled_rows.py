"""Rows that a trainer samples: what a row costs at random and in order, of the folder and of `to_hf`; batches included.

A row of `to_hf` at random costs at most twice what it costs in order. `python sampled_rows.py TOKENS CAPACITY`.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from inputs import RawIds, docstring_ids, machine, wikipedia_like

import nopad

TOKENS = int(float(sys.argv[1])) if len(sys.argv) > 1 else 40_000_000
CAPACITY = int(sys.argv[2]) if len(sys.argv) > 2 else 512
ROWS = 400


def each_ms(read: Callable[[int], Any], numbers: Iterable[int]) -> float:
    """Milliseconds that reading each of these rows takes, on average; the first ones warm up."""
    numbers = list(numbers)
    for number in numbers[:20]:
        read(number)
    start = time.perf_counter()
    for number in numbers[20:]:
        read(number)
    return (time.perf_counter() - start) / (len(numbers) - 20) * 1e3


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-") as name:
        out = Path(name) / "packed"
        source = RawIds(wikipedia_like(TOKENS), docstring_ids())
        made = nopad.pack_corpus(source, out, nopad.CorpusOptions(capacity=CAPACITY))
        dataset = nopad.open_packed(out)
        print(f"sampled rows: {dataset!r}; {made.rows_per_group} rows per row group, {dataset.row_groups} of them")
        print(f"  {machine()}")
        start = time.perf_counter()
        rows = dataset.to_hf(causal=False)
        print(f"  to_hf: {time.perf_counter() - start:.2f} s, {rows.data.nbytes / made.tokens:.1f} bytes per token")
        collate = dataset.collator()
        numbers = {
            "at random": np.random.default_rng(0).permutation(made.packs)[:ROWS].tolist(),
            "in order": range(min(ROWS, made.packs)),
            "in dataset.order(0)": dataset.order(0)[:ROWS].tolist(),
        }
        reads: dict[str, Callable[[int], Any]] = {
            "dataset[n]": lambda n: dataset[n].input_ids.sum(),
            "to_hf()[n]": lambda n: rows[n],
            "dataset[n] and collator": lambda n: collate([dataset[n]]),
            "to_hf()[n] and collator": lambda n: collate([rows[n]]),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for what, read in reads.items():
                dataset = nopad.open_packed(out)  # nothing cached
                found = {how: each_ms(read, order) for how, order in numbers.items()}
                print(f"  {what:24} " + ", ".join(f"{how} {ms:.3f} ms" for how, ms in found.items()))


main()
