"""Mapped token columns -> packed Parquet on disk: >= 150 M tokens/s with < 1 GB anonymous memory, fsync included.

Beside it, in the same run: the same bytes copied in memory and written plainly, and pyarrow's default writer.
Token ids are drawn from the real frequencies of the standard library's docstrings, lengths from Wikipedia-512.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from inputs import PeakAnonymous, docstring_ids, machine, wikipedia_like

import nopad
from nopad.sequences import Sequences
from nopad.store.shards import _PARQUET, Layout, gather, schema_of, write_shards

TOKENS = int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_500_000_000


def make(folder: Path) -> tuple[Sequences, np.ndarray]:
    """Write a token file of about TOKENS tokens and map it."""
    ids, lengths, rng = docstring_ids(), wikipedia_like(TOKENS), np.random.default_rng(0)
    n = lengths.size
    with open(folder / "tokens.bin", "wb") as file:
        left = int(lengths.sum())
        while left:
            drawn = rng.choice(ids, min(left, 1 << 22)).astype(np.int32)
            drawn.tofile(file)
            left -= drawn.size
    begin = np.concatenate([[0], np.cumsum(lengths[:-1])]).astype(np.int64)
    tokens = np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r")
    columns = Sequences(
        seq_lengths=lengths, values={"seq_index": np.arange(n)}, begin=begin, tokens={"input_ids": tokens}
    )
    return columns, lengths


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-") as name:
        folder = Path(name)
        columns, lengths = make(folder)
        tokens = int(lengths.sum(dtype=np.int64))
        packs = nopad.pack(lengths, 512)
        layout = Layout.of(len(packs), 512)
        print(f"materialise: {tokens:,} tokens, {len(packs):,} packs, {layout.shards} shards; {machine()}")
        int(
            columns.tokens["input_ids"][::1024].sum()
        )  # into the page cache: the claim is about packing, not the source
        rates = []
        for _ in range(7):
            shutil.rmtree(folder / "shards", ignore_errors=True)
            (folder / "shards").mkdir()
            with PeakAnonymous() as memory:
                start = time.perf_counter()
                shards = write_shards(packs, columns, folder, layout)
                seconds = time.perf_counter() - start
            size = sum(shard.bytes for shard in shards)
            rates.append(tokens / seconds / 1e6)
            print(
                f"  write_shards  {tokens / seconds / 1e6:>7.0f} M tokens/s  (target >= 150)  {size / tokens:.2f} B/token, "
                f"{size / seconds / 1e6:.0f} MB/s to disk, anonymous memory peak {memory.peak / 1e6:.0f} MB"
            )
        print(f"  median of {len(rates)} passes: {np.median(rates):.0f} M tokens/s")
        schema, scratch = schema_of(columns), {}
        some = packs[: layout.rows_per_shard]
        start = time.perf_counter()
        for at in range(0, len(some), layout.rows_per_group):
            gather(some[at : at + layout.rows_per_group], columns, schema, scratch)
        done = time.perf_counter() - start
        held = int(lengths[some.sequence].sum())
        print(f"  limits: gather alone, one thread {held / done / 1e6:.0f} M tokens/s;", end=" ")
        out = np.empty(1 << 26, dtype=np.int32)
        source = np.array(columns.tokens["input_ids"][: out.size])
        out[:] = source
        start = time.perf_counter()
        np.copyto(out, source)
        print(f"numpy copy {out.size / (time.perf_counter() - start) / 1e6:.0f} M tokens/s;", end=" ")
        block = np.random.default_rng(0).integers(0, 256, 1 << 24, dtype=np.uint8)
        start = time.perf_counter()
        with open(folder / "plain.bin", "wb") as file:
            for _ in range(-(-size // block.size)):
                block.tofile(file)
            file.flush()
            os.fsync(file.fileno())
        print(f"plain write + fsync of as many bytes {size / (time.perf_counter() - start) / 1e6:.0f} MB/s")
        tables = []
        for at in range(0, min(len(packs), 1 << 17), layout.rows_per_group):
            table, held = gather(packs[at : at + layout.rows_per_group], columns, schema, {})
            tables.append(table)
        held = sum(len(table[schema.names[-1]].chunk(0).values) for table in tables)
        threads = os.cpu_count() or 1
        with ThreadPoolExecutor(threads) as pool:
            start = time.perf_counter()
            list(pool.map(lambda i: encode(folder / f"encode-{i}.parquet", tables, schema), range(threads)))
            seconds = time.perf_counter() - start
        ceiling = threads * held / seconds / 1e6
        print(f"  ceiling: pyarrow encoding alone, the same settings, {threads} threads {ceiling:.0f} M tokens/s")
        start = time.perf_counter()
        pq.write_table(pa.concat_tables(tables), folder / "default.parquet")
        seconds = time.perf_counter() - start
        size = (folder / "default.parquet").stat().st_size
        print(f"  pyarrow's defaults, one thread: {held / seconds / 1e6:.0f} M tokens/s, {size / held:.2f} B/token")


def encode(path: Path, tables: list[pa.Table], schema: pa.Schema) -> None:
    """Write tables that lie in memory, as `write_shards` does, without gathering, hashing or syncing."""
    encoding = {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in schema.names}
    with pq.ParquetWriter(path, schema, **_PARQUET, column_encoding=encoding) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=len(table))


main()
