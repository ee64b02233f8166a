"""Find the files that a user's paths and URLs name, in reading order. Of their content, only ``state.json`` is read.

A folder is walked recursively, including links to folders, in the byte order of relative paths; hidden files and
folders are skipped. This takes O(files) time. `Finder.ignored` lists what was found and is not read:

* files of kinds that are not read
* datasets packed by nopad
* Arrow files that do not belong to the saved dataset beside them
* files that a link reaches a second time, and links to a folder that contains the link
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nopad.corpus.hub import HUB
from nopad.corpus.inputs import COMPRESSIONS, InputFile, reading
from nopad.corpus.remote import find_remote, is_url
from nopad.errors import SourceError
from nopad.notation import from_json

__all__ = [
    "ARCHIVES",
    "BESIDE",
    "DELIMITED",
    "JSONL_SUFFIXES",
    "MANIFEST",
    "OTHERS",
    "TABLE_SUFFIXES",
    "TEXT_SUFFIXES",
    "Finder",
    "Found",
    "FoundArrays",
    "FoundDataset",
    "FoundFile",
    "Suffixes",
    "refuse_magic",
    "refuse_tables",
]

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
DELIMITED = (".csv", ".tsv")
OTHERS = (".npy", ".npz", ".pkl", ".pdf", ".docx", ".xlsx")
TABLE_SUFFIXES = (".parquet", ".arrow", ".feather")
MAGIC = {b"PAR1": ".parquet", b"ARROW1": ".arrow", b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
MANIFEST = "nopad.json"  # in every folder that nopad has packed
BESIDE = ("state.json", "dataset_info.json")  # what `save_to_disk` writes beside its Arrow files
STATE_BYTES = 1 << 24  # a state.json is read up to here; it has a hundred bytes for each Arrow file
ARCHIVES = (".bz2", ".xz", ".lz4", ".zip", ".tar", ".7z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffixes:
    """Decides which files are read, by their suffixes.

    A file with an unknown suffix is read as text if the user names it directly, and passed over in folders.

    Attributes:
        read: suffixes of files that are read; all but tables may also be compressed.
        others: suffixes of formats that are not read, in addition to `ARCHIVES`.
        named_only: suffixes of files that are read if the user names them directly, and passed over in folders.
    """

    read: tuple[str, ...]
    others: tuple[str, ...]
    named_only: tuple[str, ...] = ()

    def only(self, suffixes: Sequence[str]) -> Suffixes:
        """Return a copy that reads only files with these `suffixes` from folders.

        If `suffixes` is (), nothing is changed, and the object itself is returned.

        Raises:
            SourceError: a suffix is that of a compression, or of a format that nopad does not read.
        """
        for suffix in suffixes:
            if suffix in self.others + ARCHIVES or suffix in COMPRESSIONS:
                raise SourceError(f"{suffix} files are no text; choose other suffixes, or convert them")
        return replace(self, read=tuple(suffixes)) if suffixes else self

    def __str__(self) -> str:
        """Return a text for messages that lists `read`, `named_only`, and the compressions that files may have."""
        lines = [suffix for suffix in self.read if suffix not in TABLE_SUFFIXES]
        also = f"; files of lines also with {' or '.join(COMPRESSIONS)}" if lines else ""
        alone = " or ".join(self.named_only)
        named = f", and {alone} if the path of the file itself is given" if alone else ""
        return f"{', '.join(self.read)}{named}{also}"

    def is_archive(self, file: InputFile) -> bool:
        """Return whether a file is compressed (``.gz``, ``.zst``), and its format cannot be read compressed.

        Such formats are tables (Parquet, Arrow), all that nopad never reads (`others`, `ARCHIVES`), and files that are
        compressed twice.
        """
        return bool(file.compression) and file.suffix in (*TABLE_SUFFIXES, *self.others, *ARCHIVES, *COMPRESSIONS)

    def is_read(self, file: InputFile) -> bool:
        """Return whether a file is read if it is found in a folder; its name alone decides.

        Compressed tables are not read, nor the JSON files that `save_to_disk` writes beside its Arrow files (`BESIDE`).
        """
        beside = file.name.split("/")[-1] in BESIDE
        return file.suffix in self.read and not beside and not self.is_archive(file)

    def named(self, path: Path) -> InputFile:
        """Return the `InputFile` of a path that the user gave; a file with an unknown suffix is allowed, as text.

        Raises:
            SourceError: the file is missing or unreadable, its suffix is of a format that nopad does not read, or it is
                compressed and nopad does not read its format compressed.
        """
        file = InputFile.found(path, path.name) if path.suffix.lower() not in self.others + ARCHIVES else None
        if file is None or self.is_archive(file) or file.suffix in self.others:
            kind = path.suffix if file is None or not file.compression else "".join(path.suffixes[-2:])
            raise SourceError(
                f"{path}: a {kind} file would be read as plain text, which it is not; convert it (nopad reads {self})"
            )
        return file


def refuse_tables(inputs: Any) -> None:
    """Refuse objects of pandas, polars and pyarrow, and arrays.

    Raises:
        SourceError: `inputs` is such an object; the message says how to pass it instead.
    """
    module, name = type(inputs).__module__.partition(".")[0], type(inputs).__name__
    if module == "pandas":
        raise SourceError(f"a pandas {name} is read as a dataset: give datasets.Dataset.from_pandas(frame)")
    if module == "polars":
        raise SourceError(f"a polars {name} is read as a dataset: give datasets.Dataset.from_polars(frame)")
    if module == "pyarrow":
        raise SourceError(f"a pyarrow {name} is read as a dataset: give datasets.Dataset(table), table a pyarrow.Table")
    if getattr(inputs, "is_nested", False):  # its shape cannot be read
        raise SourceError("a nested tensor is no corpus: give a list of its sequences, list(nested.unbind())")
    if hasattr(type(inputs), "__array__"):
        raise SourceError(
            f"{name} of shape {tuple(getattr(inputs, 'shape', ()))} is no corpus: give a list of one-dimensional "
            "arrays, one per sequence (of padded rows: list(array) with pad_id)"
        )


def refuse_magic(file: InputFile) -> None:
    """Refuse a file that would be read as text, but begins like a Parquet, Arrow, gzip or Zstandard file.

    Raises:
        SourceError: the file begins like one of these.
    """
    start = next(file.lines(), b"")
    for magic, suffix in MAGIC.items():
        if start.startswith(magic):
            raise SourceError(f"{file.path}: its content is that of a {suffix} file; rename it so")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that was found.

    Attributes:
        file: the file.
    """

    file: InputFile

    @property
    def place(self) -> str:
        """Name of the input in messages."""
        return str(self.file.path)

    @property
    def identity(self) -> str:
        """A text that tells inputs apart: two inputs with the same text are the same file or dataset."""
        return os.path.realpath(self.file.path) if self.file.remote is None else str(self.file.path)


@dataclass(frozen=True, slots=True)
class FoundArrays:
    """A folder of arrays that was found.

    Attributes:
        folder: the path of the folder.
    """

    folder: Path

    @property
    def place(self) -> str:
        """Name of the input in messages: the path of the folder."""
        return str(self.folder)

    @property
    def identity(self) -> str:
        """A text that tells inputs apart: the path of the folder, without links."""
        return os.path.realpath(self.folder)


@dataclass(frozen=True, slots=True)
class FoundDataset:
    """A dataset on the hub that was named.

    Attributes:
        name: its name, such as ``hf:NAME:SPLIT``.
    """

    name: str

    @property
    def place(self) -> str:
        """Name of the input in messages: the name of the dataset."""
        return self.name

    @property
    def identity(self) -> str:
        """A text that tells inputs apart: the name of the dataset."""
        return self.name


Found = FoundFile | FoundArrays | FoundDataset


@dataclass(kw_only=True)
class Finder:
    """Finds the inputs in reading order. Of their content, only ``state.json`` is read.

    Attributes:
        suffixes: which files are read.
        found: the inputs found so far, in reading order.
        ignored: names of files that were found but are not read.
        folders: the given folders that were walked.
    """

    suffixes: Suffixes
    found: list[Found] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    def find_all(self, inputs: Sequence[str | os.PathLike[str]]) -> None:
        """Find all inputs, and add them to `found`; `ignored` and `folders` are extended too.

        Raises:
            SourceError: no path is given; a path is missing, unreadable, given twice, of a format that is not read, a
                packed dataset or a saved DatasetDict; a folder or URL has nothing to read, or lacks a file of a saved
                dataset; or an item is not a path.
            MissingExtraError: a URL needs a package that is not installed.
        """
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
                self.found.append(FoundDataset(text))
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

    def _at_url(self, url: str) -> None:
        found = find_remote(url)
        packed = tuple(file.name.removesuffix(MANIFEST) for file in found if file.name.split("/")[-1] == MANIFEST)
        if "" in packed:
            raise SourceError(f"{url}: {_PACKED_FOLDER}")
        named = {file.name: file for file in found}
        apart = _no_part(list(named), named.__getitem__, url)
        known = [
            file
            for file in found
            if self.suffixes.is_read(file) and not file.name.startswith(packed) and file.name not in apart
        ]
        if not known:
            raise SourceError(
                f"{url}: none of its {len(found)} files is of a kind that nopad reads; nopad reads {self.suffixes}"
            )
        self.found += map(FoundFile, known)
        read = {file.name for file in known}
        self.ignored += [
            f"{name} (no part of the saved dataset)" if name in apart else name
            for name in (file.name for file in found)
            if name not in read and name.split("/")[-1] not in BESIDE
        ]

    def _at_path(self, path: Path) -> None:
        if not path.is_dir():
            self.found.append(FoundFile(self.suffixes.named(path)))
        elif (path / "dataset_dict.json").is_file():
            splits = sorted(inner.name for inner in path.iterdir() if inner.is_dir())
            raise SourceError(
                f"{path}: a saved DatasetDict of several splits ({', '.join(splits)}); give one of them, such as "
                f"{path / (splits[0] if splits else 'train')}, or each with a name: NAME={path / 'SPLIT'}"
            )
        elif (path / MANIFEST).is_file():
            raise SourceError(f"{path}: {_PACKED_FOLDER}")
        elif (path / "offsets.npy").is_file():
            self.found.append(FoundArrays(path))
        else:
            files, ignored = _find_in(path, self.suffixes)
            self.found += map(FoundFile, files)
            self.ignored += ignored
            self.folders.append(path)


_PACKED_FOLDER = "a packed dataset already; open it with nopad.open_packed, or give its source"


def _no_part(names: Sequence[str], opened: Callable[[str], InputFile], place: Path | str) -> set[str]:
    """Return the Arrow files among `names` that lie in the folder of a saved dataset and are not a part of it.

    The state.json of a saved dataset states which files are part of the dataset. The others are caches of
    `datasets.map`, and shards of an earlier `save_to_disk`. A state.json that another program wrote, or that lists no
    file, is ignored. `opened` returns the file with a given name; `place` is for messages.

    Raises:
        SourceError: a file that state.json lists is missing, or state.json cannot be read.
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
            state = from_json(opened(f"{folder}state.json").whole(STATE_BYTES))
            parts = {str(part["filename"]) for part in state["_data_files"]}
        except (ValueError, KeyError, TypeError):  # state.json is of another program
            continue
        if missing := sorted(parts - files):
            raise SourceError(f"{place}: {folder}{missing[0]} of this saved dataset is missing; save the dataset again")
        if parts:
            apart |= {folder + file for file in files - parts if file.endswith(".arrow")}
    return apart


def _find_in(folder: Path, suffixes: Suffixes) -> tuple[list[InputFile], list[str]]:
    """Return two sorted lists: the files of a folder that are read, and for messages, the names of those that are not.

    A file that is found twice, through a link, is in the first list once, and in the second list too. The second list
    also has the folders that are not entered (`_walk`). Neither list has hidden files and folders, or the JSON files
    that `save_to_disk` writes beside its Arrow files (`BESIDE`).

    Raises:
        SourceError: the folder has no file that is read; it holds a saved dataset of which a file is missing; or a file
            in it cannot be read.
    """
    found = dict(_walk(folder))
    names = sorted(found, key=lambda name: name.encode("utf-8", "surrogateescape"))
    read: dict[str, str] = {}
    files, ignored = [], []
    apart = _no_part([name for name in names if found[name]], lambda name: InputFile.found(folder / name, name), folder)
    for name in names:
        if name in apart:
            ignored.append(f"{name} (no part of the saved dataset)")
            continue
        if not (found[name] and suffixes.is_read(InputFile(path=folder / name, name=name, size=0))):
            if name.split("/")[-1] not in BESIDE:
                ignored.append(name)
            continue
        first = read.setdefault(os.path.realpath(folder / name), name)
        if first == name:
            files.append(InputFile.found(folder / name, name))
        else:
            ignored.append(f"{name} (the same file as {first})")
    if not files:
        held = "the folder is empty (hidden files do not count)"
        if names:
            held = f"none of its {len(names)} files is of a kind that nopad reads (such as {names[0]!r})"
        raise SourceError(f"{folder}: {held}; nopad reads {suffixes}")
    return files, ignored


def _walk(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield the relative POSIX paths of all files that are not hidden, and of the folders that are not entered.

    Each path comes with whether it is that of a file. Two kinds of folder are yielded and not entered: packed datasets,
    and links to a folder that contains the link. Hidden folders are neither yielded nor entered.
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
        for is_file, names in ((True, files), (False, sorted({*loops, *packed}))):
            for name in names:
                if not name.startswith("."):
                    yield (Path(parent) / name).relative_to(folder).as_posix(), is_file
