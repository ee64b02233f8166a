"""Validate every batch of a table before any other code reads it.

A source chooses the columns that it reads from a schema, before it reads rows. Each batch is compared with this schema:
every chosen column must occur exactly once, with a type that can be read as the type in the schema. Then Arrow
validates these columns in full, and a damaged file raises an error that names the rows. Without this, later code could
read beyond a buffer of a damaged file, and crash the process.

Text that is not UTF-8 passes, also in lists and structs: `nopad.corpus.rows` marks only these records as bad.
Dictionary columns are decoded, so a null among the dictionary's values becomes a null in each row that refers to it.
All this takes time O(values), about 0.1 ns per byte.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from nopad.corpus.selection import is_list, is_string
from nopad.errors import SourceError
from nopad.wording import first_line, numbers_of

__all__ = ["BATCH_ROWS", "as_bytes", "checked", "cut", "rows_of"]

BATCH_ROWS = 1 << 16  # at most; fewer where rows are long


def checked(batch: pa.RecordBatch, schema: pa.Schema, place: str, row: int) -> pa.RecordBatch:
    """Validate those columns of a batch that `schema` names, and return a batch of these columns only.

    In the result, columns of dictionaries and of string views are decoded; lists of these are not.

    Args:
        batch: the batch that was read; it may have other columns too.
        schema: the columns that are wanted.
        place: name of the file, for messages.
        row: 1-based position of the batch's first row in the file, for messages.

    Raises:
        SourceError: a column of `schema` is missing, occurs more than once, has a type that cannot be read as the type
            in `schema`, or is damaged.

    >>> checked(pa.record_batch({"a": [1], "b": [2]}), pa.schema({"b": pa.int64()}), "x", 1).schema.names
    ['b']
    """
    rows = f"{place}, {numbers_of('row', row, row + batch.num_rows - 1)}"
    columns = []
    for field in schema:
        found = batch.schema.get_all_field_indices(field.name)
        if len(found) != 1:
            raise SourceError(
                f"{place}: {'no' if not found else len(found)} column {field.name!r} from row {row} on; "
                f"it has {', '.join(dict.fromkeys(batch.schema.names))}"
            )
        column = batch.column(found[0])
        if not _alike(column.type, field.type):
            raise SourceError(
                f"{place}: the column {field.name!r} is {column.type} from row {row} on, and {field.type} before; "
                "make its types alike, or leave it out of carry="
            )
        _prove(column, f"{rows}, column {field.name!r}")
        columns.append(_plain(column, field.type))
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def cut(batch: pa.RecordBatch, block_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of `batch`, each of about `block_bytes` bytes and of at most 65,536 rows."""
    rows = rows_of(block_bytes, batch.nbytes, batch.num_rows)
    yield from (batch.slice(at, rows) for at in range(0, batch.num_rows, rows))


def rows_of(block_bytes: int, size: int, rows: int) -> int:
    """Return how many rows (1 to 65,536) take about `block_bytes` bytes, given that `rows` rows take `size` bytes."""
    return min(max(block_bytes * rows // max(size, 1), 1), BATCH_ROWS)


def _prove(column: pa.Array, place: str) -> None:
    """Refuse a column that is damaged.

    Text that is not UTF-8 does not count as damage, also inside of lists, structs, maps and dictionaries. `place` says
    which rows of which column these are, for the message.

    Raises:
        SourceError: the column is damaged.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        try:
            column.validate()
            as_bytes(column).validate(full=True)
        except (pa.ArrowException, ValueError):
            reason = first_line(error).rstrip(".")
            raise SourceError(f"{place}: damaged ({reason}); make the file again, or leave it out") from error


def as_bytes(column: pa.Array) -> pa.Array:
    """Return a column in which texts have become bytes, also inside of lists, structs, maps and dictionaries.

    Buffers are shared. A column without texts is returned unchanged.

    >>> as_bytes(pa.array([["a", "b"], None])).to_pylist()
    [[b'a', b'b'], None]
    """
    kind = _without_text(column.type)
    return column if kind == column.type else column.view(kind)


def _without_text(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type `kind` with its types of text replaced by types of bytes, at any depth.

    For example, ``list<string>`` becomes ``list<binary>``.
    """
    of = pa.types
    if is_string(kind):
        return (
            pa.binary() if of.is_string(kind) else pa.large_binary() if of.is_large_string(kind) else pa.binary_view()
        )
    if of.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_text(kind.value_type), kind.ordered)
    if of.is_map(kind):
        return pa.map_(_without_text(kind.key_type), _without_text(kind.item_type), kind.keys_sorted)
    if of.is_struct(kind):
        return pa.struct([field.with_type(_without_text(field.type)) for field in kind])
    if of.is_fixed_size_list(kind):
        return pa.list_(_inside(kind), kind.list_size)
    for is_kind, made in (
        (of.is_list, pa.list_),
        (of.is_large_list, pa.large_list),
        (of.is_list_view, pa.list_view),
        (of.is_large_list_view, pa.large_list_view),
    ):
        if is_kind(kind):
            return made(_inside(kind))
    return kind


def _inside(kind: pa.DataType) -> pa.Field:
    return kind.value_field.with_type(_without_text(kind.value_type))


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column of type `found` can be read as type `wanted`.

    It can if the types are equal, if `found` is the null type, or if both are types of text. If both are types of
    lists, the same rules decide about the types of their values.
    """
    if found == wanted or pa.types.is_null(found) or (is_string(found) and is_string(wanted)):
        return True
    return is_list(found) and is_list(wanted) and _alike(found.value_type, wanted.value_type)


def _plain(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column with dictionaries and string views decoded, since later code cannot read these types.

    The column must have been validated. A column of text is returned as string or large_string. Any other column is
    cast to `wanted`; if `wanted` is a dictionary, to the type of the dictionary's values; if `wanted` is the type of
    string views, to large_string. An entry that refers to a null in the dictionary becomes null.
    """
    if pa.types.is_dictionary(wanted):
        wanted = wanted.value_type
    if pa.types.is_string_view(wanted):
        wanted = pa.large_string()
    if pa.types.is_dictionary(column.type):
        values = _without_views(column.dictionary)
        column = pa.DictionaryArray.from_arrays(column.indices, values, safe=True).dictionary_decode()
    column = _without_views(column)
    if column.type != wanted and not is_string(column.type):
        return column.cast(wanted)
    return column


def _without_views(column: pa.Array) -> pa.Array:
    """Return a column of string views as large_string, since pyarrow lacks many functions for views.

    Any other column is returned as it is.
    """
    return column.cast(pa.large_string(), safe=False) if pa.types.is_string_view(column.type) else column
