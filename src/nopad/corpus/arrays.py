"""Memory-mapped arrays as a source: what people save who tokenise once and train often."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nopad.corpus.inputs import reading
from nopad.corpus.selection import Reading
from nopad.corpus.source import BLOCK_BYTES
from nopad.corpus.tables import TableSource
from nopad.errors import SourceError

__all__ = ["ArrayFolder"]


class ArrayFolder(TableSource):
    """A folder of memory-mapped arrays: ``ids.npy`` with all ids end to end, ``offsets.npy`` ``[n + 1]``.

    Any other ``NAME.npy`` is a column: as long as ``ids.npy``, one value a token; ``[n]``, one value a sequence.

    Raises:
        SourceError: an array is missing, of the wrong shape or type, or its length fits neither.
    """

    def __init__(self, folder: Path, how: Reading, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Map the arrays; nothing is read yet but the offsets' ends."""
        self._arrays = {path.stem: _mapped(path) for path in sorted(folder.glob("*.npy"))}
        self._files = [(path.name, path.stat().st_size) for path in sorted(folder.glob("*.npy"))]
        for name in ("ids", "offsets"):
            if name not in self._arrays or self._arrays[name].dtype.kind not in "iu":
                raise SourceError(
                    f"{folder}: no array of integers {name}.npy; memory-mapped arrays are ids and offsets"
                )
        offsets = self._arrays.pop("offsets")
        if not offsets.size or offsets[0] != 0 or offsets[-1] != self._arrays["ids"].size:
            raise SourceError(
                f"{folder}: offsets.npy goes from {offsets[:1].tolist()} to {offsets[-1:].tolist()}, and must go "
                f"from 0 to the {self._arrays['ids'].size} values of ids.npy"
            )
        self._offsets = offsets
        self._block_tokens = max(block_bytes // 8, 1)
        self._tokens = {name for name, array in self._arrays.items() if array.size == self._arrays["ids"].size}
        for name, array in self._arrays.items():
            if name not in self._tokens and array.size != offsets.size - 1:
                raise SourceError(
                    f"{folder}: {name}.npy has {array.size} values; one a token would be "
                    f"{self._arrays['ids'].size}, one a sequence {offsets.size - 1}"
                )
        kinds = {name: pa.from_numpy_dtype(array.dtype) for name, array in self._arrays.items()}
        schema = pa.schema({n: pa.list_(kind) if n in self._tokens else kind for n, kind in kinds.items()})
        how = (
            how
            if how.ids_field
            else Reading(ids_field="ids", carry=how.carry, mask_field=how.mask_field, pad_id=how.pad_id)
        )
        super().__init__(folder.name, str(folder), schema, how)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """As many sequences as hold about a million tokens."""
        begin, last = 0, self._offsets.size - 1
        while begin < last:
            limit = int(self._offsets[begin]) + self._block_tokens
            end = min(max(int(np.searchsorted(self._offsets, limit, side="right")) - 1, begin + 1), last)
            yield self._batch(begin, end)
            begin = end

    def inventory(self) -> list[tuple[str, int]]:
        """Every array."""
        return self._files

    def _batch(self, begin: int, end: int) -> pa.RecordBatch:
        offsets = np.asarray(self._offsets[begin : end + 1]).astype(np.int64)
        if (np.diff(offsets) < 0).any():
            at = begin + int(np.flatnonzero(np.diff(offsets) < 0)[0])
            raise SourceError(
                f"{self._path}: offsets.npy falls from {self._offsets[at]} to {self._offsets[at + 1]} at {at}"
            )
        tokens = slice(int(offsets[0]), int(offsets[-1]))
        relative = pa.array((offsets - offsets[0]).astype(np.int32))
        columns = {}
        for name in self.selection.columns:
            array = self._arrays[name]
            if name in self._tokens:
                columns[name] = pa.ListArray.from_arrays(relative, pa.array(np.asarray(array[tokens])))
            else:
                columns[name] = pa.array(np.asarray(array[begin:end]))
        return pa.RecordBatch.from_pydict(columns)


def _mapped(path: Path) -> np.ndarray[Any, Any]:
    with reading(path):
        try:
            array: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise SourceError(f"{path}: not an .npy file of numbers ({error}); save it with numpy.save") from error
    if array.ndim != 1 or array.dtype.kind not in "iufb":
        raise SourceError(
            f"{path}: an array of shape {array.shape} and type {array.dtype}; columns are one-dimensional numbers"
        )
    return array
