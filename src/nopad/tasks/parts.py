"""Write predictions as Parquet files that all have one schema; each key of the prediction dicts becomes a column.

A file is a part: a fixed number of consecutive records (fewer in the last one). The types of all columns are known only
after the last record, since a list that is empty in the first part may hold numbers or texts in the second. So each
part is first written with the types of its own values. At the end, parts whose columns or types differ from those of
all parts are written again. If the types of a column cannot be combined, an error names the first part whose type does
not fit the parts before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nopad.errors import OptionError, RecordError
from nopad.files import damage_errors, replacing

__all__ = ["NUMBER", "aligned", "schema_of_part", "table_of", "together", "write_part"]

NUMBER = "record"  # the column with the number of the record in the input


def table_of(
    first: int,
    predictions: Sequence[Mapping[str, Any] | None],
    kept: Mapping[str, Sequence[Any]],
    dtypes: Mapping[str, str],
) -> pa.Table:
    """Return predictions as a table: the column ``record``, the kept columns, and a column per key of the predictions.

    Args:
        first: number of the first record; the others follow.
        predictions: one dict per record; None gives a null in every column of the predictions.
        kept: columns of the input to keep, by their names in the table; one value per record.
        dtypes: NumPy's dtype names for columns whose numbers are not int64 or float64, as in `Task.dtypes`.

    Raises:
        OptionError: a kept column is named ``record``, or like a key of the predictions.
        RecordError: the values of a column have no common type.

    >>> table_of(7, [{"label": "yes"}, None], {"id": [1, 2]}, {}).to_pydict()
    {'record': [7, 8], 'id': [1, 2], 'label': ['yes', None]}
    """
    names = list(dict.fromkeys(name for one in predictions if one is not None for name in one))
    for name in kept:
        if name in names or name == NUMBER:
            raise OptionError(
                f"the column {name!r} is kept, and a prediction has one of this name; keep it by another name, such as "
                f"input_{name}={name}"
            )
    columns: dict[str, pa.Array] = {NUMBER: pa.array(range(first, first + len(predictions)), pa.int64())}
    for name, values in kept.items():
        columns[name] = _column(name, list(values), first)
    for name in names:
        values = [None if one is None else one.get(name) for one in predictions]
        columns[name] = _column(name, values, first, dtypes.get(name))
    return pa.table(columns)


def _column(name: str, values: list[Any], first: int, dtype: str | None = None) -> pa.Array:
    try:
        found = pa.array(values)
        return found if dtype is None else found.cast(_with(found.type, pa.from_numpy_dtype(dtype)), safe=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise RecordError(
            f"the column {name!r} of records {first} to {first + len(values) - 1} has values of no common type "
            f"({reason}); make them alike, or do not keep it"
        ) from error


def _with(kind: pa.DataType, inner: pa.DataType) -> pa.DataType:
    """Return `kind`, a number type or a list type of any depth, with `inner` as its number type; null stays null."""
    if pa.types.is_null(kind):
        return kind
    return pa.list_(_with(kind.value_type, inner)) if pa.types.is_list(kind) else inner


def together(schemas: Iterable[pa.Schema], place: str) -> pa.Schema:
    """Return one schema for several tables, which has the columns of all of them.

    A column without a type in one table (only nulls) takes its type from another table.

    Raises:
        RecordError: two types of a column cannot be combined; the message begins with `place`, which says where the
            last schema comes from.
    """
    found = list(schemas)
    try:
        return pa.unify_schemas(found, promote_options="permissive")
    except (pa.ArrowException, TypeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise RecordError(
            f"{place} has a column of another type than the parts before ({reason}); make its values alike, or do not "
            "keep it"
        ) from error


def aligned(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns and types of `schema`, made by `together`; columns not in the table are null."""
    columns = []
    for field in schema:
        if field.name not in table.schema.names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        columns.append(column if column.type == field.type else pa.array(column.to_pylist(), field.type))
    return pa.table(columns, schema=schema)


def write_part(path: Path, table: pa.Table) -> None:
    """Write a table as a Parquet file, atomically; equal tables give equal bytes.

    Raises:
        StorageError: the disk is full, or the write failed.
        RecordError: Parquet cannot store a type of the table, such as a dict without keys.
    """
    try:
        with replacing(path) as partial:
            pq.write_table(table, partial, compression="zstd", compression_level=1, row_group_size=1 << 16)
    except pa.ArrowNotImplementedError as error:
        raise RecordError(f"{path.name} cannot be written ({error}); do not keep this column") from error


def schema_of_part(path: Path) -> pa.Schema:
    """Return the schema of a Parquet file.

    Raises:
        CorruptError: the file is missing or damaged.
    """
    with damage_errors(path, pa.ArrowException):
        return pq.read_schema(path)
