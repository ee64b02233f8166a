"""Arrays in ``.npy`` files, read piece by piece as flat values in stored order.

Nothing is memory-mapped. So if a file is truncated or overwritten while it is read, an error that names it is raised
(`nopad.corpus.inputs`). Values are converted to the machine's byte order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.inputs import InputFile
from nopad.errors import SourceError

__all__ = ["NpyFile"]

Read = Callable[[int, int], NDArray[Any]]


class NpyFile:
    """An ``.npy`` file: the fields of its header, and methods that read its values.

    Attributes:
        path: path of the file.
        dtype: dtype of the stored values.
        shape: shape of the stored array.
        fortran: whether an array of several dimensions is stored column by column (Fortran order).
        size: number of values.
        bytes: size of the file in bytes.
        begin: offset of the first value in the file, in bytes.

    Raises:
        SourceError: the file is missing, unreadable, not an ``.npy`` file, truncated, or holds pickled objects.
    """

    def __init__(self, path: Path) -> None:
        """Read the header of the file at `path`, and check that the file is long enough for its values.

        Raises:
            SourceError: the file cannot be found or read, is not an ``.npy`` file, holds pickled objects, or is cut
                short.
        """
        self.path = path
        self._file = InputFile.found(path, path.name)
        self.bytes = self._file.size
        with self._file.random() as opened:
            try:
                version = np.lib.format.read_magic(opened)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                self.shape, self.fortran, self.dtype = read(opened)
                if self.dtype.hasobject:
                    raise ValueError("it holds pickled objects")
            except Exception as error:  # NumPy may raise anything for bytes that are no header
                raise SourceError(f"{path}: not an .npy file of numbers ({error}); save it with numpy.save") from error
            self.begin = opened.tell()
        self.size = math.prod(self.shape)
        need = self.begin + self.size * self.dtype.itemsize
        if need > self.bytes:
            raise SourceError(
                f"{path}: cut short: {self.size:,} values take {need:,} bytes, and it has {self.bytes:,}; save it again"
            )

    @contextmanager
    def opened(self) -> Iterator[Read]:
        """Pass to a ``with`` block a function ``read(begin, end)``, which returns values `begin` to `end` (exclusive).

        The values are a flat array in the machine's byte order.

        Raises:
            SourceError: reading fails, or the file is shorter than its header says, or has changed since it was found.
        """
        width = self.dtype.itemsize
        with self._file.random() as file:

            def read(begin: int, end: int) -> NDArray[Any]:
                file.seek(self.begin + begin * width)
                data = file.read_buffer((end - begin) * width)  # from Arrow's memory pool, which reuses its memory
                if len(data) != (end - begin) * width:
                    raise SourceError(f"{self.path}: cut short at value {begin + len(data) // width:,}; save it again")
                self._file.prove(file)
                return np.frombuffer(data, self.dtype).astype(self.dtype.newbyteorder("="), copy=False)

            yield read

    def whole(self) -> NDArray[Any]:
        """Return all values in stored order, as a flat array ``[size]`` in the machine's byte order.

        Raises:
            SourceError: reading fails, or the file is shorter than its header says, or has changed since it was found.
        """
        with self.opened() as read:
            return read(0, self.size)
