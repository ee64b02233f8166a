"""`Histogram`: how many sequences have each length, which is the input of planning.

A `Histogram` is small (one entry per distinct length) and exact (64-bit counts). Histograms can be added: ``a + b``
counts the sequences of both, so the parts of a corpus can be counted on different machines. Counting is one pass in
bounded memory: O(n) time for n sequences; O(longest length) memory for lengths up to 2^22, O(distinct lengths) for
longer ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.errors import FormatError, LengthError
from nopad.files import local_path, once_each, write_atomic
from nopad.notation import from_json
from nopad.options import MAX_LENGTH, shown
from nopad.wording import counted

__all__ = ["Histogram"]

_CHUNK = 1 << 18  # bincount's int64 copy of a chunk stays in the L2 cache
_DENSE = 1 << 22


@dataclass(frozen=True, eq=False)
class Histogram:
    """Number of sequences of each length. The arrays are copies of those given, and read-only.

    Attributes:
        lengths: distinct lengths in tokens, ascending, each from 1 to 2^31 - 1; int64 ``[k]``.
        counts: number of sequences of each length, each from 1 to 2^63 - 1; int64 ``[k]``.

    Raises:
        LengthError: a length or count is not an integer or is out of range, an array is not one-dimensional, lengths do
            not ascend or one occurs twice, or the numbers of lengths and counts differ.

    >>> h = Histogram.from_lengths([3, 5, 3]) + Histogram.from_lengths([5])
    >>> h.lengths.tolist(), h.counts.tolist(), h.sequences, h.tokens
    ([3, 5], [2, 2], 4, 16)
    """

    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("lengths", "counts"):
            array = integers(getattr(self, name))
            if array.size and not 1 <= int(array.min()) <= int(array.max()) < 2**63:
                odd = int(array.min()) if int(array.min()) < 1 else int(array.max())
                raise LengthError(f"{name} of a histogram hold {odd}; they are integers from 1 to 2^63 - 1")
            array = np.array(array, dtype=np.int64)  # a copy: the caller's array stays writable
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if self.lengths.shape != self.counts.shape:
            raise LengthError(
                f"a histogram of {self.lengths.size} lengths has {self.counts.size} counts; give one each"
            )
        if (np.diff(self.lengths) < 1).any():
            raise LengthError("lengths of a histogram ascend, each once; Histogram.from_counts takes them in any order")
        if self.max_length > MAX_LENGTH:
            raise LengthError(f"a histogram has a length of {self.max_length}; lengths are up to {MAX_LENGTH}")

    @classmethod
    def from_lengths(cls, lengths: ArrayLike) -> Histogram:
        """Return the histogram of the lengths in an array ``[n]`` of any int dtype; it may be memory-mapped.

        Raises:
            LengthError: a length is below 1, above 2^31 - 1, not an integer, or masked; or the array is not
                one-dimensional.
        """
        return cls.from_chunks([integers(lengths)])

    @classmethod
    def from_chunks(cls, chunks: Iterable[ArrayLike]) -> Histogram:
        """Return the histogram of all lengths in an iterable of integer arrays ``[n]``, counted in bounded memory.

        Raises:
            LengthError: a length is below 1, above 2^31 - 1, not an integer, or masked; or an array is not
                one-dimensional.

        Three arrays hold two sequences of length 2 each, so there are six:

        >>> Histogram.from_chunks([2, 2] for _ in range(3)).counts.tolist()
        [6]
        """
        dense = np.zeros(1, dtype=np.int64)
        sparse: dict[int, int] = {}
        offset = 0
        for chunk in chunks:
            array = integers(chunk)
            for begin in range(0, array.size, _CHUNK):
                dense = _count(array[begin : begin + _CHUNK], offset + begin, dense, sparse)
            offset += array.size
        found = np.flatnonzero(dense)
        if not sparse:
            return cls(found, dense[found])
        pairs = dict(zip(found.tolist(), dense[found].tolist(), strict=True))
        for length, count in sparse.items():  # a length up to 2^22 may be in both, see `_count`
            pairs[length] = pairs.get(length, 0) + count
        return cls.from_counts(pairs)

    @classmethod
    def from_counts(cls, counts: Mapping[int, int]) -> Histogram:
        """Return the histogram of a map ``{length: count}``; lengths with the count 0 are left out.

        Raises:
            LengthError: a length is not an integer from 1 to 2^31 - 1, or a count is not an integer from 0 to 2^63 - 1.
        """
        kept = []
        for length, count in counts.items():
            if not _is_integer(length) or not 1 <= length <= MAX_LENGTH:
                raise LengthError(
                    f"histogram has a length of {shown(length)}; lengths are integers from 1 to {MAX_LENGTH}"
                )
            if not _is_integer(count) or not 0 <= count < 2**63:
                raise LengthError(
                    f"histogram counts {shown(count)} sequences of length {length}; counts are integers from 0 to "
                    "2^63 - 1"
                )
            if count:
                kept.append((int(length), int(count)))
        kept.sort()
        columns = np.array(kept, dtype=np.int64).reshape(-1, 2)
        return cls(columns[:, 0].copy(), columns[:, 1].copy())

    @classmethod
    def load(cls, path: str | Path) -> Histogram:
        """Read a histogram from a JSON file.

        The counts are a list, for the lengths 1, 2, 3 and so on, or a map ``{length: count}``. They are the field
        ``histogram`` of the document, or the whole document.

        Raises:
            FormatError: the file cannot be read, is not JSON, holds no histogram, or its ``max_sequence_length`` is not
                an integer from 1 to 2^31 - 1.
            LengthError: a length or count in it is not an integer, or is out of range.
        """
        return read_histogram(path)[0]

    def save(self, path: str | Path) -> None:
        """Write a JSON file that `load` reads: ``{"format": ..., "histogram": {length: count}, ...}``.

        A file that exists at `path` is replaced.

        Raises:
            OptionError: the path is a URL, cannot be written in UTF-8, or has a character NUL.
            StorageError: the disk is full, or the write failed.
        """
        pairs = zip(self.lengths.tolist(), self.counts.tolist(), strict=True)
        document = {
            "format": "nopad.histogram",
            "format_version": 1,
            "sequences": self.sequences,
            "tokens": self.tokens,
            "histogram": {str(length): count for length, count in pairs},
        }
        write_atomic(local_path(path), (json.dumps(document, indent=1) + "\n").encode())

    def __add__(self, other: Histogram) -> Histogram:
        """Return the histogram that counts the sequences of both histograms.

        Raises:
            LengthError: a length has 2^63 sequences or more in total.
        """
        if not isinstance(other, Histogram):
            return NotImplemented
        merged = self.to_dict()
        for length, count in other.to_dict().items():
            merged[length] = merged.get(length, 0) + count
        return Histogram.from_counts(merged)

    def __eq__(self, other: object) -> bool:
        """Whether both histograms have the same lengths and counts."""
        if not isinstance(other, Histogram):
            return NotImplemented
        return np.array_equal(self.lengths, other.lengths) and np.array_equal(self.counts, other.counts)

    def __hash__(self) -> int:
        """Hash of the content."""
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        """Return one line with the numbers of sequences, tokens and distinct lengths, and the range of lengths.

        For a histogram without sequences, return "Histogram(empty)".
        """
        if not self.lengths.size:
            return "Histogram(empty)"
        size = f"{counted(self.sequences, 'sequence')}, {counted(self.tokens, 'token')}"
        return f"Histogram({size}, {counted(self.lengths.size, 'length')} {self.lengths[0]}..{self.lengths[-1]})"

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return exact_sum(self.counts)

    @property
    def tokens(self) -> int:
        """Number of real tokens."""
        return exact_dot(self.lengths, self.counts)

    @property
    def max_length(self) -> int:
        """The longest length in tokens; 0 if there are no sequences."""
        return int(self.lengths[-1]) if self.lengths.size else 0

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hex.

        The bytes hashed are a fixed prefix, all lengths, then all counts; the numbers are little-endian int64.
        """
        digest = hashlib.sha256(b"nopad.histogram.v1\0")
        digest.update(self.lengths.astype("<i8").tobytes())
        digest.update(self.counts.astype("<i8").tobytes())
        return digest.hexdigest()

    def to_dict(self) -> dict[int, int]:
        """Return the histogram as a dict ``{length: count}``, in ascending order of length."""
        return dict(zip(self.lengths.tolist(), self.counts.tolist(), strict=True))


def read_histogram(path: str | Path) -> tuple[Histogram, int | None]:
    """Read a histogram file; return the histogram, and the capacity that the file states (None if it states none).

    The capacity is the field ``max_sequence_length``. If there is no such field, and the counts are a list, the
    capacity is the number of counts (None for an empty list). `Histogram.load` says what a file may hold.

    Raises:
        FormatError: the file cannot be read, is not JSON, holds no histogram, or its ``max_sequence_length`` is not an
            integer from 1 to 2^31 - 1.
        LengthError: a length or count in it is not an integer, or is out of range.
    """
    try:
        document = from_json(Path(path).read_bytes(), object_pairs_hook=once_each)
    except OSError as error:
        raise FormatError(f"cannot read the histogram {path}: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(
            f"{path} is not JSON ({error}); a histogram is JSON, lengths may also be an .npy file"
        ) from error
    body: Any = document.get("histogram", document) if isinstance(document, dict) else document
    capacity = document.get("max_sequence_length") if isinstance(document, dict) else None
    if capacity is not None and not (_is_integer(capacity) and 1 <= capacity <= MAX_LENGTH):
        raise FormatError(f"max_sequence_length of {path} must be an integer from 1 to {MAX_LENGTH}, got {capacity!r}")
    if isinstance(body, list):
        counted = Histogram.from_counts(dict(enumerate(body, start=1)))
        return counted, (len(body) or None) if capacity is None else capacity
    if isinstance(body, dict) and (body or body is not document) and all(map(_is_length, body)):
        return Histogram.from_counts({int(k): v for k, v in body.items()}), capacity
    raise FormatError(
        f'{path} holds no histogram; expected {{"histogram": [counts for length 1, 2, ...]}} or a {{length: count}} map'
    )


def _is_length(key: str) -> bool:
    """Return whether a JSON key is a number as `save` writes it: only digits (at most 20), without leading zeros.

    If all keys of a file are such numbers, no two of them mean the same length.
    """
    return key.isascii() and key.isdecimal() and len(key) <= 20 and str(int(key)) == key


def integers(lengths: ArrayLike, name: str = "lengths") -> NDArray[Any]:
    """Return `lengths` as a one-dimensional integer array; an integer array is not copied.

    An empty array may have any dtype, and becomes int64. Error messages call the lengths `name`.

    Raises:
        LengthError: the dtype is not an integer type (floats are refused even if they are whole numbers), the array is
            not one-dimensional, a value is masked, or NumPy cannot read the values, such as a tensor on a GPU.
    """
    # NumPy would return the values under a mask
    if isinstance(lengths, np.ma.MaskedArray) and np.ma.is_masked(lengths):
        i = int(np.argmax(np.ma.getmaskarray(lengths)))
        raise LengthError(f"the {name.removesuffix('s')} at index {i} is masked; leave it out: {name}.compressed()")
    try:
        array = np.asarray(lengths)
    except ValueError as error:  # rows of unequal sizes
        raise LengthError(f"{name} must be one-dimensional: {error}") from error
    except (TypeError, RuntimeError) as error:  # a tensor with gradients, or on another device
        raise LengthError(f"{name} cannot be read ({error}); give a list or an array of integers") from error
    if array.ndim != 1:
        raise LengthError(f"{name} must be one-dimensional, got shape {array.shape}")
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind in "iu":
        return array
    if array.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(array) | (array != np.floor(array)))
        i = int(bad[0]) if bad.size else 0
        raise LengthError(
            f"{name} must be integers, got {array[i]} ({array.dtype}) at index {i}; convert them to an int dtype"
        )
    value = array[:1].tolist()[0]
    raise LengthError(f"{name} must be integers, got {shown(value)} ({array.dtype}); convert them to an int dtype")


def as_lengths(lengths: ArrayLike, capacity: int | None = None) -> NDArray[np.int32]:
    """Check lengths, and return them as a contiguous int32 array ``[n]``.

    If they are such an array already, it is returned itself, without a copy.

    Raises:
        LengthError: a length is below 1, above `capacity` (None: 2^31 - 1), not an integer, or masked; or the array is
            not one-dimensional.
    """
    array = integers(lengths)
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < 1:
            i = int(np.argmax(array < 1))
            raise LengthError(f"length {int(array[i])} at index {i}; every sequence has at least 1 token: leave it out")
        limit = MAX_LENGTH if capacity is None else capacity
        if high > limit:
            i = int(np.argmax(array > limit))
            more = int(np.count_nonzero(array > limit)) - 1
            raise LengthError(
                f"length {int(array[i]):,} at index {i} is above the capacity of {limit:,}"
                + (f" (and {more:,} more)" if more else "")
                + f"; cut or remove it, or take a capacity of at least {high:,}"
            )
    return np.ascontiguousarray(array, dtype=np.int32)


def exact_sum(values: NDArray[np.int64]) -> int:
    """Return the exact sum of integers of at least 0 (int64 ``[n]``), as a Python integer of any size."""
    if values.size and int(values.max()) > (2**63 - 1) // values.size:
        return sum(values.tolist())
    return int(values.sum())


def exact_dot(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return the exact sum of ``a[i] * b[i]`` over all i, as a Python integer of any size; no entry may be negative."""
    if a.size and int(a.max()) * int(b.max()) > (2**63 - 1) // a.size:
        return sum(map(mul, a.tolist(), b.tolist()))
    return int(a @ b)


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _count(chunk: NDArray[Any], offset: int, dense: NDArray[np.int64], sparse: dict[int, int]) -> NDArray[np.int64]:
    """Count the lengths in `chunk`, a part of an array, and return the table `dense`, brought up to date.

    So far, ``dense[l] + sparse.get(l, 0)`` sequences of length l have been counted. If a length in the chunk is above
    2^22, the whole chunk is added to `sparse`, in place, and `dense` is returned as it is. Otherwise the chunk is added
    to `dense`, and the table returned is a new array, which may be longer. `offset` is the index of the chunk's first
    length, for error messages.

    Raises:
        LengthError: a length is below 1, or above 2^31 - 1.
    """
    low, high = int(chunk.min()), int(chunk.max())
    if low < 1:
        i = int(np.argmax(chunk < 1))
        raise LengthError(
            f"length {int(chunk[i])} at index {offset + i}; every sequence has at least 1 token: leave it out"
        )
    if high > MAX_LENGTH:
        i = int(np.argmax(chunk > MAX_LENGTH))
        raise LengthError(
            f"length {int(chunk[i])} at index {offset + i}; the longest length nopad counts is {MAX_LENGTH}"
        )
    if high > _DENSE:
        found, counts = np.unique(chunk, return_counts=True)
        for length, count in zip(found.tolist(), counts.tolist(), strict=True):
            sparse[length] = sparse.get(length, 0) + count
        return dense
    # bincount works on int64: it refuses uint64, and converts smaller dtypes itself.
    counted = np.bincount(chunk.astype(np.int64, copy=False), minlength=dense.size)
    counted[: dense.size] += dense
    return counted
