"""A file of sequence lengths as a source, for index-only datasets of data that nopad itself does not read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nopad.corpus.npy import NpyFile
from nopad.corpus.records import BadRecord, Record
from nopad.corpus.source import Block, Source
from nopad.errors import FormatError, SourceError

__all__ = ["LengthsFile"]

_CHUNK = 1 << 20


class LengthsFile(Source):
    """An ``.npy`` file of integer lengths ``[n]``; record i has ``lengths[i]`` tokens. For index-only jobs.

    Raises:
        FormatError: the file is missing, not an ``.npy`` file, or not a one-dimensional array.

    >>> import numpy as np, pathlib, tempfile
    >>> from nopad.corpus import LengthsFile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "lengths.npy")
    >>> np.save(path, np.array([3, 1, 2]))
    >>> LengthsFile(path).lengths.tolist()
    [3, 1, 2]
    """

    def __init__(self, path: str | Path) -> None:
        """Read the header of the file."""
        self.path = Path(path)
        try:
            self._file = NpyFile(self.path)
        except SourceError as error:
            raise FormatError(f"cannot read lengths from {error}") from error
        if len(self._file.shape) != 1:
            raise FormatError(f"{path} holds an array of shape {self._file.shape}; lengths are one-dimensional")
        self.total_bytes = self._file.size * self._file.dtype.itemsize

    @cached_property
    def lengths(self) -> NDArray[Any]:
        """All lengths, in memory; ``[n]``. Raises SourceError if the file has changed since it was found."""
        return self._file.whole()

    def blocks(self) -> Iterator[Block]:
        """Yield the raw lengths in blocks, for the fingerprint only: decoding their records raises FormatError."""
        name = f"{self.path.name} {self._file.dtype.str}"
        with self._file.opened() as read:
            for begin in range(0, self._file.size, _CHUNK):
                chunk = read(begin, min(begin + _CHUNK, self._file.size)).astype(self._file.dtype, copy=False)
                yield Block(name=name, data=chunk.tobytes(), decoder=_no_records)

    def inventory(self) -> list[tuple[str, int]]:
        """Return one entry: the file's name and size."""
        return [(self.path.name, self._file.bytes)]


def _no_records(data: bytes, first_line: int) -> Iterator[Record | BadRecord]:
    raise FormatError("lengths hold no records; pack them with index_only=True")
