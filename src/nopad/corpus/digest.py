"""Fingerprints and sizes of the content of Arrow record batches, independent of how it lies in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nopad.corpus.rows import numbers
from nopad.corpus.selection import is_list, is_string

__all__ = ["content_bytes", "content_digest"]


def content_digest(batch: pa.RecordBatch) -> bytes:
    """Return the SHA-256 of a batch's content, independent of how it lies in memory.

    The content is the number of rows, and each column's name, type, nulls and values, with the lengths of texts and
    lists.
    """
    digest = hashlib.sha256(batch.num_rows.to_bytes(8, "little"))
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        digest.update(f"{name}\0{array.type}\0".encode())
        for part in _parts(array):
            digest.update(part)
    return digest.digest()


def content_bytes(batch: pa.RecordBatch) -> int:
    """Return the size of a batch's values in bytes, independent of how they lie in memory.

    Each text and each list counts 4 bytes more than its content.
    """
    return sum(_bytes(array) for array in batch.columns)


def _bytes(array: pa.Array) -> int:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_list(array.type):
        return 4 * len(array) + _bytes(array.flatten())
    if is_string(array.type):
        if pa.types.is_string_view(array.type):  # of which `binary_length` knows nothing
            array = array.cast(pa.large_string())
        return 4 * len(array) + int(pc.sum(pc.binary_length(array)).as_py() or 0)
    return len(array) * max(int(array.type.bit_width) // 8, 1)


def _parts(array: pa.Array) -> Iterator[Any]:
    """Yield the content of an array as buffers that do not depend on the array's memory layout."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        yield b"nulls"
        yield np.ascontiguousarray(array.is_null().to_numpy(zero_copy_only=False)).data
    if is_list(array.type):
        yield pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype("<i8").data
        yield from _parts(array.flatten())
    elif is_string(array.type):
        array = array.cast(pa.large_string())
        yield pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype("<i8").data
        if array.null_count:
            array = array.drop_null()  # a null may hide bytes
        offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
        data = array.buffers()[2]
        if data is not None and len(array):
            yield data[int(offsets[0]) : int(offsets[-1])]
    elif len(array):
        yield np.ascontiguousarray(numbers(array)).data
