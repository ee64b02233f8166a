"""Read a source, and tokenise this rank's records in groups, ahead of training and on other cores.

Records are read and decoded on the calling thread. This rank's records are tokenised some groups ahead, in up to four
threads; a tokenizer written in Python gets one thread. A group is the sequences of about `GROUP_BYTES` of this rank's
records; it ends earlier at the end of a pass, at an error, or when `READ_BYTES` of all ranks' records were read. So
where groups begin depends only on the source, on where reading began, and on which records belong to this rank. Every
group comes with the cursor from which reading goes on after it. An error is raised after the groups before it.

Cost: every rank reads all blocks (hundreds of MB/s). It decodes them too, except for lines and whole documents that
belong to other ranks, and tokenises only its own records. Memory: one decoded block, and `AHEAD` groups.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.options import CorpusOptions, Counts
from nopad.corpus.pipeline import Content, Gathered, Part, check_kind, finish, in_columns, start_tokenising
from nopad.corpus.records import BadRecord, Records
from nopad.corpus.source import Block, Source
from nopad.corpus.thinning import Lines
from nopad.corpus.tokenizer import Tokenizer
from nopad.errors import SourceError
from nopad.loading.streams.deal import Deal
from nopad.sequences import Sequences
from nopad.threads import Pool

__all__ = ["Cursor", "Read", "Reader"]

GROUP_BYTES = 128 << 10  # of this rank's records; small, so that the first batch comes soon
READ_BYTES = 16 << 20  # of all ranks' records, after which a group ends too
AHEAD = 4  # groups
AT_FIRST = 3  # groups that are read before the first is yielded, so that the first batch comes soon
_THREADS = 4
_CHANGED = "changed since the state was saved; begin anew without it"


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """The place in a source from which reading goes on.

    Attributes:
        passes: number of this pass over the source, from 0.
        began: number of records in all earlier passes, if the source is read again and again; else 0.
        at: the place of a block (consecutive records of one file), which holds the next record or ends right before it.
            The place is `Block.at` or, if that is empty, ``(number,)`` with the number of the block. (): the first
            block.
        first: number, in this pass, of the first record of that block.
        record: number, in this pass, of the next record.
        mark: a digest of that block, by which a changed source is noticed; "": it is not compared.
        length: number of records of a whole pass; None: not known, since no pass has ended.
        ended: whether the source was read to its end and is not read again.
        deal: which records from here on belong to this rank.
    """

    passes: int = 0
    began: int = 0
    at: tuple[int, ...] = ()
    first: int = 0
    record: int = 0
    mark: str = ""
    length: int | None = None
    ended: bool = False
    deal: Deal

    @property
    def reached(self) -> int:
        """Number of the next record, ``began + record``, which counts the records of earlier passes too."""
        return self.began + self.record


class Read(NamedTuple):
    """Some sequences of this rank, as `Reader.groups` yields them.

    Attributes:
        sequences: the sequences.
        counts: how many records were read for these sequences, and how many of them skipped, truncated and so on.
        cursor: the place in the source from which reading goes on after them.
    """

    sequences: Sequences
    counts: Counts
    cursor: Cursor


class _Started(NamedTuple):
    """Some records of this rank that are being tokenised.

    Attributes:
        group: the records.
        content: their tokens, which threads may still be computing.
        cursor: the place in the source from which reading goes on after them.
    """

    group: Gathered
    content: Content
    cursor: Cursor


@dataclass(frozen=True)
class Reader:
    """Reads a source for one rank.

    Attributes:
        source: the source that is read.
        tokenizer: tokenises the texts; None: the records are ready-made ids.
        options: what happens to records that are bad, too long or empty.
        repeat: whether the source is read again from its beginning after its end.
    """

    source: Source
    tokenizer: Tokenizer | None
    options: CorpusOptions
    repeat: bool

    def groups(self, cursor: Cursor) -> Iterator[Read]:
        """Yield this rank's sequences from `cursor` on, some at a time; closing the iterator ends its threads.

        The sequences of about 128 KiB of this rank's records are yielded together, as one group. The first group is
        empty. It is yielded while the next ones are being tokenised, so that the caller can prepare meanwhile.

        Raises:
            RecordError: a record is bad, too long or empty, and the options do not allow it.
            LengthError: the source is a task's (`nopad.tasks.source.TaskSource`), and the task refuses a record.
            SourceError: reading fails, the source mixes text and ids, has changed since `cursor` was made, or has no
                record.
            OptionError: a record is text, and there is no tokenizer; or the tokenizer cannot encode chats.
            FormatError: the tokenizer cannot encode a text.
        """
        waiting: deque[_Started | Exception] = deque()
        threads = min(_THREADS, os.cpu_count() or 1) if self.tokenizer and self.tokenizer.threads else 1
        with Pool(threads, thread_name_prefix="nopad-tokenize") as pool:
            try:
                gathered = self._gathered(cursor, pool)
                waiting.extend(islice(gathered, AT_FIRST))
                yield Read(Sequences(seq_lengths=np.zeros(0, dtype=np.int32)), Counts(), cursor)
                given = 0
                while waiting:
                    yield self._read(waiting.popleft())
                    given += 1
                    more = given > AHEAD and len(waiting) < AHEAD - 1
                    waiting.extend(islice(gathered, 1 + more))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _gathered(self, cursor: Cursor, pool: Executor) -> Iterator[_Started | Exception]:
        """Yield groups of decoded records that are being tokenised; if an error occurs, it is the last item."""
        kinds: dict[bool, str] = {}
        try:
            while not cursor.ended:
                for group, after in _Pass(self, cursor).groups():
                    check_kind(group, kinds)
                    yield _Started(group, start_tokenising(group, self.tokenizer, pool), after)
                cursor = after
        except Exception as error:
            yield error

    def _read(self, started: _Started | Exception) -> Read:
        if isinstance(started, Exception):
            raise started
        found, counts, _ = finish(started.group, started.content, self.tokenizer, self.options)
        values = _numbers_of(found.values)
        if self.named:
            values["seq_source"] = self._sources_of(started.group, values["seq_index"])
        return Read(replace(found, values=values), counts, started.cursor)

    @property
    def named(self) -> bool:
        """Whether the sources have names, so that ``seq_source`` says which one a sequence is from."""
        return self.source.names != ("",)

    def _sources_of(self, group: Gathered, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index in ``self.source.names`` of the source of each record; int64 ``[records]``.

        `records` are numbers of records in the pass over the source; `group` has the records with these numbers.
        """
        numbers = [self.source.names.index(part.block.source) for part in group.parts]
        of = np.repeat(np.array(numbers, dtype=np.int64), [part.numbers.size for part in group.parts])
        found: NDArray[np.int64] = of[np.searchsorted(group.record, records)]
        return found


class _Pass:
    """One pass over a source, or what is left of it, gathered into groups of this rank's records."""

    def __init__(self, reader: Reader, cursor: Cursor) -> None:
        self._reader, self._cursor = reader, cursor
        self._begin()

    def _begin(self) -> None:
        self._group, self._bytes, self._all_bytes = Gathered([]), 0, 0

    def groups(self) -> Iterator[tuple[Gathered, Cursor]]:
        """Yield groups of this rank's records, each with the cursor after it, to the end of the pass.

        The cursor of the last group is that of the next pass, or of the end of the stream. If reading raises an error,
        the records that the group holds so far are yielded first; then the error is raised.
        """
        try:
            yield from self._groups()
        except Exception:
            yield self._group, self._cursor
            raise

    def _groups(self) -> Iterator[tuple[Gathered, Cursor]]:
        first = self._cursor.first
        for block in self._blocks():
            self._block = block
            self._cursor = replace(self._cursor, at=block.at, first=first, mark="")
            lines = block.lines() if self._cursor.deal.world_size > 1 else None
            if lines is not None:
                yield from self._lines(block, lines, first)
                first += len(lines)
            elif self._theirs(block, first):
                first += 1
            else:
                for run in in_columns(block.records(), self._reader.options):
                    yield from self._run(run, first)
                    first += _size(run)
            if first < self._cursor.record:  # the cursor is beyond the end of its block, which had more records
                raise SourceError(f"{block.path or block.name}: {_CHANGED}")
            self._all_bytes += len(block.data) if isinstance(block.data, bytes) else block.data.nbytes
            if self._all_bytes >= READ_BYTES:
                yield self._ended_group()
        yield self._group, self._next_pass(first)

    def _blocks(self) -> Iterator[Block]:
        """Yield the blocks of the source from the cursor's block (`Cursor.at`) on, with `Block.at` set.

        Raises:
            SourceError: the source has changed: its block at this place is another one than when the cursor was made,
                or there is none any more.
        """
        at, source = self._cursor.at, self._reader.source
        blocks = source.blocks_from(at) if at else source.blocks()
        found = False
        for number, block in enumerate(blocks, at[0] if at else 0):
            placed = block if block.at else replace(block, at=(number,))
            if not found and self._cursor.mark not in ("", _mark(placed)):
                raise SourceError(f"{block.path or block.name}: {_CHANGED}")
            found = True
            yield placed
        if at and not found:
            raise SourceError("the source ends before the place of the state: it changed; begin anew without the state")

    def _theirs(self, block: Block, first: int) -> bool:
        """Return whether this block is a single document that this rank does not read; if so, move the cursor on.

        The cursor is moved beyond the document, which is not decoded. `first` is the number of its record in the pass.
        The result is False if the cursor is beyond this record already.
        """
        if not block.whole or first < self._cursor.record:
            return False
        mine, deal = self._cursor.deal.take(self._cursor.reached, 1)
        if not mine.size:
            self._cursor = replace(self._cursor, record=first + 1, deal=deal)
        return not mine.size

    def _lines(self, block: Block, lines: Lines, first: int) -> Iterator[tuple[Gathered, Cursor]]:
        """Add this rank's records of a block of lines to the current group, decoding no others; yield each full group.

        A group is about 128 KiB of this rank's records; each comes with the cursor after it. `first` is the number, in
        the pass, of the block's first record.
        """
        end, begin = first + len(lines), max(first, self._cursor.record)
        if end <= begin:
            return
        mine, deal = self._cursor.deal.take(self._cursor.began + begin, end - begin)
        numbers, at = mine + begin, 0
        own = replace(block, data=lines.only(numbers - first))
        for run in in_columns(own.records(), self._reader.options) if numbers.size else ():
            size = _size(run)
            yield from self._fill(run, np.arange(size), numbers[at : at + size])
            at += size
        if at != numbers.size:
            raise AssertionError(f"{block.name}: {numbers.size} lines gave {at} records")
        self._cursor = replace(self._cursor, record=end, deal=deal)

    def _run(self, run: Records | BadRecord, first: int) -> Iterator[tuple[Gathered, Cursor]]:
        """Add this rank's records of a run to the current group; yield each full group with the cursor after it.

        A group is about 128 KiB of this rank's records. A run is consecutive records that were decoded together, or one
        bad record. `first` is the number, in the pass, of its first record.
        """
        end, begin = first + _size(run), max(first, self._cursor.record)
        if end <= begin:
            return
        mine, deal = self._cursor.deal.take(self._cursor.began + begin, end - begin)
        yield from self._fill(run, mine + (begin - first), mine + begin)
        self._cursor = replace(self._cursor, record=end, deal=deal)

    def _fill(
        self, run: Records | BadRecord, mine: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> Iterator[tuple[Gathered, Cursor]]:
        """Add some records of a run to the current group; yield each full group with the cursor after it.

        A group is full when it has about 128 KiB, or ends with a bad record that the options do not allow. `mine` are
        the indices of the added records in the run, and `numbers` their numbers in the pass.
        """
        sizes = np.cumsum(_bytes_of(run, mine))
        at = 0
        while at < mine.size:
            room = GROUP_BYTES - self._bytes + (int(sizes[at - 1]) if at else 0)
            to = min(int(np.searchsorted(sizes, room)) + 1, mine.size)
            self._add(run, mine[at:to], numbers[at:to])
            self._bytes += int(sizes[to - 1]) - (int(sizes[at - 1]) if at else 0)
            if self._bytes >= GROUP_BYTES or self._group.failure:
                self._advance(int(numbers[to - 1]) + 1)
                yield self._ended_group()
            at = to

    def _add(self, run: Records | BadRecord, mine: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        if isinstance(run, BadRecord):
            self._group.skip(self._block, run, self._reader.options)
            return
        chosen = run if mine.size == run.lines.size else run.take(mine)
        self._group.parts.append(Part(self._block, chosen, numbers))
        self._group.records += mine.size

    def _advance(self, record: int) -> None:
        """Move the cursor forward, so that record number `record` of the pass is the next one."""
        cursor = self._cursor
        _, deal = cursor.deal.take(cursor.reached, record - cursor.record)
        self._cursor = replace(cursor, record=record, deal=deal)

    def _ended_group(self) -> tuple[Gathered, Cursor]:
        """Return the group that was being filled and the cursor after it, and begin a new group."""
        self._cursor = replace(self._cursor, mark=self._cursor.mark or _mark(self._block))
        group = self._group
        self._begin()
        return group, self._cursor

    def _next_pass(self, records: int) -> Cursor:
        """Return the cursor after a pass of `records` records: where the next pass begins, or the end of the stream.

        Raises:
            SourceError: the source has no record, or another number of records than in an earlier pass.
        """
        cursor = self._cursor
        if not records:
            raise SourceError("the source has no record; give one that has")
        if cursor.length not in (None, records):
            raise SourceError(f"the source had {cursor.length:,} records, and has {records:,} now; it changed")
        if not self._reader.repeat:
            return replace(cursor, length=records, ended=True, mark="")
        began = cursor.began + records
        return Cursor(passes=cursor.passes + 1, began=began, length=records, deal=cursor.deal)


def _size(run: Records | BadRecord) -> int:
    return 1 if isinstance(run, BadRecord) else run.lines.size


def _bytes_of(run: Records | BadRecord, mine: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return about how many bytes each of the records with the indices `mine` in `run` takes; int64 ``[mine]``."""
    if isinstance(run, BadRecord):
        return np.ones(mine.size, dtype=np.int64)
    if run.texts is not None:
        return np.fromiter((len(run.texts[at]) + 1 for at in mine.tolist()), np.int64, mine.size)
    assert run.ids is not None
    return 4 * run.ids.seq_lengths[mine].astype(np.int64) + 1


def _mark(block: Block) -> str:
    """Return a digest of a block, in hex, by which a changed block is noticed.

    It is computed for the first block that a pass reads, and for each block in which a group ends. It takes 0.6 ms per
    MB.
    """
    return hashlib.sha256(block.name.encode("utf-8", "surrogateescape") + b"\0" + block.digest()).hexdigest()[:32]


def _numbers_of(values: Any) -> dict[str, NDArray[Any]]:
    """Return the columns in `values` that hold numbers or booleans, by name, as NumPy arrays.

    `values` maps names to columns with one entry per sequence: NumPy arrays or Arrow arrays.
    """
    arrays = {
        name: column if isinstance(column, np.ndarray) else column.to_numpy(zero_copy_only=False)
        for name, column in values.items()
    }
    return {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}
