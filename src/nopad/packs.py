"""`Packs`: which sequences are in which pack, and in what order.

Packs are stored as compressed sparse rows (CSR): pack p holds the sequences ``sequence[indptr[p]:indptr[p + 1]]``, in
this order. This takes at most two integers per sequence: 16 million sequences in 8 million packs take about 100 MB, in
memory and on disk. A file of packs (``packs.arrow``) has one Arrow ``list`` column, which any Arrow library can read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.arrow import list_array, list_parts, read_arrow, write_arrow
from nopad.errors import FormatError, PlanMismatchError
from nopad.files import local_path
from nopad.histogram import as_lengths, integers
from nopad.options import MAX_LENGTH
from nopad.wording import counted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Packs", "index_dtype", "lengths_sha256", "packs_of", "take_lists"]

FORMAT_VERSION = 1


def index_dtype(n: int) -> type[np.int32] | type[np.int64]:
    """Return the dtype of indices of `n` sequences: int32 if `n` is below 2^31, otherwise int64."""
    return np.int32 if n < 2**31 else np.int64


@dataclass(frozen=True, eq=False)
class Packs:
    """An assignment of sequences to packs.

    Attributes:
        capacity: most tokens a pack may hold.
        depth: most sequences a pack may hold; None: unlimited.
        indptr: where each pack begins in `sequence`; int32 or int64 ``[packs + 1]``, starts at 0.
        sequence: sequence numbers, pack after pack; same dtype as `indptr`, ``[sequences]``.
        lengths_sha256: SHA-256 of the lengths that these packs were made for; None: not known.
        selection: a description of how the records of a corpus were changed before their lengths were taken; "" if they
            were not changed.
        notes: the notes of the plan that these packs were made from, such as why it may not be optimal; files do not
            hold them.

    >>> import nopad
    >>> packs = nopad.pack([5, 3, 4, 2], capacity=8, order="source")
    >>> len(packs), packs[0].tolist(), [p.tolist() for p in packs]
    (2, [0, 1], [[0, 1], [2, 3]])
    """

    capacity: int
    depth: int | None
    indptr: NDArray[Any]
    sequence: NDArray[Any]
    lengths_sha256: str | None = None
    selection: str = ""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of packs."""
        return self.indptr.size - 1

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return self.sequence.size

    @overload
    def __getitem__(self, at: int) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, at: slice) -> Packs: ...
    def __getitem__(self, at: int | slice) -> NDArray[Any] | Packs:
        """Return the sequence numbers of one pack, ``[n]``; for a slice, return `Packs` with the packs in that slice.

        A negative number counts from the end. The array of one pack is a view of `sequence`.

        Raises:
            IndexError: there is no pack with this number.
        """
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            if step != 1:
                return self.take(np.arange(begin, end, step))
            end = max(begin, end)
            first, last = self.indptr[begin], self.indptr[end]
            return replace(self, indptr=self.indptr[begin : end + 1] - first, sequence=self.sequence[first:last])
        if not -len(self) <= at < len(self):
            raise IndexError(f"pack {at} of {len(self)} packs")
        at %= len(self)
        return self.sequence[self.indptr[at] : self.indptr[at + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Iterate over packs, each an array of sequence numbers."""
        for at in range(len(self)):
            yield self[at]

    def __eq__(self, other: object) -> bool:
        """Whether every pack holds the same sequences in the same order, with the same capacity and depth."""
        if not isinstance(other, Packs):
            return NotImplemented
        return (
            (self.capacity, self.depth) == (other.capacity, other.depth)
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.sequence, other.sequence)
        )

    def __hash__(self) -> int:
        """Hash of the content."""
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        """Return one line with the number of packs, the number of sequences, the capacity and the depth."""
        depth = "unlimited" if self.depth is None else self.depth
        size = f"{counted(len(self), 'pack')}, {counted(self.sequences, 'sequence')}"
        return f"Packs({size}, capacity {self.capacity}, depth {depth})"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the capacity, the depth, and the sequence numbers of each pack, in hex.

        It is the same whether the indices are int32 or int64.
        """
        digest = hashlib.sha256(f"nopad.packs.v1\0{self.capacity}\0{self.depth}\0{len(self)}\0".encode())
        for array in (self.indptr, self.sequence):
            for begin in range(0, array.size, 1 << 20):
                digest.update(array[begin : begin + (1 << 20)].astype("<i8").tobytes())
        return digest.hexdigest()

    def take(self, packs: ArrayLike) -> Packs:
        """Return the packs with these numbers (integers ``[n]``), in this order.

        Raises:
            LengthError: `packs` are not integers ``[n]``. For a boolean mask of packs, give ``np.flatnonzero(mask)``.
            IndexError: a number is negative, or not below the number of packs.
        """
        chosen = integers(packs, "pack numbers").astype(np.int64, copy=False)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise IndexError(f"pack numbers must be in 0..{len(self) - 1}, got {chosen.min()}..{chosen.max()}")
        indptr, sequence = take_lists(self.indptr, self.sequence, chosen)
        return replace(self, indptr=indptr, sequence=sequence)

    def seq_lengths(self, lengths: ArrayLike) -> NDArray[np.int32]:
        """Return the length of each packed sequence, in the order of `sequence`; int32 ``[sequences]``.

        `lengths` holds the length of each sequence by its number.

        Raises:
            PlanMismatchError: a sequence number is not below the number of lengths.
            LengthError: lengths are not integers ``[n]`` from 1 to 2^31 - 1.
        """
        lens = as_lengths(lengths)
        if self.sequence.max(initial=-1) >= lens.size:
            raise PlanMismatchError(f"packs hold sequence {self.sequence.max():,}, the lengths are {lens.size:,}")
        chosen: NDArray[np.int32] = lens[self.sequence]
        return chosen

    def check(self, lengths: ArrayLike) -> None:
        """Check that these packs fit sequences of these `lengths`.

        Each sequence must be in exactly one pack, no pack may be empty, and packs must keep to the capacity and the
        depth. If `lengths_sha256` is not None, it must be the SHA-256 of `lengths`.

        Raises:
            PlanMismatchError: the packs fail this check; the message names the first problem.
            LengthError: lengths are not integers ``[n]`` from 1 to 2^31 - 1.
        """
        problem = self.problem(as_lengths(lengths))
        if problem:
            raise PlanMismatchError(problem)

    def problem(self, lengths: NDArray[np.int32]) -> str | None:
        """Return the first problem that `check` would report for these lengths, as text; None if there is none."""
        disorder = self.disorder(lengths.size)
        if disorder:
            return disorder
        tokens = np.add.reduceat(lengths[self.sequence].astype(np.int64), self.indptr[:-1])
        if tokens.max(initial=0) > self.capacity:
            p = int(np.argmax(tokens))
            return f"pack {p} holds {int(tokens[p]):,} tokens, above the capacity of {self.capacity:,}"
        if self.lengths_sha256 not in (None, lengths_sha256(lengths)):
            why = f" ({self.selection} when they were made)" if self.selection else ""
            return f"the packs were made for sequences of other lengths, or in another order{why}"
        return None

    def disorder(self, n: int) -> str | None:
        """Return the first problem that can be found without the lengths, as text; None if there is none.

        Each of the `n` sequences must be in exactly one pack, no pack may be empty, and packs must keep to the depth.
        """
        if self.sequences != n:
            return f"packs hold {self.sequences:,} sequences, the lengths are {n:,}"
        if self.indptr[0] != 0 or self.indptr[-1] != self.sequences:
            return f"packs cover {self.indptr[0]}..{self.indptr[-1]} of {self.sequences:,} sequences"
        backwards = self.indptr[1:] <= self.indptr[:-1]  # compared, not subtracted: damaged bounds could wrap
        if backwards.any():
            return f"pack {int(np.argmax(backwards))} is empty or its bounds run backwards"
        sizes = np.diff(self.indptr)
        if self.sequences and not 0 <= self.sequence.min() <= self.sequence.max() < n:
            return f"a sequence number is outside 0..{n - 1}"
        seen = np.bincount(self.sequence, minlength=n)
        if n and seen.max() > 1:
            return f"sequence {int(np.argmax(seen))} is in {int(seen.max())} packs"
        if self.depth is not None and sizes.size and sizes.max() > self.depth:
            p = int(np.argmax(sizes))
            return f"pack {p} holds {int(sizes[p])} sequences, above the depth of {self.depth}"
        return None

    def made_for(self, lengths: NDArray[np.int32]) -> Packs:
        """Return the same packs with the SHA-256 of these lengths (int32 ``[n]``) in `lengths_sha256`."""
        return replace(self, lengths_sha256=lengths_sha256(lengths))

    def save(self, path: str | Path) -> None:
        """Write an Arrow file with one column, ``sequence``, and one row per pack; an existing file is replaced.

        The type of the column is ``list<int32>`` or ``large_list<int64>``, as `indptr` is int32 or int64.

        Raises:
            OptionError: the path is a URL, cannot be written in UTF-8, or has a character NUL.
            StorageError: the disk is full, or the write failed.
        """
        import pyarrow as pa

        table = pa.table({"sequence": list_array(self.indptr, self.sequence)})
        header = {
            "format": "nopad.packs",
            "format_version": str(FORMAT_VERSION),
            "capacity": str(self.capacity),
            "depth": "none" if self.depth is None else str(self.depth),
            **({} if self.lengths_sha256 is None else {"lengths_sha256": self.lengths_sha256}),
            **({} if not self.selection else {"selection": self.selection}),
        }
        write_arrow(local_path(path), table.replace_schema_metadata({f"nopad.{k}": v for k, v in header.items()}))

    @classmethod
    def load(cls, path: str | Path) -> Packs:
        """Return the packs in a file that `save` wrote.

        It is checked that no pack is empty or exceeds the depth. Without the lengths, it cannot be checked whether each
        sequence occurs once, and whether packs keep to the capacity: call `check` with the lengths for this.

        Raises:
            FormatError: the file cannot be read, is damaged, or was not written by `save`.
        """
        import pyarrow as pa

        try:
            table = read_arrow(path)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise FormatError(f"cannot read packs from {path}: {error}") from error
        return packs_of(table, path)


def packs_of(table: pa.Table, path: str | Path) -> Packs:
    """Return the packs in `table`, read from a file that `Packs.save` wrote; error messages name `path`.

    Raises:
        FormatError: the table does not come from such a file, or its values cannot be packs.
    """
    try:
        header = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is damaged: its header is no text ({error})") from error
    if header.get("nopad.format") != "nopad.packs" or header.get("nopad.format_version") != str(FORMAT_VERSION):
        raise FormatError(f"{path} is an Arrow file but not nopad packs (format version {FORMAT_VERSION})")
    capacity, depth = header.get("nopad.capacity", ""), header.get("nopad.depth", "")
    written = [_schema(dtype) for dtype in (np.int32, np.int64)]
    if not _is_number(capacity) or not (depth == "none" or _is_number(depth)) or table.schema not in written:
        raise FormatError(f"{path} is damaged: its header or column is not what nopad writes")
    column = table.column("sequence")
    if column.num_chunks > 1:
        raise FormatError(f"{path} holds {column.num_chunks} record batches; a file of packs has one")
    indptr, sequence = (
        list_parts(column.chunk(0)) if column.num_chunks else (np.zeros(1, np.int32), np.zeros(0, np.int32))
    )
    packs = Packs(
        capacity=int(capacity),
        depth=None if depth == "none" else int(depth),
        indptr=indptr,
        sequence=sequence,
        lengths_sha256=header.get("nopad.lengths_sha256"),
        selection=header.get("nopad.selection", ""),
    )
    sizes = np.diff(indptr)
    if packs.capacity < 1 or sizes.min(initial=1) < 1 or sequence.min(initial=0) < 0:
        raise FormatError(f"{path} is damaged: its capacity is 0, a pack is empty, or a sequence number negative")
    if packs.depth is not None and sizes.max(initial=0) > packs.depth:
        raise FormatError(f"{path} is damaged: a pack holds {sizes.max()} sequences, its depth is {packs.depth}")
    return packs


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(MAX_LENGTH))


def lengths_sha256(lengths: NDArray[np.int32]) -> str:
    """Return the SHA-256 of lengths in the order given, in hex.

    The bytes hashed are a fixed prefix, then the lengths as little-endian int32.
    """
    digest = hashlib.sha256(b"nopad.lengths.v1\0")
    for begin in range(0, lengths.size, 1 << 20):
        digest.update(lengths[begin : begin + (1 << 20)].astype("<i4").tobytes())
    return digest.hexdigest()


def take_lists(
    indptr: NDArray[Any], values: NDArray[Any], chosen: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return ``(indptr, values)`` of the lists with the numbers `chosen`, in this order, as new arrays.

    List k is ``values[indptr[k]:indptr[k + 1]]``.
    """
    from nopad import _kernels

    new = np.zeros(chosen.size + 1, dtype=indptr.dtype)
    sizes = indptr[chosen + 1] - indptr[chosen]
    taken = np.empty(int(sizes.sum(dtype=np.int64)), dtype=values.dtype)
    _kernels.permute_packs(indptr, values, chosen, new, taken)
    return new, taken


def _schema(dtype: type[np.int32] | type[np.int64]) -> pa.Schema:
    """Return the Arrow schema of a file of packs whose indices have this dtype."""
    import pyarrow as pa

    return pa.schema({"sequence": list_array(np.zeros(1, dtype), np.zeros(0, dtype)).type})
