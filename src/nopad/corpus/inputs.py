"""One input file, here or on an object store, plain or compressed: read whole, in runs of whole lines, or at random.

Every way that reading can fail becomes a `SourceError` that names the path. The size is fixed when the file is found; a
file that has another size once it has been read was written to meanwhile, and is refused. O(bytes), memory of a block.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nopad.corpus.source import BLOCK_BYTES
from nopad.errors import SourceError

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A readable file: `path` as the user finds it, `name` for fingerprints, `size` in bytes as stored.

    `remote`: where it is when not on this machine's disk, an `nopad.corpus.remote.Remote`.
    """

    path: Path | str
    name: str
    size: int
    remote: Any = None

    @classmethod
    def found(cls, path: Path, name: str) -> InputFile:
        """Check that the file is there, regular and readable, so that no job stops at it hours later."""
        with reading(path):
            info = os.stat(path)
            if not stat.S_ISREG(info.st_mode):
                raise SourceError(
                    f"{path}: not a regular file, and nopad may have to read it twice; write it to a file first"
                )
            if not os.access(path, os.R_OK):
                raise PermissionError
        return cls(path=path, name=name, size=info.st_size)

    @property
    def compression(self) -> str | None:
        """Arrow's name of the compression that the suffix says, None when it says none."""
        return COMPRESSIONS.get(os.path.splitext(self.name)[1].lower())

    @property
    def suffix(self) -> str:
        """What the suffix says is inside: ".jsonl" of a.jsonl.gz."""
        name = self.name
        if self.compression:
            name = os.path.splitext(name)[0]
        return os.path.splitext(name)[1].lower()

    def whole(self) -> bytes:
        """The content of the file, decompressed."""
        with reading(self.path), self._stream() as file:
            data: bytes = file.read()
        self._check(len(data))
        return data

    def lines(self) -> Iterator[bytes]:
        """Line by line, with line ends, for looking at the first few."""
        rest = b""
        with reading(self.path), self._stream() as file:
            while chunk := file.read(1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line + b"\n" for line in lines)
        if rest:
            yield rest

    def line_blocks(self, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[bytes, int]]:
        """(data, number of its first line), cut after the last line end in each `block_bytes`; long lines grow it."""
        line, total, rest = 1, 0, []
        with reading(self.path), self._stream() as file:
            while chunk := file.read(block_bytes):
                total += len(chunk)
                cut = chunk.rfind(b"\n") + 1
                if not cut:
                    rest.append(chunk)
                    continue
                data = b"".join((*rest, chunk[:cut]))
                yield data, line
                line += data.count(b"\n")
                rest = [chunk[cut:]]
        self._check(total)
        if tail := b"".join(rest):
            yield tail, line

    def random(self) -> Any:
        """The file as an Arrow file that can be read at any place; a context manager."""
        import pyarrow as pa

        return pa.memory_map(str(self.path)) if self.remote is None else self.remote.random()

    def _stream(self) -> Any:
        """The content as a binary stream; a context manager."""
        if self.compression is None and self.remote is None:
            return open(self.path, "rb")
        import pyarrow as pa

        stored = pa.OSFile(str(self.path)) if self.remote is None else self.remote.stream()
        return pa.CompressedInputStream(stored, self.compression) if self.compression else stored

    def _check(self, read: int) -> None:
        """Refuse a file that was written to meanwhile."""
        with reading(self.path):
            if self.compression:  # bytes read are not bytes stored
                read = os.stat(self.path).st_size if self.remote is None else self.remote.size()
        if read != self.size:
            raise SourceError(
                f"{self.path}: changed while the job was running, from {self.size} bytes to {read}; "
                "run again when nothing writes to it"
            )


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn every OSError inside into a SourceError that names the path and the way out."""
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
    """Why these bytes are no text: the first bad byte and its offset in the `unit` ("file" or "line")."""
    reason = f"not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start} of the {unit}"
    looks_utf16 = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    return f"{reason} (it looks like UTF-16: convert it to UTF-8)" if looks_utf16 else reason
