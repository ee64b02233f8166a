"""Files of records as dicts of columns, in order: JSON Lines, JSON arrays, CSV, TSV, Parquet, Arrow."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from nopad.errors import RecordError, SourceError

__all__ = ["Records", "open_records"]


class Records:
    """The records of files, which can be read any number of times.

    Attributes:
        files: in reading order.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield all records.

        Raises:
            RecordError: a line holds no record.
            SourceError: a file cannot be read.
        """
        for path in self.files:
            try:
                yield from _READERS[path.suffix.lower()](path)
            except OSError as error:
                raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
            except UnicodeDecodeError as error:
                raise SourceError(f"{path} is no UTF-8 text; save it as UTF-8") from error

    def fingerprint(self) -> str:
        """Return the SHA-256 of the files' content, in hex; O(bytes).

        Raises:
            SourceError: a file cannot be read.
        """
        digest = hashlib.sha256()
        for path in self.files:
            try:
                with open(path, "rb") as file:
                    digest.update(path.suffix.encode() + hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
        return digest.hexdigest()


def open_records(inputs: Sequence[str]) -> Records:
    """Find files of records; a folder is read with all its files of records, in the order of their names.

    Raises:
        SourceError: a path is missing or given twice, of a kind that is not read, or a folder without records.
    """
    files: list[Path] = []
    for given in inputs:
        path = Path(given)
        if path.is_dir():
            inside = [one for one in sorted(path.rglob("*")) if one.suffix.lower() in _READERS and one.is_file()]
            inside = [one for one in inside if not any(part.startswith(".") for part in one.relative_to(path).parts)]
            if not inside:
                raise SourceError(f"{path}: no file of records in this folder; read are {', '.join(_READERS)}")
            files += inside
        elif not path.is_file():
            raise SourceError(f"{path}: no such file or folder; give files of records ({', '.join(_READERS)})")
        elif path.suffix.lower() not in _READERS:
            raise SourceError(
                f"{path}: a {path.suffix or 'nameless'} file holds no records; give {', '.join(_READERS)}"
            )
        else:
            files.append(path)
    seen: set[Path] = set()
    for path in files:
        if path.resolve() in seen:
            raise SourceError(f"{path} is given twice; give it once")
        seen.add(path.resolve())
    return Records(files)


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _mapping(_json(line, f"{path}, line {number}"), f"{path}, line {number}")


def _array(path: Path) -> Iterator[Mapping[str, Any]]:
    """Read a JSON array, or JSON Lines whose name ends so."""
    content = path.read_bytes()
    if not content.lstrip().startswith(b"["):
        yield from _lines(path)
        return
    for number, one in enumerate(_json(content, str(path))):
        yield _mapping(one, f"{path}, record {number}")


def _json(text: bytes, where: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        try:
            return json.loads(text)  # NaN, and integers beyond 64 bits
        except ValueError as error:
            raise RecordError(f"{where}: this is no JSON: {error}") from error


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RecordError(f"{where}: a record is an object of columns, and this is a {type(value).__name__}")
    return value


def _delimited(delimiter: str) -> Callable[[Path], Iterator[Mapping[str, Any]]]:
    def read(path: Path) -> Iterator[Mapping[str, Any]]:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter, strict=True)
            try:
                names = next(rows, None) or []
                for row in rows:
                    if not row:
                        continue
                    if len(row) != len(names):
                        raise RecordError(
                            f"{path}, line {rows.line_num}: {len(row)} cells, and the first line names {len(names)}"
                        )
                    yield {name: _number(cell) for name, cell in zip(names, row, strict=True)}
            except csv.Error as error:
                raise RecordError(f"{path}, line {rows.line_num}: {error}") from error

    return read


def _number(cell: str) -> Any:
    """Return the number that a cell is exactly, or its text."""
    for kind in (int, float):
        try:
            found = kind(cell)
        except ValueError:
            continue
        if repr(found) == cell:
            return found
    return cell


def _table(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix.lower() == ".parquet":
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(1024):
                    yield from batch.to_pylist()
            return
        with pa.memory_map(str(path)) as mapped:
            try:
                opened = pa.ipc.open_file(mapped)
                batches = (opened.get_batch(number) for number in range(opened.num_record_batches))
            except pa.ArrowInvalid:
                mapped.seek(0)
                batches = iter(pa.ipc.open_stream(mapped))
            for batch in batches:
                yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise SourceError(f"{path} is damaged, or no {path.suffix} file: {error}") from error


_READERS: Mapping[str, Callable[[Path], Iterator[Mapping[str, Any]]]] = {
    ".jsonl": _lines,
    ".ndjson": _lines,
    ".json": _array,
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".parquet": _table,
    ".arrow": _table,
}
