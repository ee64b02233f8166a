"""Files mapped into memory, with checks that they are still the files that were opened.

A mapped file is read at the speed of memory, and processes share its pages. Two things can go wrong: a file that is cut
short kills the process that reads beyond its new end, and a file that is written to changes while it is read. So
`MappedFile` notes the size, time of the last write and inode of the file when it is made. Its `prove_size` compares the
size before a read, and `prove` compares size and time after the read (together 1 µs). `prove_path` checks that the path
still names the same file. A file that is removed, or replaced by a new one of the same name, stays readable for all
processes that have it open.

These checks miss three cases: a file that is cut short within the microseconds of one read (the process is killed); a
write within the same tick of the file system's clock as the opening (up to 10 ms); and a write whose time was set back.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.inputs import InputFile, reading
from nopad.errors import SourceError
from nopad.properties import cached_property

__all__ = ["MappedArray", "MappedFile"]

_AGAIN = "open it again when nothing writes to it"


class _Descriptor:
    """A file descriptor, closed when this object is freed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class MappedFile:
    """A file that is mapped when it is first read. Threads may share it; another process maps it anew after unpickling.

    Attributes:
        path: path of the file.
        size: its size in bytes.

    Raises:
        SourceError: the file is missing, unreadable or not a regular file; or it changed before it was mapped.
    """

    def __init__(self, path: Path) -> None:
        """Note the size, time of the last write and inode of the file, to compare them when it is mapped."""
        found = InputFile.found(path, path.name)
        self.path, self.size, self._stamp = path.absolute(), found.size, found.stamp

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker process gets: path, size, time of the last write and inode.

        The worker process opens the file itself.
        """
        return {name: value for name, value in vars(self).items() if name not in ("_file", "_mapping")}

    @cached_property
    def _file(self) -> _Descriptor:
        """The opened file; `prove` checks this one, even if the path names another file by now."""
        with reading(self.path):
            file = _Descriptor(os.open(self.path, os.O_RDONLY))
            self._compare(os.fstat(file.number), inode=True)
            return file

    @cached_property
    def _mapping(self) -> Any:
        with reading(self.path):
            file = self._file
            return mmap.mmap(file.number, self.size, access=mmap.ACCESS_READ)

    def array(self, dtype: np.dtype[Any], begin: int, count: int) -> NDArray[Any]:
        """Return the `count` values from byte `begin` on as a read-only view of the mapped file; ``[count]``.

        Raises:
            SourceError: the file cannot be opened, or changed before it was mapped.
        """
        return np.frombuffer(self._mapping, dtype, count, begin) if count else np.empty(0, dtype)

    def prove(self) -> None:
        """Refuse the file if it was written to or cut short since this object was made.

        The file that was opened is checked, even if the path names another one by now.

        Raises:
            SourceError: its size or the time of its last write changed, or it cannot be opened.
        """
        file = self._file  # held, so that another thread that opens it at the same time does not close this one
        info = os.fstat(file.number)
        if info.st_size != self.size or (self._stamp and info.st_mtime_ns != self._stamp[0]):
            self._compare(info)

    def prove_size(self) -> None:
        """Refuse the file if its size changed since this object was made; call this before a read.

        It takes a third of the time of `prove`.

        Raises:
            SourceError: its size changed, or it cannot be opened.
        """
        file = self._file
        if os.lseek(file.number, 0, os.SEEK_END) != self.size:
            self.prove()

    def prove_path(self) -> None:
        """Refuse the file if it was written to, replaced or removed since this object was made.

        Raises:
            SourceError: the file at `path` is missing, was replaced, or was written to.
        """
        with reading(self.path):
            self._compare(os.stat(self.path), inode=True)

    def _compare(self, info: os.stat_result, *, inode: bool = False) -> None:
        if info.st_size != self.size:
            raise SourceError(
                f"{self.path}: changed since it was opened, from {self.size:,} bytes to {info.st_size:,}; {_AGAIN}"
            )
        written, number = self._stamp or (info.st_mtime_ns, info.st_ino)
        if info.st_mtime_ns != written or (inode and info.st_ino != number):
            raise SourceError(f"{self.path}: written again or replaced since it was opened; {_AGAIN}")


class MappedArray:
    """A one-dimensional array in a mapped file: `size` values of `dtype` from byte `begin` on."""

    def __init__(self, file: MappedFile, dtype: np.dtype[Any], begin: int, size: int) -> None:
        """Note where the array lies; the file is mapped at the first use of `values`."""
        self.file, self.dtype, self.begin, self.size = file, dtype, begin, size

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that a worker process gets: all but the mapped `values`."""
        return {name: value for name, value in vars(self).items() if name != "values"}

    @cached_property
    def values(self) -> NDArray[Any]:
        """The values; read-only, ``[size]``."""
        return self.file.array(self.dtype, self.begin, self.size)
