"""Reading: >= 200 M tokens/s sequential and in an order; a pack in <= 5 ms cold, <= 0.1 ms from a cached row group.

All lengths alone: <= 25 ms for 65 M tokens. A dataset of 1,000 shards: the first row in <= 0.2 s, <= 100 MB a process.

Beside it, in the same run: pyarrow reading the same row groups with all its threads, and nothing done with them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from inputs import RawIds, docstring_ids, machine, wikipedia_like

import nopad
from nopad.store import PackedRow

TOKENS = int(float(sys.argv[1])) if len(sys.argv) > 1 else 200_000_000


def rate(rows: Iterable[PackedRow]) -> str:
    """Read every row's lengths and tokens; return millions of tokens per second."""
    start, tokens = time.perf_counter(), 0
    for row in rows:
        tokens += row.input_ids.size
        assert row.seq_lengths.size
    return f"{tokens / (time.perf_counter() - start) / 1e6:.0f} M tokens/s"


def evict(folder: Path) -> None:
    """Drop the files from the page cache, so that cold means cold."""
    for path in folder.rglob("*.parquet"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


FIRST_ROW = """
import sys, time
import nopad, nopad.store.shard_files, pyarrow.parquet, pyarrow.dataset
used = lambda: int(next(l for l in open('/proc/self/status') if l.startswith('VmRSS')).split()[1]) / 1024
before, start = used(), time.perf_counter()
row = {how}
row.input_ids.sum()
print(f"{{time.perf_counter() - start:.3f}} s, {{used() - before:.0f}} MB")
"""


def many_shards(folder: Path) -> None:
    """Time the first row of many shards in processes of their own, libraries imported."""
    out = folder / "many"
    source = RawIds(wikipedia_like(64_000_000), docstring_ids())
    made = nopad.pack_corpus(
        source, out, nopad.CorpusOptions(capacity=512), packing=nopad.PackOptions(shard_tokens=64_000)
    )
    for what, how in (("in order", "next(iter(dataset))"), ("by number", "dataset[len(dataset) // 2]")):
        code = FIRST_ROW.format(
            how=how.replace("dataset", "nopad.open_packed(sys.argv[1])", 1).replace("len(dataset)", str(made.packs))
        )
        done = subprocess.run([sys.executable, "-c", code, out], check=True, capture_output=True, text=True)
        print(
            f"  {len(made.shards):,} shards, first row {what}: {done.stdout.strip()} more (target <= 0.2 s, <= 100 MB)"
        )


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-") as name:
        out = Path(name) / "packed"
        start = time.perf_counter()
        made = nopad.pack_corpus(
            RawIds(wikipedia_like(TOKENS), docstring_ids()), out, nopad.CorpusOptions(capacity=512)
        )
        seconds = time.perf_counter() - start
        print(f"reader: {made.tokens:,} tokens, {made.packs:,} packs; {machine()}")
        print(f"  (whole job from ready-made ids, generated on the fly: {made.tokens / seconds / 1e6:.0f} M tokens/s)")
        for _ in range(2):
            dataset = nopad.open_packed(out)
            print(
                f"  sequential {rate(dataset)} (target >= 200), in an order {rate(dataset.read(dataset.order(seed=1)))} (target >= 200)",
                end="; ",
            )
            start = time.perf_counter()
            for shard in made.shards:
                file = pq.ParquetFile(out / shard.file)
                for group in range(file.num_row_groups):
                    file.read_row_group(group)
            print(
                f"plain pyarrow, row group by row group {made.tokens / (time.perf_counter() - start) / 1e6:.0f} M tokens/s"
            )
        chosen = np.random.default_rng(0).integers(0, made.packs, 50)
        for what, before in (
            ("cold: new reader, page cache dropped", True),
            ("cold: new reader, files in page cache", False),
        ):
            seconds_of = []
            for at in chosen.tolist():
                if before:
                    evict(out)
                dataset = nopad.open_packed(out)
                start = time.perf_counter()
                dataset[at].input_ids.sum()
                seconds_of.append(time.perf_counter() - start)
            print(
                f"  random access, {what}: median {statistics.median(seconds_of) * 1e3:.2f} ms, worst {max(seconds_of) * 1e3:.2f} ms (target <= 5)"
            )
        dataset = nopad.open_packed(out)
        seconds_of = []
        for _ in range(5):
            start = time.perf_counter()
            sequences = dataset.seq_lengths()[1].size
            seconds_of.append(time.perf_counter() - start)
        each = statistics.median(seconds_of) / made.tokens * 65e6
        print(f"  {sequences:,} lengths alone: {each * 1e3:.1f} ms for each 65 M tokens (target <= 25)")
        dataset[0]
        start = time.perf_counter()
        for at in range(500):
            dataset[at].input_ids.sum()
        print(f"  random access, cached row group: {(time.perf_counter() - start) / 500 * 1e3:.4f} ms (target <= 0.1)")
        many_shards(Path(name))


main()
