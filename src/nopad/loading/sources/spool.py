"""Copies of tokens whose format cannot be read by number: in memory if they are few, else in files that are mapped.

To read one sequence of a Parquet or JSON Lines file, a whole row group or file must be decoded. So the records of such
files are decoded once, in order. `nopad.corpus` validates them as for packing, and cuts off padding. They are written
as flat arrays: ids in 2 bytes each if all fit, else in 4. Up to 4 million tokens stay in memory, unless a folder is
given.

A copy's folder is named by a digest of what is copied: the files' paths, sizes and times of writing, and how they are
read; or the checksums of a packed dataset. So later processes find the folder and map it; processes that start at the
same time wait for the first, by a lock on a file beside it. The copy gets its name only when it is complete, so a
killed process leaves nothing that looks like a copy. Its ``spool.json`` holds the fingerprint of the tokens, which is
compared when the copy is opened.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.inputs import reading
from nopad.errors import SourceError
from nopad.files import fsync_path, locked, storage_errors, write_atomic
from nopad.loading.sources.arrays import ArrayTokens, memory_tokens
from nopad.loading.sources.mapped import MappedArray, MappedFile
from nopad.notation import from_json
from nopad.seal import sealed, unsealed
from nopad.sequences import Sequences

__all__ = ["IN_MEMORY", "Parts", "spooled"]

IN_MEMORY = 1 << 22  # tokens
FORMAT = 1
_NARROW = 1 << 16
_BLOCK = 1 << 22  # ids that are widened to 32 bits at once
_IDS = ("token", "input_ids")
DESCRIPTION = "spool.json"

Parts = Callable[[], Iterable[Sequences]]
log = logging.getLogger("nopad")


def spooled(
    parts: Parts,
    identity: Mapping[str, Any] | None,
    name: str,
    folder: str | os.PathLike[str] | None,
    *,
    empty: str = "refuse",
    left_out: tuple[str, ...] = (),
) -> ArrayTokens:
    """Return all sequences of `parts` as a source: in memory, or copied to a folder and mapped.

    Args:
        parts: a function that yields all sequences in order, in parts. All parts have the same columns, which are NumPy
            arrays of numbers. The function is not called if there is a copy already.
        identity: a description of what is copied, as JSON values, by which a later process finds the copy; None: the
            tokens stay in memory.
        name: the source's name in messages.
        folder: the folder for copies; None: ``$XDG_CACHE_HOME/nopad/tokens``, and up to 4 million tokens stay in
            memory.
        empty: what to do with sequences that have no token: "refuse" or "skip", as in `open_tokens`; the copy holds
            them in both cases.
        left_out: names of columns that the data had and that were left out before, to be listed in
            `TokenSource.left_out`.

    Raises:
        LengthError: a sequence has no token, and `empty` is "refuse".
        SourceError: there is no sequence with a token, or the copy is damaged.
        StorageError: the copy cannot be written.
    """
    if identity is None:
        return memory_tokens(Sequences.joined(list(parts()) or [_NONE]), name, empty=empty, left_out=left_out)
    key = hashlib.sha256(json.dumps([FORMAT, identity], sort_keys=True).encode()).hexdigest()[:32]
    root = Path(folder) if folder is not None else _default_root()
    place = root / key
    if place.is_dir():
        return _opened(place, name, empty, left_out)
    source = iter(parts())
    if folder is None:
        few = _taken(source)
        if sum(part.tokens["input_ids"].size for part in few) <= IN_MEMORY:
            return memory_tokens(Sequences.joined(few or [_NONE]), name, empty=empty, left_out=left_out)
        source = chain(few, source)
    with storage_errors("writing", root):
        root.mkdir(parents=True, exist_ok=True)
    with locked(root / f"{key}.lock"):
        if not place.is_dir():
            log.warning("nopad: copying the tokens of %s once to %s, so that they can be read by number", name, place)
            _write(source, root / f"{key}.partial", place, name)
    return _opened(place, name, empty, left_out)


_NONE = Sequences(seq_lengths=np.empty(0, np.int32), tokens={"input_ids": np.empty(0, np.int32)})


def _default_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nopad" / "tokens"


def _taken(parts: Iterator[Sequences]) -> list[Sequences]:
    """Take parts from the iterator until they have more than `IN_MEMORY` tokens, or it ends; return these parts."""
    taken, tokens = [], 0
    for part in parts:
        taken.append(part)
        tokens += part.tokens["input_ids"].size
        if tokens > IN_MEMORY:
            break
    return taken


def _write(parts: Iterable[Sequences], partial: Path, place: Path, name: str) -> None:
    """Write a copy to the folder `partial`, and rename this folder to `place` when the copy is complete.

    If `partial` exists already, a killed process left it, and it is removed first. If writing fails, `partial` is
    removed too. `name` is the source's name in messages.

    Raises:
        SourceError: there is no sequence with a token.
        StorageError: the copy cannot be written.
    """
    with storage_errors("writing", partial):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            columns = _write_columns(parts, partial, name)
            tokens = _described(partial, columns, name)
            description = {"format": FORMAT, "columns": columns, "fingerprint": tokens.fingerprint}
            write_atomic(partial / DESCRIPTION, json.dumps(sealed(description), indent=1).encode())
            fsync_path(partial)
            os.replace(partial, place)
            fsync_path(place.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _write_columns(parts: Iterable[Sequences], folder: Path, name: str) -> list[dict[str, Any]]:
    """Write the columns of `parts` to `folder`, one file each, and the offsets at which sequences begin to another.

    Return a list with a dict for each file: ``name`` of the column, ``per`` ("token", "sequence" or "offsets"),
    ``file`` name, ``dtype`` and ``size`` (number of values).

    Raises:
        SourceError: `parts` is empty; the message calls the source `name`.
    """
    columns: dict[tuple[str, str], _Column] = {}
    end = 0
    with ExitStack() as stack:
        for part in parts:
            given = {("token", column): values for column, values in part.tokens.items()}
            given |= {("sequence", column): values for column, values in part.values.items()}
            given["offsets", ""] = end + np.cumsum(part.seq_lengths, dtype=np.int64)
            end += int(part.seq_lengths.sum(dtype=np.int64))
            if not columns:
                for key, values in given.items():
                    dtype = np.dtype(np.uint16) if key == _IDS else values.dtype
                    columns[key] = _Column(folder / f"{len(columns)}.bin", dtype)
                    stack.callback(columns[key].close)
                columns["offsets", ""].write(np.zeros(1, np.int64))
            for key, values in given.items():
                columns[key].write(values)
    if not columns:
        raise SourceError(f"{name}: holds no sequence; give at least one")
    for one in columns.values():
        fsync_path(one.path)
    return [
        {"name": column, "per": per, "file": one.path.name, "dtype": one.dtype.str, "size": one.size}
        for (per, column), one in columns.items()
    ]


class _Column:
    """A file to which the values of one column are appended.

    Ids are written in 16 bits each. If an id needs more bits, those already written are widened to 32 bits, and all
    later ones are written in 32 bits.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path, self.dtype, self.size = path, dtype, 0
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by `close`

    def write(self, values: NDArray[Any]) -> None:
        if self.dtype == np.uint16 and values.dtype != np.uint16 and values.max(initial=0) >= _NARROW:
            self._widen()
        self._file.write(np.ascontiguousarray(values, self.dtype).data)
        self.size += values.size

    def _widen(self) -> None:
        self._file.close()
        narrow = self.path.with_suffix(".narrow")
        os.replace(self.path, narrow)
        self.dtype = np.dtype(np.int32)
        self._file = open(self.path, "wb")  # noqa: SIM115 - closed by `close`
        with open(narrow, "rb") as file:
            while (part := np.fromfile(file, np.uint16, _BLOCK)).size:
                self._file.write(part.astype(np.int32).data)
        narrow.unlink()

    def close(self) -> None:
        self._file.close()


def _opened(place: Path, name: str, empty: str, left_out: tuple[str, ...]) -> ArrayTokens:
    """Map the copy in the folder `place` as a source, after checking it.

    The tokens must have the fingerprint that was written with them. `name` is the source's name in messages. `empty`
    says what to do with sequences that have no token: "refuse" or "skip". `left_out` are names of columns that are not
    in the copy, for `TokenSource.left_out`.

    Raises:
        SourceError: the copy is damaged.
        LengthError: a sequence has no token, and `empty` is "refuse".
    """
    path = place / DESCRIPTION
    try:
        with reading(path):
            found = unsealed(from_json(path.read_bytes()))
        made = _described(place, found["columns"], name, left_out)
        if made.fingerprint != found["fingerprint"]:
            raise ValueError("it holds other tokens than were written")
    except (SourceError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{place}: this copy of {name} is damaged ({error}); delete it, and it is made again"
        ) from error
    return _described(place, found["columns"], name, left_out, empty) if made.skipped else made


def _described(
    place: Path, columns: list[dict[str, Any]], name: str, left_out: tuple[str, ...] = (), empty: str = "skip"
) -> ArrayTokens:
    """Map the files of a copy in folder `place` as a source.

    `columns` is from `_write_columns`. `name` is the source's name in messages. `left_out` are names of columns that
    are not in the copy, for `TokenSource.left_out`. `empty` says what to do with sequences that have no token: "refuse"
    or "skip".

    Raises:
        SourceError: a file is missing or has another size than was written, or no sequence has a token.
        LengthError: a sequence has no token, and `empty` is "refuse".
    """
    arrays: dict[str, dict[str, MappedArray]] = {"offsets": {}, "token": {}, "sequence": {}}
    for column in columns:
        file, dtype = MappedFile(place / column["file"]), np.dtype(column["dtype"])
        if file.size != column["size"] * dtype.itemsize:
            raise SourceError(f"{file.path}: has {file.size:,} bytes, not {column['size'] * dtype.itemsize:,}")
        arrays[column["per"]][column["name"]] = MappedArray(file, dtype, 0, column["size"])
    return ArrayTokens(name, arrays["offsets"][""], arrays["token"], arrays["sequence"], empty=empty, left_out=left_out)
