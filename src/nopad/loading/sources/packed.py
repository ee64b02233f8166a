"""The sequences of a packed dataset as a source of tokens.

Shards are Parquet, so their sequences are copied once (`nopad.loading.sources.spool`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nopad.errors import SourceError
from nopad.loading.sources.arrays import ArrayTokens
from nopad.loading.sources.spool import spooled
from nopad.sequences import Sequences
from nopad.store.reader import PackedDataset, open_packed

__all__ = ["packed_tokens"]


def packed_tokens(path: Path, *, spool: str | os.PathLike[str] | None = None) -> ArrayTokens:
    """Return the sequences of a packed dataset as a source, in the order in which they are stored.

    The column ``seq_index`` holds the number of each sequence's record. Columns of strings are left out. The tokens are
    copied (`nopad.loading.sources.spool.spooled`) to files in the folder `spool`. If `spool` is None, up to 4 million
    tokens are copied to memory, more to files in ``$XDG_CACHE_HOME/nopad/tokens``.

    Raises:
        FormatError, CorruptError: the folder is not a packed dataset, is unfinished or damaged.
        SourceError: the dataset is an index without tokens, for which `open_tokens` needs `source`; or an earlier copy
            of the tokens is damaged.
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
