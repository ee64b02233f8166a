"""Python objects as sources: dicts, and Hugging Face datasets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nopad.arrow import array_of
from nopad.batch.arrays import readable
from nopad.corpus.columns import is_name, untyped
from nopad.corpus.inputs import InputFile
from nopad.corpus.options import ReaderOptions
from nopad.corpus.records import BadRecord, Records, lone_surrogate, shown
from nopad.corpus.rows import decode_rows
from nopad.corpus.selection import Selection, is_list, is_string
from nopad.corpus.source import Block
from nopad.corpus.tables import TableSource, check_ended
from nopad.errors import BatchError, NopadError, SourceError
from nopad.options import Option
from nopad.wording import first_line

__all__ = [
    "DatasetSource",
    "DictSource",
    "as_arrow",
    "as_dict",
    "dataset_batches",
    "dataset_schema",
    "decode_dicts",
    "guarded",
    "mapped_files",
    "schema_of",
    "to_batch",
]

_FEW = 8  # so many files are checked before and after each batch
ROWS = Option(default=1000, help="rows in a block")


class DatasetSource(TableSource):
    """A `datasets.Dataset` or `datasets.IterableDataset` as a source; every pass reads it from its start.

    A dataset without features is read like dicts: its first `rows` rows decide the types of its columns. Files that the
    dataset maps are refused, while it is read, if they have changed since the source was opened.

    Args:
        dataset: the dataset; of its columns, only those that its format selects are read.
        options: which columns are read; None: the defaults of `ReaderOptions`.
        name: name of the dataset, in fingerprints and messages.
        rows: number of rows in a block.

    Raises:
        SourceError: the dataset is a dict of splits, has a transform, which would not be applied, or has neither
            features nor rows; a file that it maps is missing, unreadable or cut short; the first rows of a dataset
            without features cannot be read; or the columns are refused (`nopad.corpus.selection.select`), for example
            because a wanted one is missing.
        OptionError: `rows` is not an integer of at least 1.

    >>> import datasets
    >>> from nopad.corpus import DatasetSource
    >>> source = DatasetSource(datasets.Dataset.from_dict({"input_ids": [[7, 8, 9], [5]], "label": [0, 1]}))
    >>> [records.ids.seq_lengths.tolist() for block in source.blocks() for records in block.records()]
    [[3, 1]]
    """

    def __init__(
        self, dataset: Any, options: ReaderOptions | None = None, *, name: str = "dataset", rows: int = 1000
    ) -> None:
        """Choose the columns to read; of a dataset without features, the first rows are read for this."""
        if isinstance(dataset, Mapping):
            raise SourceError(f"{name}: a DatasetDict of several splits ({', '.join(dataset)}); give one of them")
        self._dataset = as_arrow(dataset, name)
        self._files = mapped_files(dataset)
        self._rows = ROWS.check("rows", rows)
        self._length = getattr(dataset, "num_rows", None)
        self._dicts: DictSource | None = None
        if dataset.features is None:
            plain = dataset.with_format(None)
            self._dicts = DictSource(lambda: iter(plain), options, name=name, rows=rows)
            schema = self._dicts.schema
        else:
            schema = dataset_schema(dataset)
        super().__init__(name, name, schema, options or ReaderOptions())
        if self._length and self._dicts is None:
            self._of_rows(self._length, getattr(dataset.data, "nbytes", 0))

    def blocks(self) -> Iterator[Block]:
        """Yield one block per batch."""
        return super().blocks() if self._dicts is None else self._dicts.blocks()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the dataset in batches of at most `rows` rows."""
        if self._dicts is not None:
            yield from self._dicts.batches()
            return
        yield from dataset_batches(self._dataset, self._rows, self._path, self._files)

    def inventory(self) -> list[tuple[str, int]]:
        """Return one entry: the dataset's name and number of rows; an empty list if the number is not known."""
        return [(self._name, self._length)] if self._length is not None else []


def dataset_schema(dataset: Any) -> pa.Schema:
    """Return the schema of the columns that a dataset's format selects; the dataset must have features."""
    names = (getattr(dataset, "format", None) or {}).get("columns") or list(dataset.features)
    return pa.schema([field for field in dataset.features.arrow_schema if field.name in names])


def mapped_files(dataset: Any) -> tuple[InputFile, ...]:
    """Return the files that a `datasets.Dataset` maps into memory; () if it maps none, or is read as a stream.

    They may have been cut short since the dataset mapped them, and reading beyond their end would end the process. So
    their end marks are looked for, in the files and not in the mapped memory. A shorter stream that was written into
    the same file since then has a mark too, and is not noticed.

    Raises:
        SourceError: a file is missing or unreadable, or is an Arrow stream without its end mark.
    """
    paths = dict.fromkeys(Path(part["filename"]) for part in getattr(dataset, "cache_files", None) or ())
    files = tuple(InputFile.found(path, path.name) for path in paths)
    for file in files:
        with file.random() as opened:
            check_ended(opened, file.path)
    return files


@dataclass
class _Guard:
    """Checks that files are unchanged: at each call if there are at most `_FEW` files, else only now and then.

    One check costs some 10 µs per file, so that 1000 files at each batch took 35 times as long as reading the batch.
    Checks of many files take at most a twentieth of the time.

    Attributes:
        files: the files.
        due: when many files are to be checked again, by the clock of `time.monotonic`.
    """

    files: Sequence[InputFile]
    due: float = 0.0

    def prove(self, *, surely: bool = False) -> None:
        """Refuse a file that has changed; if `surely` is True, all files are checked in any case.

        Raises:
            SourceError: a file has changed.
        """
        begun = time.monotonic()
        if surely or len(self.files) <= _FEW or begun >= self.due:
            for file in self.files:
                file.prove(None)
            now = time.monotonic()
            self.due = now + 20 * (now - begun)


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy of a batch; the copy shares no memory with a mapped file.

    Raises:
        pyarrow.ArrowException: the batch is damaged, so that its memory cannot be copied.
    """
    batch.validate()
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def dataset_batches(dataset: Any, rows: int, name: str, files: Sequence[InputFile] = ()) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most `rows` rows of a dataset in Arrow format (`as_arrow`); `name` is for messages.

    `files` are those that the dataset maps (`mapped_files`). If one was cut short, reading beyond its end would end the
    process. So up to 8 files are checked before and after each batch is copied. More than 8 are checked before the
    first batch, after the last one, and only now and then between; a change may then be noticed too late.

    Raises:
        SourceError: reading the dataset fails, perhaps in a function that the user passed to ``map``; or one of `files`
            has changed.
    """
    row = 1
    tables = iter(dataset.iter(batch_size=rows))
    guard = _Guard(files)
    while True:
        guard.prove()
        try:
            table = next(tables, None)
            batches = [] if table is None else table.combine_chunks().to_batches()
            batches = [_copied(batch) for batch in batches] if files else batches
        except Exception as error:  # from the library, the data, or the user's own functions
            guard.prove(surely=True)  # if a file has changed, report that as the cause
            raise _unreadable(name, row, error) from error
        guard.prove(surely=table is None)
        if table is None:
            return
        yield from batches
        row += table.num_rows


def _unreadable(name: str, row: int, error: Exception) -> SourceError:
    """Return the `SourceError` that says that the input `name` cannot be read from `row` on, because of `error`."""
    return SourceError(f"{name}: cannot be read from row {row} on ({first_line(error).rstrip(': ')}); repair it")


def as_arrow(dataset: Any, name: str = "the dataset") -> Any:
    """Return a dataset in Arrow format, with the columns that its current format selects.

    `name` is the dataset's name, for messages.

    Raises:
        SourceError: the dataset has a transform, which would not be applied.
    """
    shown_as = getattr(dataset, "format", None) or {}
    if shown_as.get("type") == "custom":
        raise SourceError(
            f"{name}: has a transform (set_transform, with_transform), which would not be applied; apply it with "
            "dataset.map, or take it off with dataset.reset_format()"
        )
    return dataset.with_format("arrow", **({"columns": shown_as["columns"]} if shown_as else {}))


class DictSource(TableSource):
    """Dicts from Python, such as ``{"input_ids": [...], "label": 3}``; the first `rows` items decide the column types.

    Args:
        items: an iterable of dicts, or a function that returns one. An iterator can be read only once; with a list, or
            a function that returns a new iterator, a job can be resumed.
        options: which columns are read; None: the defaults of `ReaderOptions`.
        name: name of the input, in fingerprints and messages.
        rows: number of items in a block.

    Raises:
        SourceError: there is no item, an item is not a dict, an iterator is read a second time, or the user's function
            or iterator fails; or the columns are refused (`nopad.corpus.selection.select`), for example because a
            wanted one is missing.
        OptionError: `rows` is not an integer of at least 1.

    >>> from nopad.corpus import DictSource
    >>> source = DictSource([{"input_ids": [7, 8, 9], "label": 0}, {"input_ids": [5], "label": 1}])
    >>> [records.values["label"].to_pylist() for block in source.blocks() for records in block.records()]
    [[0, 1]]
    """

    def __init__(
        self,
        items: Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]],
        options: ReaderOptions | None = None,
        *,
        name: str = "memory",
        rows: int = 1000,
    ) -> None:
        """Determine the columns and their types from the first `rows` items."""
        self._items = items
        self._rows = ROWS.check("rows", rows)
        self._once: Iterator[list[Mapping[str, Any]]] | None = None
        chunks = self._chunks(name)
        first = next(chunks, None)
        if first is None:
            raise SourceError(f"{name}: no item; give at least one dict")
        self.schema = schema_of(first)
        if isinstance(items, Iterator):
            self._once = chain([first], chunks)
        super().__init__(name, name, self.schema, options or ReaderOptions())

    def _chunks(self, name: str) -> Iterator[list[Mapping[str, Any]]]:
        items = (as_dict(item, name, row) for row, item in enumerate(guarded(self._items, name), 1))
        while chunk := list(islice(items, self._rows)):
            yield chunk

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most `rows` rows, with null for values that are missing or of a wrong type."""
        return (batch for batch, _ in self._converted())

    def blocks(self) -> Iterator[Block]:
        """Yield one block per batch.

        When a block is decoded, each bad row becomes a bad record. For example, a row is bad if it lacks a column, has
        a value of a wrong type or a negative id, or has a column that the first rows lacked and that would have been
        read.
        """
        row = 1
        for batch, bad in self._converted():
            decoder = partial(decode_rows, selection=self.selection, known_bad=bad)
            yield Block(name=self._name, data=batch, decoder=decoder, first_line=row, path=self._path)
            row += batch.num_rows

    def _converted(self) -> Iterator[tuple[pa.RecordBatch, dict[int, str]]]:
        if isinstance(self._items, Iterator):
            if self._once is None:
                raise SourceError(
                    f"{self._name}: an iterator can be read once; give a function that returns a new one, or a list"
                )
            chunks, self._once = self._once, None
        else:
            chunks = self._chunks(self._name)
        return (to_batch(chunk, self._columns, self.selection) for chunk in chunks)


def guarded(items: Iterable[Any] | Callable[[], Iterable[Any]], name: str) -> Iterator[Any]:
    """Yield the items of an iterable, or of the iterable that a function returns.

    `name` is the input's name, for messages.

    Raises:
        SourceError: the user's function or iterator fails, or what the function returns cannot be iterated over; but a
            `NopadError` passes unchanged.
    """
    row = 1
    try:
        made: Any = items() if callable(items) else items
        if callable(items) and not isinstance(made, Iterable):
            raise TypeError(f"this function returned a {type(made).__name__}, not an iterator of dicts")
        for item in made:
            yield item
            row += 1
    except NopadError:
        raise
    except Exception as error:  # from the user's own code, or from a library in it
        raise _unreadable(name, row, error) from error


def as_dict(item: Any, name: str, row: int) -> Mapping[str, Any]:
    """Return the item itself if it is a dict.

    `name` (of the input) and `row` (the item's number, from 1) are for messages.

    Raises:
        SourceError: the item is not a dict.
    """
    if not isinstance(item, Mapping):
        raise SourceError(f"{name}, row {row}: {type(item).__name__}, not a dict; give dicts of columns")
    return item


def schema_of(items: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Return a schema with one column for each key that occurs in `items`.

    The type of a column is the common Arrow type of the key's values; None does not count. It is float if integers and
    floats are mixed. If there is no common type, it is that of the first value for which Arrow has a type; if there is
    no such value, it is null, and the field says why (`nopad.corpus.columns.type_of`). If it is a list type whose
    values have no type, as of lists that are empty or hold only None, it becomes a list of int64. A key that cannot
    name a column (`is_name`) becomes a column without a type too, called as messages show the key.

    >>> [str(field.type) for field in schema_of([{"a": 1, "b": [2]}, {"a": 0.5, "b": []}])]
    ['double', 'list<item: int64>']
    """
    keys = dict.fromkeys(key for item in items for key in item)
    found = {key: _field(items, key) for key in keys if is_name(key)}
    odd = {shown(key): untyped(shown(key), "its name is no text of UTF-8") for key in keys if not is_name(key)}
    return pa.schema([*found.values(), *(field for name, field in odd.items() if name not in found)])


def _plain(value: Any) -> Any:
    """Return `value` as `nopad.batch.arrays.readable` reads it if it has the method ``__array__``, as tensors have.

    An array without dimensions becomes a NumPy scalar instead, and an empty one with one dimension becomes []. All
    other values are returned unchanged, and so are NumPy scalars, and what cannot be read or holds a null.
    """
    if not hasattr(value, "__array__") or isinstance(value, np.generic):
        return value
    try:
        array = readable(value, "a value")
    except BatchError:
        return value
    if not isinstance(array, np.ndarray):
        return array
    if not array.ndim:
        return array[()]
    return array if array.size or array.ndim > 1 else []  # NumPy makes an empty list an array of floats


def _sample(value: Any) -> Any:
    """Return a value from which Arrow can find the type of a column that holds `value`.

    An array of two or more dimensions is cut to its first element, as nested lists such as ``[[7]]``, and a text
    becomes "", since Arrow refuses one with a lone surrogate. Other values, empty arrays and arrays with one dimension
    are returned unchanged.
    """
    if isinstance(value, str):
        return ""
    if not isinstance(value, np.ndarray) or value.ndim < 2 or not value.size:
        return value
    return value[(slice(1),) * value.ndim].tolist()


def _field(items: Sequence[Mapping[str, Any]], key: str) -> pa.Field:
    values = [_sample(_plain(item[key])) for item in items if item.get(key) is not None]
    found = _common_type(values)
    if isinstance(found, str):  # no common type: take that of the first value that has one
        each = map(_common_type, ([value] for value in values))
        reason = next(each)
        kinds = (kind for kind in chain([reason], each) if not isinstance(kind, str))
        if (first := next(kinds, None)) is None:
            return untyped(key, str(reason))
        found = first
    empty = is_list(found) and pa.types.is_null(found.value_type)
    return pa.field(key, pa.list_(pa.int64()) if empty else found)


def _common_type(values: Sequence[Any]) -> pa.DataType | str:
    """Return the Arrow type that holds all of these values; if there is none, return why."""
    try:
        return array_of(values).type
    except _MISFITS as error:
        return first_line(error)


def to_batch(
    items: Sequence[Mapping[str, Any]], schema: pa.Schema, selection: Selection | None = None
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Turn dicts into a batch with the columns of `schema`; return the batch, and a dict of bad rows (index: reason).

    A row is bad if it lacks a column, or has a value of a wrong type or a text with a lone surrogate. In the batch,
    such values are null, and so are missing ones. With `selection`, a row is bad too if it has a column that the first
    rows lacked and that would have been read. In the example, row 2 lacks the column and row 1 has a float.

    >>> batch, bad = to_batch([{"a": 1}, {"a": 0.5}, {}], pa.schema({"a": pa.int64()}))
    >>> batch.to_pydict(), bad
    ({'a': [1, None, None]}, {2: "no 'a'", 1: "'a' is 0.5, not int64"})
    """
    bad: dict[int, str] = {}
    if selection is not None:
        for row, item in enumerate(items):
            reason = selection.unforeseen(item)
            if reason is not None:
                bad[row] = reason
    columns = {}
    for at, field in enumerate(schema):
        values = [_plain(item.get(field.name)) for item in items]
        for row, item in enumerate(items):
            if field.name not in item:
                bad.setdefault(row, f"no {field.name!r}" + ("; it is carried with the others" if at else ""))
        try:
            if not _fit(values, field.type):
                raise TypeError
            columns[field.name] = array_of(values, field.type)
        except _MISFITS:
            for row, value in enumerate(values):
                try:
                    if not _fit([value], field.type):
                        raise TypeError
                    array_of([value], field.type)
                except UnicodeEncodeError as error:
                    bad.setdefault(row, lone_surrogate(error, repr(field.name)))
                    values[row] = None
                except _MISFITS:
                    bad.setdefault(row, f"{field.name!r} is {shown(value)}, not {field.type}")
                    values[row] = None
            columns[field.name] = array_of(values, field.type)
    return pa.RecordBatch.from_pydict(columns, schema=schema), bad


def decode_dicts(
    items: Sequence[Mapping[str, Any]], lines: Sequence[int], schema: pa.Schema, selection: Selection
) -> Iterator[Records | BadRecord]:
    """Turn dicts into records; yield runs of good ones as `Records`, and each bad one as a `BadRecord`, in order.

    ``lines[i]`` is the 1-based line (or number) of ``items[i]``, for messages. `schema` has the types of the columns
    that `selection` names.
    """
    if items:
        batch, bad = to_batch(items, schema, selection)
        yield from decode_rows(batch, np.array(lines, np.int64), selection=selection, known_bad=bad)


def _fit(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Return whether all values fit the type `kind`. None fits every type.

    This is checked here because Arrow would silently turn 0.5 into 0 in a column of integers, and True into 1 in a
    column of floats. Only columns of booleans, numbers, texts and lists are checked. For any other type, all values are
    assumed to fit. A NumPy array fits a list type only if the list's values are booleans, numbers or texts, as those of
    the array are, and none of them is masked.
    """
    if is_list(kind):
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        lists = [value for value in values if value is not None and not isinstance(value, np.ndarray)]
        inside = kind.value_type
        if not all(isinstance(value, list | tuple) for value in lists):
            return False
        if any(map(np.ma.is_masked, arrays)):  # Arrow would ignore the mask
            return False
        return all(array.dtype.kind in _KINDS[_kind(inside)] for array in arrays) and _fit(
            list(chain.from_iterable(lists)), inside
        )
    wanted = _TYPES.get(_kind(kind))
    if wanted is None:
        return True
    found = set(map(type, values))
    if bool in found and not pa.types.is_boolean(kind):  # a subclass of int
        return False
    return all(issubclass(one, wanted) for one in found)


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    return "float" if pa.types.is_floating(kind) else "str" if is_string(kind) else "other"


_NONE = type(None)
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool, np.bool_, _NONE),
    "int": (int, np.integer, _NONE),
    "float": (float, int, np.floating, np.integer, _NONE),
    "str": (str, _NONE),
}
_KINDS = {"bool": "b", "int": "iu", "float": "fiu", "str": "U", "other": ""}
_MISFITS = (pa.ArrowException, OverflowError, TypeError, ValueError)
