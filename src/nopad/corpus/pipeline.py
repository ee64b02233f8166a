"""Turn blocks of records into sequences of at most `capacity` tokens, and count what becomes of the records.

Blocks are collected into groups of at least 2 MiB (the last group of a source may be smaller). A group is decoded,
tokenised in one batch, and cut with array operations. Each group is yielded with its blocks, so that the caller can
save it and a resumed job can continue after it. How records are divided into blocks or groups does not change the
sequences.

A thread tokenises one group of text ahead, so reading, decoding, cutting and the caller's work take no extra time while
the tokenizer is busy. Two groups are in memory. If reading fails, the group before the failure is not yielded either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.options import CorpusOptions, Counts
from nopad.corpus.policy import assemble, cut, outcome
from nopad.corpus.records import BadRecord, Record, Records, run_of, within_document, within_length, within_vocabulary
from nopad.corpus.source import Block
from nopad.corpus.tokenizer import Tokenizer
from nopad.errors import OptionError, RecordError, SourceError
from nopad.sequences import Sequences
from nopad.threads import Pool

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "GROUP_BYTES",
    "Gathered",
    "Group",
    "Part",
    "check_kind",
    "finish",
    "in_columns",
    "sequences",
    "start_tokenising",
]

GROUP_BYTES = 2 << 20
THREADS = "nopad-tokenize"  # the names of the threads that tokenise begin with this

_NONE = np.empty(0, dtype=np.int32)

Content = Callable[[], Sequences]


class Group(NamedTuple):
    """The sequences made from several consecutive blocks, with counts.

    Attributes:
        batch: the sequences, in the columns ``input_ids`` (int32), ``seq_index`` (int64), ``seq_start`` (int64), and
            those that are packed along. Of the latter, columns with one value per sequence are Arrow arrays.
            ``seq_index`` is the number of the record from which a sequence was made; records are counted from 0, with
            the skipped ones, through all sources of a mixture. ``seq_start`` is the number of content tokens
            in the sequences before it that were made of the same record.
        counts: how many records of the blocks were kept, skipped, truncated and so on.
        blocks: the blocks that the sequences were made from.

    >>> import nopad
    >>> from nopad.corpus import sequences
    >>> [group] = sequences(nopad.open_source([[7, 8, 9], [5]]).blocks(), None, nopad.CorpusOptions(capacity=4))
    >>> group.batch.seq_lengths.tolist(), group.counts.tokens, len(group.blocks)
    ([3, 1], 4, 1)
    """

    batch: Sequences
    counts: Counts
    blocks: list[Block]


class Part(NamedTuple):
    """A run (consecutive good records) of one block.

    Attributes:
        block: the block.
        run: the records.
        numbers: number of each of the n records; int64 ``[n]``. Records are counted from 0, bad ones included, through
            all sources of a mixture.
    """

    block: Block
    run: Records
    numbers: NDArray[np.int64]


@dataclass(slots=True)
class Gathered:
    """The decoded records of a group of blocks.

    Attributes:
        blocks: the blocks that the records are from; the streaming loader of `nopad.loading` leaves this empty.
        parts: the good records, in order.
        records: number of all records, good ones and skipped bad ones.
        bad: number of bad records that were skipped.
        failure: error of the bad record at which decoding stopped; None: there was no such record.
    """

    blocks: list[Block]
    parts: list[Part] = field(default_factory=list)
    records: int = 0
    bad: int = 0
    failure: RecordError | None = None

    @property
    def is_text(self) -> bool:
        """Whether the group holds text; False for a group without good records."""
        return bool(self.parts) and self.parts[0].run.texts is not None

    @property
    def record(self) -> NDArray[np.int64]:
        """The record number of each of the n good records in `parts`; int64 ``[n]``.

        Records are counted from 0, with the bad ones, through all sources of a mixture. Good records that an encoder
        or a task made from one record of the source have the same number.
        """
        return np.concatenate([np.empty(0, dtype=np.int64), *(part.numbers for part in self.parts)])

    def skip(self, block: Block, bad: BadRecord, options: CorpusOptions) -> bool:
        """Skip a bad record and return True; if `options` say "error" for bad records, return False instead.

        A skipped record is counted in the attributes `bad` and `records`. If False is returned, the record's error is
        stored in `failure`, and the caller must not go on to the next record. `block` is the record's block, from which
        the error gets the record's place.
        """
        if options.on_bad_record == "error":
            reason = f'{block.place(bad.line)}: {bad.reason}; repair it, or choose on_bad_record="skip"'
            self.failure = RecordError(reason)
            return False
        self.bad += 1
        self.records += 1
        return True

    def found(self, index: int) -> tuple[Block, int]:
        """Return the block and the line of a good record; `index` is its index among the group's good records, from 0.

        Raises:
            IndexError: the group has fewer good records.
        """
        for part in self.parts:
            if index < part.run.lines.size:
                return part.block, int(part.run.lines[index])
            index -= part.run.lines.size
        raise IndexError(index)


def sequences(
    blocks: Iterable[Block],
    tokenizer: Tokenizer | None,
    options: CorpusOptions,
    *,
    first_record: int = 0,
    group_bytes: int = GROUP_BYTES,
) -> Iterator[Group]:
    """Turn blocks into sequences: yield one `Group` for several consecutive blocks at a time, in order.

    Args:
        blocks: the blocks of a source.
        tokenizer: the tokenizer for texts; None if every record is ready-made ids.
        options: the capacity, and what is done with records that are too long, empty or bad.
        first_record: number of the first record; the records after it are numbered on from there.
        group_bytes: a group ends when its blocks have at least this many bytes, or where a source of a mixture ends.

    Raises:
        OptionError: when called: no content token fits the capacity. While iterating: there is text, and no tokenizer
            was given; or the tokenizer cannot encode chats, for example because it has no chat template.
        RecordError: while iterating: a record is bad, empty or too long, and `options` say "error" for such records; a
            file is broken, so that nothing after that place can be read; or no pre-training pairs can be made of the
            documents of a block.
        RecordError, LengthError: while iterating: a task that encodes the records refuses one.
        SourceError: while iterating: text and ids are mixed, or reading fails.
        FormatError: while iterating: the tokenizer cannot encode a text, or a block is of a file of lengths.

    In the example, record 0 is split into two sequences, of 2 tokens and of 1.

    >>> import nopad
    >>> from nopad.corpus import sequences
    >>> options = nopad.CorpusOptions(capacity=2, over_long="split")
    >>> [group] = sequences(nopad.open_source([[7, 8, 9], [5]]).blocks(), None, options)
    >>> group.batch.seq_lengths.tolist(), group.batch.values["seq_index"].tolist()
    ([2, 1, 1], [0, 0, 1])
    """
    options.content_capacity(tokenizer)
    return _groups(blocks, tokenizer, options, first_record, group_bytes)


def _groups(
    blocks: Iterable[Block], tokenizer: Tokenizer | None, options: CorpusOptions, record: int, group_bytes: int
) -> Iterator[Group]:
    """Yield the groups that `sequences` yields; while the caller uses one, the next is tokenised in a thread.

    `record` is the number of the first record; the other arguments are those of `sequences`.
    """
    first: dict[bool, str] = {}
    waiting: tuple[Gathered, Content] | None = None
    pool, waits = Pool(1, thread_name_prefix=THREADS), True
    try:
        for group in _runs(blocks, group_bytes):
            gathered = _gather(group, record, options)
            check_kind(gathered, first)
            record += gathered.records
            # The pool tokenises this group while the one before it is finished and used by the caller.
            content = start_tokenising(gathered, tokenizer, pool)
            if waiting:
                yield finish(*waiting, tokenizer, options)
            waiting = gathered, content
        if waiting:
            yield finish(*waiting, tokenizer, options)
    except KeyboardInterrupt:
        waits = False  # a group takes seconds to tokenise
        raise
    finally:
        pool.shutdown(wait=waits, cancel_futures=True)


def _runs(blocks: Iterable[Block], group_bytes: int) -> Iterator[list[Block]]:
    """Yield the blocks in lists.

    A list ends when it has at least `group_bytes` bytes, or where a source of a mixture ends.
    """
    group: list[Block] = []
    size = 0
    for block in blocks:
        if group and group[-1].source != block.source:
            yield group
            group, size = [], 0
        group.append(block)
        size += block.size
        if size >= group_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def _gather(blocks: list[Block], first_record: int, options: CorpusOptions) -> Gathered:
    """Return the decoded records of a group.

    If `options` say "error" for bad records, decoding stops at the first bad record. Its error is stored, not raised,
    since an earlier record may still be refused for its length. `first_record` is the number of the group's first
    record, counted from 0 through all sources of a mixture.
    """
    out = Gathered(blocks)
    for block in blocks:
        for run in in_columns(block.records(), options):
            if isinstance(run, Records):
                first, origin = first_record + out.records, run.origin
                numbers = np.arange(run.lines.size) if origin is None else origin.record
                out.parts.append(Part(block, run, first + numbers))
                out.records += run.lines.size if origin is None else origin.of
            elif not out.skip(block, run, options):
                return out
    return out


def in_columns(found: Iterable[Record | Records | BadRecord], options: CorpusOptions) -> Iterator[Records | BadRecord]:
    """Yield decoded records in order; single records that follow each other are combined into `Records`.

    Bad records are yielded as they are. Three kinds of record become bad records: texts of more than 8 MiB
    (`DOCUMENT_BYTES`), records with more than 2^31 - 1 ids (`MAX_TOKENS`), and records with an id of
    `options.vocab_size` or above.
    """
    for one in _runs_of(found):
        if isinstance(one, BadRecord):
            yield one
        elif one.texts is not None:
            yield from within_document(one)
        else:
            yield from within_vocabulary(one, options.vocab_size)


def _runs_of(found: Iterable[Record | Records | BadRecord]) -> Iterator[Records | BadRecord]:
    single: list[Record] = []
    for one in (within_length(one) if isinstance(one, Record) else one for one in found):
        if isinstance(one, Record):
            single.append(one)
            continue
        yield from run_of(single)
        single = []
        yield one
    yield from run_of(single)


def check_kind(gathered: Gathered, first: dict[bool, str]) -> None:
    """Refuse a mix of text and ready-made ids, since only text would get special tokens.

    It is called for each group of a source with the same dict `first`, which is empty at the first call. The place of
    the first text is stored in it under True, and that of the first ids under False.

    Raises:
        SourceError: text and ids are mixed; the message names both places.
    """
    for part in gathered.parts:
        is_text = part.run.texts is not None
        if is_text not in first and part.run.lines.size:
            first[is_text] = part.block.place(int(part.run.lines[0]))
    if len(first) > 1:
        raise SourceError(f"{first[True]} is text and {first[False]} is ready-made ids; pack them in two separate jobs")


def start_tokenising(gathered: Gathered, tokenizer: Tokenizer | None, pool: Executor) -> Content:
    """Start tokenising a group in `pool`; return a function that waits for the result and returns it.

    The result holds one sequence per good record, without special tokens, and not cut yet. If the group holds ids,
    nothing is started: the returned function returns these ids. For texts, the returned function raises FormatError if
    the tokenizer cannot encode one.

    Raises:
        OptionError: the group holds text, and `tokenizer` is None.
    """
    if not gathered.is_text:
        ids = _end_to_end([part.run.ids for part in gathered.parts if part.run.ids is not None])
        return lambda: ids
    if tokenizer is None:
        block, line = gathered.found(0)
        raise OptionError(f"{block.place(line)} is text, and no tokenizer was given; give tokenizer=")
    encodings = pool.submit(tokenizer.encodings, [t for part in gathered.parts for t in part.run.texts or ()])

    def tokenised() -> Sequences:
        tokens, lengths = tokenizer.flatten(encodings.result())
        return Sequences(seq_lengths=lengths.astype(np.int32), tokens={"input_ids": tokens})

    return tokenised


def _end_to_end(parts: Sequence[Sequences]) -> Sequences:
    """Return all sequences of `parts` as one object, one part after the other.

    Per-sequence columns are left out. The parts must have the same per-token columns. If there are no parts, the result
    has no sequences.
    """
    names = parts[0].tokens if parts else ["input_ids"]
    return Sequences(
        seq_lengths=np.concatenate([_NONE, *(part.seq_lengths for part in parts)]),
        tokens={name: np.concatenate([part.tokens[name] for part in parts] or [_NONE]) for name in names},
    )


def finish(gathered: Gathered, wait: Content, tokenizer: Tokenizer | None, options: CorpusOptions) -> Group:
    """Cut, leave out or refuse records as `options` say, add special tokens, and return the group.

    `wait` is the function that `start_tokenising` returned for `gathered` and `tokenizer`.

    Raises:
        RecordError: a record is refused: it is bad, too long or empty. The message names the first such record.
        FormatError: the tokenizer cannot encode a text.
        OptionError: no content token fits the capacity.
    """
    content = wait()
    lengths = content.seq_lengths.astype(np.int64)
    tokenizer = tokenizer if gathered.is_text else None
    room, special = options.content_capacity(tokenizer), options.special(tokenizer)
    _check_lengths(gathered, lengths, room, special, options)
    if gathered.failure:
        raise gathered.failure
    pieces = cut(lengths, room, options.over_long)
    around = (tokenizer.prefix, tokenizer.suffix) if tokenizer and special else (_NONE, _NONE)
    runs = [part.run for part in gathered.parts]
    record = gathered.record[pieces.row]
    first, begins = np.diff(record, prepend=-1) != 0, np.cumsum(pieces.length) - pieces.length
    tokens = {
        name: assemble(column, lengths, pieces, *(around if name == "input_ids" else ()))
        for name, column in content.tokens.items()
    }
    values = {
        name: _joined([run.values[name] for run in runs]).take(pieces.row) for name in (runs[0].values if runs else ())
    }
    batch = Sequences(
        seq_lengths=(pieces.length + special).astype(np.int32),
        tokens=tokens,
        values={"seq_index": record, "seq_start": begins - begins[first][np.cumsum(first) - 1], **values},
    )
    counts = Counts(
        records=gathered.records,
        sequences=len(batch),
        tokens=tokens["input_ids"].size,
        bad_skipped=gathered.bad,
        stripped=sum(int(np.count_nonzero(run.padding)) for run in runs if run.padding is not None),
        stripped_tokens=sum(int(run.padding.sum()) for run in runs if run.padding is not None),
        **outcome(lengths, gathered.record, pieces),
    )
    counts = sum((Counts(**run.counts) for run in runs if run.counts), counts)
    return Group(batch, counts, gathered.blocks)


def listed(ways: Sequence[str]) -> str:
    """Return a text for messages that lists the values `ways` of an option.

    >>> listed(("truncate", "split", "drop"))
    '"truncate", "split" or "drop"'
    """
    names = [f'"{way}"' for way in ways]
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _joined(arrays: Sequence[pa.Array]) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays(arrays)


def _check_lengths(
    gathered: Gathered, lengths: NDArray[np.int64], room: int, special: int, options: CorpusOptions
) -> None:
    """Refuse the first record that is too long or empty, if `options` say "error" for such records.

    `lengths` are the numbers of content tokens in the records, without special tokens. `room` is the maximum number of
    content tokens in a sequence, and `special` the number of special tokens that each sequence gets.

    Raises:
        RecordError: there is such a record; the message names it.
    """
    over = (lengths > room) & (options.over_long == "error")
    bad = over | ((lengths == 0) & (options.empty == "error"))
    if not bad.any():
        return
    index = int(bad.argmax())
    block, line = gathered.found(index)
    place, need = block.place(line), int(lengths[index]) + special
    if not over[index]:
        raise RecordError(f'{place}: an empty document, without a single token; remove it, or choose empty="skip"')
    raise RecordError(
        f"{place}: {need} tokens{' with special tokens' if special else ''}, capacity is {options.capacity}; "
        f"choose over_long={listed(block.ways)}, or a capacity of at least {need} for this record; "
        "nopad plan shows the longest"
    )
