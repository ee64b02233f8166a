"""Index-only datasets: which sequence goes where, beside a source that stays untouched (virtual packing).

``packs.arrow`` is `Packs.save`'s file: sequence numbers by pack. ``sequences.arrow`` has one row a sequence: its
`length` in the narrowest unsigned type, `record` and `start` where they are not simply 0, 1, 2, ... and 0, and `source`
where sources are named. What was done to the records before their lengths were taken travels in the header of
``packs.arrow``, so that nobody applies the index to records to which it was not done.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from nopad.arrow import write_arrow
from nopad.errors import CorruptError
from nopad.files import sha256_file
from nopad.packs import Packs
from nopad.store.manifest import Shard
from nopad.store.shards import Columns

__all__ = ["PACKS", "SEQUENCES", "read_index", "selection", "write_index"]

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


def write_index(packs: Packs, columns: Columns, folder: Path) -> tuple[Shard, ...]:
    """Write both files under `folder` and describe them.

    Raises:
        StorageError: the disk is full, or a write failed.
    """
    packs.save(folder / PACKS)
    longest = int(columns.lengths.max(initial=0))
    fields = {"length": columns.lengths.astype(np.min_scalar_type(longest))}
    if columns.start is not None or not np.array_equal(columns.record, np.arange(columns.record.size)):
        fields["record"] = columns.record
    if columns.start is not None:
        fields["start"] = columns.start
    if columns.source is not None:
        fields["source"] = columns.source
    table = pa.table({name: pa.array(values) for name, values in fields.items()})
    write_arrow(folder / SEQUENCES, table)
    tokens = int(columns.lengths.sum(dtype=np.int64))
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


def read_index(folder: Path) -> tuple[Packs, Columns]:
    """Map both files; the columns hold no tokens.

    Raises:
        FormatError: ``packs.arrow`` is missing or damaged.
        CorruptError: ``sequences.arrow`` is.
    """
    packs = Packs.load(folder / PACKS)
    try:
        table = pa.ipc.open_file(pa.memory_map(str(folder / SEQUENCES))).read_all().combine_chunks()
        found = {name: table[name].to_numpy() for name in table.column_names}
        lengths = found["length"]
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise CorruptError(f"{folder / SEQUENCES} is missing or damaged: {error}") from error
    columns = Columns(
        lengths=lengths,
        record=found.get("record", np.arange(lengths.size)),
        start=found.get("start"),
        source=found.get("source"),
        begin=np.zeros(0, dtype=np.int64),
        tokens={},
    )
    return packs, columns
