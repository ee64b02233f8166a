"""Data in memory, in the form in which `nopad.open_source` and tasks read them, and their first record.

A table of pandas, polars or pyarrow becomes a dataset, and a single column of one becomes a list. A list or iterator of
texts becomes a source. Errors of these libraries and of the user's own functions become a `SourceError`, from the first
record on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from nopad.arrow import is_deep
from nopad.corpus.discover import refuse_columns
from nopad.corpus.objects import guarded, mapped_files
from nopad.corpus.options import ReaderOptions
from nopad.corpus.runs import Bad, dataset_runs
from nopad.corpus.source import IterableSource, Source
from nopad.errors import MissingExtraError, SourceError
from nopad.options import is_number, shown

__all__ = ["held_in_memory"]

_NOTHING = object()
_LISTS = {"pandas": "tolist", "polars": "to_list", "pyarrow": "to_pylist"}  # method of a column: its values
_TABLES = {"DataFrame", "LazyFrame", "Table", "RecordBatch"}
_COLUMNS = {"Series", "Index", "ExtensionArray", "Array", "ChunkedArray"}


def held_in_memory(data: Any, options: ReaderOptions) -> tuple[Any, Mapping[str, Any] | None]:
    """Return ``(data, first)``: the data in a form that can be read as records, and the first record.

    The first record is None if it is not a dict, or if it is not known before the data are read. For a table or
    dataset, it is the first good row, or {} if all rows are bad. If the data are a function, it is called once to see
    the first record. If the data are an iterator, its first record is read; the iterator that is returned yields this
    record again. A list or iterator of texts becomes an `IterableSource`. In a dict of named inputs, each value is
    treated in the same way, and the first record is that of the first value.

    Raises:
        SourceError: the data are a path; a dataset, list or iterator has no record, or a first one that is neither a
            dict, nor a text, nor a list of ids; a table or a column cannot be read; a user's function or iterator
            fails; or a dict has columns in place of named inputs (`options` may name columns).
        MissingExtraError: the data are a table, and `datasets` is not installed.
    """
    if not isinstance(data, Mapping):
        return _seen(data)
    if hasattr(data, "with_format"):  # a dict of splits, which `open_source` refuses
        return data, None
    refuse_columns(data, options)
    seen = {}
    for name, one in data.items():
        try:
            seen[name] = held_in_memory(one, options)
        except SourceError as error:
            raise SourceError(f"{shown(name)}: {error}") from error
    return {name: one for name, (one, _) in seen.items()}, next((first for _, first in seen.values()), None)


def _seen(data: Any) -> tuple[Any, Mapping[str, Any] | None]:
    if isinstance(data, Source):
        return data, None
    if isinstance(data, str | os.PathLike):
        raise SourceError(
            f"{os.fspath(data)!r} is a path, and pack_dataset takes data in memory; give nopad.open_source(path)"
        )
    data = _as_dataset(data)
    if hasattr(data, "with_format"):
        return data, _first_row(data)
    if callable(data):
        return data, _record(next(guarded(data, "memory"), None))
    if not isinstance(data, Iterator | Sequence):
        return data, None
    first = next(guarded(data, "memory"), _NOTHING)
    _check_first(first)
    if isinstance(data, Iterator):
        data = chain([first], data)
    if isinstance(first, str):
        return IterableSource(guarded(data, "memory")), None
    return data, _record(first)


def _record(first: Any) -> Mapping[str, Any] | None:
    return first if isinstance(first, Mapping) else None


def _check_first(first: Any) -> None:
    """Check that the first record of a list or iterator is a dict, a text, or a list or array of ids.

    Raises:
        SourceError: it is something else, or `_NOTHING`: there is no record.
    """
    if first is _NOTHING:
        raise SourceError("there is no record, so there is nothing to pack")
    if is_number(first) or isinstance(first, bool | np.bool_):
        raise SourceError("these are numbers, and a list of ids is one sequence; give a list of such lists")
    array = hasattr(first, "__array__") and not isinstance(first, np.generic)
    if not (array or isinstance(first, str | Mapping | list | tuple)):
        raise SourceError(
            f"record 1 is {shown(first)}, and a record is a dict, a text or a list of ids; convert the records, or "
            "leave out those without content"
        )


def _first_row(dataset: Any) -> Mapping[str, Any]:
    """Return the first good row of a dataset; an empty dict if all rows are bad.

    The row is read as Arrow data, as all rows are later. Python cannot hold every value, such as a date in the year
    12000.

    Raises:
        SourceError: the dataset has no row, has a transform, or cannot be read.
    """
    rows = (one for run in dataset_runs(dataset, "dataset", 1, mapped_files(dataset)) for one in run.each())
    first = next(rows, None)
    if first is None:
        raise SourceError("there is no record, so there is nothing to pack")
    return next((one for one in chain([first], rows) if not isinstance(one, Bad)), {})


def _as_dataset(data: Any) -> Any:
    """Return a table of pandas, polars or pyarrow as a `datasets.Dataset`, and one column as the list of its values.

    Other data are returned as they are.

    Raises:
        MissingExtraError: the data are a table, and `datasets` is not installed.
        SourceError: the table or column cannot be read, for example because a column has values of no common type, or a
            value that is nested too deeply; or the data are an object of such a library, but no table and no column.
    """
    kinds = [(one.__module__.partition(".")[0], one.__name__) for one in type(data).__mro__]
    library = next((module for module, _ in kinds if module in _LISTS), None)
    if library is None:
        return data
    names = {name for module, name in kinds if module == library}
    if not names & (_TABLES | _COLUMNS):
        raise SourceError(
            f"a {type(data).__name__} of {library} is no table and no column of one; convert it to a table, or to a "
            "list of dicts"
        )
    what, way = "column", "convert its values"
    if names & _TABLES:
        what, way = "table", "leave the column out, or make its values alike"
    if b"huggingface" in (getattr(getattr(data, "schema", None), "metadata", None) or {}):
        way += ", or drop damaged metadata with table.replace_schema_metadata(None)"
    try:
        return _dataset_of(data, library) if what == "table" else getattr(data, _LISTS[library])()
    except (SourceError, MissingExtraError):
        raise
    except Exception as error:  # these libraries raise errors of any kind, also KeyError and AttributeError
        reason = "; ".join(map(str, error.args)) or type(error).__name__
        raise SourceError(
            f"this {what} of {library} cannot be read{' as a dataset' if what == 'table' else ''} ({reason}); {way}"
        ) from error


def _dataset_of(table: Any, library: str) -> Any:
    """Return a table of this library as a `datasets.Dataset`; errors of the library and of `datasets` pass unchanged.

    Raises:
        MissingExtraError: `datasets` is not installed.
        SourceError: a value in a table of pandas is nested too deeply for Arrow.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"a table of {library} is read as a dataset: pip install datasets") from error
    if library == "pyarrow":
        import pyarrow as pa

        return datasets.Dataset(pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table)
    if library == "polars":
        return datasets.Dataset.from_polars(table)
    for at, name in enumerate(table.columns):
        if is_deep(table.iloc[:, at].tolist()):
            raise SourceError(f"a value of the column {name!r} is nested too deeply; leave the column out")
    return datasets.Dataset.from_pandas(table, preserve_index=False)
