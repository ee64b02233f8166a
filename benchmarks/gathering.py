"""Gathering: random sequences by number from stored tokens, at >= 0.8 of the plain limit from mapped ids.

Beside each source, in the same run: NumPy on the same ids in the same type, mapped, the faster of one fancy index and a
concatenation of slices. Also: opening, the lengths, the fingerprint, what a source adds to its process, what a worker
gets. `python gathering.py TOKENS SECONDS_OF_EACH_LINE`.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from inputs import machine, wikipedia_like
from numpy.typing import NDArray

import nopad
from nopad.corpus import IterableSource
from nopad.loading.sources import TokenSource, open_tokens

TOKENS = int(float(sys.argv[1])) if len(sys.argv) > 1 else 200_000_000
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
TURNS = 3
BATCHES = (16, 64, 256)  # sequences


def lengths_of(tokens: int) -> NDArray[np.int64]:
    """Lengths of a Wikipedia-like corpus of about this many tokens."""
    lengths = np.asarray(wikipedia_like(tokens)).astype(np.int64)
    return lengths[: max(int(np.searchsorted(np.cumsum(lengths), tokens)), 1)]


def rates(reads: dict[str, Callable[[NDArray[np.int64]], int]], batches: list[NDArray[np.int64]]) -> dict[str, float]:
    """Read batch after batch, in turns; return the millions of tokens per second of each way's best turn."""
    best = dict.fromkeys(reads, 0.0)
    for turn in range(TURNS + 1):
        for how, read in reads.items():
            start, tokens, at = time.perf_counter(), 0, 0
            while (seconds := time.perf_counter() - start) < SECONDS / TURNS:
                tokens += read(batches[at % len(batches)])
                at += 1
            best[how] = max(best[how], tokens / seconds / 1e6 if turn else 0.0)  # the first turn compiles
    return best


def plain(ids: NDArray[np.integer], offsets: NDArray[np.int64]) -> dict[str, Callable[[NDArray[np.int64]], int]]:
    """The same with NumPy alone."""

    def fancy(numbers: NDArray[np.int64]) -> int:
        begins = offsets[numbers]
        lengths = offsets[numbers + 1] - begins
        ends = np.cumsum(lengths)
        return ids[np.arange(ends[-1]) + np.repeat(begins - ends + lengths, lengths)].size

    def slices(numbers: NDArray[np.int64]) -> int:
        begins, ends = offsets[numbers].tolist(), offsets[numbers + 1].tolist()
        return np.concatenate([ids[begin:end] for begin, end in zip(begins, ends, strict=True)]).size

    return {"fancy index": fancy, "slices": slices}


def private() -> float:
    """MB of private memory of this process."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) / 1024


def show(name: str, opening: Callable[[], TokenSource], path: Path, dtype: type, offsets: NDArray[np.int64]) -> None:
    """Print one source beside the limit."""
    before = private()
    start = time.perf_counter()
    source = opening()
    opened = time.perf_counter() - start
    start = time.perf_counter()
    source.fingerprint  # noqa: B018 - timed
    printed = time.perf_counter() - start
    held = private() - before
    ids = np.memmap(path, dtype, "r")
    rng = np.random.default_rng(0)
    line = []
    for size in BATCHES:
        batches = [rng.integers(0, len(source), size) for _ in range(max(4000 // size, 8))]
        limits = plain(np.asarray(ids), offsets)
        ours = {
            "stored": lambda numbers: source.gather(numbers).tokens["input_ids"].size,
            "int64": lambda numbers: source.gather(numbers, wide=True).tokens["input_ids"].size,
        }
        found = rates({**limits, **ours}, batches)
        how = max(limits, key=found.__getitem__)
        line.append(
            f"{size} at once {found['stored']:,.0f} M/s ({found['stored'] / found[how]:.2f} of {found[how]:,.0f} by "
            f"{how}), as int64 {found['int64']:,.0f}"
        )
    print(
        f"  {name:26} {'; '.join(line)}; opened in {opened:.2f} s, fingerprint {printed:.2f} s, {held:,.0f} MB private, "
        f"pickled {len(pickle.dumps(source)):,} bytes"
    )


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-") as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        lengths = lengths_of(TOKENS)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        rng = np.random.default_rng(0)
        print(f"gathering: {lengths.size:,} sequences, {offsets[-1]:,} tokens; {machine()}; target >= 0.8 of the limit")
        for dtype in (np.uint16, np.int32, np.int64):
            ids = rng.integers(0, 30_000, int(offsets[-1]), dtype=dtype)
            here = folder / np.dtype(dtype).name
            here.mkdir()
            raw = here / "ids.bin"
            ids.tofile(raw)
            np.save(here / "ids.npy", ids)
            np.save(here / "offsets.npy", offsets)
            show(f"folder of {here.name}", lambda here=here: open_tokens(here), raw, dtype, offsets)
            if dtype is np.uint16:
                megatron(here, lengths, offsets)
                show("Megatron pair of uint16", lambda here=here: open_tokens(here / "pair"), raw, dtype, offsets)
            if dtype is np.int32:
                tables(folder, ids, offsets, raw)
            if dtype is np.int64:
                np.save(here / "labels.npy", ids)
                source = open_tokens(here)
                batches = [rng.integers(0, len(source), 256) for _ in range(20)]
                found = rates({"": lambda numbers, s=source: s.gather(numbers).tokens["input_ids"].size}, batches)
                print(f"  {'and labels of int64':26} 256 at once {found['']:,.0f} M/s")


def megatron(folder: Path, lengths: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
    """Write the index of a pair beside its ids."""
    (folder / "pair.bin").symlink_to("ids.bin")
    with open(folder / "pair.idx", "wb") as file:
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, lengths.size, lengths.size + 1))
        file.write(lengths.astype("<i4").tobytes() + (2 * offsets[:-1]).astype("<i8").tobytes())
        file.write(np.arange(lengths.size + 1, dtype="<i8").tobytes())


def tables(folder: Path, ids: NDArray[np.int32], offsets: NDArray[np.int64], raw: Path) -> None:
    """Time a saved dataset in chunks of 1,000 rows, the same shuffled, Parquet, and a packed dataset."""
    import datasets

    column = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))
    table = pa.table({"input_ids": column})
    saved = folder / "saved"
    saved.mkdir()
    schema = pa.schema({"input_ids": pa.list_(pa.int32())})
    with pa.OSFile(str(saved / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for begin in range(0, table.num_rows, 1000):
            writer.write_table(table.slice(begin, 1000).cast(schema))
    dataset = datasets.Dataset.from_file(str(saved / "a.arrow"))
    show("datasets.Dataset on disk", lambda: open_tokens(dataset), raw, np.int32, offsets)
    show("the same, shuffled", lambda: open_tokens(dataset.shuffle(seed=0)), raw, np.int32, offsets)
    pq.write_table(table, folder / "a.parquet", row_group_size=10_000)
    show("Parquet, copied", lambda: open_tokens(folder / "a.parquet"), raw, np.int32, offsets)
    show("Parquet, copied before", lambda: open_tokens(folder / "a.parquet"), raw, np.int32, offsets)
    few = [
        ids[begin:end].tolist()
        for begin, end in zip(offsets[:20_000].tolist(), offsets[1:20_001].tolist(), strict=True)
    ]
    nopad.pack_corpus(IterableSource(few), folder / "packed", nopad.CorpusOptions(capacity=512))
    show("a packed dataset, copied", lambda: open_tokens(folder / "packed"), raw, np.int32, offsets)


main()
