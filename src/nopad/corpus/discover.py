"""Open what the user gave (files, folders and URLs, mixed) as a `Source`, with a reader per file suffix.

A folder is walked recursively, including links to folders, in the byte order of relative paths; hidden files and
folders are skipped. Files without a reader, datasets packed by nopad, Arrow files that are no part of the saved dataset
beside them, and files that links reach a second time are listed in `ignored`. Everything that can be checked without
reading the corpus is checked here, before anything is written: O(files).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nopad.corpus.arrays import ArrayFolder
from nopad.corpus.hub import HUB, load_hub
from nopad.corpus.inputs import COMPRESSIONS, InputFile, reading
from nopad.corpus.jsonl import JsonlFile
from nopad.corpus.mixture import MixtureSource
from nopad.corpus.objects import DatasetSource, DictSource
from nopad.corpus.options import ReaderOptions
from nopad.corpus.remote import find_remote, is_url
from nopad.corpus.source import BLOCK_BYTES, Block, Source, located
from nopad.corpus.tables import ArrowFile, ParquetFile
from nopad.corpus.text import TextFile
from nopad.errors import SourceError

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
TABLE_SUFFIXES = (".parquet", ".arrow", ".feather")
SUFFIXES = TEXT_SUFFIXES + JSONL_SUFFIXES + TABLE_SUFFIXES
# A file that is named directly and has an unknown suffix is read as text; files with these suffixes are no text.
OTHERS = (".json", ".csv", ".tsv", ".npy", ".npz", ".pkl", ".pdf", ".docx", ".xlsx")
MAGIC = {b"PAR1": ".parquet", b"ARROW1": ".arrow", b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
MANIFEST = "nopad.json"  # in every folder that nopad has packed
BESIDE = ("state.json", "dataset_info.json")  # what `save_to_disk` writes beside its Arrow files
STATE_BYTES = 1 << 24  # a state.json is read up to here; it has a hundred bytes for each Arrow file
COLUMNS = (
    "input_ids",
    "text",
    "attention_mask",
    "labels",
    "token_type_ids",
)  # the outputs of a tokenizer, and its input
ARCHIVES = (".bz2", ".xz", ".lz4", ".zip", ".tar", ".7z")
_READS = f"{', '.join(SUFFIXES)}, text and JSONL also with {' or '.join(COMPRESSIONS)}"


class FileSource(Source):
    """Several files, one after the other, all text or all ready-made ids."""

    def __init__(
        self,
        files: Sequence[Source],
        *,
        ignored: Sequence[str] = (),
        folders: Sequence[Path] = (),
        settings: Mapping[str, Any] | None = None,
    ):
        self._files = tuple(files)
        self._settings = dict(settings or {})
        self.ignored = tuple(ignored)
        self.folders = tuple(folders)
        self.kind = next((file.kind for file in self._files if file.kind), None)
        sizes = [file.total_bytes for file in self._files]
        self.total_bytes = None if None in sizes else sum(size for size in sizes if size is not None)
        self.carried = next((file.carried for file in self._files if file.kind), ())
        self.mask = next((file.mask for file in self._files if file.kind), None)
        partitions = [
            part.partition("=")[0] for name, _ in self.inventory() for part in name.split("/")[:-1] if "=" in part
        ]
        named = [
            *(name for file in self._files for name in file.left_out),
            *(f"{name} (of a folder)" for name in partitions),
        ]
        self.left_out = tuple(dict.fromkeys(named))

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of each file in turn."""
        return located(self._files)

    def blocks_from(self, at: tuple[int, ...]) -> Iterator[Block]:
        """Yield the blocks from number `at[0]` of the files on, and in it from ``at[1:]``."""
        return located(self._files, at)

    def inventory(self) -> list[tuple[str, int]]:
        """Return (name, bytes) of each file, in reading order."""
        return [entry for file in self._files for entry in file.inventory()]

    def files(self) -> list[InputFile] | None:
        """Return the files, in reading order; None if a part of it comes from elsewhere."""
        found = [file.files() for file in self._files]
        return None if None in found else [one for files in found for one in files or ()]

    def settings(self) -> dict[str, Any]:
        """Return the `ReaderOptions` by name."""
        return self._settings


def open_source(
    inputs: Any,
    options: ReaderOptions | None = None,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Source:
    r"""Open `inputs` as a source, read according to `options`.

    `inputs`: a path, URL or ``hf:NAME``, or several of them, read in this order; a `datasets.Dataset` or
    `IterableDataset`; or dicts: a list, an iterator, or a function that returns a new iterator. A mapping of names to
    such inputs is a mixture: each named source is counted separately.

    Raises SourceError for a path that is missing, unreadable, given twice or has nothing to read, for text and
    ready-made ids in one job, and for files whose columns differ; the message names the path and says what to do.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = path.write_text('{"tokens": [7, 8, 9]}\n{"tokens": [5]}\n')
    >>> source = open_source(path, ReaderOptions(ids_field="tokens"))
    >>> [record.ids.tolist() for block in source.blocks() for record in block.records()]
    [[7, 8, 9], [5]]
    """
    options = options or ReaderOptions()
    if isinstance(inputs, Mapping):
        if hasattr(inputs, "with_format"):
            splits = ", ".join(map(str, inputs))
            raise SourceError(f"this DatasetDict holds several splits ({splits}); give one of them, or a dict of those")
        if not inputs:
            raise SourceError("the mapping of named inputs is empty; give at least one NAME: INPUT")
        _refuse_columns(inputs, options)
        sources = {name: open_source(given, options, block_bytes=block_bytes) for name, given in inputs.items()}
        for at in range(len(sources)):
            _check_alike(list(sources.values())[: at + 1], list(sources)[: at + 1])
        return MixtureSource(sources)
    from_python = _from_python(inputs, options)
    source = _from_paths(inputs, options, block_bytes) if from_python is None else from_python
    _check_used(source, options)
    return source


def _from_paths(inputs: Any, options: ReaderOptions, block_bytes: int) -> Source:
    """Return the source of files, folders and URLs."""
    finder = _Finder(options=options, block_bytes=block_bytes)
    finder.find_all([inputs] if isinstance(inputs, str | os.PathLike) else inputs)
    files: list[Source] = []
    places: list[str] = []
    for found in finder.found:
        files.append(found.open())
        places.append(found.place)
        _check_alike(files, places)
    return FileSource(files, ignored=finder.ignored, folders=finder.folders, settings=options.settings())


def _from_python(inputs: Any, options: ReaderOptions) -> Source | None:
    """Return the source of Python objects; None if `inputs` are paths."""
    if hasattr(inputs, "with_format"):
        return DatasetSource(inputs, options)
    _refuse_tables(inputs)
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
    """Refuse options that a text source would ignore: options for ready-made ids, and names of columns to carry."""
    if source.kind != "text":
        return
    for name in ("ids_field", "mask_field", "pad_id"):
        value = getattr(options, name)
        if value not in ("auto", None):
            raise SourceError(f"{name} is {value!r}, which is for ready-made ids, and this is text; leave it out")
    there = {column.name for column in source.carried}
    gone = [name for name in options.carry if name not in there] if options.carry != "auto" else []
    if gone:
        raise SourceError(f"the column {gone[0]!r} cannot be carried: these files are text, without columns")


def _refuse_columns(inputs: Mapping[Any, Any], options: ReaderOptions) -> None:
    """Refuse a mapping whose names are columns: each column would be read as a source, such as the masks as ids."""
    columns = (*COLUMNS, options.ids_field, options.text_field, options.mask_field)
    for name, given in inputs.items():
        if name in columns and not isinstance(given, str | os.PathLike):
            raise SourceError(
                f"{name!r} is a column, and a mapping names whole inputs: give the columns as a dataset, "
                "datasets.Dataset.from_dict(columns), or name the input otherwise"
            )


def _refuse_tables(inputs: Any) -> None:
    """Refuse tables and arrays of other libraries; the error says how to give them."""
    module, name = type(inputs).__module__.partition(".")[0], type(inputs).__name__
    if module == "pandas":
        raise SourceError("a DataFrame is read as a dataset: give datasets.Dataset.from_pandas(frame)")
    if module == "polars":
        raise SourceError(f"a polars {name} is read as a dataset: give datasets.Dataset.from_polars(frame)")
    if module == "pyarrow":
        raise SourceError(f"a pyarrow {name} is read as a dataset: give datasets.Dataset(table), table a pyarrow.Table")
    if hasattr(inputs, "__array__"):
        raise SourceError(
            f"{name} of shape {tuple(getattr(inputs, 'shape', ()))} is no corpus: give a list of one-dimensional "
            "arrays, one per sequence (of padded rows: list(array) with pad_id)"
        )


@dataclass(frozen=True)
class _Found:
    """One input: its name for messages, an identity by which duplicates are found, and the function that opens it."""

    place: str
    identity: str
    open: Callable[[], Source]


@dataclass(kw_only=True)
class _Finder:
    """Finds the inputs in reading order, without opening them.

    Attributes:
        found: the inputs.
        ignored: names of files that are not read.
        folders: the folders that were walked.
    """

    options: ReaderOptions
    block_bytes: int
    found: list[_Found] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    def find_all(self, inputs: Sequence[str | os.PathLike[str]]) -> None:
        """Find all inputs, and refuse an input that was given twice."""
        if not inputs:
            raise SourceError("no input was given; give text files, JSONL files, Parquet files, or folders of them")
        for given in inputs:
            if not isinstance(given, str | os.PathLike):
                raise SourceError(f"{type(given).__name__} in a list of paths; give paths and URLs, or a list of dicts")
            text = os.fspath(given)
            if not isinstance(text, str) or not text or "\0" in text:
                raise SourceError(
                    f"{text!r} is no path; give that of a file or folder, a folder by '.' if it is this one"
                )
            if text.startswith(HUB):
                self.found.append(_Found(text, text, partial(load_hub, text, self.options)))
            elif is_url(text):
                self._at_url(text)
            else:
                with reading(Path(text)):
                    self._at_path(Path(text))
        seen: dict[str, str] = {}
        for one in self.found:
            if one.identity in seen:
                same = "" if seen[one.identity] == one.place else f" (it is the same file as {seen[one.identity]})"
                raise SourceError(f"{one.place}: given twice{same}; give each file, or the folder it is in, once")
            seen[one.identity] = one.place

    def _add(self, file: InputFile) -> None:
        identity = os.path.realpath(file.path) if file.remote is None else str(file.path)
        self.found.append(_Found(str(file.path), identity, partial(self._opened, file)))

    def _at_url(self, url: str) -> None:
        found = [
            InputFile(path=path, name=name, size=size, remote=remote, stamp=stamp)
            for path, name, size, stamp, remote in find_remote(url)
        ]
        packed = tuple(file.name.removesuffix(MANIFEST) for file in found if file.name.split("/")[-1] == MANIFEST)
        if "" in packed:
            raise SourceError(f"{url}: {_PACKED_FOLDER}")
        named = {file.name: file for file in found}
        apart = _no_part(list(named), named.__getitem__, url)
        known = [
            file for file in found if _is_read(file) and not file.name.startswith(packed) and file.name not in apart
        ]
        if not known:
            raise SourceError(
                f"{url}: none of its {len(found)} files is of a kind that nopad reads; nopad reads {_READS}"
            )
        for file in known:
            self._add(file)
        self.ignored += [file.name for file in found if file not in known]

    def _at_path(self, path: Path) -> None:
        if not path.is_dir():
            self._add(_named_file(path))
        elif (path / "dataset_dict.json").is_file():
            splits = sorted(inner.name for inner in path.iterdir() if inner.is_dir())
            raise SourceError(
                f"{path}: a saved DatasetDict of several splits ({', '.join(splits)}); give one of them, such as "
                f"{path / (splits[0] if splits else 'train')}, or each with a name: NAME={path / 'SPLIT'}"
            )
        elif (path / MANIFEST).is_file():
            raise SourceError(f"{path}: {_PACKED_FOLDER}")
        elif (path / "offsets.npy").is_file():
            opened = partial(ArrayFolder, path, self.options, block_bytes=self.block_bytes)
            self.found.append(_Found(str(path), os.path.realpath(path), opened))
        else:
            files, ignored = _find_in(path)
            for file in files:
                self._add(file)
            self.ignored += ignored
            self.folders.append(path)

    def _opened(self, file: InputFile) -> Source:
        """Open a file with the reader of its suffix."""
        if file.suffix in JSONL_SUFFIXES:
            return JsonlFile(file, options=self.options, block_bytes=self.block_bytes)
        if file.suffix in TABLE_SUFFIXES:
            kind = ParquetFile if file.suffix == ".parquet" else ArrowFile
            return kind(file, self.options, block_bytes=self.block_bytes)
        if file.suffix not in TEXT_SUFFIXES:
            start = next(file.lines(), b"")
            for magic, suffix in MAGIC.items():
                if start.startswith(magic):
                    raise SourceError(f"{file.path}: its content is that of a {suffix} file; rename it so")
        return TextFile(file, unit=self.options.text_unit, block_bytes=self.block_bytes)


_PACKED_FOLDER = "a packed dataset already; open it with nopad.open_packed, or give its source"


def _check_alike(files: Sequence[Source], paths: Sequence[str]) -> None:
    """Refuse the last of several files if it differs from the first: text instead of ids, or other columns."""
    known = next((at for at, file in enumerate(files) if file.kind), None)
    if known is None or files[-1].kind is None:
        return
    if files[known].kind != files[-1].kind:
        text, ids = sorted((known, len(files) - 1), key=lambda at: files[at].kind == "ids")
        raise SourceError(
            f"{paths[text]} holds text and {paths[ids]} ready-made ids; pack them in two separate jobs, "
            "or, where both have both, choose one kind with text_field= or ids_field="
        )
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


def _named_file(path: Path) -> InputFile:
    """Return a file that the user named directly; a file with an unknown suffix is read as text.

    Raises:
        SourceError: the suffix is one of a format that nopad knows and does not read.
    """
    file = InputFile.found(path, path.name) if path.suffix.lower() not in OTHERS + ARCHIVES else None
    if file is None or _is_archive(file) or file.suffix in OTHERS:
        way = "rename it to .jsonl if it has one object a line" if path.suffix == ".json" else "convert it"
        raise SourceError(
            f"{path}: a {path.suffix} file would be read as plain text, which it is not; {way} (nopad reads {_READS})"
        )
    return file


def _is_read(file: InputFile) -> bool:
    """Whether nopad reads a file in a folder, by its suffix; compressed tables are not read."""
    return file.suffix in SUFFIXES and not _is_archive(file)


def _is_archive(file: InputFile) -> bool:
    """Whether a file is compressed although its format cannot be read compressed."""
    return bool(file.compression) and file.suffix in (*TABLE_SUFFIXES, *OTHERS, ".tar")


def _no_part(names: Sequence[str], opened: Callable[[str], InputFile], place: Path | str) -> set[str]:
    """Return the Arrow files among `names` that lie beside a saved dataset and are no part of it.

    Which files are part of a saved dataset is stated in its state.json. The others are caches of `datasets.map`, and
    shards of an earlier `save_to_disk`. `opened` returns the file with a name; `place` is for messages.

    Raises:
        SourceError: a file that state.json lists is missing.
    """
    folders: dict[str, set[str]] = {}
    for name in names:
        folder, slash, file = name.rpartition("/")
        folders.setdefault(folder + slash, set()).add(file)
    apart: set[str] = set()
    for folder, files in folders.items():
        if "state.json" not in files:
            continue
        try:
            state = json.loads(opened(f"{folder}state.json").whole(STATE_BYTES))
            parts = {str(part["filename"]) for part in state["_data_files"]}
        except (ValueError, KeyError, TypeError, RecursionError):  # of another program
            continue
        if missing := sorted(parts - files):
            raise SourceError(f"{place}: {folder}{missing[0]} of this saved dataset is missing; save the dataset again")
        if parts:
            apart |= {folder + file for file in files - parts if file.endswith(".arrow")}
    return apart


def _find_in(folder: Path) -> tuple[list[InputFile], list[str]]:
    """Return the files of a folder, sorted and each once, and the names of files that are not read."""
    names = sorted(_walk(folder), key=lambda name: name.encode("utf-8", "surrogateescape"))
    read: dict[str, str] = {}
    files, ignored = [], []
    apart = _no_part(names, lambda name: InputFile.found(folder / name, name), folder)
    for name in names:
        if name in apart:
            ignored.append(f"{name} (no part of the saved dataset)")
            continue
        if not _is_read(InputFile(path=folder / name, name=name, size=0)):
            if name.split("/")[-1] not in BESIDE:
                ignored.append(name)
            continue
        first = read.setdefault(os.path.realpath(folder / name), name)
        if first == name:
            files.append(InputFile.found(folder / name, name))
        else:
            ignored.append(f"{name} (the same file as {first})")
    if not files:
        held = (
            f"none of its {len(names)} files is of a kind that nopad reads (such as {names[0]!r})"
            if names
            else ("the folder is empty (hidden files do not count)")
        )
        raise SourceError(f"{folder}: {held}; nopad reads {_READS}")
    return files, ignored


def _walk(folder: Path) -> Iterator[str]:
    """Yield the relative POSIX paths of all files that are not hidden, and of the folders that are not entered.

    Two kinds of folder are not entered: packed datasets, and links to a folder that contains the link.
    """

    def fail(error: OSError) -> None:
        with reading(Path(error.filename)):
            raise error

    for parent, folders, files in os.walk(folder, followlinks=True, onerror=fail):
        here = os.path.realpath(parent)
        kept = [name for name in folders if not name.startswith(".")]
        # a link to one of its own parent folders would be walked for ever
        loops = [n for n in kept if (here + os.sep).startswith(os.path.realpath(os.path.join(parent, n)) + os.sep)]
        packed = [name for name in kept if os.path.isfile(os.path.join(parent, name, MANIFEST))]
        folders[:] = [name for name in kept if name not in loops + packed]
        for name in files + sorted({*loops, *packed}):
            if not name.startswith("."):
                yield (Path(parent) / name).relative_to(folder).as_posix()
