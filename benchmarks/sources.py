"""Reading each kind of source: the pipeline's rate beside what reading the file alone takes (Arrow, or json.loads).

The same sequences in every form: ids of 350 tokens in the median with a label for each token and one for each sequence.
"""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
from inputs import lognormal, machine

from nopad.corpus import CorpusOptions, Source, open_source, sequences

N, CAPACITY = 30_000, 8192


def seconds(call: Callable[[], object]) -> float:
    """Return the median time of three calls."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def drain(source: Source) -> int:
    """Read a source through the pipeline; return its tokens."""
    return sum(group.counts.tokens for group in sequences(source.blocks(), None, CorpusOptions(capacity=CAPACITY)))


def main() -> None:
    lengths = lognormal(N, 350, 1.1, CAPACITY)
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ids, labels = (rng.integers(0, 30_000, offsets[-1], dtype=np.int32) for _ in range(2))
    lists = {
        name: pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
        for name, values in (("input_ids", ids), ("labels", labels))
    }
    table = pa.table({**lists, "label": pa.array(rng.integers(0, 5, N))})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(table, folder / "rows.parquet", row_group_size=5000)
        pyarrow.feather.write_feather(table, str(folder / "rows.feather"), chunksize=5000)
        (folder / "arrays").mkdir()
        for array, values in (
            ("ids", ids),
            ("labels", labels),
            ("label", table["label"].to_numpy()),
            ("offsets", offsets),
        ):
            np.save(folder / "arrays" / f"{array}.npy", values)
        lines = [json.dumps(row).encode() + b"\n" for row in table.slice(0, N // 10).to_pylist()]
        (folder / "rows.jsonl").write_bytes(b"".join(lines))
        with gzip.open(folder / "rows.jsonl.gz", "wb", compresslevel=3) as file:
            file.writelines(lines)
        dataset = datasets.Dataset(table)
        print(f"sources: {N:,} sequences, {offsets[-1]:,} ids with a label each; {machine()}")
        forms = {
            "Parquet": (folder / "rows.parquet", lambda: pq.read_table(folder / "rows.parquet", use_threads=False)),
            "Arrow": (
                folder / "rows.feather",
                lambda: pyarrow.feather.read_table(folder / "rows.feather", use_threads=False),
            ),
            "memory-mapped arrays": (
                folder / "arrays",
                lambda: [np.load(path).sum() for path in (folder / "arrays").iterdir()],
            ),
            "datasets.Dataset": (dataset, lambda: [len(part) for part in dataset.with_format("arrow").iter(1000)]),
            "JSONL (a tenth)": (folder / "rows.jsonl", lambda: [json.loads(line) for line in lines]),
            "JSONL gzip (a tenth)": (
                folder / "rows.jsonl.gz",
                lambda: [
                    json.loads(line) for line in gzip.decompress((folder / "rows.jsonl.gz").read_bytes()).splitlines()
                ],
            ),
        }
        for form, (given, alone) in forms.items():
            tokens = drain(open_source(given))
            ours, plain = seconds(lambda given=given: drain(open_source(given))), seconds(alone)
            print(
                f"  {form:<22}{tokens / ours / 1e6:>8.1f} M ids/s   its library alone {tokens / plain / 1e6:>8.1f}   ratio {plain / ours:.2f}"
            )


main()
