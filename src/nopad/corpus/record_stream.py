"""`open_records`: read records from any input as dicts, in input order, for tasks and `nopad predict`.

`open_source` is for inputs that become token sequences directly; here, records stay dicts of columns, which a task
reads. Files are found as for `open_source`. Several files are read one after the other, and must have the same format.
Memory is needed for one run of consecutive records (a few MiB; for a file of SQuAD, the whole file), and reading can
begin at any record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from nopad.corpus.delimited import delimited_runs
from nopad.corpus.finding import (
    DELIMITED,
    JSONL_SUFFIXES,
    OTHERS,
    TABLE_SUFFIXES,
    TEXT_SUFFIXES,
    Finder,
    FoundArrays,
    FoundDataset,
    FoundFile,
    Suffixes,
    refuse_magic,
    refuse_tables,
)
from nopad.corpus.hub import hub_dataset
from nopad.corpus.inputs import InputFile
from nopad.corpus.json_array import array_runs, is_array
from nopad.corpus.options import OnBadRecord, TextUnit
from nopad.corpus.runs import (
    ROWS,
    Bad,
    Run,
    arrow_runs,
    as_json,
    jsonl_runs,
    object_runs,
    opened_dataset,
    parquet_runs,
    text_runs,
)
from nopad.corpus.source import BLOCK_BYTES, CHAIN_START, Block, chain
from nopad.corpus.squad import is_squad, squad_runs
from nopad.corpus.tables import arrow_schema, parquet_footer
from nopad.errors import InputError, OptionError, SourceError
from nopad.options import check_choice, shown

__all__ = ["RecordStream", "open_records", "opened_runs", "records_from_python"]

RECORDS = Suffixes(
    read=TEXT_SUFFIXES + JSONL_SUFFIXES + (".json",) + TABLE_SUFFIXES + DELIMITED,
    others=OTHERS,
)
_Runs = Callable[[], Iterator[Run]]


class RecordStream:
    """Records in input order, as dicts; made by `open_records`.

    Each iteration begins at the first record. If the input is an iterator, it can be read only once: iterating, `read`,
    `each`, `count` and `fingerprint` all use it up.

    Attributes:
        kind: the format of the records: "jsonl", "json", "squad", "parquet", "arrow", "csv", "tsv", "text" or
            "objects".
        folders: the folders that were searched for files.
        ignored: names of files that were found in these folders or at URLs, and are not read.
        on_bad_record: what happens to a record that cannot be decoded: "error" raises RecordError, "skip" leaves it
            out (`each` yields it as a `Bad`).

    >>> from nopad.corpus import open_records
    >>> stream = open_records([{"text": "yes"}, {"text": "no"}])
    >>> stream.kind, [record["text"] for record in stream]
    ('objects', ['yes', 'no'])
    """

    def __init__(
        self,
        parts: Sequence[tuple[InputFile | None, _Runs]],
        kind: str,
        *,
        strings: Collection[str] = (),
        folders: Sequence[Path] = (),
        ignored: Sequence[str] = (),
        once: bool = False,
        text_unit: TextUnit = "line",
        on_bad_record: OnBadRecord = "error",
    ) -> None:
        self.on_bad_record: OnBadRecord = check_choice("on_bad_record", on_bad_record, OnBadRecord)
        self.parts, self.kind, self._strings = tuple(parts), kind, tuple(sorted(strings))
        self._text_unit = text_unit
        self.folders, self.ignored = tuple(folders), tuple(ignored)
        self._left = 1 if once else None  # how often it can still be read; None: without limit

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield all records, as `read` does from number 0 on."""
        return self.read()

    def read(self, *, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the records from number `after` (counted from 0) on; most earlier records are skipped without decoding.

        Bad records have numbers too; they are left out if `on_bad_record` is "skip".

        Raises:
            RecordError: a record is bad, and `on_bad_record` is "error"; or a CSV, TSV or JSON file is broken, so that
                nothing after that place can be read. The message names the place.
            FormatError: a SQuAD file is broken.
            SourceError: the input cannot be read, changed since it was opened, has fewer records than `after`, holds an
                item that is not a dict, or is an iterator that was read before.
        """
        return (one for one in self.each(after=after) if not isinstance(one, Bad))

    def each(self, *, after: int = 0) -> Iterator[dict[str, Any] | Bad]:
        """Yield the records from number `after` (counted from 0) on, including bad ones if `on_bad_record` is "skip".

        A bad record is yielded as a `nopad.corpus.runs.Bad`.

        Raises:
            RecordError: a record is bad, and `on_bad_record` is "error"; or a CSV, TSV or JSON file is broken, so that
                nothing after that place can be read.
            FormatError: a SQuAD file is broken.
            SourceError: the input cannot be read, changed since it was opened, has fewer records than `after`, holds an
                item that is not a dict, or is an iterator that was read before.
        """
        passed = 0
        try:
            for run in self._runs():
                if passed + run.count > after:
                    for one in islice(run.each(), max(after - passed, 0), None):
                        if isinstance(one, Bad) and self.on_bad_record == "error":
                            raise one.error()
                        yield one
                passed += run.count
        except InputError as error:  # its message names the file, and maybe the line
            error.placed = True
            raise
        if passed < after:
            raise SourceError(f"there are {passed:,} records, and reading was to go on after {after:,}")

    def place(self, number: int) -> str | None:
        """Return the place of record `number` (counted from 0), such as ``a.jsonl, line 7``.

        The result is None if the record is in no file, or does not exist. This reads the files up to the record.

        Raises:
            SourceError: the input cannot be read, or changed since it was opened.
            RecordError: the first line of a CSV or TSV file, with the names of the columns, is broken.
            FormatError: a SQuAD file is broken.
        """
        for file, runs in self.parts:
            if file is None:
                return None
            first = number
            for run in runs():
                if number < run.count:
                    places = None if run.places is None else next(islice(run.places(), number, None), None)
                    return places or f"{file.path}, record {first + 1}"
                number -= run.count
        return None

    def count(self) -> int:
        """Return the number of records, bad ones included.

        This reads the whole input, but makes no dicts of JSON lines or table rows. An iterator cannot be read
        afterwards.

        Raises:
            SourceError: the input cannot be read, changed since it was opened, or is an iterator that was read before.
            RecordError: the first line of a CSV or TSV file, with the names of the columns, is broken.
            FormatError: a SQuAD file is broken.
        """
        return sum(run.count for run in self._runs())

    def fingerprint(self) -> str:
        """Return a SHA-256 of the input, in hex; this reads all files, at about 1 GB/s.

        It covers the bytes of files as they are stored (compressed files are not decompressed), and the records of
        Python objects and datasets as JSON. A value that JSON cannot hold is replaced by the result of its method
        `tolist`, as NumPy arrays have it, or else by its `repr`. An iterator cannot be read afterwards.

        Raises:
            SourceError: the input cannot be read, changed since it was opened, holds an item that is not a dict, or is
                an iterator that was read before.
        """
        self._begin_reading()
        digest = CHAIN_START
        for file, runs in self.parts:
            for block in _objects_as_blocks(runs()) if file is None else _stored(file):
                digest = chain(digest, block)
        return digest.hex()

    def inventory(self) -> list[tuple[str, int]]:
        """Return (name, bytes) of each file, in reading order."""
        return [(file.name, file.size) for file, _ in self.parts if file is not None]

    def settings(self) -> dict[str, Any]:
        """Return the settings by which the input is read, by name, for a manifest.

        ``kind`` and ``strings`` (the columns that are read as text) are always there, ``text_unit`` and
        ``on_bad_record`` only if they are not the defaults.
        """
        further: dict[str, str] = {} if self._text_unit == "line" else {"text_unit": self._text_unit}
        further |= {} if self.on_bad_record == "error" else {"on_bad_record": self.on_bad_record}
        return {"kind": self.kind, "strings": list(self._strings), **further}

    def as_text(self, columns: Collection[str]) -> RecordStream:
        """Return a stream of the same records in which these columns of CSV and TSV files are read as text.

        Columns that are read as text already stay so, and unknown columns are ignored. The stream itself is returned if
        all these columns are read as text already, or if the records are not from CSV or TSV files: the values of other
        formats have types.
        """
        if self.kind not in ("csv", "tsv") or set(columns) <= set(self._strings):
            return self
        strings = {*self._strings, *columns}
        parts = [(file, partial(delimited_runs, file, strings)) for file, _ in self.parts if file is not None]
        told: Any = {"folders": self.folders, "ignored": self.ignored, "on_bad_record": self.on_bad_record}
        return RecordStream(parts, self.kind, strings=strings, **told)

    def types(self) -> dict[str, pa.DataType]:
        """Return the Arrow type of each column of Parquet and Arrow files, by name; of other inputs, {}.

        A column is left out if its type differs between files. For a dictionary column, the type is that of its values.
        Arrow types tell more than the Python values do: the unit of a time, the digits of a decimal, the bits of a
        number.

        Raises:
            SourceError: a file cannot be read, or changed since it was opened.
        """
        if self.kind not in ("parquet", "arrow"):
            return {}
        schemas = [
            parquet_footer(file)[1] if self.kind == "parquet" else arrow_schema(file)
            for file, _ in self.parts
            if file is not None
        ]
        found: dict[str, set[pa.DataType]] = {}
        for field in (field for schema in schemas for field in schema):
            plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            found.setdefault(field.name, set()).add(plain)
        return {name: one for name, (one, *more) in ((name, [*types]) for name, types in found.items()) if not more}

    def read_again(self) -> bool:
        """Return whether the records can be read more than once: True unless the input is an iterator."""
        return self._left is None

    def _begin_reading(self) -> None:
        """Note that a pass over the input begins; an iterator allows only one pass.

        Raises:
            SourceError: the input is an iterator, and was read before.
        """
        if self._left is not None:
            if not self._left:
                raise SourceError("an iterator can be read once; give a function that returns a new one, or a list")
            self._left -= 1

    def _runs(self) -> Iterator[Run]:
        self._begin_reading()
        for _, runs in self.parts:
            yield from runs()


def open_records(
    inputs: Any,
    *,
    strings: Collection[str] = (),
    text_unit: TextUnit = "line",
    paths: bool = False,
    on_bad_record: OnBadRecord = "error",
) -> RecordStream:
    r"""Open files, folders, URLs, saved datasets, ``hf:NAME``, datasets, or dicts as a stream of records.

    Args:
        inputs: a path, URL or ``hf:NAME``, or a list of them; a `datasets.Dataset` or `IterableDataset`; or dicts, as a
            list, an iterator, or a function that returns a new iterator. Files are JSON Lines (``.jsonl``,
            ``.ndjson``, ``.json``), one JSON array (``.json``), SQuAD's own (``.json``, one record per question:
            `nopad.tasks.read_squad`), Parquet, Arrow, CSV, TSV, or text. All but Parquet and Arrow files may be
            compressed (``.gz`` or ``.zst``). Records of text files have the column ``text``. A `RecordStream` is
            returned as it is.
        strings: names of columns of CSV and TSV files that are read as text, even if all their cells are numbers.
        text_unit: what a record of a text file is: a "line", a "paragraph", or the whole "file".
        paths: whether records of text files also have the column ``path``, the path of their file.
        on_bad_record: what to do with records that cannot be decoded: "error" raises RecordError when they are read,
            "skip" leaves them out (tasks count them).

    Raises:
        SourceError: a path is missing, unreadable, given twice, has nothing to read, or has a format that is not read;
            the files have different formats; or `inputs` is of a type that holds no records.
        OptionError: `strings` is given for input other than CSV and TSV files, or is a single string;
            `on_bad_record` or `text_unit` has an unknown value; or `inputs` is a `RecordStream`, and another argument
            is given.
        MissingExtraError: an ``hf:NAME`` or a URL needs a package that is not installed.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text('text,label\n"yes, it is",1\nno,0\n')
    >>> records = open_records(path)
    >>> list(records)
    [{'text': 'yes, it is', 'label': 1}, {'text': 'no', 'label': 0}]
    >>> list(records.read(after=1)), records.count()
    ([{'text': 'no', 'label': 0}], 2)
    """
    if isinstance(inputs, RecordStream):
        given = {"strings": strings or (), "text_unit": text_unit, "paths": paths, "on_bad_record": on_bad_record}
        defaults = {"strings": (), "text_unit": "line", "paths": False, "on_bad_record": "error"}
        changed = [f"{name}={value!r}" for name, value in given.items() if value != defaults[name]]
        if changed:
            raise OptionError(
                f"a RecordStream is given, which is opened already, with {', '.join(changed)}; give this where it is "
                "opened"
            )
        return inputs
    if isinstance(strings, str):
        raise OptionError(f"strings is {shown(strings)}; give a list of columns")
    check_choice("on_bad_record", on_bad_record, OnBadRecord)
    check_choice("text_unit", text_unit, TextUnit)
    made = records_from_python(inputs)
    if made is None:
        made = _from_paths([inputs] if isinstance(inputs, str | os.PathLike) else inputs, strings, text_unit, paths)
    if strings and made.kind not in ("csv", "tsv"):
        raise OptionError(
            f"strings are {', '.join(strings)}, and these records are {made.kind}, whose values have types; "
            "leave it out"
        )
    made.on_bad_record = on_bad_record
    return made


def records_from_python(inputs: Any) -> RecordStream | None:
    """Return a stream of the records in Python objects; None if `inputs` are paths.

    Raises:
        SourceError: `inputs` is a mapping, a table or an array, or an object that holds no records; or a file that a
            dataset maps is missing or unreadable.
    """
    if isinstance(inputs, Mapping):
        names = ", ".join(map(str, list(inputs)[:8]))
        raise SourceError(f"a mapping of {names} is no list of records; give one split, or a list of dicts")
    if hasattr(inputs, "with_format"):
        return RecordStream([(None, opened_dataset(inputs, "dataset"))], "objects")
    refuse_tables(inputs)
    if isinstance(inputs, str | os.PathLike):
        return None
    if isinstance(inputs, Iterator):
        return RecordStream([(None, partial(object_runs, inputs, "memory"))], "objects", once=True)
    if not (callable(inputs) or isinstance(inputs, Iterable)) or isinstance(inputs, bytes | bytearray):
        raise SourceError(f"{type(inputs).__name__} holds no records; give a path, a dataset, or a list of dicts")
    if isinstance(inputs, Sequence) and len(inputs) and isinstance(inputs[0], str | os.PathLike):
        return None
    return RecordStream([(None, partial(object_runs, inputs, "memory"))], "objects")


def _from_paths(inputs: Sequence[Any], strings: Collection[str], text_unit: TextUnit, paths: bool) -> RecordStream:
    finder = Finder(suffixes=RECORDS)
    finder.find_all(inputs)
    parts: list[tuple[InputFile | None, _Runs]] = []
    kinds: list[str] = []
    for found in finder.found:
        match found:
            case FoundArrays(folder):
                raise SourceError(f"{folder}: a folder of arrays holds token ids, and no records; give the records")
            case FoundDataset(name):
                parts.append((None, opened_dataset(hub_dataset(name), name)))
                kinds.append("objects")
            case FoundFile(file):
                kind, runs = opened_runs(file, strings, text_unit, paths)
                parts.append((file, runs))
                kinds.append(kind)
        if kinds[-1] != kinds[0]:
            raise SourceError(
                f"{finder.found[0].place} is {kinds[0]} and {found.place} is {kinds[-1]}; give files of one kind, by "
                "their names"
            )
    told: Any = {"strings": strings, "folders": finder.folders, "ignored": finder.ignored}
    return RecordStream(parts, kinds[0], text_unit=text_unit if kinds[0] == "text" else "line", **told)


def opened_runs(
    file: InputFile, strings: Collection[str], text_unit: TextUnit, paths: bool = False
) -> tuple[str, _Runs]:
    """Return a file's format (as `RecordStream.kind`), and a function that yields its runs from the start.

    A run is a group of consecutive records. `strings` are names of columns of CSV and TSV files that are read as text.
    `text_unit` is what a record of a text file is; with `paths`, such records have the column ``path`` too. Enough of
    the file is read to tell its format. Parquet and Arrow files are opened here, so that a damaged footer or schema is
    found now.

    Raises:
        SourceError: the file cannot be read, or a Parquet or Arrow file is damaged; or a file of unknown suffix, which
            would be read as text, begins like a Parquet, Arrow or compressed file.
    """
    suffix = file.suffix
    if suffix in TABLE_SUFFIXES:
        runs = parquet_runs if suffix == ".parquet" else arrow_runs
        runs(file)
        return ("parquet" if suffix == ".parquet" else "arrow"), partial(runs, file)
    if suffix == ".json" and is_squad(file):
        return "squad", partial(squad_runs, file)
    if suffix in JSONL_SUFFIXES or (suffix == ".json" and not is_array(file)):
        return "jsonl", partial(jsonl_runs, file)
    if suffix == ".json":
        return "json", partial(array_runs, file)
    if suffix in DELIMITED:
        return suffix[1:], partial(delimited_runs, file, strings)
    if suffix not in TEXT_SUFFIXES:
        refuse_magic(file)
    return "text", partial(text_runs, file, text_unit, paths)


def _stored(file: InputFile) -> Iterator[Block]:
    """Yield the stored bytes of a file, not decompressed, as the blocks from which a fingerprint is made."""
    with file.random() as opened:
        while data := opened.read(BLOCK_BYTES):
            file.prove(opened)
            yield Block(name=file.name, data=bytes(data), decoder=_nothing)


def _objects_as_blocks(runs: Iterator[Run]) -> Iterator[Block]:
    for run in runs:
        records = run.each()
        while part := list(islice(records, ROWS)):
            yield Block(name="memory", data=as_json(part), decoder=_nothing)


def _nothing(data: Any, line: int) -> Iterator[Any]:
    return iter(())
