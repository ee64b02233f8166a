"""Read an input file, local or remote, plain or compressed: as a whole, by lines, or at random positions.

Any failure to read becomes a `SourceError` that names the path. A file that changes while it is used is refused:

* When a local file is found, its size, modification time and inode are stored. They are compared when the file is
  opened, after every read from its stream (3 µs), and when reading ends.
* So a file that was written to is refused before the data that was read is used. A file that was replaced is refused
  when it is opened; after that, the open file is still the old one.
* A remote file is compared only when reading ends.
* Callers that read at random positions compare with `InputFile.prove` themselves.

Nothing is memory-mapped, since the system kills a process that reads a mapped file after it was truncated. Reading by
lines or blocks needs memory for one block.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nopad.corpus.source import BLOCK_BYTES
from nopad.errors import SourceError

BYTE_ORDER_MARK = "\ufeff"  # at the start of a file, it is not content
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_BEGINNINGS = {  # of what is no text
    b"\xff\xfe": "it looks like UTF-16: convert it to UTF-8",
    b"\xfe\xff": "it looks like UTF-16: convert it to UTF-8",
    b"\x1f\x8b": "it looks like gzip: end its name in .gz, or decompress it first, as `zcat FILE | nopad ... -` does",
    b"\x28\xb5\x2f\xfd": "it looks like zstd: end its name in .zst, or decompress it first",
    b"\xfd7zXZ": "it looks like xz: decompress it first",
}


@dataclass(slots=True)
class Meter:
    """Tells how much of a file has been read.

    Attributes:
        read: number of stored bytes that the latest pass over the file has read so far.
    """

    read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """An input file that was found, with its size, modification time and inode at that moment.

    The methods that read it raise SourceError if it cannot be read, or has changed since it was found.

    Attributes:
        path: path or URL of the file; messages show it.
        name: name of the file in fingerprints.
        size: stored size in bytes; for a compressed file, its compressed size.
        remote: the `nopad.corpus.remote.Remote` of a file on an object store; None for a local file.
        stamp: (modification time in ns, inode), by which a replaced file is noticed; the inode of a remote file is 0.
            None: only the size is compared.
        meter: tells progress bars how much of the file has been read; it is not part of the file's identity.
    """

    path: Path | str
    name: str
    size: int
    remote: Any = None
    stamp: tuple[int, int] | None = None
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)

    @classmethod
    def found(cls, path: Path, name: str) -> InputFile:
        """Return the `InputFile` at `path`, with `name` for fingerprints, after checking that it is readable.

        Raises:
            SourceError: there is no such file, or it is not a regular file or not readable.
        """
        with reading(path):
            info = os.stat(path)
            if not stat.S_ISREG(info.st_mode):
                raise SourceError(
                    f"{path}: not a regular file, and nopad may have to read it twice; write it to a file first"
                )
            if not os.access(path, os.R_OK):
                raise PermissionError
        return cls(path=path, name=name, size=info.st_size, stamp=_stamp(info))

    @property
    def compression(self) -> str | None:
        """The compression that the suffix stands for, as Arrow names it: "gzip" or "zstd"; None: not compressed."""
        return COMPRESSIONS.get(os.path.splitext(self.name)[1].lower())

    @property
    def suffix(self) -> str:
        """The suffix of the uncompressed file in lower case: ".jsonl" for ``a.jsonl.gz``."""
        name = self.name
        if self.compression:
            name = os.path.splitext(name)[0]
        return os.path.splitext(name)[1].lower()

    def whole(self, limit: int | None = None) -> bytes:
        """Return the decompressed content, or only its first ``limit + 1`` bytes if `limit` is given.

        The extra byte tells the caller that the content is longer than `limit`.
        """
        with self._stream() as file:
            data: bytes = file.read() if limit is None else file.read(limit + 1)
        return data

    def lines(self) -> Iterator[bytes]:
        """Yield the decompressed lines with their line ends; meant for reading the first few lines."""
        rest: list[bytes] = []
        for chunk in self.chunks(1 << 16):
            *lines, last = chunk.split(b"\n")
            for line in lines:
                yield b"".join((*rest, line, b"\n"))
                rest = []
            rest.append(last)
        if tail := b"".join(rest):
            yield tail

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the decompressed content in chunks of at most `size` bytes, which may end inside a line."""
        with self._stream() as file:
            while chunk := file.read(size):
                yield chunk

    def line_blocks(
        self, block_bytes: int = BLOCK_BYTES, offset: int = 0, line: int = 1
    ) -> Iterator[tuple[bytes, int, int]]:
        """Yield (data, offset, number of the first line) for each block of whole lines.

        A block has about `block_bytes` bytes, or more if one of its lines is longer than that.

        `offset` is the position in bytes, in the decompressed content, at which to begin, and `line` the number of the
        line there. Beginning with the offset and line of an earlier block yields the same blocks from that block on.
        """
        rest: list[bytes] = []
        with self._stream() as file:
            file.skip(offset)
            # Chunks end at multiples of `block_bytes`, wherever reading begins.
            while chunk := file.read(block_bytes - (offset + sum(map(len, rest))) % block_bytes):
                cut = chunk.rfind(b"\n") + 1
                if not cut:
                    rest.append(chunk)
                    continue
                data = b"".join((*rest, chunk[:cut]))
                yield data, offset, line
                offset += len(data)
                line += data.count(b"\n")
                rest = [chunk[cut:]]
        if tail := b"".join(rest):
            yield tail, offset, line

    @contextmanager
    def random(self) -> Iterator[Any]:
        """Open the stored file, and pass it to a ``with`` block as a pyarrow file object that reads at any position.

        A compressed file is not decompressed.
        """
        import pyarrow as pa

        with reading(self.path):  # a path as bytes, because not every name is UTF-8
            opened = pa.OSFile(os.fsencode(self.path)) if self.remote is None else self.remote.random()
        with self._unchanged(opened) as stored:
            yield stored

    @contextmanager
    def _stream(self) -> Iterator[_Proven]:
        """Pass a stream of the decompressed content to a ``with`` block."""
        if self.compression is None:
            with reading(self.path):
                opened = open(self.path, "rb") if self.remote is None else _Counted(self.remote.stream())  # noqa: SIM115
            with self._unchanged(opened) as stored:
                yield _Proven(self, stored, stored)
            return
        import pyarrow as pa

        with reading(self.path):
            opened = pa.OSFile(os.fsencode(self.path)) if self.remote is None else _Counted(self.remote.stream())
        with self._unchanged(opened) as stored:
            raw = stored if self.remote is None else pa.PythonFile(stored, mode="r")
            yield _Proven(self, stored, pa.CompressedInputStream(raw, self.compression))

    @contextmanager
    def _unchanged(self, opened: Any) -> Iterator[Any]:
        """Pass the open file `opened` to a ``with`` block, and close it after the block.

        The file must not have changed since it was found, else SourceError is raised (`prove`). This is checked before
        and after the block; for a remote file, only after it.
        """
        with reading(self.path), opened:
            self.prove(opened)
            try:
                yield opened
            except Exception:
                self.prove(opened, done=True)  # if the file has changed, report that as the cause
                raise
            self.prove(opened, done=True)

    def prove(self, opened: Any, *, done: bool = False) -> None:
        """Refuse an open file that was written to since it was found, or was replaced before it was opened.

        `opened` is the open file; None: the file at `path` is checked, which must be a local one. `done` says that
        reading has ended; a remote file is checked only if it is True.

        Raises:
            SourceError: the size or the stamp of the file is not what it was when the file was found.
        """
        if self.remote is None:
            with reading(self.path):
                info = os.stat(self.path if opened is None else opened.fileno())
            size, stamp = info.st_size, _stamp(info)
        elif done:
            size, stamp = self.remote.now()
        else:
            return
        if size != self.size:
            raise SourceError(
                f"{self.path}: changed while the job was running, from {self.size} bytes to {size}; {_AGAIN}"
            )
        if self.stamp is not None and stamp != self.stamp:
            raise SourceError(f"{self.path}: written again or replaced while the job was running; {_AGAIN}")


@dataclass(frozen=True, slots=True)
class _Proven:
    """The content of a file as a stream; every read checks that a local file has not changed.

    Attributes:
        file: the file, with its size and stamp when it was found.
        stored: the open file, which gives the bytes as they are stored.
        content: the stream of the decompressed content, which reads from `stored`.
    """

    file: InputFile
    stored: Any
    content: Any

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most `size` of them; with a negative `size`, all that are left.

        Raises:
            SourceError: the file has changed since it was found.
        """
        data: bytes = self.content.read(None if size < 0 else size)
        self.file.prove(self.stored)
        self.file.meter.read = self.stored.tell()
        return data

    def skip(self, size: int) -> None:
        """Go from the beginning to byte `size`, or to the end if there are fewer bytes."""
        if size and self.content.seekable():
            self.content.seek(size)
            return
        while size > 0 and (data := self.read(min(size, BLOCK_BYTES))):
            size -= len(data)


class _Counted:
    """Wraps a remote stream and counts the bytes that are read from it, which pyarrow's own streams do not do.

    `tell` returns this number.
    """

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream, self._read = stream, 0

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, size: int | None = None) -> bytes:
        data: bytes = self._stream.read(size)
        self._read += len(data)
        return data

    def tell(self) -> int:
        return self._read

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
        self._stream.close()


_AGAIN = "run again when nothing writes to it"


def _stamp(info: os.stat_result) -> tuple[int, int]:
    """Return the time of a file's last write in ns, and its inode."""
    return info.st_mtime_ns, info.st_ino


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """In a ``with`` block, turn every OSError into a SourceError that names the path and says what to do."""
    try:
        yield
    except FileNotFoundError:
        if isinstance(path, Path) and path.is_symlink():
            raise SourceError(f"{path}: a link to something that does not exist; repair it, or remove it") from None
        raise SourceError(f"{path}: no such file or folder; check the path, or put it back") from None
    except PermissionError:
        raise SourceError(f"{path}: permission denied; make it readable, or leave it out") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise SourceError(f"{path}: cannot be read ({reason}); repair it, or leave it out") from error


def not_utf8(raw: bytes, error: UnicodeDecodeError, unit: str) -> str:
    """Return a text for messages that says why `raw` is not UTF-8: the first bad byte, and its offset.

    `error` is from decoding `raw`; `unit` is what the text calls these bytes, such as "line". If `raw` begins like
    UTF-16 or a compressed file, the text says so too.
    """
    reason = f"not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start} of the {unit}"
    way = next((way for magic, way in _BEGINNINGS.items() if raw.startswith(magic)), "")
    return f"{reason} ({way})" if way else reason
