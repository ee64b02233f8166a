"""Table 3 of the supplement: GLUE's training sets at capacity 128, unpacked and packed by SPFHP without a depth limit.

A sequence is one text or a pair of texts with BERT's special tokens, cut to the capacity as in transformers' GLUE
example. The table has eight of GLUE's nine sets (QNLI is missing). A set is compared with the published figures only
if it has as many sequences as in the paper; a set that is not available is shown with the published figures alone, and
marked as not available.

Source: see `nopad.study.published`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nopad.corpus import Tokenizer, open_records
from nopad.corpus.glue import GLUE, glue_files
from nopad.corpus.hub import hub_dataset
from nopad.corpus.network import hub_in_reach
from nopad.errors import MissingExtraError, RecordError, SourceError
from nopad.histogram import Histogram
from nopad.study.packing import Redone, contrast, redo
from nopad.study.published import TABLE_3, Table

__all__ = ["GLUE_CAPACITY", "GlueSet", "glue_lengths", "glue_sets", "redo_glue"]

GLUE_CAPACITY = 128
HUB_NAME = "nyu-mll/glue"
_AT_ONCE = 2000  # records; the tokenizer works on them in parallel
_PUBLISHED = dict(zip(("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "rte", "wnli"), TABLE_3, strict=True))


@dataclass(frozen=True, kw_only=True)
class GlueSet:
    """One of GLUE's training sets, or the reason why it is not available.

    Attributes:
        name: GLUE's name for the set, such as "cola".
        records: the set's records, as dicts with the hub's columns; None: the set is not available.
        origin: the file or hub name that the records come from; empty without records.
        missing: why there are no records; empty with records.
    """

    name: str
    records: Iterable[Mapping[str, Any]] | None = None
    origin: str = ""
    missing: str = ""


def glue_sets(folder: Path | None) -> Iterator[GlueSet]:
    """Yield GLUE's nine sets, read from `folder`, or from the hub if `folder` is None.

    `nopad.corpus.glue.glue_files` says which files a folder may have. A set that is not available is yielded too; its
    `missing` says why.

    Raises:
        SourceError: there is no such folder; it has none of the sets, or one of them twice; or the data of a set in it
            are missing or cannot be read.
    """
    if folder is not None:
        files = glue_files(folder)
        if not files:
            raise SourceError(f"{folder} has none of GLUE's sets; it may have files or folders named {', '.join(GLUE)}")
        for name in GLUE:
            if name in files:
                yield GlueSet(name=name, records=_opened(name, files[name]), origin=str(files[name][0]))
            else:
                yield GlueSet(name=name, missing=f"it is not in {folder}")
        return
    with hub_in_reach() as online:
        for name in GLUE:
            spec = f"hf:{HUB_NAME}@{name}:train"
            try:
                yield GlueSet(name=name, records=open_records(hub_dataset(spec, online)), origin=spec)
            except (SourceError, MissingExtraError) as error:
                yield GlueSet(name=name, missing=str(error))


def _opened(name: str, files: list[Path]) -> Iterable[Mapping[str, Any]]:
    records = open_records(files)
    if records.kind not in ("csv", "tsv"):
        return records
    return open_records(files, strings=[column for column in GLUE[name][:2] if column])  # a text may look like a number


def glue_lengths(
    found: GlueSet, tokenizer: Tokenizer, advance: Callable[[int], None] = lambda records: None
) -> tuple[Histogram, int]:
    """Return a histogram of a set's sequence lengths, cut to the capacity of 128, and how many sequences were cut.

    `advance` is called repeatedly with the number of records read since the last call.

    Raises:
        RecordError: a record lacks a text column, or its value is not a string; the message gives the record's number.
        SourceError: there are no records.

    >>> from nopad import load_tokenizer
    >>> records = [{"question1": "Why?", "question2": "Why not?"}, {"question1": "a", "question2": "b " * 200}]
    >>> histogram, cut = glue_lengths(GlueSet(name="qqp", records=records), load_tokenizer())
    >>> histogram.lengths.tolist(), cut
    ([8, 128], 1)
    """
    text, pair, _ = GLUE[found.name]
    columns = [column for column in (text, pair) if column]
    special, counts, cut = tokenizer.special_count(pair=pair is not None), np.zeros(GLUE_CAPACITY + 1, np.int64), 0
    records, first = iter(found.records or ()), 0
    while part := list(islice(records, _AT_ONCE)):
        lengths = np.full(len(part), special, np.int64)
        for column in columns:
            texts = [_text(found, record, column, number) for number, record in enumerate(part, first)]
            lengths += tokenizer.flatten(tokenizer.encodings(texts))[1]
        cut += int((lengths > GLUE_CAPACITY).sum())
        counts += np.bincount(np.minimum(lengths, GLUE_CAPACITY), minlength=GLUE_CAPACITY + 1)
        first += len(part)
        advance(len(part))
    if not first:
        raise SourceError(f"{found.origin}: {found.name} has no record; give its training set")
    return Histogram.from_counts({n: int(counts[n]) for n in np.flatnonzero(counts).tolist()}), cut


def _text(found: GlueSet, record: Mapping[str, Any], column: str, number: int) -> str:
    if column not in record:
        raise RecordError(
            f"{found.origin}: record {number} of {found.name} has no {column!r}; its columns are {', '.join(record)}, "
            f"and those of the hub's {HUB_NAME} are expected"
        )
    value = record[column]
    if not isinstance(value, str):
        raise RecordError(f"{found.origin}: record {number} of {found.name}: {column} is {value!r}; expected a text")
    return value


def redo_glue(name: str, histogram: Histogram | None, notes: Iterable[str] = ()) -> tuple[Table, list[Redone]]:
    """Return the table of one set and its rows: published figures beside ours, then nopad's default plan.

    QNLI is not in the paper, so its rows have no published figures. For any other set, if its number of sequences is
    not the paper's, the rows with published figures have no differences, and a note that says why.

    Args:
        name: GLUE's name for the set.
        histogram: the set's lengths. None: the set is not available; then the rows have only the published figures, and
            QNLI has no rows.
        notes: remarks about the set, shown in its first row.

    The lengths below are made up. They take 1,939 packs, 1,026 more than the paper's:

    >>> table, rows = redo_glue("cola", Histogram.from_counts({5: 8000, 64: 551}))
    >>> rows[1].name, rows[1].published["packs"], rows[1].ours["packs"], rows[1].difference["packs"], rows[2].name
    ('SPFHP', '913', '1939', '+1026', 'nopad auto')
    """
    table = _table(name)
    if histogram is None:
        missing: dict[str, Any] = {"reached": None, "ours": {}, "difference": {}, "note": ""}
        rows = [
            Redone(table=table.name, depth=row.depth, name=row.name, published=row.printed, **missing)
            for row in table.rows
            if row.printed
        ]
    else:
        rows = [redo(table, row, histogram) for row in table.rows]
        if name in _PUBLISHED and histogram.sequences != table.sequences:
            other = f"{histogram.sequences:,} sequences, and the paper's set has {table.sequences:,}: not compared"
            rows = [replace(row, difference={}, note=_joined(row.note, other)) for row in rows]
        rows += contrast(table, histogram, "auto")
    rows = [replace(row, note=_joined(row.note, *notes)) if at == 0 else row for at, row in enumerate(rows)]
    return table, rows


def _table(name: str) -> Table:
    if name in _PUBLISHED:
        return _PUBLISHED[name]
    like = TABLE_3[0]
    rows = tuple(replace(row, printed={}, depth="max" if row.limit is None else row.depth) for row in like.rows)
    return replace(like, name=f"not in Table 3 ({name})", what=f"GLUE {name} for BERT", sequences=0, rows=rows)


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
