"""The Parquet files of a packed dataset, opened when they are needed and checked against the manifest.

When a file is opened, its size, columns, types and row groups are checked. Page checksums are compared while decoding,
and a decoded row group must have the right number of rows and lists of matching lengths. So reading a file that was
damaged, or written anew with another size or layout, raises an error that names the file. (A file that was written anew
with the same size and layout is only noticed by `nopad.verify`, which compares the SHA-256.)

Scanning keeps the footers of the last 32 files in memory; a footer of 256 row groups takes about 1 MB. Each thread that
reads packs by number keeps the last 8 files open. Other files are opened again when needed (1 ms). When scanning,
Arrow's threads decode a few row groups ahead. (With Python threads, reading would take a quarter longer, since they
wait for the GIL that the loop over rows holds.)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.arrow import list_parts
from nopad.corpus.selection import OWN
from nopad.files import damage_errors
from nopad.sequences import Sequences
from nopad.store.manifest import Manifest
from nopad.store.row_groups import RowGroup
from nopad.threads import new_lock

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ShardFiles"]

_AHEAD = 8  # row groups that Arrow decodes ahead
_SCANNED = 64  # row groups that are handed to Arrow at once
_FOOTERS = 32  # files whose footers are cached
_OPEN = 8  # files that a thread keeps open


class ShardFiles:
    """Reads the shards of one dataset. Threads may share an instance."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Prepare to read the shards; no file is opened yet."""
        self._folder, self._manifest = folder, manifest
        carried = [name for name, per in manifest.carried.items() if per == "sequence"]
        self._per_sequence = [name for name in (*OWN, *carried) if name in manifest.columns]
        self._per_token = [name for name in manifest.columns if name not in self._per_sequence]
        self.unlock()
        self._fragments: OrderedDict[int, Any] = OrderedDict()
        self._local = threading.local()

    def unlock(self) -> None:
        """Make a new lock; after a fork, the child needs one.

        In the child, nothing could release a lock that a thread held at the fork.
        """
        self._lock = new_lock()

    def read(self, file: int, group: int) -> RowGroup:
        """Decode row group number `group` of shard number `file`, both counted from 0, and return it.

        Raises:
            CorruptError: the file is missing or damaged, or has another size or layout than the manifest states.
            StorageError: the file cannot be read.
        """
        with self._reading(file):
            return self._to_row_group(self._reader(file).read_row_group(group, use_threads=False), file, group)

    def scan(self, places: Iterable[tuple[int, int]]) -> Iterator[RowGroup]:
        """Decode the row groups at `places`, pairs of numbers (file, row group), and yield them in this order.

        Raises:
            CorruptError: a file is missing or damaged, or has another size or layout than the manifest states.
            StorageError: a file cannot be read.
        """
        left, size = iter(places), _AHEAD  # a small first scan, so that the first row group comes soon
        while chosen := list(islice(left, size)):
            size = _SCANNED
            batches = self._batches(chosen)
            for file, group in chosen:
                with self._reading(file):
                    batch = next(batches, None)
                    if batch is None:
                        raise ValueError(f"it ends before row group {group}")
                    row_group = self._to_row_group(batch, file, group)
                yield row_group

    def lengths(self, file: int) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Return ``(offsets, lengths)`` of a shard: where each pack begins in `lengths`, and the sequences' lengths.

        `file` is the number of the shard. The offsets are integers ``[packs + 1]``, the lengths int32 ``[sequences]``.

        Raises:
            CorruptError: the file is missing or damaged, or has another size or layout than the manifest states.
            StorageError: the file cannot be read.
        """
        shard = self._manifest.shards[file]
        with self._reading(file):
            table = self._reader(file).read(["seq_lengths"], use_threads=False)
            parts = [self._lists(chunk) for chunk in table.column(0).chunks]
            offsets, values = np.zeros(1, np.int64), np.concatenate([values for _, values in parts])
            for found, _ in parts:
                offsets = np.append(offsets, found[1:] + offsets[-1])
            if (offsets.size - 1, values.size) != (shard.packs, shard.sequences):
                raise ValueError(f"it holds {offsets.size - 1:,} packs of {values.size:,} sequences")
        return offsets, values

    def _reading(self, file: int) -> AbstractContextManager[None]:
        """Return a context that turns errors while reading shard number `file` into a CorruptError or StorageError."""
        import pyarrow as pa

        path = self._folder / self._manifest.shards[file].file
        return damage_errors(path, pa.ArrowException, MemoryError, ValueError, LookupError, OverflowError)

    def _batches(self, places: list[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Decode the row groups at `places`, pairs of numbers (file, row group); yield a record batch for each."""
        import pyarrow.dataset as ds

        groups = [self._fragment(file).subset(row_group_ids=[group]) for file, group in places]
        first = groups[0]
        wanted = ds.FileSystemDataset(groups, first.physical_schema, first.format, filesystem=first.filesystem)
        scanner = wanted.scanner(
            batch_size=self._manifest.rows_per_group, batch_readahead=_AHEAD, fragment_readahead=_AHEAD
        )
        yield from scanner.to_batches()

    def _fragment(self, file: int) -> Any:
        """Return shard number `file` as a `pyarrow.dataset` fragment whose file has been checked against the manifest.

        The last 32 fragments are kept; when one of these is returned, its file is not checked again.

        Raises:
            CorruptError: the file is missing or damaged, or has another size or layout than the manifest states.
            StorageError: the file cannot be read.
        """
        import pyarrow.dataset as ds
        from pyarrow.fs import LocalFileSystem

        with self._lock:
            found = self._fragments.get(file)
            if found is not None:
                self._fragments.move_to_end(file)
                return found
        path = self._folder / self._manifest.shards[file].file
        options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        found = ds.ParquetFileFormat(default_fragment_scan_options=options).make_fragment(str(path), LocalFileSystem())
        with self._reading(file):
            self._check(file, path, found.physical_schema, found.metadata)
        with self._lock:
            self._fragments[file] = found
            while len(self._fragments) > _FOOTERS:
                self._fragments.popitem(last=False)
        return found

    def _check(self, file: int, path: Path, schema: pa.Schema, metadata: Any) -> None:
        """Raise ValueError if a file's size, columns, types or row groups are not those that the manifest states."""
        m, shard = self._manifest, self._manifest.shards[file]
        size = path.stat().st_size
        if size != shard.bytes:
            raise ValueError(f"it has {size:,} bytes, the manifest states {shard.bytes:,}: was it written anew?")
        if {field.name: str(field.type) for field in schema} != m.columns or len(schema) != len(m.columns):
            missing = sorted(set(m.columns) - set(schema.names))
            raise ValueError(f"it has no column {missing[0]}" if missing else "it has other columns, or other types")
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        if rows != self._rows(file):
            raise ValueError("it has other row groups than nopad wrote: was it written anew?")

    def _rows(self, file: int) -> list[int]:
        """Return the number of packs in each row group of shard number `file`, as the manifest states it."""
        whole, rest = divmod(self._manifest.shards[file].packs, self._manifest.rows_per_group)
        return [self._manifest.rows_per_group] * whole + [rest] * bool(rest)

    def _reader(self, file: int) -> Any:
        """Return this thread's own reader of shard number `file`, since threads must not share Parquet readers.

        If this thread has no open reader of the shard, the file is opened and checked against the manifest.

        Raises:
            ValueError: the file's size, columns, types or row groups are not those that the manifest states.
            OSError, pyarrow.ArrowException: the file is missing, or cannot be read as Parquet.
        """
        import pyarrow.parquet as pq

        readers: OrderedDict[int, Any] = getattr(self._local, "readers", None) or OrderedDict()
        self._local.readers = readers
        if file not in readers:
            path = self._folder / self._manifest.shards[file].file
            reader = pq.ParquetFile(path, page_checksum_verification=True)  # fragments of pyarrow.dataset import pandas
            self._check(file, path, reader.schema_arrow, reader.metadata)
            readers[file] = reader
            if len(readers) > _OPEN:
                readers.popitem(last=False)[1].close()
        readers.move_to_end(file)
        return readers[file]

    def _to_row_group(self, table: pa.Table | pa.RecordBatch, file: int, group: int) -> RowGroup:
        """Turn the decoded row group `table` into a `RowGroup`, which holds NumPy arrays, and return it.

        Arrow has decoded `table` from shard number `file`; `group` is its number in the shard.

        Raises:
            ValueError: the row group does not have as many packs as the manifest states; two per-token columns, or two
                per-sequence columns, differ in the lengths of their lists; or a column has nulls.
            pyarrow.ArrowException: a column is damaged.
        """
        expected = self._rows(file)[group]
        if table.num_rows != expected:
            raise ValueError(f"row group {group} has {table.num_rows:,} packs, and should have {expected:,}")
        parts = {name: self._lists(table.column(name)) for name in (*self._per_sequence, *self._per_token)}
        indptr, token_indptr = parts["seq_lengths"][0], parts[self._per_token[0]][0]
        for names, bounds in ((self._per_sequence, indptr), (self._per_token, token_indptr)):
            for name in names:
                if not np.array_equal(parts[name][0], bounds):
                    raise ValueError(f"column {name} in row group {group} has lists of other lengths than {names[0]}")
        flat = {name: values for name, (_, values) in parts.items()}
        sequences = Sequences(
            seq_lengths=flat.pop("seq_lengths"),
            tokens={name: flat.pop(name) for name in self._per_token},
            values=flat,
        )
        return RowGroup(indptr, token_indptr, sequences)

    def _lists(self, column: pa.Array | pa.ChunkedArray) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the offsets ``[rows + 1]`` and the flat values of a list column, after Arrow has checked the column.

        Raises:
            ValueError: the column has nulls.
            pyarrow.ArrowException: the column is damaged.
        """
        import pyarrow as pa

        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        array.validate(full=True)
        if array.null_count or array.values.null_count:
            raise ValueError("there are nulls in it")
        return list_parts(array)
