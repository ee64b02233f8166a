"""The types that decoding a block yields: `Record` (one record), `Records` (a run of records) and `BadRecord`.

A run is one or more good records in a row, held as columns. Some readers of lines yield single `Record` objects. Tables
yield the rows between two bad ones as a run, without a cost per record. `run_of` turns single records into runs, so
that all later code handles columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from nopad.errors import RecordError
from nopad.notation import to_json
from nopad.options import shown as shown_as_python
from nopad.sequences import Sequences

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DOCUMENT_BYTES",
    "MAX_ID",
    "MAX_TOKENS",
    "TOO_LONG",
    "BadRecord",
    "Carried",
    "Kind",
    "Origin",
    "Record",
    "Records",
    "check_text",
    "columns_in",
    "good_and_bad",
    "ids_record",
    "listed",
    "lone_surrogate",
    "run_of",
    "shown",
    "text_record",
    "text_run",
    "too_many",
    "within_document",
    "within_length",
    "within_vocabulary",
]

MAX_ID = 2**31 - 1
MAX_TOKENS = 2**31 - 1  # of one record: lengths are int32
DOCUMENT_BYTES = 8 << 20  # a tokenizer needs about 110 bytes of memory per byte of text
TOO_LONG = (
    f", above the {DOCUMENT_BYTES:,} that are tokenised at once (it takes 110 times as much memory); divide it into "
    "documents"
)

Kind = Literal["text", "ids"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record: a document, as text or as ids.

    Attributes:
        line: 1-based line or row in the file; 1 if the whole file is the document.
        text: the document's text; None if the record holds ready-made ids.
        ids: ready-made ids, int32 ``[n]``; None if the record holds text.

    >>> from nopad.corpus import Record
    >>> Record(line=1, text="one document").text
    'one document'
    """

    line: int
    text: str | None = None
    ids: NDArray[np.int32] | None = None

    @property
    def content(self) -> str | NDArray[np.int32]:
        """The text or the ids, whichever the record has."""
        if self.text is not None:
            return self.text
        assert self.ids is not None
        return self.ids


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that cannot be decoded: its 1-based line or row, and the reason, without the file's name.

    >>> from nopad.corpus import BadRecord
    >>> BadRecord(line=7, reason="no JSON").line
    7
    """

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A column that is packed along with the tokens.

    Attributes:
        name: name of the column.
        per: "token": the column has one value per id; "sequence": it has one value per record.
        type: the Arrow name of one value's type, such as "int64", "float" or "string".

    >>> from nopad.corpus import Carried
    >>> Carried(name="label", per="sequence", type="int64")
    Carried(name='label', per='sequence', type='int64')
    """

    name: str
    per: Literal["token", "sequence"]
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The record from which each of n sequences was made, if a task or an `Encoder` made the sequences.

    Several sequences, or none, may be made from one record. The n sequences are made from one run of records.

    Attributes:
        record: number of each sequence's record in that run, from 0, ascending; int64 ``[n]``.
        of: number of records in that run, including those of which no sequence was made.
    """

    record: NDArray[np.int64]
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """A run of good records, in columns.

    Attributes:
        lines: 1-based position of each record in its file; int64 ``[n]``.
        texts: text of each record; None if the records hold ready-made ids.
        ids: ready-made ``input_ids``, int32, and the columns with one value per token that are packed along; None if
            the records hold text.
        values: the columns with one value per record that are packed along, by name; Arrow arrays ``[n]``.
        padding: number of padding tokens removed from each record; int64 ``[n]``; None if no mask or id marks padding.
        counts: further counts to add to those of the source, by the field names of `Counts`, such as the number of
            documents from which these records were made. `part` and `take` do not copy them.
        origin: for sequences that a task or an `Encoder` made, the record of each; None: each of these records counts
            as a record of its own. `part` and `take` do not copy it.

    >>> import nopad
    >>> [block] = nopad.open_source([[7, 8, 9], [5]]).blocks()
    >>> [records] = block.records()
    >>> records.lines.tolist(), records.ids.seq_lengths.tolist(), records.texts
    ([1, 2], [3, 1], None)
    """

    lines: NDArray[np.int64]
    texts: list[str] | None = None
    ids: Sequences | None = None
    values: Mapping[str, pa.Array] = field(default_factory=dict)
    padding: NDArray[np.int64] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    origin: Origin | None = None

    def part(self, begin: int, end: int) -> Records:
        """Return records `begin` to `end` (exclusive) of this run, without `counts` and `origin`."""
        return Records(
            lines=self.lines[begin:end],
            texts=None if self.texts is None else self.texts[begin:end],
            ids=None if self.ids is None else self.ids.part(begin, end),
            values={name: column[begin:end] for name, column in self.values.items()},
            padding=None if self.padding is None else self.padding[begin:end],
        )

    def take(self, chosen: NDArray[np.int64]) -> Records:
        """Return the records with the indices `chosen` in this run, in the order of `chosen`.

        The result has no `counts` and no `origin`.
        """
        return Records(
            lines=self.lines[chosen],
            texts=None if self.texts is None else [self.texts[at] for at in chosen.tolist()],
            ids=None if self.ids is None else self.ids.take(chosen).gathered(),
            values={name: column.take(chosen) for name, column in self.values.items()},
            padding=None if self.padding is None else self.padding[chosen],
        )


def run_of(records: Sequence[Record]) -> Iterator[Records]:
    """Combine single records into runs, and yield these in the order of the records.

    There is one run, more if texts and ids alternate, and none if there are no records.

    >>> [run] = run_of([Record(line=1, text="a"), Record(line=2, text="b")])
    >>> run.texts, run.lines.tolist()
    (['a', 'b'], [1, 2])
    """
    begin = 0
    for end in range(1, len(records) + 1):
        if end < len(records) and (records[end].text is None) == (records[begin].text is None):
            continue
        run = records[begin:end]
        lines = np.fromiter((record.line for record in run), np.int64, len(run))
        if run[0].text is not None:
            yield Records(lines=lines, texts=[record.text for record in run if record.text is not None])
        else:
            ids = [record.ids for record in run if record.ids is not None]
            lengths = np.fromiter(map(len, ids), np.int32, len(ids))
            yield Records(lines=lines, ids=Sequences(seq_lengths=lengths, tokens={"input_ids": np.concatenate(ids)}))
        begin = end


def within_vocabulary(run: Records, vocab_size: int | None) -> Iterator[Records | BadRecord]:
    """Yield a run of records, with a bad record in place of each one that has an id of `vocab_size` or above.

    The records before and after a bad one are then yielded as separate runs. If `vocab_size` is None, all ids are
    allowed.
    """
    if vocab_size is None or run.ids is None or run.ids.tokens["input_ids"].max(initial=0) < vocab_size:
        yield run
        return
    ids, begins = run.ids.tokens["input_ids"], run.ids.begins
    ends = begins + run.ids.seq_lengths
    bad: dict[int, str] = {}
    for place in np.flatnonzero(ids >= vocab_size).tolist():
        row = int(np.searchsorted(ends, place, side="right"))
        reason = f"token {place - begins[row]} has the id {ids[place]}, beyond the vocabulary of {vocab_size}"
        bad.setdefault(row, reason)
    yield from _without(run, bad)


def within_length(record: Record) -> Record | BadRecord:
    """Return the record, or a bad record if it has more than 2^31 - 1 ids (`MAX_TOKENS`)."""
    if record.ids is None or record.ids.size <= MAX_TOKENS:
        return record
    return BadRecord(line=record.line, reason=too_many(record.ids.size))


def too_many(ids: int) -> str:
    """Return the reason why a record with `ids` ids is bad; `ids` is a number above 2^31 - 1 (`MAX_TOKENS`)."""
    return f"{ids:,} ids, above the {MAX_TOKENS:,} that a record may have; divide it"


def within_document(run: Records) -> Iterator[Records | BadRecord]:
    """Yield a run of records, with a bad record in place of each text of more than 8 MiB in UTF-8 (`DOCUMENT_BYTES`).

    Such a text is too long to be tokenised at once. The records before and after a bad one are then yielded as separate
    runs.
    """
    if run.texts is None or 4 * max(map(len, run.texts), default=0) <= DOCUMENT_BYTES:
        yield run
        return
    bad: dict[int, str] = {}
    for row, text in enumerate(run.texts):
        size = len(text) if text.isascii() else len(text.encode())
        if size > DOCUMENT_BYTES:
            bad[row] = f"a text of {size:,} bytes{TOO_LONG}"
    yield from _without(run, bad)


def _without(run: Records, bad: Mapping[int, str]) -> Iterator[Records | BadRecord]:
    """Yield a run of records, with a bad record in place of each one whose index in the run is a key of `bad`.

    The values of `bad` are the reasons. The records between bad ones are yielded as separate runs. The first of these
    runs gets the `counts` of the whole run.

    If the run has an `origin`, its entries are sequences, and several of them may be of one record. Then the whole
    record is bad, once, for the reason of its first bad sequence. `Origin.of` of the first run yielded counts all
    records that are not bad, and that of later runs is 0. If all entries are bad, an empty run is yielded at the end if
    there are `counts` or records that are not bad.
    """
    counts, passed, last = run.counts, 0, None
    record = (np.arange(run.lines.size) if run.origin is None else run.origin.record).tolist()
    reasons = {record[row]: bad[row] for row in sorted(bad, reverse=True)}
    rest = 0 if run.origin is None else run.origin.of - len(reasons)
    rows = {row: reasons[number] for row, number in enumerate(record) if number in reasons}
    for begin, end, reason in good_and_bad(run.lines.size, rows):
        if reason is not None:
            if record[begin] != last:
                yield BadRecord(line=int(run.lines[begin]), reason=reason)
                passed += 1
            last = record[begin]
            continue
        yield replace(run.part(begin, end), counts=counts, origin=_origin(run, begin, end, passed, rest))
        counts, passed, rest = {}, passed + rest, 0
    if counts or rest:
        yield replace(run.part(0, 0), counts=counts, origin=_origin(run, 0, 0, passed, rest))


def _origin(run: Records, begin: int, end: int, passed: int, of: int) -> Origin | None:
    """Return the `Origin` of the entries `begin` to `end` (exclusive) of a run; None if the run has no `origin`.

    `passed` records were counted before these entries, and `of` records are counted with them.
    """
    if run.origin is None:
        return None
    return Origin(record=run.origin.record[begin:end] - passed, of=of)


def good_and_bad(rows: int, bad: Mapping[int, str]) -> Iterator[tuple[int, int, str | None]]:
    """Yield (begin, end, None) for each run of good rows and (row, row + 1, reason) for each bad row, in order.

    `rows` is the number of all rows. `bad` has the reason for each bad row, by the row's index.

    >>> list(good_and_bad(4, {1: "odd"}))
    [(0, 1, None), (1, 2, 'odd'), (2, 4, None)]
    """
    at = 0
    for row in sorted(bad):
        if row > at:
            yield at, row, None
        yield row, row + 1, bad[row]
        at = row + 1
    if at < rows:
        yield at, rows, None


def text_run(texts: list[str], lines: NDArray[np.int64], label: str) -> Iterator[Records | Record | BadRecord]:
    """Yield texts as one `Records`; but if one has a lone surrogate, yield what `text_record` returns for each text.

    The second way takes ten times as long. `lines` are the 1-based lines or rows of the texts, int64 ``[n]``; `label`
    is what messages call a text.
    """
    try:
        "".join([text for text in texts if not text.isascii()]).encode()
    except UnicodeEncodeError:
        for text, line in zip(texts, lines.tolist(), strict=True):
            yield text_record(text, line, label)
    else:
        yield Records(lines=lines, texts=texts)


def text_record(text: str, line: int, label: str) -> Record | BadRecord:
    """Return a record with this text, or a bad record if the text has a lone surrogate.

    A lone surrogate is a character that JSON allows and UTF-8 cannot hold. `line` is the text's 1-based line or row;
    `label` is what messages call the text.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return BadRecord(line=line, reason=lone_surrogate(error, label))
    return Record(line=line, text=text)


def lone_surrogate(error: UnicodeEncodeError, label: str) -> str:
    """Return the reason for a bad record: its text raised `error` when it was encoded.

    `label` is what messages call the text.
    """
    code = f"\\u{ord(error.object[error.start]):04x}"
    return f"{label} holds a lone surrogate, {code}, at character {error.start}"


def ids_record(values: list[Any], line: int, label: str) -> Record | BadRecord:
    """Return a record with `values` as its ids, or a bad record that names the first value that is not an id.

    An id is an integer from 0 to 2^31 - 1 (`MAX_ID`). `line` is the record's 1-based line or row; `label` is what
    messages call the ids.
    """
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
    """Return `value` as ASCII JSON for a message, cut off after `limit` characters and ended by "..." if it is longer.

    A value that JSON cannot hold is written as a string, as `repr` returns it. An integer of thousands of digits, a
    value with one in it, and a value that is nested too deeply are described by their type.
    """
    try:
        text = to_json(value)
    except ValueError:
        return shown_as_python(value)
    return text if len(text) <= limit else text[:limit] + "..."


def columns_in(record: Mapping[Any, Any]) -> str:
    """Return the names of a record's columns for a message, in its order; "nothing" if it has none."""
    return ", ".join(name if isinstance(name, str) else shown_as_python(name) for name in record) or "nothing"


def listed(value: Any) -> list[Any] | None:
    """Return a sequence, or an array or tensor of one dimension, as a list; None for all else, such as a text."""
    if isinstance(value, str | bytes) or not (isinstance(value, Sequence) or getattr(value, "ndim", 0) == 1):
        return None
    return list(value)


def check_text(text: str, where: str) -> None:
    """Refuse a text with a lone surrogate, which JSON allows and no tokenizer can read.

    Raises:
        RecordError: the text holds a lone surrogate; the message calls the text `where`.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"{lone_surrogate(error, where)}; repair the text") from error
