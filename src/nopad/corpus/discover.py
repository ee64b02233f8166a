"""From what the user typed to a `Source`: files and folders, mixed, each file given to the reader of its suffix.

A folder is walked recursively, links to folders included, in the byte order of the paths relative to it; hidden files
and folders are passed over. What no reader handles is listed in `ignored`, never silently dropped. Everything that can
be checked without reading the corpus is checked here, before anything is written: O(files).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from nopad.corpus.inputs import InputFile, reading
from nopad.corpus.jsonl import Field, JsonlFile
from nopad.corpus.source import BLOCK_BYTES, Block, Source
from nopad.corpus.text import TextFile, TextUnit
from nopad.errors import OptionError, SourceError

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
SUFFIXES = TEXT_SUFFIXES + JSONL_SUFFIXES
# Named directly, a file of an unknown suffix is text; these are known, and are not.
TABLES = (".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather", ".npy", ".npz", ".pkl", ".pdf", ".docx", ".xlsx")
ARCHIVES = (".gz", ".zst", ".bz2", ".xz", ".lz4", ".zip", ".tar", ".7z")


class FileSource(Source):
    """Several files, one after the other, all text or all ready-made ids."""

    def __init__(
        self, files: Sequence[Source], *, ignored: Sequence[str] = (), settings: Mapping[str, str | None] | None = None
    ):
        self._files = tuple(files)
        self._settings = dict(settings or {})
        self.ignored = tuple(ignored)
        self.kind = next((file.kind for file in self._files if file.kind), None)
        self.total_bytes = sum(size for _, size in self.inventory())

    def blocks(self) -> Iterator[Block]:
        """The blocks of each file in turn."""
        for file in self._files:
            yield from file.blocks()

    def inventory(self) -> list[tuple[str, int]]:
        """(name, bytes) of each file, in reading order."""
        return [entry for file in self._files for entry in file.inventory()]

    def settings(self) -> dict[str, str | None]:
        """The options of `open_source`."""
        return self._settings


def open_source(
    inputs: Sequence[str | Path] | str | Path,
    *,
    text_unit: TextUnit = "file",
    text_field: str | None = None,
    ids_field: str | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> FileSource:
    r"""The source that reads all `inputs`, in the order given.

    Raises OptionError for options that no reader has, SourceError for a path that is missing, unreadable, given twice
    or without anything to read, and for text and ready-made ids in one job; each names the path and the way out.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = path.write_text('{"tokens": [7, 8, 9]}\n{"tokens": [5]}\n')
    >>> source = open_source(path, ids_field="tokens")
    >>> [record.ids.tolist() for block in source.blocks() for record in block.records()]
    [[7, 8, 9], [5]]
    """
    if text_unit not in get_args(TextUnit):
        raise OptionError(f"text_unit is {text_unit!r}; it must be 'file' or 'line'")
    if text_field is not None and ids_field is not None:
        raise OptionError(f"text_field {text_field!r} and ids_field {ids_field!r} exclude each other; give one of them")
    field = Field(name=ids_field, kind="ids") if ids_field is not None else None
    field = Field(name=text_field, kind="text") if text_field is not None else field
    found, ignored = _find_all([inputs] if isinstance(inputs, str | Path) else inputs)
    files: list[Source] = []
    first: dict[str | None, Path] = {}
    for file in found:
        is_jsonl = file.path.suffix.lower() in JSONL_SUFFIXES
        source: Source = (
            JsonlFile(file, field=field, block_bytes=block_bytes)
            if is_jsonl
            else TextFile(file, unit=text_unit, block_bytes=block_bytes)
        )
        first.setdefault(source.kind, file.path)
        if "text" in first and "ids" in first:
            raise SourceError(
                f"{first['text']} holds text and {first['ids']} ready-made ids; pack them in two separate jobs, "
                "or choose one kind with --text-field or --ids-field"
            )
        files.append(source)
    settings = {"text_unit": text_unit, "text_field": text_field, "ids_field": ids_field}
    return FileSource(files, ignored=ignored, settings=settings)


def _find_all(inputs: Sequence[str | Path]) -> tuple[list[InputFile], list[str]]:
    """All files of all inputs, and the names of those that no reader handles."""
    if not inputs:
        raise SourceError("no input was given; give text files, JSONL files, or folders of them")
    files: list[InputFile] = []
    ignored: list[str] = []
    for path in map(Path, inputs):
        if path.is_dir():
            in_folder, unknown = _find_in(path)
            files += in_folder
            ignored += unknown
        else:
            if path.suffix.lower() in TABLES + ARCHIVES:
                way = "rename it to .jsonl if it has one object a line" if path.suffix == ".json" else "convert it"
                raise SourceError(
                    f"{path}: a {path.suffix} file would be read as plain text, which it is not; {way} "
                    f"(nopad reads {', '.join(SUFFIXES)})"
                )
            files.append(InputFile.found(path, path.name))
    seen: set[str] = set()
    for file in files:
        absolute = os.path.abspath(file.path)
        if absolute in seen:
            raise SourceError(f"{file.path}: given twice; give each file, or the folder it is in, once")
        seen.add(absolute)
    return files, ignored


def _find_in(folder: Path) -> tuple[list[InputFile], list[str]]:
    """The files of one folder, sorted, and the names of those that no reader handles."""
    names = sorted(_walk(folder), key=lambda name: name.encode("utf-8", "surrogateescape"))
    known = [name for name in names if Path(name).suffix.lower() in SUFFIXES]
    ignored = [name for name in names if Path(name).suffix.lower() not in SUFFIXES]
    if not known:
        held = (
            f"none of its {len(names)} files is of a kind that nopad reads (such as {names[0]!r})"
            if names
            else ("the folder is empty (hidden files do not count)")
        )
        raise SourceError(f"{folder}: {held}; nopad reads {', '.join(SUFFIXES)}")
    return [InputFile.found(folder / name, name) for name in known], ignored


def _walk(folder: Path) -> Iterator[str]:
    """POSIX paths relative to `folder` of everything in it that is not a folder and not hidden."""

    def fail(error: OSError) -> None:
        with reading(Path(error.filename)):
            raise error

    for parent, folders, files in os.walk(folder, followlinks=True, onerror=fail):
        here = os.path.realpath(parent)
        kept = [name for name in folders if not name.startswith(".")]
        # a link that leads back to one of its own parents would be walked for ever
        loops = [n for n in kept if (here + os.sep).startswith(os.path.realpath(os.path.join(parent, n)) + os.sep)]
        folders[:] = [name for name in kept if name not in loops]
        for name in files + loops:
            if not name.startswith("."):
                yield (Path(parent) / name).relative_to(folder).as_posix()
