"""Write packs and sequences to shards: Parquet files with one row per pack.

Per-token columns are flat lists without padding; ``position_ids``, attention masks and ``cu_seqlens`` are not stored,
unless such columns are packed along. Numbers have the Parquet encoding BYTE_STREAM_SPLIT, and all pages are compressed
by zstd at level 1. All row groups have the same number of packs, except the last of a shard. One thread gathers and
encodes a shard in O(row group) memory, and another hashes and fsyncs it, so that no encoder waits for the disk. Several
shards are written at once; the expensive steps release the GIL.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nopad.arrow import list_array
from nopad.corpus.selection import FORMAT_KEY, OWN, is_string
from nopad.errors import OptionError
from nopad.files import preparing, replacing, sha256_file
from nopad.packs import Packs
from nopad.sequences import Sequences, as_integers
from nopad.store.manifest import FORMAT, FORMAT_VERSION, Shard

__all__ = ["ShardLayout", "gather", "schema_of", "write_shards"]

_PARQUET: dict[str, Any] = {
    "use_dictionary": False,
    "compression": "zstd",
    "compression_level": 1,
    "write_statistics": False,
    "write_page_checksum": True,
    "write_batch_size": 1 << 16,
    "data_page_version": "2.0",
}
GROUP_TOKENS = 1 << 18
SHARD_TOKENS = 1 << 26
MAX_TEXT = 2**31 - 1  # bytes of a column in a row group


def schema_of(sequences: Sequences) -> pa.Schema:
    """Return the Arrow schema of a shard of these sequences: ``seq_lengths`` and all their columns, as lists.

    Its metadata has the name and the version of nopad's format. No field is nullable.
    """
    own = {name: sequences.values[name] for name in OWN if name in sequences.values}
    columns = {"seq_lengths": sequences.seq_lengths, **own, **sequences.values, **sequences.tokens}
    return pa.schema(
        [
            pa.field(name, pa.list_(pa.field("element", _kind(column), nullable=False)), nullable=False)
            for name, column in columns.items()
        ],
        metadata={FORMAT_KEY: FORMAT, b"nopad.format_version": str(FORMAT_VERSION)},
    )


def _kind(column: Any) -> pa.DataType:
    """Return the Arrow type in which the values of an array are stored; every kind of string becomes ``string``."""
    if isinstance(column, np.ndarray):
        return pa.from_numpy_dtype(column.dtype)
    return pa.string() if is_string(column.type) else column.type


@dataclass(frozen=True)
class ShardLayout:
    """How packs are divided into shards, and shards into row groups.

    The layout depends only on the capacity, the number of packs and the `shard_tokens` given to `of`.

    Attributes:
        packs: total number of packs.
        rows_per_group, rows_per_shard: number of packs in each row group and in each shard; the last ones may have
            fewer.
    """

    packs: int
    rows_per_group: int
    rows_per_shard: int

    @classmethod
    def of(cls, packs: int, capacity: int, shard_tokens: int = SHARD_TOKENS) -> ShardLayout:
        """Return a layout with row groups of at most 2^18 tokens and shards of at most `shard_tokens` tokens.

        Each pack is counted as `capacity` tokens. Each row group and each shard has at least one pack, even if
        `capacity` is above these limits.
        """
        group = max(1, min(GROUP_TOKENS, shard_tokens) // capacity)
        return cls(packs, group, group * max(1, shard_tokens // (group * capacity)))

    @property
    def shards(self) -> int:
        """Number of shards, at least one."""
        return max(1, -(-self.packs // self.rows_per_shard))

    def name(self, shard: int) -> str:
        """Return the path of a shard (numbered from 0), relative to the dataset folder."""
        return f"shards/{shard:05d}-of-{self.shards:05d}.parquet"

    def rows(self, shard: int) -> range:
        """Return the range of pack numbers in a shard."""
        begin = shard * self.rows_per_shard
        return range(begin, min(begin + self.rows_per_shard, self.packs))


def write_shards(
    packs: Packs,
    sequences: Sequences,
    folder: Path,
    layout: ShardLayout,
    *,
    finished: Mapping[str, Shard] | None = None,
    on_shard: Callable[[Shard], None] = lambda shard: None,
    on_tokens: Callable[[int], None] = lambda tokens: None,
    threads: int | None = None,
) -> tuple[Shard, ...]:
    """Write all shards under `folder`, except those in `finished`; return every shard, finished or new, in order.

    After any error or interrupt, the other writers stop at their next row group.

    Args:
        packs: the packs of the dataset.
        sequences: the sequences that the packs name.
        folder: the folder that the shards' names are relative to.
        layout: how packs are divided into shards.
        finished: shards that are on disk already, by name; None: there are none.
        on_shard: called in the caller's thread for each written shard once it is on disk under its final name.
        on_tokens: called by the writing threads with the number of tokens just written.
        threads: number of shards that are written at once; None: the number of CPU cores, but at most 8.

    Raises:
        StorageError: the disk is full, or a write failed.
        OptionError: a column of strings has more text in a row group than fits (2^31 - 1 bytes).
    """
    done = dict(finished or {})
    todo = [shard for shard in range(layout.shards) if layout.name(shard) not in done]
    stop, width = threading.Event(), threads or min(8, os.cpu_count() or 1)
    with (
        ThreadPoolExecutor(width, thread_name_prefix="nopad-finish") as finishers,
        ThreadPoolExecutor(width, thread_name_prefix="nopad-shard") as writers,
    ):
        writing: set[Future[Future[Shard]]] = set()
        finishing: set[Future[Shard]] = set()

        def write(shard: int) -> Future[Shard]:
            written = _write_shard(packs, sequences, folder, layout, shard, stop, on_tokens)
            # Submitted by the writer itself, so that every written shard is also finished
            return finishers.submit(_finish_shard, folder, written)

        try:
            writing = {writers.submit(write, shard) for shard in todo}
            while writing or finishing:
                under_way: set[Future[Any]] = writing | finishing
                ready = wait(under_way, return_when=FIRST_COMPLETED).done
                for finish in finishing & ready:
                    done[finish.result().file] = finish.result()
                    on_shard(finish.result())
                finishing = finishing - ready | {future.result() for future in writing & ready}
                writing = writing - ready
        except BaseException:
            stop.set()
            for future in writing:
                future.cancel()
            raise
    return tuple(done[layout.name(shard)] for shard in range(layout.shards))


class _Stopped(Exception):
    """Raised in a thread that writes a shard, after another thread has failed or the job was interrupted."""


def _write_shard(
    packs: Packs,
    sequences: Sequences,
    folder: Path,
    layout: ShardLayout,
    shard: int,
    stop: threading.Event,
    on_tokens: Callable[[int], None],
) -> Shard:
    """Write shard number `shard` under its temporary name, and return it as a `Shard` without size and checksum.

    `packs` and `sequences` are those of the whole dataset. `layout` says which packs are in which shard, and names the
    shard's path relative to `folder`. `on_tokens` is called with the number of tokens of each row group written. If
    `stop` is set, `_Stopped` is raised before the next row group.
    """
    path = folder / layout.name(shard)
    rows = layout.rows(shard)
    schema = schema_of(sequences)
    encoding = {f"{f.name}.list.element": _encoding(f.type.value_type) for f in schema}
    tokens, scratch = 0, dict[str, NDArray[Any]]()
    with (
        preparing(path) as partial,
        pa.OSFile(os.fsencode(partial), "wb") as sink,  # pyarrow takes a path such as run-12:30 for a URL
        pq.ParquetWriter(sink, schema, **_PARQUET, column_encoding=encoding) as writer,
    ):
        for begin in range(rows.start, rows.stop, layout.rows_per_group):
            if stop.is_set():
                raise _Stopped
            group = packs[begin : min(begin + layout.rows_per_group, rows.stop)]
            table, group_tokens = gather(group, sequences, schema, scratch)
            writer.write_table(table, row_group_size=layout.rows_per_group)
            tokens += group_tokens
            on_tokens(group_tokens)
    held = int(packs.indptr[rows.stop]) - int(packs.indptr[rows.start])
    return Shard(file=layout.name(shard), packs=len(rows), sequences=held, tokens=tokens, bytes=0, sha256="")


def _finish_shard(folder: Path, shard: Shard) -> Shard:
    """Hash and sync a written shard, give it its final name, and return it with its size and checksum."""
    with replacing(folder / shard.file) as partial:
        return replace(shard, bytes=partial.stat().st_size, sha256=sha256_file(partial))


def gather(
    packs: Packs, sequences: Sequences, schema: pa.Schema, scratch: dict[str, NDArray[Any]]
) -> tuple[pa.Table, int]:
    """Return the given packs as an Arrow table with one row per pack, and the number of tokens in them.

    `sequences` are all sequences of the dataset, and `schema` is the table's schema. `scratch` holds the memory for
    each per-token column by name; give {} to the first call. The table uses this memory, so the next call with the same
    `scratch` overwrites the table. (Fresh memory for every row group would take a third more time, because of page
    faults.)

    Raises:
        OptionError: a column of strings has more text in these packs than fits (2^31 - 1 bytes).
    """
    from nopad._kernels import gather_tokens

    chosen = sequences.take(packs.sequence)
    indptr = packs.indptr.astype(np.int32)
    ends = np.concatenate([[0], np.cumsum(chosen.seq_lengths)])[indptr].astype(np.int32)
    arrays = {}
    for name, column in {"seq_lengths": chosen.seq_lengths, **chosen.values}.items():
        kind = schema.field(name).type
        if not isinstance(column, np.ndarray):
            _check_text(name, column, len(packs))
        values = pa.array(column) if isinstance(column, np.ndarray) else column.cast(kind.value_type)
        arrays[name] = pa.ListArray.from_arrays(pa.array(indptr), values, type=kind)
    for name, column in chosen.tokens.items():
        if name not in scratch or scratch[name].size < ends[-1]:
            scratch[name] = np.empty(int(ends[-1]), dtype=column.dtype)
        out = scratch[name][: ends[-1]]
        gather_tokens(as_integers(column), chosen.begins, chosen.seq_lengths, as_integers(out))
        arrays[name] = list_array(ends, out)
    return pa.table([arrays[name] for name in schema.names], schema=schema), int(ends[-1])


def _check_text(name: str, column: pa.Array, packs: int) -> None:
    """Raise OptionError if a column has more text in a row group than an Arrow column of strings can hold.

    `name` and `packs`, the number of packs in the row group, are for the message.
    """
    size = column.buffers()[2].size if is_string(column.type) and column.buffers()[2] is not None else 0
    if size > MAX_TEXT:
        raise OptionError(
            f"the column {name!r} has {size:,} bytes of text in {packs:,} packs that are written together, above the "
            f"{MAX_TEXT:,} that fit; leave it out of carry=, or make row groups smaller with shard_tokens="
        )


def _encoding(kind: pa.DataType) -> str:
    """Return the Parquet encoding for values of type `kind`.

    It is "PLAIN" for strings and booleans, and "BYTE_STREAM_SPLIT" for numbers, which makes them smaller.
    """
    return "PLAIN" if is_string(kind) or pa.types.is_boolean(kind) else "BYTE_STREAM_SPLIT"
