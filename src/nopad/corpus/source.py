"""`Source`: the interface between a corpus and the code that reads it, as a stream of `Block`s.

A block is a run of whole records, as raw bytes or as an Arrow table. Input is read and hashed block by block. A job
that is resumed goes on after the last block of which it has saved the sequences. It reads and hashes the blocks before
that point again (0.6 GB/s), but does not decode them. The same input always gives the same blocks. A corpus need not
fit in memory, but each block must (about 4 MiB for files, or one larger record).

To add a source: subclass `Source`, write `blocks()`, and give each block a decoder whose result depends only on the
block's data. `IterableSource` is the smallest example.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nopad.corpus.options import WAYS, OverLong, TextUnit
from nopad.corpus.records import BadRecord, Carried, Kind, Record, Records, ids_record, shown, text_run
from nopad.corpus.thinning import Lines
from nopad.errors import SourceError
from nopad.notation import from_json, to_json
from nopad.options import Option

if TYPE_CHECKING:
    import pyarrow as pa

    from nopad.corpus.inputs import InputFile

BLOCK_BYTES = 4 << 20
CHAIN_START = bytes(32)
"""The digest that `chain` starts from: 32 zero bytes.

>>> from nopad.corpus import CHAIN_START
>>> len(CHAIN_START), any(CHAIN_START)
(32, False)
"""

BLOCK_RECORDS = Option(default=1000, help="records in a block")

Decoder = Callable[[Any, int], Iterator[Record | Records | BadRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A run of whole records of one file or other input.

    Attributes:
        name: name of the file in fingerprints: a POSIX path relative to the input folder, or a bare file name. For
            another input, the name of this input.
        data: raw bytes, or an Arrow record batch.
        decoder: the function that decodes the records; it is called as ``decoder(data, first_line)``.
        first_line: 1-based line or row of the first record.
        path: path of the file in messages, as the user knows it.
        whole: whether the block is one whole document; messages then give no line number.
        by_line: whether each line of `data` that is not empty is one record; empty lines are not records.
        source: name of the source in a mixture to which the block belongs; "" if there is no mixture.
        at: the argument with which `Source.blocks_from` begins at this block. (): the argument is ``(number,)``, where
            number is the block's index among all blocks of the source, from 0.
        places: one text for each record, which names the record's place in messages; (): the place is made from `path`
            and the line.
        ways: which values of `CorpusOptions.over_long`, besides "error", are possible for the block's records.
        read: how many bytes of `Source.total_bytes` were read to get this block, for progress bars; None: as many as
            `size` says.

    >>> import nopad
    >>> [block] = nopad.open_source([[7, 8, 9], [5]]).blocks()
    >>> block.name, block.first_line
    ('memory', 1)
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
    ways: tuple[OverLong, ...] = WAYS
    read: int | None = None

    @property
    def size(self) -> int:
        """Size of the content in bytes; for a table, the size of its values, however they lie in memory."""
        if isinstance(self.data, bytes):
            return len(self.data)
        from nopad.corpus.digest import content_bytes

        return content_bytes(self.data)

    @property
    def progress(self) -> int:
        """Number of bytes by which this block advances a progress bar whose total is `Source.total_bytes`."""
        return self.size if self.read is None else self.read

    def digest(self) -> bytes:
        """Return the SHA-256 of the content, 32 bytes; for a table, it does not depend on how values lie in memory."""
        if isinstance(self.data, bytes):
            return hashlib.sha256(self.data).digest()
        from nopad.corpus.digest import content_digest

        return content_digest(self.data)

    def records(self) -> Iterator[Record | Records | BadRecord]:
        """Yield the records, which are decoded only when they are asked for.

        A record that cannot be decoded raises no error, but is yielded as a `BadRecord`.

        Only the blocks of a `PretrainingSource`, of a `LengthsFile` and of chats raise errors here.

        Raises:
            RecordError: no pre-training pairs can be made of the documents in the block; or a document is empty, or has
                a sentence that is too long, and the options make this an error.
            FormatError: the tokenizer cannot encode a document of which pairs are made; or the block is of a file of
                lengths, which holds no records.
            OptionError: the records are chats, and the tokenizer cannot encode them, for example because it has no chat
                template.
        """
        return self.decoder(self.data, self.first_line)

    def lines(self) -> Lines | None:
        """Return the lines of the block's data as a `Lines`, by which chosen lines can be decoded alone.

        The result is None unless `by_line` is True.
        """
        return Lines(self.data) if self.by_line and isinstance(self.data, bytes) else None

    def place(self, line: int) -> str:
        """Return the place of the record at `line`, for messages, such as ``docs/a.jsonl, line 7``."""
        if self.places:
            return self.places[line - self.first_line]
        if self.whole:
            return self.path or self.name
        return f"{self.path or self.name}, {'line' if isinstance(self.data, bytes) else 'row'} {line}"


class Source(ABC):
    """Base class of sources. A subclass must define `blocks`; all other members have defaults.

    Attributes:
        kind: content of every record, "text" or "ids"; None: that is not known before reading.
        total_bytes: total of a progress bar, in bytes as files store them (for example compressed); None: it is not
            known. `Block.progress` says how much each block adds.
        ignored: names of files that were found but are not read, to be shown to the user.
        carried: columns that are packed along with the tokens of every record.
        left_out: names of columns that are not read, to be shown to the user.
        mask: name of the column that marks padding, such as ``attention_mask``; None: no column does.
        columns_known: whether `carried` and `mask` are known; False: the source has no good record, which would show
            its columns.
        folders: local folders that were searched for files. A job must not write into one: its output would be read
            the next time.
        divisible: whether some records can be held out for validation; False: several records may contain the same
            text.
        made_here: whether an encoder or a task of nopad made the content of the records; then none of the ids is
            padding.
        text_unit: what a record of the text files is, "file", "line" or "paragraph"; None: no text file is read.
        names: names of the sources in a mixture, in reading order; ``("",)`` for a source that is not a mixture.

    >>> import nopad
    >>> source = nopad.open_source([[7, 8, 9], [5]])
    >>> isinstance(source, nopad.corpus.Source), sum(1 for block in source.blocks())
    (True, 1)
    """

    kind: Kind | None = None
    total_bytes: int | None = None
    ignored: tuple[str, ...] = ()
    carried: tuple[Carried, ...] = ()
    left_out: tuple[str, ...] = ()
    mask: str | None = None
    columns_known: bool = True
    folders: tuple[Path, ...] = ()
    divisible: bool = True
    made_here: bool = False
    text_unit: TextUnit | None = None
    names: tuple[str, ...] = ("",)

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield all blocks in a fixed order; every call begins at the first block.

        Raises:
            SourceError: reading fails, or the input is an iterator that was read before.
            RecordError: a CSV, TSV or JSON file is broken at some place, and nothing after this place can be read.
            RecordError, LengthError: a task that encodes the records (`nopad.tasks.source.TaskSource`) refuses one.
        """

    def __repr__(self) -> str:
        """Return in a few words what is read from which files, which columns are packed along, and what is left out."""
        parts = [{"text": "texts", "ids": "ready-made ids"}.get(self.kind or "", "texts or ids")]
        if self.names != ("",):
            parts[0] += f" of {', '.join(self.names)}"
        files = [name for name, _ in self.inventory()]
        parts += [f"from {files[0]}{f' and {len(files) - 1:,} more' if files[1:] else ''}"] if files else []
        parts += [f"carries {', '.join(column.name for column in self.carried)}"] if self.carried else []
        parts += [f"padding is where {self.mask} is 0"] if self.mask else []
        parts += [f"columns left out: {', '.join(self.left_out)}"] if self.left_out else []
        more = ", ..." if self.ignored[3:] else ""
        parts += [f"files left out: {', '.join(self.ignored[:3])}{more}"] if self.ignored else []
        return f"{type(self).__name__}({'; '.join(parts)})"

    def blocks_from(self, at: tuple[int, ...]) -> Iterator[Block]:
        """Yield the blocks from a given one on, as `blocks` yields them.

        `at` is the `Block.at` of the block with which to begin. For blocks without `Block.at`, it is ``(number,)``, the
        block's index from 0. Sources that can find a block without reading the earlier ones override this method.
        """
        return islice(self.blocks(), at[0], None)

    def read_bytes(self) -> int | None:
        """Return how many bytes of `total_bytes` the latest pass has read so far.

        The result is None if the source does not count them; the caller can add up `Block.progress` instead.
        """
        return None

    def inventory(self) -> list[tuple[str, int]]:
        """Return (name, stored bytes) of each file in reading order, so that an error can name a file that changed.

        The list is empty if `files` returns None.
        """
        return [(file.name, file.size) for file in self.files() or ()]

    def files(self) -> list[InputFile] | None:
        """Return the files in reading order; None if some input is not a file, or a source does not list its files."""
        return None

    def settings(self) -> dict[str, Any]:
        """Return the settings that say how the bytes are read, such as field and text unit, by name, as JSON values.

        These settings are part of the source's identity: they are stored in the manifest, and a job that was started
        with other settings is not resumed.
        """
        return {}


class IterableSource(Source):
    """Texts or lists of ids from memory, in blocks of `block_records` items.

    Messages count the items from 1.

    Args:
        items: the texts, or the lists of ids.
        name: name of the input, in fingerprints and messages.
        block_records: number of items in a block.

    Raises:
        SourceError: texts and ids are mixed, an item is neither, or `items` is itself a text, bytes or a dict, or
            cannot be iterated over.
        OptionError: `block_records` is not an integer from 1 to 2^31 - 1.

    >>> from nopad.corpus import IterableSource
    >>> source = IterableSource(["one text", "another"])
    >>> [records.texts for block in source.blocks() for records in block.records()]
    [['one text', 'another']]
    """

    def __init__(self, items: Iterable[str | Sequence[int]], *, name: str = "memory", block_records: int = 1000):
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
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
        """Yield blocks of at most `block_records` items; the data of a block are its items as a JSON array."""
        for first in range(0, len(self._items), self._block_records):
            items = self._items[first : first + self._block_records]
            try:
                data = _dumped(items)
            except ValueError:
                data = _dumped([_writable(item) for item in items])
            yield Block(name=self._name, data=data, decoder=_decode_array, first_line=first + 1)

    def inventory(self) -> list[tuple[str, int]]:
        """Return one pair ``(name, bytes)``: the source's name, and the size of all its items when written as JSON."""
        return [(self._name, self.total_bytes or 0)]


def located(sources: Sequence[Source], at: tuple[int, ...] = (0,)) -> Iterator[Block]:
    """Yield the blocks of several sources, source after source, each with a `Block.at` that also names its source.

    This new `Block.at` is ``(number, *inside)``: the number of the source, from 0, and the argument with which the
    source's `blocks_from` begins at the block. The argument `at` names, in the same form, the first block to yield;
    ``(number,)`` alone names the first block of that source.

    If the source's `read_bytes` returns a number, each block without a `Block.read` gets one: the number of bytes that
    were read since the previous block of this source.
    """
    for number in range(at[0], len(sources)):
        inside = at[1:] if number == at[0] else ()
        first = inside[0] if len(inside) == 1 else 0
        source, before = sources[number], 0
        blocks = source.blocks_from(inside) if inside else source.blocks()
        for place, block in enumerate(blocks, first):
            block = replace(block, at=(number, *(block.at or (place,))))
            now = source.read_bytes()
            if block.read is None and now is not None:
                block, before = replace(block, read=now - before), now
            yield block


def chain(digest: bytes, block: Block) -> bytes:
    """Return the digest of all blocks up to `block`, 32 bytes; `digest` is that of the blocks before it.

    The result is the SHA-256 of `digest`, the block's name, a zero byte, and the SHA-256 of the block's data. For the
    first block, `digest` is `CHAIN_START`. The digest of the last block, in hex, is the fingerprint of the source. No
    hash state is kept between calls, so a job that stored the digest after block k can continue from there.

    The digest depends on how the input was cut into blocks. It does not depend on how the bytes are read (text unit,
    fields), so a job must compare those settings itself.

    >>> import nopad
    >>> from nopad.corpus import CHAIN_START, chain
    >>> [block] = nopad.open_source([[7, 8, 9], [5]]).blocks()
    >>> len(chain(CHAIN_START, block)), chain(CHAIN_START, block) == chain(CHAIN_START, block)
    (32, True)
    """
    name = block.name.encode("utf-8", "surrogateescape")
    return hashlib.sha256(digest + name + b"\0" + block.digest()).digest()


def _plain(ids: Any, name: str, record: int) -> list[Any]:
    """Return ids as a list for JSON, with NumPy's integers as int.

    A value that is not an integer is kept, so that the record is found to be bad when it is decoded. `name` is the name
    of the input and `record` the number of the record, for messages.

    Raises:
        SourceError: `ids` is not a list, tuple or array.
    """
    values = ids.tolist() if hasattr(ids, "tolist") else ids
    if not isinstance(values, list | tuple):
        raise SourceError(f"{name}: record {record} is {type(ids).__name__}, neither text nor a list of ids")
    return [int(value) if isinstance(value, np.integer) else value for value in values]


_BITS = 1 << 13  # integers of fewer bits have fewer digits than Python writes


def _dumped(items: Sequence[Any]) -> bytes:
    return to_json(items, separators=(",", ":")).encode()


def _writable(item: Any) -> Any:
    """Return an item in a form that JSON can hold: a text as it is, or a copy of a list of ids.

    In the copy, short texts (for messages) replace the values that JSON may be unable to hold: integers of thousands of
    digits, and lists and other objects, which may be nested too deeply.
    """
    if isinstance(item, str):
        return item
    return [
        value
        if isinstance(value, str | float | None) or (isinstance(value, int) and value.bit_length() < _BITS)
        else shown(value)
        for value in item
    ]


def _decode_array(data: bytes, first_line: int) -> Iterator[Records | Record | BadRecord]:
    items = from_json(data)
    if items and isinstance(items[0], str):
        yield from text_run(items, np.arange(first_line, first_line + len(items)), "the text")
        return
    for line, item in enumerate(items, first_line):
        yield ids_record(item, line, "ids")
