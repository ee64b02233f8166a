"""The sequences of a packed dataset, or of an index-only dataset, as a source of tokens.

Shards are Parquet, so their sequences are copied once (`nopad.loading.sources.spool`). An index-only dataset says
which part of which record each sequence is; the tokens are gathered from the source of these records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import PlanMismatchError, SourceError
from nopad.loading.sources.arrays import ArrayTokens
from nopad.loading.sources.source import Located, TokenSource
from nopad.loading.sources.spool import spooled
from nopad.sequences import Sequences
from nopad.store.index import Index, read_index
from nopad.store.reader import PackedDataset, open_packed

__all__ = ["IndexTokens", "packed_tokens"]


def packed_tokens(path: Path, *, spool: str | os.PathLike[str] | None = None) -> ArrayTokens:
    """Return the sequences of a packed dataset as a source, in the order in which they are stored.

    The column ``seq_index`` holds the number of each sequence's record. Columns of strings are left out. The tokens are
    copied (`nopad.loading.sources.spool.spooled`) to files in the folder `spool`. If `spool` is None, up to 4 million
    tokens are copied to memory, more to files in ``$XDG_CACHE_HOME/nopad/tokens``.

    Raises:
        FormatError, CorruptError: the folder is not a packed dataset, is unfinished or damaged.
        SourceError: the dataset is an index without tokens; `open_tokens` needs its `source` too.
        StorageError: the copy of the tokens cannot be written, or a shard cannot be read.
    """
    dataset = open_packed(path)
    m = dataset.manifest
    if m.kind == "index":
        raise SourceError(f"{path}: an index-only dataset holds no tokens; give those of its source, with source=")
    strings = tuple(name for name, kind in m.columns.items() if "string" in kind)
    identity = {"packed": [[shard.file, shard.sha256] for shard in m.shards]}
    return spooled(lambda: _parts(dataset, strings), identity, str(path), spool, left_out=strings)


def _parts(dataset: PackedDataset, strings: tuple[str, ...]) -> Iterator[Sequences]:
    for group in dataset.iter_row_groups(range(dataset.row_groups)):
        found = group.sequences
        values = {name: column for name, column in found.values.items() if name not in strings}
        yield Sequences(seq_lengths=found.seq_lengths, tokens=found.tokens, values=values)


class IndexTokens(TokenSource):
    """The sequences of an index-only dataset, gathered from the source that holds their records.

    Columns are those of the source, and ``seq_index``, the number of each sequence's record.

    Raises:
        PlanMismatchError: the source has fewer records than the index names, or a record's length does not fit the
            index.
        SourceError: the dataset holds its tokens itself.
        FormatError, CorruptError: the index is unfinished or damaged.
        StorageError: the index cannot be read.
    """

    def __init__(self, path: Path, source: TokenSource) -> None:
        """Read the index, which takes 5 to 28 bytes per sequence, and compare its lengths with those of the source."""
        self._path, self._source, self._manifest = path, source, open_packed(path).manifest
        if self._manifest.kind != "index":
            raise SourceError(f"{path}: holds its tokens itself; open it without source=")
        self.left_out = source.left_out
        super().__init__(str(path), files=source.files)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that a worker process gets: all but the index and the arrays per sequence.

        A worker reads the index anew, and checks that its checksum is still the same.
        """
        return {name: value for name, value in super().__getstate__().items() if name != "_index"}

    @cached_property
    def _index(self) -> Index:
        return read_index(self._path, self._manifest)

    def stored_lengths(self) -> NDArray[np.int32]:
        """Return the lengths of all stored sequences, 0 or more; int32 ``[stored]``.

        Raises:
            PlanMismatchError: the source has fewer records than the index names, a record is shorter than the index
                says, or a record has another length although the index holds only whole records.
        """
        index, held = self._index, self._source.stored_lengths()
        lengths = index.lengths.astype(np.int32)
        records = np.arange(lengths.size) if index.record is None else index.record
        if records.size and (records.min() < 0 or records.max() >= held.size):
            raise PlanMismatchError(
                f"{self.name}: names record {records.max()}, and {self._source.name} has {held.size:,} from 0 on; "
                "give the source that it was made for"
            )
        ends = lengths + (np.int64(0) if index.start is None else index.start)
        # Without a `selection`, no record was changed, so the records must have exactly these lengths.
        bad = ends > held[records] if index.packs.selection else ends != held[records]
        if bad.any():
            at = int(np.argmax(bad))
            raise PlanMismatchError(
                f"{self.name}: sequence {at} has {lengths[at]} tokens of record {records[at]}, which has "
                f"{held[records[at]]} in {self._source.name}; give the source that the index was made for"
            )
        return lengths

    def located(self, numbers: NDArray[np.int64]) -> Located:
        """Return where these sequences, which are parts of records, lie in the source; see `TokenSource.located`.

        Raises:
            PlanMismatchError: a record became shorter than the index says.
        """
        records = numbers if self._index.record is None else self._index.record[numbers]
        whole = self._source.located(records)
        starts = np.zeros(numbers.size, np.int64) if self._index.start is None else self._index.start[numbers]
        lengths = self._index.lengths[numbers].astype(np.int64)
        if (starts + lengths > whole.lengths).any():
            raise PlanMismatchError(f"{self.name}: records of {self._source.name} became shorter; open it again")
        return Located(
            lengths,
            {name: (flat, begins + starts) for name, (flat, begins) in whole.tokens.items()},
            {**whole.values, "seq_index": records},
        )
