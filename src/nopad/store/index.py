"""Index-only datasets ("virtual packing"): which sequence is in which pack, without the tokens.

``packs.arrow`` is the file that `Packs.save` writes: the sequence numbers of each pack. Its header states how records
were changed before they were measured (stripped, truncated, split, tokenised). So the index is not applied to records
without these changes.

``sequences.arrow`` has one row per sequence, with these columns:

* ``seq_lengths``: number of tokens, in the narrowest unsigned type that suffices
* ``seq_index``: number of the sequence's record; missing if no record was split and, for every i, sequence i was made
  of record i
* ``seq_start``: index of the sequence's first token in its record; only if some record was split into sequences
* ``seq_source``: number of the source; only if sources are named
* ``seq_hash``: hash of the sequence's tokens, by which other tokens are refused when the index is applied to records;
  missing only if a file of lengths was packed
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nopad.arrow import read_arrow, write_arrow
from nopad.errors import CorruptError
from nopad.files import damage_errors, sha256_file
from nopad.packs import Packs, packs_of
from nopad.sequences import Sequences
from nopad.store.manifest import Manifest, Shard
from nopad.store.row_groups import RowGroup
from nopad.threads import new_lock
from nopad.wording import counted

__all__ = ["HASH", "PACKS", "SEQUENCES", "Index", "IndexFiles", "hashes", "read_index", "selection", "write_index"]

PACKS = "packs.arrow"
SEQUENCES = "sequences.arrow"
HASH = "seq_hash"


def selection(counts: Mapping[str, int], tokenizer: object) -> str:
    """Return a text that says what nopad did to records before it measured them; "" if sequences are whole records.

    `counts` are the counts in the manifest, by the field names of `nopad.corpus.Counts`. `tokenizer` is the manifest's
    entry for the tokenizer, which is None if no text was tokenised.

    >>> selection({"stripped": 13, "truncated": 1, "split": 0}, None)
    'padding was cut off 13 records, 1 was truncated'
    """
    parts = []
    if counts["stripped"]:
        parts.append(f"padding was cut off {counted(counts['stripped'], 'record')}")
    for name in ("truncated", "split"):
        if counts[name]:
            parts.append(f"{counts[name]:,} {'was' if counts[name] == 1 else 'were'} {name}")
    return ", ".join([*parts, *(["texts were tokenised, with special tokens"] if tokenizer else [])])


def hashes(ids: NDArray[Any], lengths: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Return a hash of each sequence's tokens, uint32 ``[n]``; it does not depend on the integer type of `ids`.

    `ids` are the concatenated sequences, and `lengths` the numbers of their tokens. Of sequences with other tokens,
    about one in four billion has the same hash.

    >>> hashes(np.array([7, 8, 9, 7]), np.array([3, 1], np.int32)).tolist()
    [3930406545, 1017445330]
    """
    from nopad.store import _kernels

    out = np.empty(lengths.size, np.uint32)
    _kernels.sequence_hashes(ids, lengths, out)
    return out


def write_index(packs: Packs, sequences: Sequences, folder: Path) -> tuple[Shard, ...]:
    """Write two index files, of packs and of sequences, into `folder`; return one `Shard` for each file.

    Raises:
        StorageError: the disk is full, or a write failed.
    """
    packs.save(folder / PACKS)
    lengths, values = sequences.seq_lengths, sequences.values
    fields = {"seq_lengths": lengths.astype(np.min_scalar_type(int(lengths.max(initial=0))))}
    if "seq_start" in values or not np.array_equal(values["seq_index"], np.arange(lengths.size)):
        fields["seq_index"] = values["seq_index"]
    fields |= {name: values[name] for name in ("seq_start", "seq_source", HASH) if name in values}
    table = pa.table({name: pa.array(field) for name, field in fields.items()})
    write_arrow(folder / SEQUENCES, table)
    tokens = int(lengths.sum(dtype=np.int64))
    return tuple(
        Shard(
            file=name,
            packs=len(packs),
            sequences=packs.sequences,
            tokens=tokens,
            bytes=(folder / name).stat().st_size,
            sha256=sha256_file(folder / name),
        )
        for name in (PACKS, SEQUENCES)
    )


@dataclass(frozen=True, kw_only=True)
class Index:
    """The content of an index-only dataset.

    Attributes:
        packs: the packs, which hold sequence numbers.
        seq_lengths: number of tokens in each sequence; unsigned integers ``[n]``.
        seq_index: record number of each sequence; int64 ``[n]``; None: each sequence i is of record i.
        seq_start: index of each sequence's first token in its record; int64 ``[n]``; None: always 0, since no record
            was split.
        seq_source: number of each sequence's source; int32 ``[n]``; None: sources are not named.
        seq_hash: hash of each sequence's tokens (`hashes`); uint32 ``[n]``; None: only lengths were packed.
    """

    packs: Packs
    seq_lengths: NDArray[Any]
    seq_index: NDArray[np.int64] | None = None
    seq_start: NDArray[np.int64] | None = None
    seq_source: NDArray[np.int32] | None = None
    seq_hash: NDArray[np.uint32] | None = None

    def row_group(self, first: int, last: int) -> RowGroup:
        """Return packs `first` to `last` (exclusive) as a row group without tokens."""
        chosen = self.packs[first:last]
        sequence = chosen.sequence
        values = {"seq_index": self.records(sequence.astype(np.int64))}
        if self.seq_start is not None:
            values["seq_start"] = self.seq_start[sequence]
        if self.seq_source is not None:
            values["seq_source"] = self.seq_source[sequence]
        sequences = Sequences(seq_lengths=self.seq_lengths[sequence].astype(np.int32), values=values)
        return RowGroup(chosen.indptr, np.zeros(len(chosen) + 1, dtype=np.int64), sequences)

    def records(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the record number of each of the k sequences with these numbers; int64 ``[k]``."""
        return sequences if self.seq_index is None else self.seq_index[sequences]

    def starts(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where each of the k sequences with these numbers begins: the index of its first token in its record.

        The result is int64 ``[k]``.
        """
        return np.zeros(sequences.size, np.int64) if self.seq_start is None else self.seq_start[sequences]


def read_index(folder: Path, m: Manifest) -> Index:
    """Read both index files into memory, and return their content.

    This takes 5 to 32 bytes of memory per sequence; the files are read at 1 to 2 GB/s. The checksums are verified on
    the bytes in memory, so later changes of the files have no effect.

    Raises:
        CorruptError: a file is missing, does not have the checksum that the manifest `m` states, or is not an index of
            the packs that the manifest describes.
        StorageError: a file cannot be read.
    """
    tables = {}
    for shard in m.shards:
        path = folder / shard.file
        with damage_errors(path, pa.ArrowException, ValueError):
            tables[shard.file] = read_arrow(path, sha256=shard.sha256)
    try:
        packs, table = packs_of(tables[PACKS], folder / PACKS), tables[SEQUENCES]
        found = {name: table[name].combine_chunks().to_numpy() for name in table.column_names}
        index = Index(packs=packs, **found)
    # The file matches its checksum, so another tool wrote it
    except (pa.ArrowException, LookupError, ValueError, TypeError) as error:
        raise CorruptError(f"{folder} holds no index of nopad: {error}") from error
    n = index.seq_lengths.size
    if (len(packs), packs.sequences, n) != (m.packs, m.sequences, m.sequences):
        raise CorruptError(f"{folder} holds an index of other packs than its manifest states; see `nopad verify`")
    if n and packs.sequence.max() >= n:
        raise CorruptError(f"{folder / PACKS} names sequences that are not there; see `nopad verify`")
    return index


class IndexFiles:
    """Reads the two files of one index-only dataset. Threads may share an instance.

    It has the same methods as `ShardFiles`, which reads shards. These methods take the number of a file; the two files
    of an index count as one, with the number 0. Both are read into memory when something is first read.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Prepare to read the index; no file is opened yet."""
        self._folder, self._manifest = folder, manifest
        self.unlock()
        self._index: Index | None = None

    def unlock(self) -> None:
        """Make a new lock; a forked child needs one, since nothing there could release a lock held at the fork."""
        self._lock = new_lock()

    def read(self, file: int, group: int) -> RowGroup:
        """Return row group number `group`, without tokens; `file` has no effect.

        Raises:
            CorruptError: a file is missing or damaged, or is not an index of the packs that the manifest describes.
            StorageError: a file cannot be read.
        """
        first = group * self._manifest.rows_per_group
        return self._opened().row_group(first, first + self._manifest.rows_per_group)

    def scan(self, places: Iterable[tuple[int, int]]) -> Iterator[RowGroup]:
        """Yield the row groups at `places`, which are pairs (file, row group), in this order.

        Raises:
            CorruptError: a file is missing or damaged, or is not an index of the packs that the manifest describes.
            StorageError: a file cannot be read.
        """
        return (self.read(file, group) for file, group in places)

    def lengths(self, file: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return ``(begins, lengths)``: where each pack begins in `lengths`, and the lengths of all sequences by pack.

        `lengths` is int32 ``[sequences]``, and `begins` int64 ``[packs + 1]``; `file` has no effect.

        Raises:
            CorruptError: a file is missing or damaged, or is not an index of the packs that the manifest describes.
            StorageError: a file cannot be read.
        """
        index = self._opened()
        return index.packs.indptr.astype(np.int64), index.seq_lengths[index.packs.sequence].astype(np.int32)

    def _opened(self) -> Index:
        with self._lock:
            if self._index is None:
                self._index = read_index(self._folder, self._manifest)
            return self._index
