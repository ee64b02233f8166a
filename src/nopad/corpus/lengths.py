"""A file of sequence lengths as a source, for data that nopad itself does not read.

It is packed into an index-only dataset, which says which sequence is in which pack, and holds no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.npy import NpyFile
from nopad.corpus.records import BadRecord, Record
from nopad.corpus.source import Block, Source
from nopad.errors import FormatError, OptionError, SourceError
from nopad.properties import cached_property

__all__ = ["LengthsFile"]

_CHUNK = 1 << 20


class LengthsFile(Source):
    """One or more ``.npy`` files of integer lengths, read as one array ``[n]``; record i has ``lengths[i]`` tokens.

    For index-only jobs, which store which sequence is in which pack, but no tokens.

    Args:
        path: a file, or a list of files, which are read in this order.

    Raises:
        FormatError: a file is missing, unreadable or truncated, is not an ``.npy`` file, or does not hold a
            one-dimensional array. Whether the values are valid lengths is checked when they are packed.
        OptionError: no file is given.

    >>> import numpy as np, pathlib, tempfile
    >>> from nopad.corpus import LengthsFile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "lengths.npy")
    >>> np.save(path, np.array([3, 1, 2]))
    >>> LengthsFile(path).lengths.tolist()
    [3, 1, 2]
    """

    def __init__(self, path: str | Path | Sequence[str | Path]) -> None:
        """Read the header of each file."""
        given = [path] if isinstance(path, str | Path) else path
        if not given:
            raise OptionError("no file of lengths; give at least one")
        self._files = [_opened(Path(one)) for one in given]
        self.path = self._files[0].path
        self.total_bytes = sum(file.size * file.dtype.itemsize for file in self._files)

    @cached_property
    def lengths(self) -> NDArray[Any]:
        """All lengths, in memory; ``[n]``.

        Raises SourceError if a file cannot be read, or has changed since its header was read.
        """
        parts = [file.whole() for file in self._files]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def blocks(self) -> Iterator[Block]:
        """Yield the raw lengths in blocks, for the fingerprint only: decoding their records raises FormatError."""
        for file in self._files:
            name = f"{file.path.name} {file.dtype.str}"
            with file.opened() as read:
                for begin in range(0, file.size, _CHUNK):
                    chunk = read(begin, min(begin + _CHUNK, file.size)).astype(file.dtype, copy=False)
                    yield Block(name=name, data=chunk.tobytes(), decoder=_no_records)

    def inventory(self) -> list[tuple[str, int]]:
        """Return ``(name, bytes)`` of each file, in reading order."""
        return [(file.path.name, file.bytes) for file in self._files]


def _opened(path: Path) -> NpyFile:
    try:
        file = NpyFile(path)
    except SourceError as error:
        raise FormatError(f"cannot read lengths from {error}") from error
    if len(file.shape) != 1:
        raise FormatError(f"{path} holds an array of shape {file.shape}; lengths are one-dimensional")
    return file


def _no_records(data: bytes, first_line: int) -> Iterator[Record | BadRecord]:
    raise FormatError("lengths hold no records; pack them with index_only=True")
