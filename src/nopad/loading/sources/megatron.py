r"""A Megatron pair ``NAME.bin`` and ``NAME.idx`` as a source of tokens, read only and mapped into memory.

The layout, from its public description: ``.idx`` begins with the magic ``MMIDIDX\0\0``, the version 1 (uint64), a
code for the type of the ids (uint8), the number n of sequences and the number d of document bounds (uint64 each). Then
come the lengths in tokens (int32 ``[n]``), the places in ``.bin`` in bytes (int64 ``[n]``), the document bounds (int64
``[d]``; a document is the sequences from one bound to the next), and in multimodal data one mode per sequence (int8
``[n]``). All numbers are little-endian, and nothing is aligned. ``.bin`` holds only ids.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import FormatError
from nopad.loading.sources.arrays import lengths_of
from nopad.loading.sources.mapped import MappedArray, MappedFile
from nopad.loading.sources.source import Located, TokenSource
from nopad.options import Option

__all__ = ["UNIT", "MegatronTokens", "megatron_prefix"]

UNIT = Option(default="sequences", choices=("sequences", "documents"), help="what a number of a Megatron pair counts")

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = (6, 7)
_AT_ONCE = 1 << 20  # sequences
_OTHER = 'count sequences instead, with unit="sequences"'


def megatron_prefix(path: Path) -> Path | None:
    """Return the path without ``.bin`` or ``.idx`` if it names a Megatron pair, else None.

    The path names a pair if it ends in ``.bin`` or ``.idx``; or if nothing is at this path, and adding ``.idx`` to it
    gives the path of a file.
    """
    if path.suffix in (".bin", ".idx"):
        return path.with_suffix("")
    if not path.name or path.exists():  # "." and "/" have no name
        return None
    return path if path.with_name(path.name + ".idx").is_file() else None


class MegatronTokens(TokenSource):
    """The sequences of a Megatron pair, or its documents (the sequences between two document bounds, concatenated).

    A multimodal pair has a per-sequence column ``mode``; it is left out if `unit` is "documents".

    Raises:
        FormatError: ``.idx`` has a wrong magic, version, type or size, or does not fit ``.bin``; or, if documents are
            read, the bounds do not go from 0 to the number of sequences, a bound is below the one before it, or the
            sequences of a document do not follow one another in ``.bin``.
        SourceError: a file is missing or cannot be read, no sequence has a token, or a document has more than 2^31 - 1
            tokens.
        LengthError: a sequence or document has no token, and `empty` is "refuse".
        OptionError: `unit` or `empty` has another value than those listed in `open_tokens`.
    """

    def __init__(self, prefix: Path, *, unit: str = "sequences", empty: str = "refuse") -> None:
        """Map both files, and check the length of every sequence and its place in ``.bin``; O(n).

        If `unit` is "documents", every document bound is checked too. `prefix` is the path of the files without
        ``.idx`` and ``.bin``. `empty` says what to do with sequences or documents that have no token: "refuse" or
        "skip".
        """
        self._documents = UNIT.check("unit", unit) == "documents"
        paths = [prefix.with_name(prefix.name + suffix) for suffix in (".idx", ".bin")]
        idx, tokens = (MappedFile(path) for path in paths)
        self._idx_path, self._bin_path = paths
        dtype, n, bounds = self._header(idx)
        at = _HEADER.size
        self._lengths_in = MappedArray(idx, np.dtype("<i4"), at, n)
        self._places = MappedArray(idx, np.dtype("<i8"), at + 4 * n, n)
        self._bounds = MappedArray(idx, np.dtype("<i8"), at + 12 * n, bounds)
        end = at + 12 * n + 8 * bounds
        if idx.size not in (end, end + n):
            raise FormatError(
                f"{paths[0]}: has {idx.size:,} bytes, and {n:,} sequences with {bounds:,} document bounds take {end:,} "
                f"(or {end + n:,} with modes); it was cut short or is damaged: copy or write the pair again"
            )
        self._modes = MappedArray(idx, np.dtype("i1"), end, n) if idx.size > end else None
        self._ids = MappedArray(tokens, dtype, 0, tokens.size // dtype.itemsize)
        self._check()
        super().__init__(str(prefix), empty=empty, files=[idx, tokens])

    def _header(self, idx: MappedFile) -> tuple[np.dtype[Any], int, int]:
        """Return the type of the ids, the number of sequences, and the number of document bounds.

        Raises:
            FormatError: the magic, the version or the type of the ids is wrong; or the file states more sequences or
                document bounds than it has bytes.
        """
        data = idx.array(np.dtype("u1"), 0, min(_HEADER.size, idx.size)).tobytes()
        if len(data) < _HEADER.size or not data.startswith(_MAGIC):
            raise FormatError(
                f"{self._idx_path}: no Megatron index: it begins with {data[:9]!r}, not {_MAGIC!r}; give the .idx that "
                "was written with the .bin"
            )
        _, version, code, n, bounds = _HEADER.unpack(data)
        if version != 1:
            raise FormatError(f"{self._idx_path}: version {version} of Megatron's index; version 1 is read")
        if code not in _DTYPES:
            what = "floating-point numbers, which are no ids" if code in _FLOATS else "unknown"
            raise FormatError(f"{self._idx_path}: its code {code} for the type of the ids is {what}; write it again")
        if max(n, bounds) > idx.size:
            raise FormatError(
                f"{self._idx_path}: states {n:,} sequences and {bounds:,} document bounds in {idx.size:,} bytes; write "
                "the pair again"
            )
        return np.dtype(_DTYPES[code]), n, bounds

    def _check(self) -> None:
        """Refuse an index that contradicts itself or does not match the ``.bin``.

        Raises:
            FormatError: a length or place is impossible, or ``.bin`` is not as large as all sequences together; or as
                in `_check_documents`, if documents are read.
        """
        lengths, width = self._lengths_in.values, self._ids.dtype.itemsize
        total, held = int(lengths.sum(dtype=np.int64)) * width, self._ids.file.size
        if total != held:
            raise FormatError(
                f"{self._bin_path}: has {held:,} bytes, and the {lengths.size:,} sequences of {self._idx_path.name} "
                f"take {total:,}; these two were not written together, or one was cut short"
            )
        for first in range(0, lengths.size, _AT_ONCE):
            here = slice(first, first + _AT_ONCE)
            places, sizes = self._places.values[here], lengths[here] * np.int64(width)
            # Not places + sizes, which could be above the largest int64, and then negative
            bad = (lengths[here] < 0) | (places < 0) | (places > held - sizes) | (places % width != 0)
            if bad.any():
                at = first + int(np.argmax(bad))
                raise FormatError(
                    f"{self._idx_path}: sequence {at} has {lengths[at]} tokens at byte {self._places.values[at]} of a "
                    f".bin of {held:,} bytes; write the pair again"
                )
        if self._documents:
            self._check_documents()

    def _ends(self, here: slice) -> NDArray[np.int64]:
        """Return the byte of the ``.bin`` at which each sequence in the slice `here` ends (exclusive); int64 ``[k]``.

        The lengths and places of these sequences must have been checked.
        """
        width = np.int64(self._ids.dtype.itemsize)
        ends: NDArray[np.int64] = self._places.values[here] + self._lengths_in.values[here] * width
        return ends

    def _check_documents(self) -> None:
        """Check the bounds of documents, and that the sequences of each document follow one another in the ``.bin``.

        Raises:
            FormatError: the bounds do not go from 0 to the number of sequences, a bound is below the one before it, or
                a sequence does not follow the one before it in its document.
        """
        bounds, n = self._bounds.values, self._lengths_in.size
        if not bounds.size or bounds[0] != 0 or bounds[-1] != n or (bounds[1:] < bounds[:-1]).any():
            raise FormatError(
                f"{self._idx_path}: bounds of documents must go from 0 to {n:,}, the number of sequences, and none may "
                f"be below the one before it; {_OTHER}"
            )
        inside = np.ones(n + 1, bool)
        inside[bounds] = False  # whether a sequence belongs to the document of the one before it
        for first in range(1, n, _AT_ONCE):
            last = min(first + _AT_ONCE, n)
            apart = self._places.values[first:last] != self._ends(slice(first - 1, last - 1))
            if (apart & inside[first:last]).any():
                at = first + int(np.argmax(apart & inside[first:last]))
                raise FormatError(
                    f"{self._idx_path}: sequence {at} does not follow the one before it in the .bin, and both are of "
                    f"one document; {_OTHER}"
                )

    def stored_lengths(self) -> NDArray[np.int32]:
        """Return the lengths of all stored sequences or documents, 0 or more; int32 ``[stored]``.

        Raises:
            SourceError: a document has more than 2^31 - 1 tokens.
        """
        if not self._documents:
            return self._lengths_in.values.astype(np.int32)
        offsets = np.zeros(self._lengths_in.size + 1, np.int64)
        np.cumsum(self._lengths_in.values, out=offsets[1:])
        return lengths_of(offsets[self._bounds.values], self.name)

    def located(self, numbers: NDArray[np.int64]) -> Located:
        """Return the ids of the ``.bin``, and where these sequences or documents begin in them (`Located`)."""
        width, places, lengths = self._ids.dtype.itemsize, self._places.values, self._lengths_in.values
        if not self._documents:
            values = {} if self._modes is None else {"mode": self._modes.values[numbers]}
            return self._at(places[numbers] // width, lengths[numbers].astype(np.int64), values)
        first, last = self._bounds.values[numbers], self._bounds.values[numbers + 1] - 1
        some = last >= first
        begins = np.where(some, places[np.minimum(first, places.size - 1)], 0)
        ends = np.where(some, places[last] + lengths[last] * np.int64(width), 0)
        return self._at(begins // width, (ends - begins) // width, {})

    def _at(self, begins: NDArray[np.int64], lengths: NDArray[np.int64], values: dict[str, NDArray[Any]]) -> Located:
        return Located(lengths, {"input_ids": (self._ids.values, begins)}, values)
