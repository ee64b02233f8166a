"""Read CSV and TSV files as runs (groups) of records.

The first line names the columns. Each column holds numbers or text.

The first thousand rows decide. A column holds numbers if each of its cells there is empty or a number as a program
writes it, and not all are empty: ``12``, ``-0.5`` and ``1e-3`` are such numbers; ``007``, ``+1``, ``nan`` and integers
of more than 18 digits are not. In such a column, an empty cell is None. A later cell that is neither empty nor a number
makes its row a bad record. All other columns hold text, and an empty cell is "". But if the first cells of a column of
labels are all empty, each empty cell is None, and each other one is a number if it looks like one, so that labels that
come late are noticed. In CSV, quotes work as in RFC 4180, and a quote that is never closed is an error; in TSV, a quote
is a character like any other, as in GLUE's files.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from nopad.corpus.inputs import BYTE_ORDER_MARK, InputFile, not_utf8
from nopad.corpus.records import DOCUMENT_BYTES, shown
from nopad.corpus.runs import ROWS, Bad, Run
from nopad.errors import RecordError, SourceError
from nopad.sequences import LABELS

__all__ = ["delimited_runs"]

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_Cells = list[str]


def delimited_runs(file: InputFile, strings: Collection[str] = ()) -> Iterator[Run]:
    """Yield the rows of a CSV or TSV file in runs (`Run`: consecutive records); it is TSV if its suffix is ``.tsv``.

    The columns that `strings` names are read as text. Empty lines are skipped. Any other row is a `Bad` record of its
    run in three cases: it is not UTF-8; it has more or fewer cells than there are columns; or a cell in a column of
    numbers is neither empty nor a number.

    Nothing can be read after a broken row: one with a broken quote, with a carriage return alone outside of quotes, or
    with a cell of more than 8,388,608 characters. A broken row counts as the last record of the last run.

    Raises:
        SourceError: two columns have the same name, or the file cannot be read.
        RecordError: the name of a column is not UTF-8, or a row is broken. If the broken row is the first line, which
            names the columns, the error is raised before any run is yielded; otherwise, when the last run is decoded.
    """
    rows = _rows(file)
    _, names = next(rows, (1, []))
    if odd := [name for name in names if _not_utf8(name)]:
        raise RecordError(
            f"{file.path}, line 1: the column {odd[0].encode(errors='replace')!r} is not UTF-8; convert it"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise SourceError(f"{file.path}: two columns are named {twice[0]!r}; the first line names the columns")
    first, broken = _taken(rows)
    readers = [
        str if name in strings else _reader(name, [row[at] for _, row in first if len(row) == len(names)])
        for at, name in enumerate(names)
    ]
    while first or broken:
        each = partial(_records, first, broken, names, readers, file)
        yield Run(len(first) + (broken is not None), each, partial(_places, first, file))
        if broken:
            return
        first, broken = _taken(rows)


def _taken(rows: Iterator[tuple[int, _Cells]]) -> tuple[list[tuple[int, _Cells]], RecordError | None]:
    """Take at most 1,000 rows (`ROWS`) for the next run; return ``(taken, error)``.

    `taken` lists the rows as (line, cells). `error` is the error of a broken row after them, after which nothing can be
    read; None: no broken row was met.
    """
    taken: list[tuple[int, _Cells]] = []
    try:
        taken.extend(islice(rows, ROWS))
    except RecordError as error:
        return taken, error
    return taken, None


def _places(rows: list[tuple[int, _Cells]], file: InputFile) -> Iterator[str]:
    return (f"{file.path}, line {line}" for line, _ in rows)


def _records(
    rows: list[tuple[int, _Cells]],
    broken: RecordError | None,
    names: list[str],
    readers: list[Callable[[str], Any]],
    file: InputFile,
) -> Iterator[dict[str, Any] | Bad]:
    for line, cells in rows:
        yield _record(cells, names, readers, f"{file.path}, line {line}")
    if broken is not None:
        raise broken


def _record(cells: _Cells, names: list[str], readers: list[Callable[[str], Any]], place: str) -> dict[str, Any] | Bad:
    """Return the values of a row by column, or a `Bad` that says why the row cannot be read.

    `names` are the names of the columns. `readers` has a function for each column, which turns a cell into a value.
    `place` names the file and the line in messages.
    """
    if odd := [cell for cell in cells if not cell.isascii() and _not_utf8(cell)]:
        raw = odd[0].encode("utf-8", "surrogateescape")
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            return Bad(place, not_utf8(raw, error, "cell"))
    if len(cells) != len(names):
        return Bad(
            place,
            f"{len(cells)} cells, and the first line names {len(names)} columns",
            "repair it, or put a text with the delimiter in it into quotes",
        )
    record = {}
    for name, read, cell in zip(names, readers, cells, strict=True):
        try:
            record[name] = read(cell)
        except ValueError:
            return Bad(
                place,
                f"{name} is {shown(cell)}, and the column's first cells are numbers",
                "repair it, or let the task read this column as text (open_records: strings)",
            )
    return record


def _not_utf8(cell: str) -> bool:
    """Return whether a cell holds bytes that are not UTF-8; `_lines` has turned these into lone surrogates."""
    return any("\udc80" <= one <= "\udcff" for one in cell)


def _reader(name: str, cells: _Cells) -> Callable[[str], Any]:
    """Return the function that turns a cell of the column `name` into a value.

    `cells` are the column's first cells. If each of them is a number or empty, and not all are empty, the function
    returns an int or a float, and None for an empty cell; it raises ValueError for any other cell. Otherwise, the
    function is `str`; but for a column of labels (`LABELS`) whose cells are all empty, it is `_late`.
    """
    filled = [cell for cell in cells if cell]
    if name in LABELS and not filled:
        return _late
    if not filled or not all(map(_NUMBER.fullmatch, filled)):
        return str
    return _integer if all(map(_INTEGER.fullmatch, filled)) else _float


def _integer(cell: str) -> int | float | None:
    return int(cell) if _INTEGER.fullmatch(cell) else _float(cell)


def _late(cell: str) -> int | float | str | None:
    return _integer(cell) if not cell or _NUMBER.fullmatch(cell) else cell


def _float(cell: str) -> float | None:
    if cell and not _NUMBER.fullmatch(cell):
        raise ValueError(cell)
    return float(cell) if cell else None


def _rows(file: InputFile) -> Iterator[tuple[int, _Cells]]:
    """Yield (line, cells) of every row that is not empty; the first of them has the names of the columns.

    The module `csv` limits the length of a cell. This limit is raised to `DOCUMENT_BYTES` (8,388,608) if it is lower,
    for the whole process.

    Raises:
        RecordError: a row has a broken quote, a carriage return alone outside of quotes, or a cell of more than
            `DOCUMENT_BYTES` characters.
    """
    csv.field_size_limit(max(csv.field_size_limit(), DOCUMENT_BYTES))  # 128 kB by default; a text may be longer
    tabs = file.suffix == ".tsv"
    quoting: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    reader = csv.reader(_lines(file), strict=True, **quoting)
    begin = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            where = f"{file.path}, line {begin}" + (f" to {reader.line_num}" if reader.line_num > begin else "")
            if "new-line character" in str(error):
                raise RecordError(
                    f"{where}: a carriage return that no line feed follows ends no row; convert the line ends of the "
                    "file to line feeds, or put a text with one into quotes"
                ) from error
            raise RecordError(f"{where}: {error}; repair the quotes of this row") from error
        if cells is None:
            return
        if cells:
            yield begin, cells
        begin = reader.line_num + 1


def _lines(file: InputFile) -> Iterator[str]:
    blocks = chain.from_iterable(
        enumerate(data.splitlines(keepends=True) if b"\r" not in data else _split(data), line)
        for data, _, line in file.line_blocks()
    )
    for line, raw in blocks:
        text = raw.decode("utf-8", "surrogateescape")  # a row that is not UTF-8 is one bad record
        yield text.removeprefix(BYTE_ORDER_MARK) if line == 1 else text


def _split(data: bytes) -> list[bytes]:
    """Return the lines of `data` with their line ends; a carriage return alone ends no line."""
    parts = [part + b"\n" for part in data.split(b"\n")]
    parts[-1] = parts[-1][:-1]
    return parts if parts[-1] else parts[:-1]
