"""`Source`, the interface between a corpus and its readers: a stream of `Block`s.

A block is a run of whole records, as raw bytes or as an Arrow table; it is the unit of reading, hashing and resuming.
Decoding is lazy: a resumed job reads and hashes the blocks it already has (0.6 GB/s), and decodes only new ones. The
same input always gives the same blocks. A corpus need not fit in memory, but each block must (4 MiB, or one larger
record).

To add a source: subclass `Source`, write `blocks()`, and give each block a decoder whose result depends only on the
block's data. `IterableSource` is the smallest example; tests use it too.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nopad.corpus.records import BadRecord, Carried, Kind, Record, Records, ids_record, text_run
from nopad.corpus.thinning import Lines
from nopad.errors import SourceError
from nopad.options import Option

if TYPE_CHECKING:
    import pyarrow as pa

    from nopad.corpus.inputs import InputFile

BLOCK_BYTES = 4 << 20
CHAIN_START = bytes(32)

BLOCK_RECORDS = Option(default=1000, help="records in a block")

Decoder = Callable[[Any, int], Iterator[Record | Records | BadRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A run of whole records of one file.

    Attributes:
        name: name of the file in fingerprints: a POSIX path relative to the input folder, or a bare file name.
        data: raw bytes, or an Arrow record batch.
        decoder: the function that decodes the records; it is called as ``decoder(data, first_line)``.
        first_line: 1-based line or row of the first record.
        path: path of the file in messages, as the user knows it.
        whole: whether the block is one document; messages then give no line number.
        by_line: whether each line of `data` that is not empty is one record; empty lines are not records.
        source: name of the named source that the block belongs to; "" if sources are not named.
        at: the argument with which `Source.blocks_from` begins at this block; (): use the block's number.
        places: for a block with documents of several files, the place of each document, for messages; (): messages use
            `path`.
    """

    name: str
    data: bytes | pa.RecordBatch
    decoder: Decoder
    first_line: int = 1
    path: str = ""
    whole: bool = False
    by_line: bool = False
    source: str = ""
    at: tuple[int, ...] = ()
    places: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Size of the content in bytes; for a table, the size of its values, independent of the memory layout."""
        if isinstance(self.data, bytes):
            return len(self.data)
        from nopad.corpus.digest import content_bytes

        return content_bytes(self.data)

    def digest(self) -> bytes:
        """Return the SHA-256 of the content, 32 bytes; for a table, independent of the memory layout."""
        if isinstance(self.data, bytes):
            return hashlib.sha256(self.data).digest()
        from nopad.corpus.digest import content_digest

        return content_digest(self.data)

    def records(self) -> Iterator[Record | Records | BadRecord]:
        """Decode the records lazily; bad content never raises, but gives a `BadRecord`."""
        return self.decoder(self.data, self.first_line)

    def lines(self) -> Lines | None:
        """Return the lines of the block, so that chosen ones can be decoded alone; None if a line is not one record."""
        return Lines(self.data) if self.by_line and isinstance(self.data, bytes) else None

    def place(self, line: int) -> str:
        """Return where a record is, for messages: `docs/a.jsonl, line 7`."""
        if self.places:
            return self.places[line - self.first_line]
        if self.whole:
            return self.path or self.name
        return f"{self.path or self.name}, {'line' if isinstance(self.data, bytes) else 'row'} {line}"


class Source(ABC):
    """Base class of sources. A subclass must define `blocks`; the other members improve progress bars and messages."""

    kind: Kind | None = None
    """What every record holds, "text" or "ids"; None if that is not known before reading."""
    total_bytes: int | None = None
    """Sum of the block sizes, for a progress bar."""
    ignored: tuple[str, ...] = ()
    """Files that were found but that no reader handles, to be shown to the user."""
    carried: tuple[Carried, ...] = ()
    """Columns that are carried, the same for every record."""
    left_out: tuple[str, ...] = ()
    """Columns that are not carried, to be shown to the user."""
    mask: str | None = None
    """The column that marks padding, the same for every record."""
    folders: tuple[Path, ...] = ()
    """Folders of this machine that were walked: what is written into one of them would be read the next time."""
    divisible: bool = True
    """Whether a share of the records can be held out: not where records share text."""
    names: tuple[str, ...] = ("",)
    """Names of the named sources that it reads, in reading order; ``("",)`` if its sources have no names."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield all blocks in a fixed order, from the start at every call. Raises SourceError if reading fails."""

    def blocks_from(self, at: tuple[int, ...]) -> Iterator[Block]:
        """Yield the blocks from the given one on.

        `at` is the first block's `Block.at`; if that is empty, it is ``(number,)``, where blocks are counted from 0.
        Sources that can find a block without reading the earlier ones override this method.
        """
        return islice(self.blocks(), at[0], None)

    def inventory(self) -> list[tuple[str, int]]:
        """Return (name, bytes) per file in reading order, so that a refused resume can say which file changed."""
        return []

    def files(self) -> list[InputFile] | None:
        """Return the files in reading order, as they were when found; None if some input does not come from files."""
        return None

    def settings(self) -> dict[str, Any]:
        """Return how the bytes are read (fields, units), which is part of the source's identity.

        The settings are kept in the manifest; a job that was started with other settings is not resumed.
        """
        return {}


class IterableSource(Source):
    """Texts or lists of ids from memory, in blocks of `block_records` items.

    Messages count the items from 1. Raises SourceError if texts and ids are mixed, or if an item is neither.
    """

    def __init__(self, items: Iterable[str | Sequence[int]], *, name: str = "memory", block_records: int = 1000):
        if isinstance(items, str | bytes | Mapping):
            raise SourceError(f"{name}: {type(items).__name__}, not a list of texts or of lists of ids")
        self._items = [item if isinstance(item, str) else _plain(item, name, at) for at, item in enumerate(items, 1)]
        self._name = name
        self._block_records = BLOCK_RECORDS.check("block_records", block_records)
        texts = [isinstance(item, str) for item in self._items]
        if any(texts) and not all(texts):
            text, ids = texts.index(True) + 1, texts.index(False) + 1
            raise SourceError(
                f"{name}: record {text} is text and record {ids} is ready-made ids; pack them in two separate jobs"
            )
        self.kind = None if not texts else "text" if texts[0] else "ids"
        self.total_bytes = sum(block.size for block in self.blocks())

    def blocks(self) -> Iterator[Block]:
        """Yield blocks whose data is the canonical JSON array of their items."""
        for first in range(0, len(self._items), self._block_records):
            items = self._items[first : first + self._block_records]
            data = json.dumps(items, separators=(",", ":"), default=repr).encode()
            yield Block(name=self._name, data=data, decoder=_decode_array, first_line=first + 1)

    def inventory(self) -> list[tuple[str, int]]:
        """Return one entry: the name, and the size of all items as JSON."""
        return [(self._name, self.total_bytes or 0)]


def located(sources: Sequence[Source], at: tuple[int, ...] = (0,)) -> Iterator[Block]:
    """Yield the blocks of several sources, one after the other, with the source's number in front of each block's `at`.

    Begins in source number ``at[0]``, at the block that ``at[1:]`` names there (see `Source.blocks_from`).
    """
    for number in range(at[0], len(sources)):
        inside = at[1:] if number == at[0] else ()
        first = inside[0] if len(inside) == 1 else 0
        blocks = sources[number].blocks_from(inside) if inside else sources[number].blocks()
        for place, block in enumerate(blocks, first):
            yield replace(block, at=(number, *(block.at or (place,))))


def chain(digest: bytes, block: Block) -> bytes:
    """Return the SHA-256 of the previous digest, the block's name, NUL, and the SHA-256 of its data; 32 bytes.

    Start from `CHAIN_START`; the last digest, in hex, is the fingerprint of the source. No hash state is kept between
    calls, so a job that stored the digest after block k can continue from there. The digest depends on how the input
    was cut into blocks, but not on how the bytes are read (unit, fields): a job must compare those settings itself.
    """
    name = block.name.encode("utf-8", "surrogateescape")
    return hashlib.sha256(digest + name + b"\0" + block.digest()).digest()


def _plain(ids: Any, name: str, record: int) -> list[Any]:
    """Return ids as a list for JSON; a value that is not an integer stays, and makes a bad record later."""
    values = ids.tolist() if hasattr(ids, "tolist") else ids
    if not isinstance(values, list | tuple):
        raise SourceError(f"{name}: record {record} is {type(ids).__name__}, neither text nor a list of ids")
    return [int(value) if isinstance(value, np.integer) else value for value in values]


def _decode_array(data: bytes, first_line: int) -> Iterator[Records | Record | BadRecord]:
    items = json.loads(data)
    if items and isinstance(items[0], str):
        yield from text_run(items, np.arange(first_line, first_line + len(items)), "the text")
        return
    for line, item in enumerate(items, first_line):
        yield ids_record(item, line, "ids")
