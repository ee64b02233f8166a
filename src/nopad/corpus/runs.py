"""Read files, tables and objects as runs of records, which are decoded to dicts only on demand.

A run is a group of consecutive records. The number of these records is known before they become dicts, so a reader that
begins at record k decodes none of the runs that end before k. There is one function per format of input. A function
yields the same runs at every call, unless its input is an iterator. A run has a few MiB or a thousand records, so
reading needs memory for one run. When `Run.decode` reaches a bad record, it raises a `RecordError` that names the file
and the line or row. All functions raise SourceError if the input cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isfunction, ismethod, signature
from itertools import islice
from typing import Any

import pyarrow as pa

from nopad.corpus.batches import checked, cut
from nopad.corpus.inputs import InputFile
from nopad.corpus.jsonl import json_lines, no_object
from nopad.corpus.objects import as_arrow, as_dict, dataset_batches, dataset_schema, guarded, mapped_files
from nopad.corpus.options import TextUnit
from nopad.corpus.records import Record
from nopad.corpus.rows import without_broken_text
from nopad.corpus.source import BLOCK_BYTES
from nopad.corpus.tables import arrow_batches, arrow_schema, parquet_batches, parquet_footer
from nopad.corpus.text import TextFile
from nopad.errors import RecordError
from nopad.notation import to_json

__all__ = [
    "ROWS",
    "Bad",
    "Run",
    "arrow_runs",
    "as_json",
    "dataset_runs",
    "jsonl_runs",
    "object_runs",
    "opened_dataset",
    "parquet_runs",
    "text_runs",
]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")
ROWS = 1000  # records in a run, if runs are not cut by bytes


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that cannot be read.

    Attributes:
        place: where the record is, such as ``a.jsonl, line 7``.
        reason: why it cannot be read.
        way: what the user can do about it, for the error message.
    """

    place: str
    reason: str
    way: str = "repair it, or leave it out"

    def error(self) -> RecordError:
        """Return a `RecordError` with the place, the reason and what to do, for callers that need every record."""
        return RecordError(f"{self.place}: {self.reason}; {self.way}")


@dataclass(frozen=True, slots=True)
class Run:
    """A group of consecutive records, which become dicts only when `each` is called.

    Attributes:
        count: number of records, bad ones included.
        each: function that yields each record as a dict, or as `Bad` if it cannot be read. It raises RecordError at a
            place after which nothing can be read, and SourceError at a Python object that is not a dict.
        places: function that yields the place of each record, such as ``a.jsonl, line 7``; None: places are not known.
    """

    count: int
    each: Callable[[], Iterator[dict[str, Any] | Bad]]
    places: Callable[[], Iterator[str]] | None = None

    def decode(self) -> Iterator[dict[str, Any]]:
        """Yield the records as dicts.

        Raises:
            RecordError: a record is bad, or nothing can be read after some place.
            SourceError: a Python object is not a dict.
        """
        for one in self.each():
            if isinstance(one, Bad):
                raise one.error()
            yield one


def as_json(records: Iterable[dict[str, Any] | Bad]) -> bytes:
    """Return records as a JSON array, in bytes; ``[reason]`` stands for a bad record.

    A value that JSON cannot hold is replaced by the result of its method `tolist` if it has one, as NumPy arrays do;
    else by its `repr`. So that other processes write the same, addresses in memory are left out, and a set becomes
    a sorted list. The docstring and signature of a function are added. A key that JSON cannot hold is replaced by its
    `repr`. ``[reason]`` also stands for a record that is nested too deeply, or holds an integer of thousands of digits.
    """
    values = [[one.reason] if isinstance(one, Bad) else one for one in records]
    try:
        return _dumped(values)
    except ValueError:
        return _dumped([_writable(one) for one in values])


def _writable(value: Any) -> Any:
    """Return a record as it is if it can be written as JSON; else ``[reason]``."""
    try:
        _dumped(value)
    except ValueError as error:
        return [f"a value cannot be written as JSON: {str(error).split(';')[0]}"]
    return value


def _dumped(value: Any) -> bytes:
    return to_json(value, _plain, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(map(_told, value))
    # Transformers makes the JSON of a tool of its signature and docstring.
    return _told((value, value.__doc__, signature(value)) if isfunction(value) or ismethod(value) else value)


def _told(value: Any) -> str:
    return _ADDRESS.sub("", repr(value))


def jsonl_runs(file: InputFile) -> Iterator[Run]:
    """Yield runs of a file with one JSON object per line; empty lines are skipped."""
    for data, _, line in file.line_blocks():
        count = sum(1 for raw in data.split(b"\n") if raw and raw != b"\r")
        yield Run(count, partial(_objects, data, line, file), partial(_lines, data, line, file))


def _objects(data: bytes, first_line: int, file: InputFile) -> Iterator[dict[str, Any] | Bad]:
    for line, value in json_lines(data, first_line):
        yield value if isinstance(value, dict) else Bad(f"{file.path}, line {line}", no_object(value, line).reason)


def _lines(data: bytes, first_line: int, file: InputFile) -> Iterator[str]:
    return (f"{file.path}, line {line}" for line, _ in json_lines(data, first_line))


def text_runs(file: InputFile, unit: TextUnit = "line", paths: bool = False) -> Iterator[Run]:
    """Yield runs of a text file: each `unit` (file, line or paragraph) is a record with the column ``text``.

    With `unit` "line", an empty line is a record too. With `paths`, records also have the column ``path``, the path of
    the file.
    """
    for block in TextFile(file, unit=unit).blocks():
        records = [*block.records()]
        each = partial(_texts, records, file, {"path": str(file.path)} if paths else {})
        yield Run(len(records), each, partial(_text_places, records, file, unit))


def _texts(records: list[Any], file: InputFile, beside: Mapping[str, Any]) -> Iterator[dict[str, Any] | Bad]:
    for record in records:
        good = isinstance(record, Record)
        yield {"text": record.text, **beside} if good else Bad(f"{file.path}, line {record.line}", record.reason)


def _text_places(records: list[Any], file: InputFile, unit: TextUnit) -> Iterator[str]:
    return (str(file.path) if unit == "file" else f"{file.path}, line {record.line}" for record in records)


def parquet_runs(file: InputFile) -> Iterator[Run]:
    """Yield all rows of a Parquet file in runs.

    A run lies within one row group, and has about 4 MiB and at most 65,536 rows.
    The call itself reads the footer; the rows are read only when the runs are asked for.
    """
    metadata, schema = parquet_footer(file)
    return _rows(parquet_batches(file, metadata, BLOCK_BYTES), schema, str(file.path))


def arrow_runs(file: InputFile) -> Iterator[Run]:
    """Yield the rows of an Arrow file (or of a stream, as `datasets` saves it) in runs.

    A run is one record batch of the file, or a slice of about 4 MiB and at most 65,536 rows of a larger batch. The call
    itself reads the schema; the rows are read only when the runs are asked for.
    """
    return _rows(arrow_batches(file), arrow_schema(file), str(file.path))


def opened_dataset(dataset: Any, name: str) -> Callable[[], Iterator[Run]]:
    """Return a function that yields the runs of a dataset (`dataset_runs`); `name` is for messages.

    If a file that the dataset maps changes after this call, each later pass raises SourceError.

    Raises:
        SourceError: a file that the dataset maps is missing or unreadable.
    """
    return partial(dataset_runs, dataset, name, files=mapped_files(dataset))


def dataset_runs(dataset: Any, name: str, rows: int = ROWS, files: Sequence[InputFile] = ()) -> Iterator[Run]:
    """Yield runs of at most `rows` rows of a `datasets.Dataset` or `datasets.IterableDataset`.

    `name` is for messages. `files` are the files that the dataset maps (`mapped_files`). They are checked for changes
    while the dataset is read (`dataset_batches`).

    Raises:
        SourceError: the dataset has a transform, which would not be applied; reading it fails; or one of `files` has
            changed.
    """
    if dataset.features is None:
        return object_runs(dataset.with_format(None), name, rows)
    return _rows(dataset_batches(as_arrow(dataset, name), rows, name, files), dataset_schema(dataset), name)


def _rows(batches: Iterator[pa.RecordBatch], schema: pa.Schema, place: str) -> Iterator[Run]:
    row = 1
    for batch in batches:
        for part in cut(checked(batch, schema, place, row), BLOCK_BYTES):
            yield Run(
                part.num_rows, partial(_decoded, part, row, place), partial(_row_places, part.num_rows, row, place)
            )
            row += part.num_rows


def _decoded(batch: pa.RecordBatch, first_row: int, place: str) -> Iterator[dict[str, Any] | Bad]:
    bad: dict[int, str] = {}
    whole = without_broken_text(batch, bad)
    columns = [_values(column) for column in whole.columns]
    for at in range(whole.num_rows):
        if at in bad:
            yield Bad(f"{place}, row {first_row + at}", bad[at])
        else:
            yield {name: column[at] for name, column in zip(whole.schema.names, columns, strict=True)}


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column as Python objects, or as Arrow scalars if Python cannot hold all of them.

    Python cannot hold the year 12000, for example. Times of day in nanoseconds, also within lists, maps or structs, are
    always scalars. Nulls are None either way. `pyarrow.array` with the column's type makes the same column from the
    returned values.
    """
    try:
        return [*map(_python, column)] if _has_times(column.type) else [*column.to_pylist()]
    except (OverflowError, ValueError):
        return [one if one.is_valid else None for one in column]


def _python(one: pa.Scalar) -> Any:
    """Return a value as a Python object, in which times of day in nanoseconds are Arrow scalars.

    Python would cut the nanoseconds off. A struct with several fields of one name is a scalar as a whole.
    """
    if not _has_times(one.type):
        return one.as_py()
    if not one.is_valid:
        return None
    if isinstance(one, pa.DictionaryScalar | pa.RunEndEncodedScalar):
        return _python(one.value)
    if isinstance(one, pa.MapScalar):
        return [(_python(pair[0]), _python(pair[1])) for pair in one.values]
    if isinstance(one, pa.ListScalar):
        return [*map(_python, one.values)]
    if isinstance(one, pa.StructScalar) and len(set(one)) == len(one):
        return {name: _python(value) for name, value in one.items()}
    return one


def _has_times(kind: pa.DataType) -> bool:
    """Return whether a type is times of day in nanoseconds, or has them within it, as a list or dictionary."""
    if pa.types.is_time64(kind):
        return bool(kind.unit == "ns")
    if pa.types.is_dictionary(kind):
        return _has_times(kind.value_type)
    return any(_has_times(kind.field(at).type) for at in range(kind.num_fields))


def _row_places(count: int, first_row: int, place: str) -> Iterator[str]:
    return (f"{place}, row {row}" for row in range(first_row, first_row + count))


def object_runs(items: Iterable[Any] | Callable[[], Iterable[Any]], name: str, rows: int = ROWS) -> Iterator[Run]:
    """Yield runs of at most `rows` dicts from Python; `name` is the input's name, for messages.

    `items` is an iterable of dicts, or a function that returns such an iterable.

    Raises:
        SourceError: the user's function or iterator fails; or, when a run is decoded, an item is not a dict.
    """
    source, row = guarded(items, name), 1
    while part := list(islice(source, rows)):
        yield Run(len(part), partial(_dicts, part, row, name))
        row += len(part)


def _dicts(items: list[Any], first_row: int, name: str) -> Iterator[dict[str, Any]]:
    return (dict(as_dict(item, name, row)) for row, item in enumerate(items, first_row))
