"""A folder of NumPy arrays as a source, for users who tokenise once and train often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nopad.corpus.npy import NpyFile, Read
from nopad.corpus.options import ReaderOptions
from nopad.corpus.records import MAX_ID
from nopad.corpus.source import BLOCK_BYTES
from nopad.corpus.tables import TableSource
from nopad.errors import SourceError

__all__ = ["ArrayFolder", "ArrayLayout"]

_OFFSETS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class ArrayLayout:
    """The arrays of a folder: ``offsets.npy``, ``ids.npy`` and further columns.

    Attributes:
        folder: the folder.
        offsets: the file of offsets ``[n + 1]``, which say where each sequence begins in the per-token columns.
        columns: all other arrays by name (without ``.npy``), sorted by path.
        per_token: names of the columns with one value per token: those that are as long as ``ids``, and ``ids`` itself.
            Each other column has one value per sequence.
    """

    folder: Path
    offsets: NpyFile
    columns: Mapping[str, NpyFile]
    per_token: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path) -> ArrayLayout:
        """Return the layout of a folder; only the arrays' headers, and the first and last offset, are read.

        Raises:
            SourceError: an array is missing, cannot be read, or has a wrong shape or type; the offsets do not go from 0
                to the number of ids; or a column has neither one value per token nor one per sequence.
        """
        arrays = {path.stem: NpyFile(path) for path in sorted(folder.glob("*.npy"))}
        for array in arrays.values():
            if len(array.shape) != 1 or array.dtype.kind not in "iufb" or array.dtype.itemsize > 8:
                raise SourceError(
                    f"{array.path}: an array of shape {array.shape} and type {array.dtype}; "
                    "columns are one-dimensional numbers"
                )
        for name in ("ids", "offsets"):
            if name not in arrays or arrays[name].dtype.kind not in "iu":
                raise SourceError(f"{folder}: no array of integers {name}.npy; a folder of arrays has ids and offsets")
        offsets = arrays.pop("offsets")
        tokens, sequences = arrays["ids"].size, offsets.size - 1
        with offsets.opened() as read:
            first, last = read(0, min(1, offsets.size)), read(max(offsets.size - 1, 0), offsets.size)
        if first.tolist() != [0] or last.tolist() != [tokens]:
            raise SourceError(
                f"{folder}: offsets.npy goes from {first.tolist()} to {last.tolist()}, and must go "
                f"from 0 to the {tokens} values of ids.npy"
            )
        per_token = tuple(name for name, array in arrays.items() if array.size == tokens)
        for name, array in arrays.items():
            if name not in per_token and array.size != sequences:
                raise SourceError(
                    f"{folder}: {name}.npy has {array.size} values; one per token would be "
                    f"{tokens}, one per sequence {sequences}"
                )
        return cls(folder, offsets, arrays, per_token)

    @property
    def files(self) -> list[NpyFile]:
        """The files of all arrays, sorted by file name."""
        return sorted([self.offsets, *self.columns.values()], key=lambda array: array.path.name)

    def check_clear(self, all_of_one: bool, carried: Sequence[str] | None = None) -> None:
        """Refuse columns if it is unclear whether they have one value per token or per sequence.

        Args:
            all_of_one: whether every sequence has exactly one token. A value per token is then also a value per
                sequence, and nothing is refused.
            carried: names of the per-token columns that are packed along with the ids; None: all of them are.

        Raises:
            SourceError: a per-token column is packed along with the ids, and there are as many sequences as tokens, but
                not every sequence has one token.
        """
        unclear = [name for name in self.per_token if name != "ids"] if carried is None else carried
        if unclear and not all_of_one and self.columns["ids"].size == self.offsets.size - 1:
            raise SourceError(
                f"{self.folder}: {unclear[0]}.npy has {self.offsets.size - 1} values, and there are as many "
                "sequences as tokens: one per token, or one per sequence? Leave out the empty sequences, or leave "
                "that column out of carry="
            )


class ArrayFolder(TableSource):
    """A folder of arrays: ``ids.npy`` with the ids of all sequences, and ``offsets.npy``, integers ``[n + 1]``.

    Sequence i is ``ids[offsets[i]:offsets[i + 1]]``. Any other ``NAME.npy`` is a column of numbers or booleans: it has
    one value per token if it is as long as ``ids.npy``, else one per sequence, ``[n]``.

    Args:
        folder: the folder.
        options: which columns are read, and which of them are packed along with the ids (carried). If no field of ids
            or text is named, ``ids`` is read.
        block_bytes: a block has at most ``block_bytes / 8`` tokens, or a single longer sequence.

    Raises:
        SourceError: an array is missing, cannot be read, or has a wrong shape or type; the offsets do not go from 0 to
            the number of ids; a column has neither one value per token nor one per sequence; or a wanted column is
            missing, cannot be packed, or is used twice. While reading: a file cannot be read or has changed; the
            offsets fall; a sequence has more than 2^31 - 1 tokens; or it is unclear whether a carried column has one
            value per token or per sequence (`ArrayLayout.check_clear`).

    >>> import numpy as np, nopad, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "ids.npy", np.array([7, 8, 9, 5], np.uint16))
    >>> np.save(folder / "offsets.npy", np.array([0, 3, 4]))
    >>> source = nopad.open_source(folder)
    >>> [records.ids.seq_lengths.tolist() for block in source.blocks() for records in block.records()]
    [[3, 1]]
    """

    def __init__(self, folder: Path, options: ReaderOptions, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Read the headers of all arrays, and the first and last offset, and choose the columns to read."""
        layout = ArrayLayout.of(folder)
        self._layout, self._offsets, self._arrays = layout, layout.offsets, layout.columns
        self._tokens = set(layout.per_token)
        self._block_tokens = max(block_bytes // 8, 1)
        kinds = {n: pa.from_numpy_dtype(array.dtype.newbyteorder("=")) for n, array in self._arrays.items()}
        schema = pa.schema({n: pa.list_(kind) if n in self._tokens else kind for n, kind in kinds.items()})
        if options.ids_field is None and options.text_field is None:
            options = replace(options, ids_field="ids")
        super().__init__(folder.name, str(folder), schema, options)
        self._of_rows(self._offsets.size - 1, sum(array.bytes for array in layout.files))
        self._carried_per_token = [column.name for column in self.carried if column.per == "token"]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of whole sequences; a batch has at most `block_bytes` / 8 tokens, by default half a million.

        A sequence with more tokens than this is a batch by itself.

        Raises:
            SourceError: the offsets fall, a sequence has more than 2^31 - 1 tokens, or a file cannot be read; or it is
                unclear whether a column to pack along has one value per token or per sequence
                (`ArrayLayout.check_clear`).
        """
        with ExitStack() as stack:
            columns = {name: stack.enter_context(self._arrays[name].opened()) for name in self.selection.columns}
            for begin, offsets in self._cuts(stack.enter_context(self._offsets.opened())):
                yield self._batch(begin, offsets, columns)

    def inventory(self) -> list[tuple[str, int]]:
        """Return ``(name, bytes)`` of each array's file, sorted by file name."""
        return [(array.path.name, array.bytes) for array in self._layout.files]

    def _cuts(self, read: Read) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield (number of the first sequence, from 0; offsets) for each batch of sequences.

        The offsets are int64 ``[n + 1]`` for a batch of n sequences, and count from the start of ``ids.npy``. They are
        read about a million at a time. `read` is the function that reads the file of offsets (`NpyFile.opened`).

        Raises:
            SourceError: the offsets fall, or a sequence has more than 2^31 - 1 tokens; or it is unclear whether a
                column to pack along has one value per token or per sequence (`ArrayLayout.check_clear`).
        """
        sequences = self._offsets.size - 1
        for first in range(0, sequences, _OFFSETS_AT_ONCE):
            offsets = read(first, min(first + _OFFSETS_AT_ONCE, sequences) + 1).astype(np.int64)
            lengths = np.diff(offsets)
            self._layout.check_clear(bool((lengths == 1).all()), self._carried_per_token)
            if (lengths < 0).any() or (lengths > MAX_ID).any():
                at = int(np.argmax((lengths < 0) | (lengths > MAX_ID)))
                how = "falls" if lengths[at] < 0 else "rises by more than a sequence can hold,"
                raise SourceError(
                    f"{self._path}: offsets.npy {how} from {offsets[at]} to {offsets[at + 1]} at {first + at}"
                )
            begin, last = 0, lengths.size
            while begin < last:
                limit = offsets[begin] + self._block_tokens
                end = min(max(int(np.searchsorted(offsets, limit, side="right")) - 1, begin + 1), last)
                yield first + begin, offsets[begin : end + 1]
                begin = end

    def _batch(self, begin: int, offsets: NDArray[np.int64], read: Mapping[str, Read]) -> pa.RecordBatch:
        relative = pa.array((offsets - offsets[0]).astype(np.int32))
        columns = {}
        for name in self.selection.columns:
            if name in self._tokens:
                values = pa.array(read[name](int(offsets[0]), int(offsets[-1])))
                columns[name] = pa.ListArray.from_arrays(relative, values)
            else:
                columns[name] = pa.array(read[name](begin, begin + offsets.size - 1))
        return pa.RecordBatch.from_pydict(columns)
