"""From what the user typed to a `Source`: files, folders and URLs, mixed, each file given to the reader of its suffix.

A folder is walked recursively, links to folders included, in the byte order of the paths relative to it; hidden files
and folders are passed over. What no reader handles is listed in `ignored`, never silently dropped. Everything that can
be checked without reading the corpus is checked here, before anything is written: O(files).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from nopad.corpus.arrays import ArrayFolder
from nopad.corpus.hub import HUB, load_hub
from nopad.corpus.inputs import COMPRESSIONS, InputFile, reading
from nopad.corpus.jsonl import JsonlFile
from nopad.corpus.mixture import MixtureSource
from nopad.corpus.objects import DatasetSource, DictSource
from nopad.corpus.remote import find_remote, is_url
from nopad.corpus.selection import Reading
from nopad.corpus.source import BLOCK_BYTES, Block, IterableSource, Source
from nopad.corpus.tables import ArrowFile, ParquetFile
from nopad.corpus.text import TextFile, TextUnit
from nopad.errors import OptionError, SourceError

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
TABLE_SUFFIXES = (".parquet", ".arrow", ".feather")
SUFFIXES = TEXT_SUFFIXES + JSONL_SUFFIXES + TABLE_SUFFIXES
# Named directly, a file of an unknown suffix is text; these are known, and are not.
OTHERS = (".json", ".csv", ".tsv", ".npy", ".npz", ".pkl", ".pdf", ".docx", ".xlsx")
MAGIC = {b"PAR1": ".parquet", b"ARROW1": ".arrow", b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
BESIDE = ("state.json", "dataset_info.json")  # what `save_to_disk` writes beside its Arrow files
ARCHIVES = (".bz2", ".xz", ".lz4", ".zip", ".tar", ".7z")
READER_OPTIONS = ("text_unit", "text_field", "ids_field", "carry", "mask_field", "pad_id")  # of `open_source`
_READS = f"{', '.join(SUFFIXES)}, text and JSONL also with {' or '.join(COMPRESSIONS)}"


class FileSource(Source):
    """Several files, one after the other, all text or all ready-made ids."""

    def __init__(
        self, files: Sequence[Source], *, ignored: Sequence[str] = (), settings: Mapping[str, Any] | None = None
    ):
        self._files = tuple(files)
        self._settings = dict(settings or {})
        self.ignored = tuple(ignored)
        self.kind = next((file.kind for file in self._files if file.kind), None)
        sizes = [file.total_bytes for file in self._files]
        self.total_bytes = None if None in sizes else sum(size for size in sizes if size is not None)
        self.carried = next((file.carried for file in self._files if file.kind), ())
        self.mask = next((file.mask for file in self._files if file.kind), None)
        folders = [
            part.partition("=")[0] for name, _ in self.inventory() for part in name.split("/")[:-1] if "=" in part
        ]
        named = [
            *(name for file in self._files for name in file.left_out),
            *(f"{name} (of a folder)" for name in folders),
        ]
        self.left_out = tuple(dict.fromkeys(named))

    def blocks(self) -> Iterator[Block]:
        """The blocks of each file in turn."""
        for file in self._files:
            yield from file.blocks()

    def inventory(self) -> list[tuple[str, int]]:
        """(name, bytes) of each file, in reading order."""
        return [entry for file in self._files for entry in file.inventory()]

    def settings(self) -> dict[str, Any]:
        """The options of `open_source`."""
        return self._settings


def open_source(
    inputs: Any,
    *,
    text_unit: TextUnit = "file",
    text_field: str | None = None,
    ids_field: str | None = None,
    carry: Sequence[str] | Literal["auto"] = "auto",
    mask_field: str | None = "auto",
    pad_id: int | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Source:
    r"""The source that reads `inputs`; see `Reading` for what is read of them.

    `inputs`: a path, URL or ``hf:NAME``, or several in the order in which they are read; a `datasets.Dataset` or
    `IterableDataset`; or dicts: a list, an iterator, or a function that returns a new iterator. A mapping of names to
    such inputs is a mixture, each of which is counted apart and may get a weight (`PackOptions.weights`).

    Raises OptionError for options that no reader has, SourceError for a path that is missing, unreadable, given twice
    or without anything to read, for text and ready-made ids in one job, and for files whose columns differ; each names
    the path and the way out.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = path.write_text('{"tokens": [7, 8, 9]}\n{"tokens": [5]}\n')
    >>> source = open_source(path, ids_field="tokens")
    >>> [record.ids.tolist() for block in source.blocks() for record in block.records()]
    [[7, 8, 9], [5]]
    """
    if text_unit not in get_args(TextUnit):
        raise OptionError(f"text_unit is {text_unit!r}; it must be 'file' or 'line'")
    how = Reading(
        text_field=text_field,
        ids_field=ids_field,
        carry="auto" if carry == "auto" else tuple(carry),
        mask_field=mask_field,
        pad_id=pad_id,
    )
    if isinstance(inputs, Mapping):
        if hasattr(inputs, "with_format"):
            splits = ", ".join(map(str, inputs))
            raise SourceError(f"this DatasetDict holds several splits ({splits}); give one of them, or a dict of those")
        if not inputs:
            raise SourceError("the mapping of named inputs is empty; give at least one NAME: INPUT")
        options: dict[str, Any] = {**vars(how), "text_unit": text_unit, "block_bytes": block_bytes}
        sources = {name: open_source(given, **options) for name, given in inputs.items()}
        for at in range(len(sources)):
            _check_alike(list(sources.values())[: at + 1], list(sources)[: at + 1])
        return MixtureSource(sources)
    from_python = _from_python(inputs, how)
    if from_python is not None:
        return from_python
    files: list[Source] = []
    paths: list[Path | str] = []
    found, ignored = _find_all([inputs] if isinstance(inputs, str | Path) else inputs)
    for file in found:
        files.append(_opened(file, how, text_unit, block_bytes))
        paths.append(file.path if isinstance(file, InputFile) else file)
        _check_alike(files, paths)
    return FileSource(files, ignored=ignored, settings={"text_unit": text_unit, **how.settings()})


def _from_python(inputs: Any, how: Reading) -> Source | None:
    """Return the source of Python objects; None for paths."""
    if hasattr(inputs, "with_format"):
        return DatasetSource(inputs, how)
    if hasattr(inputs, "to_parquet") and hasattr(inputs, "columns"):
        raise SourceError("a DataFrame is read as a dataset: give datasets.Dataset.from_pandas(frame)")
    items = inputs if isinstance(inputs, Sequence) and not isinstance(inputs, str) else ()
    if items and isinstance(items[0], list | tuple | np.ndarray):
        return IterableSource(items)
    is_dicts = bool(items) and isinstance(items[0], Mapping)
    return DictSource(inputs, how) if is_dicts or isinstance(inputs, Iterator) or callable(inputs) else None


def _opened(file: InputFile | Path | str, how: Reading, text_unit: TextUnit, block_bytes: int) -> Source:
    """Give a file, a folder of arrays (Path) or a name on the hub (str) to its reader."""
    if isinstance(file, Path):
        return ArrayFolder(file, how, block_bytes=block_bytes)
    if isinstance(file, str):
        return load_hub(file, how)
    if file.suffix in JSONL_SUFFIXES:
        return JsonlFile(file, how=how, block_bytes=block_bytes)
    if file.suffix in TABLE_SUFFIXES:
        kind = ParquetFile if file.suffix == ".parquet" else ArrowFile
        return kind(file, how, block_bytes=block_bytes)
    if file.suffix not in TEXT_SUFFIXES:
        start = next(file.lines(), b"")
        for magic, suffix in MAGIC.items():
            if start.startswith(magic):
                raise SourceError(f"{file.path}: its content is that of a {suffix} file; rename it so")
    return TextFile(file, unit=text_unit, block_bytes=block_bytes)


def _check_alike(files: Sequence[Source], paths: Sequence[Path | str]) -> None:
    """Refuse a file that does not fit to the first one: text beside ids, or other columns to carry."""
    known = next((at for at, file in enumerate(files) if file.kind), None)
    if known is None or files[-1].kind is None:
        return
    if files[known].kind != files[-1].kind:
        text, ids = sorted((known, len(files) - 1), key=lambda at: files[at].kind == "ids")
        raise SourceError(
            f"{paths[text]} holds text and {paths[ids]} ready-made ids; pack them in two separate jobs, "
            "or, where both have both, choose one kind with --text-field or --ids-field"
        )
    if files[known].kind == "ids" and files[known].mask != files[-1].mask:
        masks = [f"padding marked by {name!r}" if name else "no mask" for name in (files[known].mask, files[-1].mask)]
        raise SourceError(
            f"{masks[0]} in {paths[known]}, {masks[1]} in {paths[-1]}; make them alike, or read all without a mask "
            "(--mask-field none --carry none)"
        )
    here, first = ({column.name: column for column in file.carried} for file in (files[-1], files[known]))
    for name in [*first, *here]:
        if first.get(name) == here.get(name):
            continue
        kinds = [f"{c.type} per {c.per}" if (c := columns.get(name)) else "no such column" for columns in (first, here)]
        raise SourceError(
            f"the column {name!r} is not alike in all files: {kinds[0]} in {paths[known]}, {kinds[1]} in {paths[-1]}; "
            "make them alike, or name the columns to carry with --carry"
        )


def _find_all(inputs: Sequence[str | Path]) -> tuple[list[InputFile | Path | str], list[str]]:
    """All files of all inputs, and the names of those that no reader handles."""
    if not inputs:
        raise SourceError("no input was given; give text files, JSONL files, Parquet files, or folders of them")
    files: list[InputFile | Path | str] = []
    ignored: list[str] = []
    for given in inputs:
        text, path = str(given), Path(given)
        if text.startswith(HUB):
            files.append(text)
        elif is_url(text):
            found = [
                InputFile(path=url, name=name, size=size, remote=remote, stamp=stamp)
                for url, name, size, stamp, remote in find_remote(text)
            ]
            known = [file for file in found if file.suffix in SUFFIXES and not _is_archive(file)]
            if not known:
                raise SourceError(
                    f"{text}: none of its {len(found)} files is of a kind that nopad reads; nopad reads {_READS}"
                )
            files += known
            ignored += [file.name for file in found if file not in known]
        elif path.is_dir() and (path / "dataset_dict.json").is_file():
            splits = sorted(inner.name for inner in path.iterdir() if inner.is_dir())
            raise SourceError(
                f"{path}: a saved DatasetDict of several splits ({', '.join(splits)}); give one of them, such as "
                f"{path / (splits[0] if splits else 'train')}, or each with a name: NAME={path / 'SPLIT'}"
            )
        elif path.is_dir() and (path / "nopad.json").is_file():
            raise SourceError(f"{path}: a packed dataset already; open it with nopad.open_packed, or give its source")
        elif path.is_dir() and (path / "offsets.npy").is_file():
            files.append(path)
        elif path.is_dir():
            in_folder, unknown = _find_in(path)
            files += in_folder
            ignored += unknown
        else:
            file = InputFile.found(path, path.name) if path.suffix.lower() not in OTHERS + ARCHIVES else None
            if file is None or _is_archive(file) or file.suffix in OTHERS:
                way = "rename it to .jsonl if it has one object a line" if path.suffix == ".json" else "convert it"
                raise SourceError(
                    f"{path}: a {path.suffix} file would be read as plain text, which it is not; {way} "
                    f"(nopad reads {_READS})"
                )
            files.append(file)
    seen: set[str] = set()
    for found_file in files:
        shown = found_file.path if isinstance(found_file, InputFile) else found_file
        absolute = str(shown) if isinstance(shown, str) else os.path.abspath(shown)
        if absolute in seen:
            raise SourceError(f"{shown}: given twice; give each file, or the folder it is in, once")
        seen.add(absolute)
    return files, ignored


def _is_archive(file: InputFile) -> bool:
    """Whether a file is compressed in a way, or holds compressed, what cannot be read so."""
    return bool(file.compression) and file.suffix in (*TABLE_SUFFIXES, *OTHERS, ".tar")


def _find_in(folder: Path) -> tuple[list[InputFile], list[str]]:
    """The files of one folder, sorted, and the names of those that no reader handles."""
    names = sorted(_walk(folder), key=lambda name: name.encode("utf-8", "surrogateescape"))
    files = [InputFile(path=folder / name, name=name, size=0) for name in names]
    known = [file.name for file in files if file.suffix in SUFFIXES and not _is_archive(file)]
    ignored = [name for name in names if name not in set(known) and name.split("/")[-1] not in BESIDE]
    if not known:
        held = (
            f"none of its {len(names)} files is of a kind that nopad reads (such as {names[0]!r})"
            if names
            else ("the folder is empty (hidden files do not count)")
        )
        raise SourceError(f"{folder}: {held}; nopad reads {_READS}")
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
