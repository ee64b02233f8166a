"""Blocks of records -> sequences of at most `capacity` tokens, every record accounted for.

Whole blocks are gathered into groups of about 2 MiB, decoded, tokenised in one batch and cut by array arithmetic; each
group comes out with the blocks it used up, so that a spool can commit it and a later job go on behind it. The sequences
do not depend on the blocks or the groups, only on the records.

One group is always tokenised ahead, in a thread: reading, decoding, cutting and what the caller does with a group cost
no extra time while the tokeniser is busy. Memory: two groups. When reading fails, the group before it is lost too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.options import CorpusOptions, Counts
from nopad.corpus.policy import assemble, cut, cut_counts
from nopad.corpus.source import BadRecord, Block
from nopad.corpus.tokenizer import Tokenizer
from nopad.errors import OptionError, RecordError, SourceError

GROUP_BYTES = 2 << 20

_NONE = np.empty(0, dtype=np.int32)

_Tokens = Callable[[], tuple[NDArray[np.int32], NDArray[np.int64]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatch:
    """n sequences, one after the other.

    `tokens`: int32[sum of lengths]. `lengths`: int32[n]. `record`: int64[n], number of the record in its source,
    counted from 0 over all records, skipped ones included. `start`: int64[n], where in the record's content the
    sequence starts; 0 unless split.
    """

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    record: NDArray[np.int64]
    start: NDArray[np.int64]


class Group(NamedTuple):
    """The sequences of a run of blocks, what was counted in it, and the blocks."""

    batch: SequenceBatch
    counts: Counts
    blocks: list[Block]


@dataclass(slots=True)
class _Gathered:
    """The good records of a group, in order, as parallel lists; `bad` ones were skipped; `failure` ended the group."""

    blocks: list[Block]
    content: list[str | NDArray[np.int32]] = field(default_factory=list)
    record: list[int] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    block: list[Block] = field(default_factory=list)
    records: int = 0
    bad: int = 0
    failure: RecordError | None = None

    @property
    def is_text(self) -> bool:
        """Of a group without any record: False."""
        return bool(self.content) and isinstance(self.content[0], str)

    def place(self, index: int) -> str:
        """Where a good record is, for messages."""
        return self.block[index].place(self.line[index])


def sequences(
    blocks: Iterable[Block],
    tokenizer: Tokenizer | None,
    options: CorpusOptions,
    *,
    first_record: int = 0,
    group_bytes: int = GROUP_BYTES,
) -> Iterator[Group]:
    """Yield a Group per run of blocks; `first_record` is the number of the first record in them.

    `tokenizer` may be None when every record is ready-made ids. Raises, while iterating, RecordError for the first
    record in order that the options do not allow, SourceError when text and ids are mixed or reading fails, OptionError
    when text comes without a tokenizer; and OptionError at once when the capacity holds no content.
    """
    options.room(tokenizer)
    return _groups(blocks, tokenizer, options, first_record, group_bytes)


def _groups(
    blocks: Iterable[Block], tokenizer: Tokenizer | None, options: CorpusOptions, record: int, group_bytes: int
) -> Iterator[Group]:
    """See `sequences`. While group k comes out, k + 1 is being tokenised."""
    first: dict[type, str] = {}
    waiting: tuple[_Gathered, _Tokens] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="nopad-tokenize") as pool:
        for group in _runs(blocks, group_bytes):
            gathered = _gather(group, record, options)
            _check_kind(gathered, first)
            record += gathered.records
            tokens = _start(gathered, tokenizer, pool)
            if waiting:
                yield _finish(*waiting, tokenizer, options)
            waiting = gathered, tokens
        if waiting:
            yield _finish(*waiting, tokenizer, options)


def _runs(blocks: Iterable[Block], group_bytes: int) -> Iterator[list[Block]]:
    """Whole blocks until there are `group_bytes`."""
    group: list[Block] = []
    size = 0
    for block in blocks:
        group.append(block)
        size += len(block.data)
        if size >= group_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def _gather(blocks: list[Block], first_record: int, options: CorpusOptions) -> _Gathered:
    """Decode up to the first record that is not allowed, which is kept: an earlier one may yet fail on its length."""
    out = _Gathered(blocks)
    for block in blocks:
        for record in block.records():
            if isinstance(record, BadRecord):
                if options.on_bad_record == "error":
                    reason = f"{block.place(record.line)}: {record.reason}; repair it, or choose --on-bad-record skip"
                    out.failure = RecordError(reason)
                    return out
                out.bad += 1
            else:
                out.content.append(record.content)
                out.record.append(first_record + out.records)
                out.line.append(record.line)
                out.block.append(block)
            out.records += 1
    return out


def _check_kind(gathered: _Gathered, first: dict[type, str]) -> None:
    """Raise SourceError when text and ready-made ids are mixed: one would get special tokens and the other not."""
    for kind in set(map(type, gathered.content)):
        if kind not in first:
            index = next(i for i, content in enumerate(gathered.content) if type(content) is kind)
            first[kind] = gathered.place(index)
    if len(first) > 1:
        raise SourceError(
            f"{first[str]} is text and {first[np.ndarray]} is ready-made ids; pack them in two separate jobs"
        )


def _start(gathered: _Gathered, tokenizer: Tokenizer | None, pool: Executor) -> _Tokens:
    """Begin to tokenise; calling the result waits and gives (content tokens int32[sum], lengths int64[n])."""
    ids = [content for content in gathered.content if not isinstance(content, str)]
    texts = [content for content in gathered.content if isinstance(content, str)]
    if not texts:
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return lambda: (np.concatenate([_NONE, *ids]), lengths)
    if tokenizer is None:
        raise OptionError(f"{gathered.place(0)} is text, and no tokenizer was given; give one")
    encodings = pool.submit(tokenizer.encodings, texts)
    return lambda: tokenizer.flatten(encodings.result())


def _finish(gathered: _Gathered, tokens: _Tokens, tokenizer: Tokenizer | None, options: CorpusOptions) -> Group:
    """Apply the policies and add the special tokens."""
    content, lengths = tokens()
    tokenizer = tokenizer if gathered.is_text else None
    room, special = options.room(tokenizer), options.special(tokenizer)
    _check_lengths(gathered, lengths, room, special, options)
    if gathered.failure:
        raise gathered.failure
    pieces = cut(lengths, room, options.over_long)
    around = (tokenizer.prefix, tokenizer.suffix) if tokenizer and special else (_NONE, _NONE)
    batch = SequenceBatch(
        tokens=assemble(content, lengths, pieces, *around),
        lengths=(pieces.length + special).astype(np.int32),
        record=np.array(gathered.record, dtype=np.int64)[pieces.row],
        start=pieces.start,
    )
    counts = Counts(
        records=gathered.records,
        sequences=batch.lengths.size,
        tokens=batch.tokens.size,
        empty_skipped=int((lengths == 0).sum()),
        bad_skipped=gathered.bad,
        **cut_counts(lengths, room, options.over_long),
    )
    return Group(batch, counts, gathered.blocks)


def _check_lengths(
    gathered: _Gathered, lengths: NDArray[np.int64], room: int, special: int, options: CorpusOptions
) -> None:
    """Raise RecordError for the first record that is too long or empty, where the options say so."""
    over = (lengths > room) & (options.over_long == "error")
    bad = over | ((lengths == 0) & (options.empty == "error"))
    if not bad.any():
        return
    index = int(bad.argmax())
    place, need = gathered.place(index), int(lengths[index]) + special
    if not over[index]:
        raise RecordError(f"{place}: an empty document, without a single token; remove it, or choose --empty skip")
    raise RecordError(
        f"{place}: {need} tokens{' with special tokens' if special else ''}, capacity is {options.capacity}; "
        f"choose --over-long truncate, split or drop, or a capacity of at least {need}"
    )
