"""Arrow tables as a source of tokens: a `datasets.Dataset`, or uncompressed Arrow files, without a copy of them.

A table on disk is mapped by Arrow, in thousands of chunks (pieces of consecutive rows). Only the sequences that are
gathered are copied. For this, the addresses of each column's chunks are listed once (about 20 µs per chunk and column),
and a compiled loop copies runs from any chunk through one flat view over all chunks. Only per-sequence booleans are
copied as a whole: they are unpacked to one byte each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nopad.corpus.inputs import InputFile, reading
from nopad.corpus.objects import as_arrow, mapped_files
from nopad.corpus.options import ReaderOptions
from nopad.corpus.selection import Selection, select
from nopad.corpus.tables import library_errors, opened_arrow
from nopad.errors import SourceError
from nopad.loading import _kernels
from nopad.loading.sources.arrays import lengths_of
from nopad.loading.sources.mapped import MappedFile
from nopad.loading.sources.source import Bits, Located, TokenSource
from nopad.properties import cached_property
from nopad.wording import numbers_of

__all__ = ["ArrowTokens", "dataset_tokens", "file_tokens"]

_COPIED = "open nopad.open_source(..., options), whose tokens are copied"


@dataclass(frozen=True)
class _Table:
    """A table, and which of its rows are the sequences.

    Attributes:
        table: the table.
        rows: row numbers, int64 or uint64 ``[n]``; None: all rows, in their order.
    """

    table: pa.Table
    rows: NDArray[Any] | None = None


def dataset_tokens(dataset: Any, options: ReaderOptions, *, empty: str = "refuse") -> ArrowTokens:
    """Return the rows of a `datasets.Dataset` as a source, in the order that ``select`` or ``shuffle`` gave them.

    `options` says which columns are read. `empty` says what to do with rows that have no token: "refuse" or "skip". The
    dataset and its format (``set_format``) are not changed.

    Raises:
        SourceError: the dataset has a transform, or is an iterable dataset or a dict of splits; a file that it maps is
            missing or cut short; or its rows cannot be used: no ids, nulls, lists of unequal lengths in a row, no row
            with a token, or tokens that `options` would change (by ``pad_id``, or by labels made from
            ``assistant_masks``).
        LengthError: a row has no token, and `empty` is "refuse".
    """
    name = "dataset"
    if isinstance(dataset, Mapping) or not hasattr(dataset, "cache_files"):
        kind = type(dataset).__name__
        raise SourceError(f"a {kind} has no rows by number; give a datasets.Dataset, one split of it, or its files")
    shown = as_arrow(dataset, name)
    paths = [Path(file.path) for file in mapped_files(dataset)]
    return ArrowTokens(partial(_of_dataset, shown), paths, name, options, empty=empty)


def file_tokens(paths: Sequence[Path], options: ReaderOptions, *, empty: str = "refuse") -> ArrowTokens:
    """Return the rows of Arrow files or streams, one file after the other, as a source.

    `options` says which columns are read. `empty` says what to do with rows that have no token: "refuse" or "skip".

    Raises:
        SourceError: a file is missing, damaged, or has other columns than the first; or its rows cannot be used: no
            ids, nulls, lists of unequal lengths in a row, no row with a token, or tokens that `options` would change
            (by ``pad_id``, or by labels made from ``assistant_masks``).
        LengthError: a row has no token, and `empty` is "refuse".
    """
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} Arrow files)"
    return ArrowTokens(partial(_of_files, tuple(paths)), paths, name, options, empty=empty)


def _of_dataset(dataset: Any) -> _Table:
    chosen = dataset._indices  # datasets has no public name for it; flatten_indices would copy all rows
    rows = None if chosen is None else chosen.column(0).to_numpy()
    return _Table(dataset.data.table.select(dataset.format["columns"]), rows)


def _of_files(paths: Sequence[Path]) -> _Table:
    tables = []
    for path in paths:
        file = InputFile.found(path, path.name)
        with reading(path), library_errors(file, "Arrow"):
            mapped = pa.memory_map(os.fsencode(path).decode())
            tables.append(opened_arrow(mapped, path).read_all())
    for path, table in zip(paths, tables, strict=True):
        if not table.schema.equals(tables[0].schema):
            raise SourceError(f"{path}: has other columns than {paths[0]}; make them alike, or give one of them")
    return _Table(pa.concat_tables(tables))


class ArrowTokens(TokenSource):
    """The rows of a table, one sequence each. Columns of numbers or booleans, or of lists of these, are read.

    Raises:
        SourceError: there is no column of ids; `nopad.corpus.selection.select` refuses the columns, for example because
            a wanted one is missing; the table is a packed dataset; a column that is used holds nulls; a list is not as
            long as its row's ids; the lists or their memory are damaged; no row has a token; or `options` would change
            tokens (by ``pad_id``, or by labels made from ``assistant_masks``).
        LengthError: a row has no token, and `empty` is "refuse".
        OptionError: `empty` is neither "refuse" nor "skip".
    """

    def __init__(
        self,
        opening: Callable[[], _Table],
        paths: Sequence[Path],
        name: str,
        options: ReaderOptions,
        *,
        empty: str = "refuse",
    ) -> None:
        """Choose the columns, and read the offsets of all lists.

        Args:
            opening: returns the table; each worker process calls it again.
            paths: the files that hold the table; [] if it is in memory.
            name: name of the source in messages.
            options: which columns are read.
            empty: what to do with rows that have no token: "refuse" or "skip".

        Raises:
            SourceError, LengthError: as in the class.
        """
        self._opening, self._options = opening, options
        self.name = name
        files = [MappedFile(path) for path in paths]
        self._selection = _selection(self._table.table.schema, options, name)
        strings = [column.name for column in self._selection.carried if column.type == "string"]
        self.left_out = (*self._selection.left_out, *strings)
        super().__init__(name, empty=empty, files=files)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that a worker process gets: all but the table, its columns, and arrays per sequence.

        A worker process opens the table again when it reads.
        """
        return {name: value for name, value in super().__getstate__().items() if name not in ("_table", "_columns")}

    @cached_property
    def _table(self) -> _Table:
        return self._opening()

    @cached_property
    def _columns(self) -> tuple[dict[str, _Lists], dict[str, _Numbers]]:
        """The columns that are gathered: per-token ones and per-sequence ones, each by name.

        The column of ids is called ``input_ids`` here, and the one that marks padding ``attention_mask``.
        """
        chosen, table = self._selection, self._table.table
        masks = [chosen.mask] if chosen.mask else []
        beside = [column.name for column in chosen.carried if column.per == "token"]
        lists = {name: _Lists(table.column(name), name, self.name) for name in (chosen.content, *masks, *beside)}
        numbers = {
            column.name: _Numbers(table.column(column.name), column.name, self.name)
            for column in chosen.carried
            if column.per == "sequence" and column.name not in self.left_out
        }
        renamed = {
            "attention_mask" if n == chosen.mask else "input_ids" if n == chosen.content else n: c
            for n, c in lists.items()
        }
        return renamed, numbers

    def stored_lengths(self) -> NDArray[np.int32]:
        """Return the lengths of the rows that are the sequences, 0 or more; int32 ``[stored]``.

        Raises:
            SourceError: a list is not as long as its row's ids, lies beyond the values of its column, or has an
                impossible length.
        """
        lists = self._columns[0]
        lengths = lists["input_ids"].lengths()
        for name, column in lists.items():
            other = column.lengths() if name != "input_ids" else lengths
            if not np.array_equal(other, lengths):
                row = int(np.argmax(other != lengths))
                raise SourceError(
                    f"{self.name}: {column.name!r} has {other[row]} values beside {lengths[row]} ids in row {row}; "
                    "leave this column out with carry, or repair it"
                )
        rows = self._table.rows
        return lengths if rows is None else lengths[rows]

    def located(self, numbers: NDArray[np.int64]) -> Located:
        """Return flat views of the columns, and where the lists of these sequences begin in them (`Located`).

        `numbers` are the numbers of the sequences, int64 ``[k]``; `_Table.rows` says which row of the table each of
        them is.

        Raises:
            SourceError: the lists of a row are no longer equally long, or lie beyond the values of their column.
        """
        rows = numbers if self._table.rows is None else self._table.rows[numbers].astype(np.int64, copy=False)
        lists, columns = self._columns
        tokens: dict[str, tuple[NDArray[Any] | Bits, NDArray[np.int64]]] = {}
        lengths = np.zeros(0, np.int64)
        for name, column in lists.items():
            begins, here = column.located(rows)
            if not tokens:
                lengths = here
            elif not np.array_equal(here, lengths):
                raise SourceError(f"{self.name}: {column.name!r} is no longer as long as the ids; open it again")
            tokens[name] = column.flat, begins
        return Located(lengths, tokens, {name: column.values(rows) for name, column in columns.items()})


def _selection(schema: pa.Schema, options: ReaderOptions, name: str) -> Selection:
    chosen = select(schema, options, name)
    if chosen.kind == "text":
        raise SourceError(f"{name}: holds text, and no column of ids; tokenise it first, or name one with ids_field")
    if chosen.pad_id is not None:
        raise SourceError(f"{name}: padding by pad_id is not cut off tokens that are used where they lie; {_COPIED}")
    if chosen.learned is not None:
        raise SourceError(
            f"{name}: no labels are made from {chosen.learned!r} for tokens that are used where they lie; {_COPIED}"
        )
    return chosen


def _bounds(chunks: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Return the number of each chunk's first row, and then the number of all rows; int64 ``[chunks + 1]``.

    A chunk is a piece of consecutive rows.
    """
    return np.cumsum([0, *map(len, chunks)], dtype=np.int64)


class _Numbers:
    """A column of numbers or booleans, one per row."""

    def __init__(self, column: pa.ChunkedArray, name: str, place: str) -> None:
        chunks = _whole(column, name, place)
        self._bounds = _bounds(chunks)
        if pa.types.is_boolean(column.type):  # stored as bits; one per row, so unpacking all is cheap
            parts = [np.empty(0, bool), *(chunk.to_numpy(zero_copy_only=False) for chunk in chunks)]
            self._flat, self._at = np.concatenate(parts), self._bounds[:-1]
        else:
            self._flat, self._at = _window(chunks, np.dtype(column.type.to_pandas_dtype()), place)

    def values(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the values of the rows with the numbers `rows`; ``[k]``."""
        places = np.empty(rows.size, np.int64)
        _kernels.places_in_chunks(rows, self._bounds, self._at, places)
        found: NDArray[Any] = self._flat[places]
        return found


class _Lists:
    """A column of lists of numbers, stored in chunks (pieces of consecutive rows).

    `flat` is one view of the memory from the first to the last value of all chunks (`_window`). Memory in between that
    holds no values of this column is not read.
    """

    def __init__(self, column: pa.ChunkedArray, name: str, place: str) -> None:
        self.name, self._place = name, place
        chunks = _whole(column, name, place)
        self._bounds, kind = _bounds(chunks), column.type
        self._width = kind.list_size if pa.types.is_fixed_size_list(kind) else 0
        inner = [chunk.values for chunk in chunks]
        self._sizes = np.array([len(values) for values in inner], np.int64)
        self.flat: NDArray[Any] | Bits
        if pa.types.is_boolean(kind.value_type):
            words, self._at = _window(inner, np.dtype(bool), place)
            self.flat = Bits(words)
        else:
            self.flat, self._at = _window(inner, np.dtype(kind.value_type.to_pandas_dtype()), place)
        if not self._width:
            self._parts = [chunk.offsets for chunk in chunks]
            dtype = np.dtype(np.int64 if pa.types.is_large_list(kind) else np.int32)
            self._offsets, self._offsets_at = _window(self._parts, dtype, place)
        else:
            self._offsets = np.empty(0, np.int32)
            self._offsets_at = np.array([chunk.offset for chunk in chunks], np.int64)

    def lengths(self) -> NDArray[np.int32]:
        """Return the lengths of all lists, after checking all offsets; int32 ``[rows]``.

        Raises:
            SourceError: an offset is below the one before it, a list has more than 2^31 - 1 values, or a list lies
                beyond the values of its chunk.
        """
        if self._width:
            return np.full(self._bounds[-1], self._width, np.int32)
        out = np.empty(self._bounds[-1], np.int32)
        for chunk, part in enumerate(self._parts):
            offsets = part.to_numpy()
            out[self._bounds[chunk] : self._bounds[chunk + 1]] = lengths_of(offsets, self._place)
            if offsets[0] < 0 or offsets[-1] > self._sizes[chunk]:
                raise SourceError(f"{self._place}: lists of {self.name!r} lie beyond their values; make it again")
        return out

    def located(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the lists of these rows begin in `flat`, and their lengths; int64 ``[k]`` each.

        Raises:
            SourceError: a list lies beyond the values of its chunk.
        """
        begins, lengths = np.empty(rows.size, np.int64), np.empty(rows.size, np.int64)
        places = self._bounds, self._at, self._sizes, self._offsets, self._offsets_at, self._width
        if not _kernels.lists_in_chunks(rows, *places, begins, lengths):
            raise SourceError(f"{self._place}: lists of {self.name!r} lie beyond their values; make it again")
        return begins, lengths


def _whole(column: pa.ChunkedArray, name: str, place: str) -> list[pa.Array]:
    """Return the chunks (pieces of consecutive rows) of a column that are not empty; refuse nulls.

    Raises:
        SourceError: there is a null, also within a list; the message names the column `name` of the source `place`.
    """
    row = 0
    for chunk in column.chunks:
        nested = hasattr(chunk, "values") and chunk.flatten().null_count
        if chunk.null_count or nested:
            raise SourceError(
                f"{place}: {name!r} has a null in {numbers_of('row', row, row + len(chunk) - 1)}; fill it, or leave "
                "such rows out"
            )
        row += len(chunk)
    return [chunk for chunk in column.chunks if len(chunk)]


class _Memory:
    """Memory that Arrow owns, of which NumPy makes an array without a copy, by ``__array_interface__``.

    The array keeps `owner` alive: the Arrow buffers whose memory it is.
    """

    def __init__(self, owner: Any, address: int, dtype: np.dtype[Any], count: int) -> None:
        self.owner = owner
        self.__array_interface__ = {"data": (address, True), "shape": (count,), "typestr": dtype.str, "version": 3}


def _window(arrays: Sequence[pa.Array], dtype: np.dtype[Any], place: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return one flat view over the memory from the first to the last of these arrays, and where each begins in it.

    The begins are int64 ``[arrays]``. Between the arrays lies other memory, which must not be read. Booleans are viewed
    as bytes; where an array of them begins is counted in bits.

    Raises:
        SourceError: the numbers are not aligned in memory; `place` is the source in the message.
    """
    bits = 1 if dtype.kind == "b" else 8 * dtype.itemsize
    buffers = [array.buffers()[1] if len(array) else None for array in arrays]
    held = [(buffer.address, buffer.size) for buffer in buffers if buffer is not None]
    kind = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    if not held:
        return np.empty(0, kind), np.zeros(len(arrays), np.int64)
    first, last = min(address for address, _ in held), max(address + size for address, size in held)
    if any(address % kind.itemsize for address, _ in held):
        raise SourceError(f"{place}: its numbers are not aligned in memory; write it again with pyarrow")
    flat = np.asarray(_Memory(buffers, first, kind, (last - first) // kind.itemsize))
    at = [
        0 if buffer is None else (buffer.address - first) * 8 // bits + array.offset
        for array, buffer in zip(arrays, buffers, strict=True)
    ]
    return flat, np.array(at, np.int64)
