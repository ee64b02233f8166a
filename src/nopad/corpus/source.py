"""The seam between a corpus and everything that reads one: a `Source` is a stream of `Block`s.

A block is a run of whole records with its raw bytes: the unit of reading, hashing and resuming. Decoding is lazy: a
job that resumes reads and hashes the blocks it already has (0.6 GB/s) and decodes only the new ones. The same input
gives the same blocks, always; a corpus never has to fit in memory, but each block does (4 MiB, or one larger record).

To add a source: subclass `Source`, write `blocks()`, give each block a decoder that is a pure function of its bytes.
`IterableSource` is the smallest example and the test double.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nopad.errors import SourceError

BLOCK_BYTES = 4 << 20
CHAIN_START = bytes(32)
MAX_ID = 2**31 - 1

Kind = Literal["text", "ids"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One document: either `text`, or ready-made `ids` (int32[n]); `line` is 1-based, 1 for a whole-file document."""

    line: int
    text: str | None = None
    ids: NDArray[np.int32] | None = None

    @property
    def content(self) -> str | NDArray[np.int32]:
        """Whichever of the two is set."""
        if self.text is not None:
            return self.text
        assert self.ids is not None
        return self.ids


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """One record that cannot be decoded, and why (no file, no line, no advice: those are added by who reports it)."""

    line: int
    reason: str


Decoder = Callable[[bytes, int], Iterator[Record | BadRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A run of whole records of one file.

    `name` goes into fingerprints: a POSIX path relative to the input folder, or a bare file name, never absolute.
    `path` goes into messages: where the user finds it. `whole`: the block is one document, so lines mean nothing.
    """

    name: str
    data: bytes
    decoder: Decoder
    first_line: int = 1
    path: str = ""
    whole: bool = False

    def records(self) -> Iterator[Record | BadRecord]:
        """Decode lazily; never raises for bad content, which comes out as `BadRecord`."""
        return self.decoder(self.data, self.first_line)

    def place(self, line: int) -> str:
        """Where a record is, for messages: `docs/a.jsonl, line 7`."""
        return self.path or self.name if self.whole else f"{self.path or self.name}, line {line}"


class Source(ABC):
    """Where sequences come from. Only `blocks` must be written; the rest sharpens progress bars and messages."""

    kind: Kind | None = None
    """What every record is, when known before reading."""
    total_bytes: int | None = None
    """Sum of the block sizes, for a progress bar."""
    ignored: tuple[str, ...] = ()
    """Files that were found but that no reader handles, to be shown to the user."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """All blocks, in a fixed order, from the start at every call. Raises SourceError when reading fails."""

    def inventory(self) -> list[tuple[str, int]]:
        """(name, bytes) per file in reading order: lets a refused resume say which file changed."""
        return []

    def settings(self) -> dict[str, str | None]:
        """How the bytes are read (fields, units): with the same bytes, other settings are another source.

        Kept in the manifest; a job that was started with other settings is not resumed.
        """
        return {}


class IterableSource(Source):
    """Texts, or lists of ids, from memory; `block_records` to a block.

    Raises SourceError when texts and ids are mixed. The line of a record is its 1-based position.
    """

    def __init__(self, items: Iterable[str | Sequence[int]], *, name: str = "memory", block_records: int = 1000):
        self._items = [item if isinstance(item, str) else _plain(item) for item in items]
        self._name = name
        self._block_records = block_records
        texts = [isinstance(item, str) for item in self._items]
        if any(texts) and not all(texts):
            text, ids = texts.index(True) + 1, texts.index(False) + 1
            raise SourceError(
                f"{name}: record {text} is text and record {ids} is ready-made ids; pack them in two separate jobs"
            )
        self.kind = None if not texts else "text" if texts[0] else "ids"
        self.total_bytes = sum(len(block.data) for block in self.blocks())

    def blocks(self) -> Iterator[Block]:
        """Blocks whose data is the canonical JSON array of their items."""
        for first in range(0, len(self._items), self._block_records):
            items = self._items[first : first + self._block_records]
            data = json.dumps(items, separators=(",", ":")).encode()
            yield Block(name=self._name, data=data, decoder=_decode_array, first_line=first + 1)

    def inventory(self) -> list[tuple[str, int]]:
        """One entry: the name and the size of all items as JSON."""
        return [(self._name, self.total_bytes or 0)]


def chain(digest: bytes, block: Block) -> bytes:
    """SHA-256 over the previous digest, the block's name, NUL, and the SHA-256 of its data. 32 bytes.

    Start from `CHAIN_START`; the last digest, in hex, is the fingerprint of the source. No hash state outlives a call,
    so a job that stored the digest after block k can go on from there. It depends on how the input was cut into blocks,
    and not on how the bytes are read (unit, fields): those are settings, which a job must compare by themselves.
    """
    name = block.name.encode("utf-8", "surrogateescape")
    return hashlib.sha256(digest + name + b"\0" + hashlib.sha256(block.data).digest()).digest()


def text_record(text: str, line: int, label: str) -> Record | BadRecord:
    """A text record; bad when it holds half a surrogate pair, which JSON can spell and UTF-8 cannot."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = f"\\u{ord(text[error.start]):04x}"
            return BadRecord(line=line, reason=f"{label} holds a lone surrogate, {code}, at character {error.start}")
    return Record(line=line, text=text)


def ids_record(values: list[Any], line: int, label: str) -> Record | BadRecord:
    """A record of ready-made ids; bad, with position and value, when one is no integer or outside int32."""
    if set(map(type, values)) <= {int}:  # not isinstance: True is an int too
        try:
            ids = np.array(values, dtype=np.int32)
        except OverflowError:
            pass
        else:
            if not (ids < 0).any():
                return Record(line=line, ids=ids)
    bad = next(i for i, v in enumerate(values) if type(v) is not int or not 0 <= v <= MAX_ID)
    return BadRecord(line=line, reason=f"{label}[{bad}] is {shown(values[bad])}; ids are integers from 0 to {MAX_ID}")


def shown(value: object, limit: int = 40) -> str:
    """A JSON value as the user wrote it, shortened to `limit` characters."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= limit else text[:limit] + "..."


def _plain(ids: Sequence[int] | NDArray[np.integer]) -> list[int]:
    values = ids.tolist() if isinstance(ids, np.ndarray) else ids
    return [int(value) if isinstance(value, np.integer) else value for value in values]


def _decode_array(data: bytes, first_line: int) -> Iterator[Record | BadRecord]:
    for line, item in enumerate(json.loads(data), first_line):
        yield text_record(item, line, "the text") if isinstance(item, str) else ids_record(item, line, "ids")
