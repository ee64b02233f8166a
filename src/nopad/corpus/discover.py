"""Open any input (files, folders, URLs, datasets, dicts) as a `Source`; the suffix of a file decides its reader.

`nopad.corpus.finding` finds the files. Names, content (text or ids) and columns are checked here, before a job writes
anything. This takes O(files) time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nopad.corpus.arrays import ArrayFolder
from nopad.corpus.encoders import Encoder
from nopad.corpus.finding import (
    DELIMITED,
    JSONL_SUFFIXES,
    OTHERS,
    TABLE_SUFFIXES,
    TEXT_SUFFIXES,
    Finder,
    Found,
    FoundArrays,
    FoundDataset,
    FoundFile,
    Suffixes,
    refuse_magic,
    refuse_tables,
)
from nopad.corpus.hub import hub_dataset
from nopad.corpus.inputs import InputFile
from nopad.corpus.jsonl import JsonlFile
from nopad.corpus.mixture import JoinedSource, MixtureSource
from nopad.corpus.objects import DatasetSource, DictSource
from nopad.corpus.options import ReaderOptions
from nopad.corpus.record_files import RecordFile
from nopad.corpus.record_stream import opened_runs, records_from_python
from nopad.corpus.runs import opened_dataset
from nopad.corpus.source import BLOCK_BYTES, Source
from nopad.corpus.tables import ArrowFile, ParquetFile
from nopad.corpus.text import TextFile
from nopad.errors import OptionError, SourceError
from nopad.options import shown

CORPORA = Suffixes(
    read=TEXT_SUFFIXES + JSONL_SUFFIXES + TABLE_SUFFIXES + DELIMITED, others=OTHERS, named_only=(".json",)
)
# The outputs of a tokenizer, and its input
COLUMNS = ("input_ids", "text", "attention_mask", "labels", "token_type_ids")


class FileSource(JoinedSource):
    """The source of several files (or other sources), read one after the other; all hold text, or all ready-made ids.

    Args:
        files: the source of each file, in reading order.
        ignored: names of files that were found but are not read.
        folders: the folders in which files were looked for.
        settings: the options by which the files are read, by name, as JSON values.
    """

    def __init__(
        self,
        files: Sequence[Source],
        *,
        ignored: Sequence[str] = (),
        folders: Sequence[Path] = (),
        settings: Mapping[str, Any] | None = None,
    ):
        super().__init__(files)
        self._settings = dict(settings or {})
        self.ignored = tuple(ignored)
        self.folders = tuple(folders)
        partitions = [
            part.partition("=")[0] for name, _ in self.inventory() for part in name.split("/")[:-1] if "=" in part
        ]
        self.left_out = tuple(dict.fromkeys([*self.left_out, *(f"{name} (of a folder)" for name in partitions)]))

    def inventory(self) -> list[tuple[str, int]]:
        """Return (name, bytes) of each file, in reading order."""
        return [entry for part in self._parts for entry in part.inventory()]

    def files(self) -> list[InputFile] | None:
        """Return the files, in reading order; None if some input is not a file, or a source does not list its files."""
        found = [part.files() for part in self._parts]
        return None if None in found else [one for files in found for one in files or ()]

    def settings(self) -> dict[str, Any]:
        """Return the options by which the files are read, by name, as JSON values.

        These are the `ReaderOptions`, and the settings of the encoder if there is one.
        """
        return self._settings


def open_source(
    inputs: Any,
    options: ReaderOptions | None = None,
    *,
    encoder: Encoder | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Source:
    r"""Open `inputs` as a source.

    Args:
        inputs: a path, URL or ``hf:NAME``, or a list of these, which are read in this order; a `datasets.Dataset` or
            `IterableDataset`; dicts, as a list, as an iterator, or as a function that returns a new iterator; a list of
            lists of ids; or a source, which is returned as it is. A dict of names to such inputs is a mixture: each
            named source is counted separately.
        options: which columns or fields are read, and how; None: the defaults of `ReaderOptions`.
        encoder: turns each record into token ids or a text, such as `nopad.corpus.encoders.Chats`; None: records have a
            field of text or ids.
        block_bytes: about how many bytes are read at once, as one block.

    Raises:
        SourceError: a path is missing, unreadable, given twice or has nothing to read; `inputs` is of another type; a
            dict of inputs is empty, or has a name that is not allowed; a column that `options` name is missing or
            cannot be read, or the columns are refused for another reason (`nopad.corpus.selection.select`); an option
            is for ids and the input is text; an `encoder` is given for a folder of arrays; some files hold text and
            others ready-made ids; or the files differ in the columns that are packed along, or in the column that marks
            padding. The message says what to do.
        RecordError: a CSV, TSV or JSON file is broken in its first records, which are read to find the columns.
        FormatError: a file that begins as SQuAD's files do is broken.
        OptionError: an option has no effect beside `encoder`; a column to carry is one that the encoder makes; the
            encoder cannot encode the first records (`Encoder.check`); or `options` or an `encoder` are given for what
            is a source already.
        MissingExtraError: an ``hf:NAME`` or a URL needs a package that is not installed.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = path.write_text('{"tokens": [7, 8, 9]}\n{"tokens": [5]}\n')
    >>> source = open_source(path, ReaderOptions(ids_field="tokens"))
    >>> [record.ids.tolist() for block in source.blocks() for record in block.records()]
    [[7, 8, 9], [5]]
    """
    options = options or ReaderOptions()
    if isinstance(inputs, Source):
        if encoder is not None or replace(options, find_labels=False) != ReaderOptions():
            raise OptionError(
                f"this {type(inputs).__name__} is a source already, and is read as it was made; give options and the "
                "encoder where it is made"
            )
        return inputs
    if isinstance(inputs, Mapping):
        if hasattr(inputs, "with_format"):
            splits = ", ".join(map(str, inputs))
            raise SourceError(f"this DatasetDict holds several splits ({splits}); give one of them, or a dict of those")
        if not inputs:
            raise SourceError("the mapping of named inputs is empty; give at least one NAME: INPUT")
        refuse_columns(inputs, options)
        sources = {
            name: open_source(given, options, encoder=encoder, block_bytes=block_bytes)
            for name, given in inputs.items()
        }
        for at in range(len(sources)):
            _check_alike(list(sources.values())[: at + 1], list(sources)[: at + 1])
        return MixtureSource(sources)
    from_python = _from_python(inputs, options) if encoder is None else _encoded(inputs, options, encoder)
    source = _from_paths(inputs, options, encoder, block_bytes) if from_python is None else from_python
    _check_used(source, options)
    return source


def _from_paths(inputs: Any, options: ReaderOptions, encoder: Encoder | None, block_bytes: int) -> Source:
    """Return the source of files, folders, URLs and datasets of the hub (``hf:NAME``).

    `options` say which columns are read. `encoder` makes text or ids of each record; None: a field of the record holds
    them. A block has about `block_bytes` bytes.

    Raises:
        SourceError: a path is missing, unreadable, given twice or has nothing to read; an input cannot be read; or the
            inputs differ in what they hold.
        RecordError: a CSV, TSV or JSON file is broken in its first records.
        FormatError: a file that begins as SQuAD's files do is broken.
        OptionError: an option has no effect beside the encoder; a column to carry is one that the encoder makes; or the
            encoder cannot encode the first records (`Encoder.check`).
        MissingExtraError: an ``hf:NAME`` or a URL needs a package that is not installed.
    """
    finder = Finder(suffixes=CORPORA.only(options.suffixes))
    finder.find_all([inputs] if isinstance(inputs, str | os.PathLike) else inputs)
    files: list[Source] = []
    places: list[str] = []
    for found in finder.found:
        files.append(_opened(found, options, encoder, block_bytes))
        places.append(found.place)
        _check_alike(files, places)
    made = {} if encoder is None else encoder.settings()
    return FileSource(files, ignored=finder.ignored, folders=finder.folders, settings={**options.settings(), **made})


def _opened(found: Found, options: ReaderOptions, encoder: Encoder | None, block_bytes: int) -> Source:
    """Open one input: a file, a folder of arrays, or a dataset of the hub.

    `options` say which columns are read. `encoder` makes text or ids of each record; None: a field of the record holds
    them. A block has about `block_bytes` bytes.

    Raises:
        SourceError: the input cannot be read, or is a folder of arrays beside an encoder, which needs texts.
        RecordError: a CSV, TSV or JSON file is broken in its first records.
        FormatError: a file that begins as SQuAD's files do is broken.
        OptionError: an option has no effect beside the encoder; a column to carry is one that the encoder makes; or the
            encoder cannot encode the first records (`Encoder.check`).
        MissingExtraError: a dataset of the hub needs a package that is not installed.
    """
    match found:
        case FoundDataset(name):
            return _of_hub(name, options, encoder)
        case FoundArrays(folder) if encoder is not None:
            raise SourceError(f"{folder}: a folder of arrays holds token ids; give the texts")
        case FoundArrays(folder):
            return ArrayFolder(folder, options, block_bytes=block_bytes)
        case FoundFile(file):
            return _of_file(file, options, encoder, block_bytes)


def _of_hub(name: str, options: ReaderOptions, encoder: Encoder | None) -> Source:
    """Open the dataset of the hub with this name.

    `options` say which columns are read. `encoder` makes text or ids of each record; None: a column holds them.
    """
    dataset = hub_dataset(name)
    if encoder is None:
        return DatasetSource(dataset, options, name=name)
    typed = dataset.features is not None
    return RecordFile(name, opened_dataset(dataset, name), options, encoder, table=typed)


def _of_file(file: InputFile, options: ReaderOptions, encoder: Encoder | None, block_bytes: int) -> Source:
    """Open a file; its suffix decides the reader.

    `options` say which columns are read. `encoder` makes text or ids of each record; None: a field of the record holds
    them. A block has about `block_bytes` bytes.
    """
    if encoder is not None or file.suffix in (*DELIMITED, ".json"):
        return _of_records(file, options, encoder, block_bytes)
    if file.suffix in JSONL_SUFFIXES:
        return JsonlFile(file, options=options, block_bytes=block_bytes)
    if file.suffix in TABLE_SUFFIXES:
        kind = ParquetFile if file.suffix == ".parquet" else ArrowFile
        return kind(file, options, block_bytes=block_bytes)
    if file.suffix not in TEXT_SUFFIXES:
        refuse_magic(file)
    return TextFile(file, unit=options.text_unit, block_bytes=block_bytes)


def _of_records(file: InputFile, options: ReaderOptions, encoder: Encoder | None, block_bytes: int) -> Source:
    """Open a file whose records are read as dicts: any file if there is an encoder, else a CSV, TSV or JSON file.

    Without an encoder, a ``.json`` file with one object per line is opened as a `JsonlFile`. `options` say which
    columns are read. `encoder` makes text or ids of each record; None: a field of the record holds them. A block has
    about `block_bytes` bytes.
    """
    kind, runs = opened_runs(file, _strings(options, encoder), options.text_unit)
    if kind == "jsonl" and encoder is None:
        return JsonlFile(file, options=options, block_bytes=block_bytes)
    how: Any = {"lines": kind == "jsonl", "table": kind not in ("jsonl", "json"), "block_bytes": block_bytes}
    return RecordFile(file.name, runs, options, encoder, file=file, **how)


def _strings(options: ReaderOptions, encoder: Encoder | None) -> tuple[str, ...]:
    """Return the columns of CSV and TSV files that are read as text, even if all their cells look like numbers.

    These are the columns that the encoder may read; without an encoder, the column that holds the text.
    """
    return encoder.reads if encoder is not None else (options.text_field or "text",)


def _encoded(inputs: Any, options: ReaderOptions, encoder: Encoder) -> Source | None:
    """Return a source of the Python objects in `inputs`; None if `inputs` are paths.

    The objects are records (dicts), and `encoder` makes text or ids of each of them.
    """
    stream = records_from_python(inputs)
    if stream is None:
        return None
    ((_, runs),) = stream.parts
    table = getattr(inputs, "features", None) is not None
    return RecordFile("memory", runs, options, encoder, once=not stream.read_again(), table=table)


def _from_python(inputs: Any, options: ReaderOptions) -> Source | None:
    """Return the source of Python objects, without an encoder.

    The result is None if `inputs` are not such objects; they must then be paths.

    Raises:
        SourceError: `inputs` is a table, an array or another object that is no input; its first item is a list of ids,
            and a later one is not; or a wanted column is missing or cannot be read.
    """
    if hasattr(inputs, "with_format"):
        return DatasetSource(inputs, options)
    refuse_tables(inputs)
    if isinstance(inputs, Iterator) or callable(inputs):
        return DictSource(inputs, options)
    if isinstance(inputs, str | os.PathLike):
        return None
    if not isinstance(inputs, Sequence) or isinstance(inputs, bytes | bytearray):
        raise SourceError(
            f"{type(inputs).__name__} is no input; give a path, a URL, a list of them, a dataset, or a list of dicts"
        )
    first = inputs[0] if len(inputs) else None
    if isinstance(first, Mapping):
        return DictSource(inputs, options)
    if isinstance(first, list | tuple) or hasattr(first, "__array__"):
        for number, ids in enumerate(inputs, 1):
            if not (isinstance(ids, list | tuple) or hasattr(ids, "__array__")):
                raise SourceError(f"memory: record {number} is {type(ids).__name__}, not a list of ids as the first is")
        return DictSource(lambda: ({"input_ids": ids} for ids in inputs), options)
    return None


def _check_used(source: Source, options: ReaderOptions) -> None:
    """Refuse options that a source of text would ignore.

    These are options for ready-made ids, and names of columns to pack along that the source does not have.

    Raises:
        SourceError: the source holds text, and such an option is given.
    """
    if source.kind != "text":
        return
    for name in ("ids_field", "mask_field", "pad_id"):
        value = getattr(options, name)
        if value not in ("auto", None):
            raise SourceError(f"{name} is {shown(value)}, which is for ready-made ids, and this is text; leave it out")
    there = {column.name for column in source.carried}
    gone = [name for name in options.carry if name not in there] if options.carry != "auto" else []
    if gone:
        raise SourceError(f"the column {gone[0]!r} cannot be carried: these files are text, without columns")


def refuse_columns(inputs: Mapping[Any, Any], options: ReaderOptions) -> None:
    """Refuse a dict of columns, such as ``{"input_ids": [...], "label": [...]}``; it would be read as a mixture.

    In a mixture, a key is the name of a source. A value that is a path or a source is allowed under any name.

    Raises:
        SourceError: a key is the name of a column that nopad knows, or of the column of ids, text or padding marks
            that `options` name; and its value is no path and no source.
    """
    mask = None if options.mask_field == "auto" else options.mask_field  # "auto" is no name
    columns = {*COLUMNS, options.ids_field, options.text_field, mask} - {None}
    for name, given in inputs.items():
        if name in columns and not isinstance(given, str | os.PathLike | Source):
            raise SourceError(
                f"{name!r} is a column, and a mapping names whole inputs: give the columns as a dataset, "
                "datasets.Dataset.from_dict(columns), or name the input otherwise"
            )


def _check_alike(files: Sequence[Source], paths: Sequence[str]) -> None:
    """Refuse the last of `files` if its content or its columns differ from those of an earlier file.

    Content: the last file and the first file whose content is known must both hold text, or both ready-made ids. A
    file's content is not known (`Source.kind` is None) if only its records could tell, and it has none. If the last
    file's content is not known, nothing is refused.

    Columns: they are compared only if the last file's columns are known (`Source.columns_known`), and then with the
    first file whose content and columns are both known. The two files must agree in the columns that are packed along,
    and, if they hold ids, in the column that marks padding.

    `files` are the sources opened so far; `paths` are their names in messages.

    Raises:
        SourceError: the last file differs.
    """
    known = next((at for at, file in enumerate(files) if file.kind), None)
    if known is None or files[-1].kind is None:
        return
    if files[known].kind != files[-1].kind:
        text, ids = sorted((known, len(files) - 1), key=lambda at: files[at].kind == "ids")
        raise SourceError(
            f"{paths[text]} holds text and {paths[ids]} ready-made ids; pack them in two separate jobs, "
            "or, where both have both, choose one kind with text_field= or ids_field="
        )
    known = next(at for at, file in enumerate(files) if file.kind and (file.columns_known or file is files[-1]))
    if not files[-1].columns_known:
        return
    if files[known].kind == "ids" and files[known].mask != files[-1].mask:
        masks = [f"padding marked by {name!r}" if name else "no mask" for name in (files[known].mask, files[-1].mask)]
        raise SourceError(
            f"{masks[0]} in {paths[known]}, {masks[1]} in {paths[-1]}; make them alike, or read all without a mask "
            "(mask_field=None, carry=[])"
        )
    here, first = ({column.name: column for column in file.carried} for file in (files[-1], files[known]))
    for name in [*first, *here]:
        if first.get(name) == here.get(name):
            continue
        kinds = [f"{c.type} per {c.per}" if (c := columns.get(name)) else "no such column" for columns in (first, here)]
        raise SourceError(
            f"the column {name!r} is not alike in all files: {kinds[0]} in {paths[known]}, {kinds[1]} in {paths[-1]}; "
            "make them alike, or name the columns to carry with carry="
        )
