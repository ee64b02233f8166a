"""Write predictions as Parquet files that all have one schema; each key of the prediction dicts becomes a column.

A file is a part: a fixed number of consecutive records (fewer in the last one). The types of all columns are known only
after the last record: a list that is empty in the first part may hold numbers or texts in the second. So each
part is first written with the types of its own values. The schema of each new part is combined with that of the parts
before. At the end, parts with another schema than the combined one are written again. If the types of a column cannot
be combined, an error names the first part whose type does not fit the parts before.

A kept column is a column of the input that is written beside the predictions. Columns of Parquet and Arrow files keep
their types. Cells of CSV and TSV files are texts. They become numbers only if Python writes all of these numbers
exactly as the cells have them: all as integers, or all as floats. So versions (1.10) and long decimals stay texts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nopad.arrow import array_of
from nopad.errors import OptionError, RecordError
from nopad.files import damage_errors, replacing
from nopad.wording import first_line, numbers_of

__all__ = ["NUMBER", "aligned", "array_of_cells", "schema_of_part", "table_of", "together", "write_part"]

NUMBER = "record"  # the column with the number of the record in the input
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_FLOAT = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?")


def table_of(
    first: int,
    predictions: Sequence[Mapping[str, Any] | None],
    kept: Mapping[str, Sequence[Any] | pa.Array],
    dtypes: Mapping[str, str],
    types: Mapping[str, pa.DataType] | None = None,
) -> pa.Table:
    """Return predictions as a table: the column ``record``, the kept columns, and a column per key of the predictions.

    Args:
        first: number of the first record; the others follow.
        predictions: one dict per record; None gives a null in every column of the predictions.
        kept: columns of the input to keep, by their names in the table; one value per record, as a list or an array.
        dtypes: names of NumPy dtypes, by column, for columns of predictions whose numbers are not to be int64 or
            float64, as in `Task.dtypes`.
        types: Arrow types of kept columns, by name, for columns for which the input has a type.

    Raises:
        OptionError: a kept column is named ``record``, or like a key of the predictions.
        RecordError: the values of a column have no common type, or do not fit its type in `types` or `dtypes`.

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
        made = values if isinstance(values, pa.Array) else None
        columns[name] = _column(name, list(values), first, kind=(types or {}).get(name)) if made is None else made
    for name in names:
        values = [None if one is None else one.get(name) for one in predictions]
        columns[name] = _column(name, values, first, dtypes.get(name))
    return pa.table(columns)


def array_of_cells(cells: Sequence[str | None]) -> pa.Array:
    """Return cells of a CSV or TSV file as integers, as floats, or else as texts; as nulls if all are empty.

    Cells become numbers only if all are integers (of at most 18 digits), or all are floats. Python must also write each
    number exactly as its cell has it. An empty cell beside numbers is null. If another part of the column holds
    texts, `aligned` turns the numbers into texts again.

    >>> [array_of_cells(cells).to_pylist() for cells in (["7", ""], ["0.5", "1e-05"], ["1.1", "1.10"], ["1", "0.5"])]
    [[7, None], [0.5, 1e-05], ['1.1', '1.10'], ['1', '0.5']]

    1.10 stays a text, since Python writes this number as 1.1; 1 and 0.5 stay texts, since one is an integer and the
    other a float.
    """
    filled = [cell for cell in cells if cell]
    if not filled:
        return pa.nulls(len(cells))
    if all(map(_INTEGER.fullmatch, filled)):
        return pa.array([int(cell) if cell else None for cell in cells], pa.int64())
    if all(_FLOAT.fullmatch(cell) and repr(float(cell)) == cell for cell in filled):
        return pa.array([float(cell) if cell else None for cell in cells], pa.float64())
    return pa.array(cells, pa.string())


def _column(
    name: str, values: list[Any], first: int, dtype: str | None = None, kind: pa.DataType | None = None
) -> pa.Array:
    """Return values as an array of the type `kind`; None: of the type that Arrow finds for them.

    If `dtype` (the name of a NumPy dtype) is given, numbers are cast to it, also those in lists. `name` is the column's
    name, and `first` the number of the first record, for messages.

    Raises:
        RecordError: the values have no common type, or do not fit `kind` or `dtype`.
    """
    try:
        found = array_of(values, kind)
        return found if dtype is None else found.cast(_with(found.type, pa.from_numpy_dtype(dtype)), safe=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = first_line(error)
        raise RecordError(
            f"the column {name!r} of {numbers_of('record', first, first + len(values) - 1)} has values of no common "
            f"type ({reason}); make them alike, or do not keep it"
        ) from error


def _with(kind: pa.DataType, inner: pa.DataType) -> pa.DataType:
    """Return the type `kind` with its number type replaced by `inner`.

    `kind` is a number type, or a list type of any depth with numbers inside; the null type is returned unchanged.
    """
    if pa.types.is_null(kind):
        return kind
    return pa.list_(_with(kind.value_type, inner)) if pa.types.is_list(kind) else inner


def together(schemas: Iterable[pa.Schema], place: str, cells: Collection[str] = ()) -> pa.Schema:
    """Return one schema for several tables, which has the columns of all of them.

    A column without a type in one table (only nulls) takes its type from another table. Columns in `cells`, made by
    `array_of_cells`, are texts if they have several types.

    Raises:
        RecordError: two types of a column cannot be combined. The message begins with `place`: text for the table that
            the last schema belongs to, such as its file name.
    """
    found = list(schemas)
    for name in cells:
        kinds = {schema.field(name).type for schema in found} - {pa.null()}
        if len(kinds) > 1:
            found = [schema.set(schema.get_field_index(name), pa.field(name, pa.string())) for schema in found]
    try:
        return pa.unify_schemas(found, promote_options="permissive")
    except (pa.ArrowException, TypeError) as error:
        reason = first_line(error)
        raise RecordError(
            f"{place} has a column of another type than the parts before ({reason}); make its values alike, or do not "
            "keep it"
        ) from error


def aligned(table: pa.Table, schema: pa.Schema, cells: Collection[str] = ()) -> pa.Table:
    """Return `table` with the columns and types of `schema`; columns that the table lacks are filled with nulls.

    `schema` is a result of `together`.

    A column in `cells` may hold numbers or only nulls, although `schema` has texts for it. Its numbers then become
    texts as they were in the file, and its nulls empty texts.

    Raises:
        RecordError: a value cannot be converted to the type in `schema` without a change.
    """
    columns = []
    for field in schema:
        if field.name not in table.schema.names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        if column.type == field.type:
            columns.append(column)
        elif field.name in cells and field.type == pa.string():
            columns.append(pa.array(["" if one is None else str(one) for one in column.to_pylist()], pa.string()))
        else:
            columns.append(_converted(column, field))
    return pa.table(columns, schema=schema)


def _converted(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """Return a column in the type of `field`; raise `RecordError` if a value would change."""
    try:
        return pa.array(column.to_pylist(), field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = first_line(error)
        raise RecordError(
            f"the column {field.name!r} is {column.type} in one part and {field.type} in others ({reason}); make its "
            "values alike, or do not keep it"
        ) from error


def write_part(path: Path, table: pa.Table) -> None:
    """Write a table as a Parquet file, atomically; equal tables give equal bytes.

    The items of lists get one name ("element"). Arrow gives them different names in memory and in files, and the name
    is a part of the file.

    Raises:
        StorageError: the disk is full, or the write failed.
        RecordError: Parquet cannot store a type of the table, such as a dict without keys.
    """
    schema = pa.schema([field.with_type(_alike(field.type)) for field in table.schema])
    try:
        with replacing(path) as partial:
            named = pa.Table.from_arrays(table.columns, schema=schema)
            pq.write_table(named, partial, compression="zstd", compression_level=1, row_group_size=1 << 16)
    except pa.ArrowNotImplementedError as error:
        raise RecordError(f"{path.name} cannot be written ({error}); do not keep this column") from error


def _alike(kind: pa.DataType) -> pa.DataType:
    """Return the type `kind` with "element" as the name of list items, also in lists inside of lists and structs."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_alike(field.type)) for field in kind])
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return kind
    items = pa.field("element", _alike(kind.value_type), kind.value_field.nullable)
    if types.is_fixed_size_list(kind):
        return pa.list_(items, kind.list_size)
    return pa.list_(items) if types.is_list(kind) else pa.large_list(items)


def schema_of_part(path: Path) -> pa.Schema:
    """Return the schema of a Parquet file.

    Raises:
        CorruptError: the file is missing or damaged.
        StorageError: the file cannot be read for another reason, such as its permissions.
    """
    with damage_errors(path, pa.ArrowException):
        return pq.read_schema(path)
