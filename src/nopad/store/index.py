"""Index-only datasets: which sequence goes where, beside a source that stays untouched (virtual packing).

``packs.arrow`` is `Packs.save`'s file: sequence numbers by pack. ``sequences.arrow`` has one row per sequence: its
`length` in the narrowest unsigned type, `record` and `start` where they are not simply 0, 1, 2, ... and 0, and `source`
where sources are named. What was done to the records before their lengths were taken travels in the header of
``packs.arrow``, so that nobody applies the index to records to which it was not done.
"""

from __future__ import annotations

from collections.abc import Mapping
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

__all__ = ["PACKS", "SEQUENCES", "Index", "read_index", "selection", "write_index"]

PACKS = "packs.arrow"
SEQUENCES = "sequences.arrow"


def selection(counts: Mapping[str, int], tokenizer: object) -> str:
    """Say why sequences are not whole records as they are in the source; empty when they are.

    >>> selection({"stripped": 13, "truncated": 1, "split": 0}, None)
    'padding was cut off 13 records, 1 was truncated'
    """
    parts = [
        words.format(n=f"{counts[name]:,}", records="record" if counts[name] == 1 else "records", was=was)
        for name, words in _SELECTED.items()
        if counts[name]
        for was in ["was" if counts[name] == 1 else "were"]
    ]
    return ", ".join([*parts, *(["texts were tokenised, with special tokens"] if tokenizer else [])])


_SELECTED = {
    "stripped": "padding was cut off {n} {records}",
    "truncated": "{n} {was} truncated",
    "split": "{n} {was} split",
}


def write_index(packs: Packs, sequences: Sequences, folder: Path) -> tuple[Shard, ...]:
    """Write both files under `folder` and describe them.

    Raises:
        StorageError: the disk is full, or a write failed.
    """
    packs.save(folder / PACKS)
    lengths, values = sequences.seq_lengths, sequences.values
    fields = {"length": lengths.astype(np.min_scalar_type(int(lengths.max(initial=0))))}
    if "seq_start" in values or not np.array_equal(values["seq_index"], np.arange(lengths.size)):
        fields["record"] = values["seq_index"]
    fields |= {name.removeprefix("seq_"): values[name] for name in ("seq_start", "seq_source") if name in values}
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
    """An index that was read back.

    Attributes:
        packs: sequence numbers by pack.
        lengths: of each sequence, unsigned ``[n]``.
        record, start, source: of each sequence ``[n]``; None where records are simply 0, 1, 2, ..., where every start
            is 0, where sources are not named.
    """

    packs: Packs
    lengths: NDArray[Any]
    record: NDArray[np.int64] | None = None
    start: NDArray[np.int64] | None = None
    source: NDArray[np.int32] | None = None

    def row_group(self, first: int, last: int) -> RowGroup:
        """Cut some packs out."""
        chosen = self.packs[first:last]
        sequence = chosen.sequence
        record = sequence.astype(np.int64) if self.record is None else self.record[sequence]
        values = {"seq_index": record}
        if self.start is not None:
            values["seq_start"] = self.start[sequence]
        if self.source is not None:
            values["seq_source"] = self.source[sequence]
        sequences = Sequences(seq_lengths=self.lengths[sequence].astype(np.int32), values=values)
        return RowGroup(chosen.indptr, np.zeros(len(chosen) + 1, dtype=np.int64), sequences)


def read_index(folder: Path, m: Manifest) -> Index:
    """Read both files into memory, as they are on disk: 5 to 28 bytes per sequence (1 to 2 GB/s).

    What was checked is what is used: nothing that is done to the files later shows, or ends the process.

    Raises:
        CorruptError: one is missing, or has not the checksum that the manifest states.
    """
    tables = {}
    for shard in m.shards:
        path = folder / shard.file
        with damage_errors(path, pa.ArrowException, ValueError):
            tables[shard.file] = read_arrow(path, sha256=shard.sha256)
    try:
        packs, table = packs_of(tables[PACKS], folder / PACKS), tables[SEQUENCES]
        found = {name: table[name].combine_chunks().to_numpy() for name in table.column_names}
        index = Index(packs=packs, lengths=found.pop("length"), **found)
    except (pa.ArrowException, LookupError, ValueError, TypeError) as error:  # written so, by something else
        raise CorruptError(f"{folder} holds no index of nopad: {error}") from error
    n = index.lengths.size
    if (len(packs), packs.sequences, n) != (m.packs, m.sequences, m.sequences):
        raise CorruptError(f"{folder} holds an index of other packs than its manifest states; see `nopad verify`")
    if n and packs.sequence.max() >= n:
        raise CorruptError(f"{folder / PACKS} names sequences that are not there; see `nopad verify`")
    return index
