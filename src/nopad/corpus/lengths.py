"""Lengths alone as a source: ``lengths.npy``, for index-only datasets beside data that nopad does not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.records import BadRecord, Record
from nopad.corpus.source import Block, Source
from nopad.errors import FormatError

__all__ = ["LengthsFile"]

_CHUNK = 1 << 20


class LengthsFile(Source):
    """An ``.npy`` file of integer lengths ``[n]``, memory-mapped; record i has ``lengths[i]`` tokens.

    Raises:
        FormatError: the file is missing, no ``.npy`` file, or not a one-dimensional array.
    """

    def __init__(self, path: str | Path) -> None:
        """Map the file; nothing is read yet."""
        self.path = Path(path)
        try:
            self.lengths: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            why = error.strerror if isinstance(error, OSError) else "not an .npy file of numbers"
            raise FormatError(f"cannot read lengths from {path}: {why}; save them with numpy.save") from error
        if self.lengths.ndim != 1:
            raise FormatError(f"{path} holds an array of shape {self.lengths.shape}; lengths are one-dimensional")
        self.total_bytes = self.lengths.nbytes

    def blocks(self) -> Iterator[Block]:
        """Yield the raw lengths in chunks, for fingerprints only: there are no records to decode."""
        for begin in range(0, self.lengths.size, _CHUNK):
            chunk = np.ascontiguousarray(self.lengths[begin : begin + _CHUNK])
            yield Block(name=f"{self.path.name} {chunk.dtype.str}", data=chunk.tobytes(), decoder=_no_records)

    def inventory(self) -> list[tuple[str, int]]:
        """One entry: the file and its size."""
        return [(self.path.name, self.path.stat().st_size)]


def _no_records(data: bytes, first_line: int) -> Iterator[Record | BadRecord]:
    raise FormatError("lengths hold no records; pack them with --index-only")
