"""Arrow arrays and files: convert CSR arrays to list arrays and back, mostly without a copy; read and write files.

CSR arrays are a pair ``(indptr, values)``: list i is ``values[indptr[i]:indptr[i + 1]]``.

Files are read into memory as a whole. They are never memory-mapped: if a mapped file is truncated, the system kills the
process that reads it.

pyarrow is imported at its first use, so that ``import nopad`` stays fast.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.files import replacing

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["array_of", "is_deep", "list_array", "list_parts", "read_arrow", "write_arrow"]

_LEVELS = 100  # of containers in containers, at most
_CONTAINERS = (Sequence, Mapping, Set, np.ndarray)
_FLAT = (str, bytes, bytearray, memoryview, range)


def array_of(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return an array of these values, of the type `kind`; None: of the type that Arrow finds for them.

    This is `pa.array` with a limit on how deep values are nested. Without it, a value that holds itself, or is nested
    some 10,000 levels deep, would end the process.

    Raises:
        pa.ArrowException, TypeError, ValueError, OverflowError: the values have no common type or do not fit `kind`,
            or one of them is nested more than 100 levels deep.

    >>> array_of([[1], None, [2, 3]]).type
    ListType(list<item: int64>)
    """
    import pyarrow as pa

    if is_deep(values):
        raise pa.ArrowInvalid(f"nested more than {_LEVELS} levels deep")
    return pa.array(values, kind)


def is_deep(values: Sequence[Any]) -> bool:
    """Return whether there are more than 100 levels of containers within `values`: too many for `array_of`."""
    held: dict[int, Any] = {0: values}
    for _ in range(_LEVELS + 1):
        found = set[type]()
        for one in held.values():
            found.update(map(type, _inside(one)))
        kinds = tuple(kind for kind in found if issubclass(kind, _CONTAINERS) and not issubclass(kind, _FLAT))
        if not kinds:
            return False
        # Each once: lists that hold one list twice, which does so too, would double with every level.
        held = {id(inner): inner for one in held.values() for inner in _inside(one) if isinstance(inner, kinds)}
    return True


def _inside(one: Any) -> Iterable[Any]:
    if isinstance(one, np.ndarray):
        return one.flat if one.dtype == object else ()
    return one.values() if isinstance(one, Mapping) else one


def write_arrow(path: Path, table: pa.Table) -> None:
    """Write `table` as an uncompressed Arrow file; a file that exists at `path` is replaced atomically.

    Raises:
        StorageError: the disk is full, or the write failed.
    """
    import pyarrow as pa

    with (
        replacing(path) as partial,
        pa.OSFile(os.fsencode(partial), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)


def read_arrow(path: str | os.PathLike[str], *, sha256: str | None = None) -> pa.Table:
    """Read an Arrow file into memory, validate it in full, and return its table.

    `sha256` is the hash that the content of the file must have, in hex; None: the hash is not checked. The table uses
    the bytes that were read and hashed, so later changes to the file do not affect it.

    Raises:
        OSError: the file cannot be read.
        pa.ArrowException, ValueError: the file is not an Arrow file, is damaged, or has another SHA-256.
    """
    import pyarrow as pa

    with pa.OSFile(os.fsencode(path)) as file:  # as bytes, because not every name is UTF-8
        data = file.read_buffer()
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError("not the SHA-256 of the manifest")
    table = pa.ipc.open_file(data).read_all()
    table.validate(full=True)
    return table


def list_array(indptr: NDArray[Any], values: NDArray[Any]) -> pa.Array:
    """Return CSR arrays as an Arrow list array: list i holds ``values[indptr[i]:indptr[i + 1]]``.

    Arrays of numbers are not copied. Others may be, such as booleans, which Arrow stores as bits. The type is
    ``large_list`` if `indptr` is int64, and otherwise ``list``. The elements of lists are not nullable.
    """
    import pyarrow as pa

    kind = pa.LargeListArray if indptr.dtype == np.int64 else pa.ListArray
    make = pa.large_list if indptr.dtype == np.int64 else pa.list_
    element = pa.from_numpy_dtype(values.dtype)
    return kind.from_arrays(
        pa.array(indptr), pa.array(values, type=element), type=make(pa.field("element", element, nullable=False))
    )


def list_parts(array: pa.Array) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lists of an Arrow list array as CSR arrays of NumPy: ``(indptr, values)``, where ``indptr[0]`` is 0.

    Numbers without nulls are a view of the array's memory. Other values are copied: booleans, strings, nested lists,
    and numbers of which some are null. A copy may have another type; for example, integers with nulls become float64
    with NaN. `indptr` is a view too, unless the array is a slice that does not begin at 0.
    """
    offsets = array.offsets.to_numpy()
    if offsets.size == 0:
        return np.zeros(1, np.int32), array.values.to_numpy(zero_copy_only=False)[:0]
    first, last = offsets[0], offsets[-1]
    values = array.values.slice(first, last - first).to_numpy(zero_copy_only=False)
    return (offsets if first == 0 else offsets - first), values
