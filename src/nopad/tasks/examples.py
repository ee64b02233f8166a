"""`Examples`: the sequences that a task makes from records, in columns, and the number of each sequence's record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nopad import wording
from nopad.corpus.record_stream import RecordStream
from nopad.corpus.records import check_text, columns_in
from nopad.corpus.runs import Bad
from nopad.errors import InputError, LengthError, OptionError, RecordError
from nopad.options import is_number, shown
from nopad.sequences import Sequences

__all__ = [
    "Examples",
    "check_examples",
    "counted",
    "encoded_after",
    "encoded_part",
    "field_of",
    "float_of",
    "numbered",
    "paired",
    "parts_of",
    "placed",
    "readable",
    "renumbered",
    "stacked",
]

if TYPE_CHECKING:
    from nopad.tasks.task import Task

_NUMBER = re.compile(r"record (\d+)\b")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Examples:
    """n sequences that a task made from r records.

    Attributes:
        sequences: the sequences, with ``input_ids`` and the task's columns; `nopad.PackedLoader` reads them.
        record: index of each sequence's record, ascending; int64 ``[n]``.
        records: number of records, r.
        group: number of consecutive sequences that stay together in one step, such as 2 for a chosen and a rejected
            answer.
        counts: how often something happened, by name, such as ``{"truncated": 2}``. Most are numbers of records that
            were cut or dropped; some tasks also count words, texts or windows.
        details: what the task needs to make predictions later, such as where words begin: lists by name, one entry per
            sequence.
    """

    sequences: Sequences
    record: NDArray[np.int64]
    records: int
    group: int = 1
    counts: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.sequences)

    @property
    def tokens(self) -> int:
        """Number of tokens of all sequences."""
        return int(self.sequences.seq_lengths.sum(dtype=np.int64))

    def of_each_record(self) -> Iterator[Examples]:
        """Yield an `Examples` for each record, which holds that record's sequences, and no counts."""
        bounds = np.searchsorted(self.record, np.arange(self.records + 1)).tolist()
        for begin, end in pairwise(bounds):
            yield replace(
                self,
                sequences=self.sequences.part(begin, end),
                record=np.zeros(end - begin, np.int64),
                records=1,
                counts={},
                details={name: column[begin:end] for name, column in self.details.items()},
            )

    def __str__(self) -> str:
        """Return one line: records, sequences, tokens, and what was cut or left out."""
        size = f"{wording.counted(len(self), 'sequence')}, {wording.counted(self.tokens, 'token')}"
        return f"{wording.counted(self.records, 'record')}: {size}{counted(self.counts)}"


def check_examples(given: Any) -> None:
    """Check that `given` is an `Examples`.

    Raises:
        OptionError: it is something else, such as the records themselves.
    """
    if not isinstance(given, Examples):
        raise OptionError(f"the examples are a {type(given).__name__}; give what the task's encode(records) returns")


_COUNTED = {"empty_skipped": "skipped as empty", "bad_skipped": "skipped as bad"}


def counted(counts: Mapping[str, int]) -> str:
    """Return counts (`Examples.counts`) as text that begins with a comma.

    Counts that are 0 are left out; if all are 0, the result is "".

    >>> counted({"truncated": 0, "empty_skipped": 2})
    ', 2 skipped as empty'
    """
    return "".join(
        f", {number:,} {_COUNTED.get(name, name.replace('_', ' '))}" for name, number in counts.items() if number
    )


def stacked(
    ids: Sequence[Sequence[int]],
    record: Sequence[int] | NDArray[np.int64],
    *,
    tokens: Mapping[str, Sequence[Sequence[int]]] | None = None,
    values: Mapping[str, Any] | None = None,
) -> Sequences:
    """Return lists of token ids, one list per sequence, as `Sequences`.

    `record` has the number of each sequence's record, for messages. `tokens` are further per-token columns, by name,
    and `values` the per-sequence columns. Ids and `tokens` become int32.

    Raises:
        LengthError: a sequence has no token.
    """
    lengths = np.fromiter((len(one) for one in ids), np.int64, len(ids))
    if not lengths.all():
        raise LengthError(f"record {int(record[int(lengths.argmin())])} has no token; leave it out")
    total = int(lengths.sum())

    def flat(lists: Sequence[Sequence[int]]) -> NDArray[np.int32]:
        return np.fromiter((value for one in lists for value in one), np.int32, total)

    columns = {name: flat(lists) for name, lists in (tokens or {}).items()}
    return Sequences(
        seq_lengths=lengths.astype(np.int32),
        tokens={"input_ids": flat(ids), **columns},
        values={name: np.asarray(value) for name, value in (values or {}).items()},
    )


def parts_of(records: Iterable[T], at_once: int, fewest: int = 1) -> Iterator[list[T]]:
    """Yield the records in lists of `at_once` records, or of `fewest` if that is more.

    If fewer than `fewest` records are left for the last list, they are joined to the list before it.

    >>> list(parts_of("abcde", 2)), list(parts_of("abcde", 2, fewest=2))
    ([['a', 'b'], ['c', 'd'], ['e']], [['a', 'b'], ['c', 'd', 'e']])
    >>> list(parts_of("abcdef", 1, fewest=3))
    [['a', 'b', 'c'], ['d', 'e', 'f']]
    """
    left, at_once = iter(records), max(at_once, fewest)  # fewer than `fewest` are then always the last
    part = list(islice(left, at_once))
    while part:
        after = list(islice(left, at_once))
        if len(after) < fewest:
            part, after = part + after, []
        yield part
        part = after


def encoded_part(
    encode: Callable[[Any], Examples], part: Iterable[Mapping[str, Any]], numbers: Sequence[int] | Any
) -> Examples:
    """Return ``encode(part)``, where `part` are some records of a source.

    If `encode` raises an error of nopad about a record, the message gets the record's number in the source: the i-th
    record of `part` has the number ``numbers[i]``. This needs a message that begins with "record i"; see `renumbered`.
    """
    try:
        return encode(part)
    except InputError as error:
        said = renumbered(error, numbers)
        if said is None:
            raise
        raise type(error)(said) from error


def encoded_after(
    task: Task, part: Sequence[Mapping[str, Any]], numbers: Sequence[int] | Any, before: int, **options: Any
) -> Examples:
    """Encode one part of a source's records, with numbers that fit those of the other parts.

    The columns in `Task.record_columns` get the numbers of records in the whole source. A task that draws by the
    numbers of sequences (`Task.draws`) continues where the earlier parts ended.

    Args:
        task: the task.
        part: the records.
        numbers: for each record of `part`, its number in the source; messages about the record give this number.
        before: total number of sequences that the task made from the earlier parts.
        options: options of `Task.encode`.

    Raises:
        RecordError, LengthError: the task cannot encode a record.
        OptionError: the task or its tokenizer lacks what `Task.encode` needs.

    >>> import nopad
    >>> task = nopad.tasks.DPO(tokenizer)
    >>> pairs = [{"prompt": "is it red ?", "chosen": " no", "rejected": " yes"}] * 3
    >>> parts = [encoded_after(task, pairs[:2], range(2), 0), encoded_after(task, pairs[2:], range(2, 3), 4)]
    >>> [part.sequences.values["pair"].tolist() for part in parts]
    [[0, 0, 1, 1], [2, 2]]
    """
    if task.draws:
        options["before"] = before
    made = encoded_part(lambda records: task.encode(records, **options), part, numbers)
    names = [name for name in task.record_columns if name in made.sequences.values]
    if not names:
        return made
    given = np.asarray(numbers, np.int64)[made.record]
    values = {**made.sequences.values, **dict.fromkeys(names, given)}
    return replace(made, sequences=replace(made.sequences, values=values))


def renumbered(error: InputError, numbers: Sequence[int] | Any) -> str | None:
    """Return an error's message in which the "record i" at its beginning has become "record ``numbers[i]``".

    The rest of the message is not changed, since it may quote the record. The result is None in three cases:

    * the message does not begin with "record i"
    * `numbers` has no entry i
    * the message already names a place in the input (`InputError.placed`), such as a file ``record 12.jsonl``

    >>> from nopad.errors import RecordError
    >>> from nopad.tasks.examples import renumbered
    >>> renumbered(RecordError("record 1 has no 'text', only record 0"), [40, 41])
    "record 41 has no 'text', only record 0"
    >>> renumbered(RecordError("record 7 is not one of these"), [40, 41]) is None
    True
    """
    found = _number(error)
    if found is None or not found[0] < len(numbers):
        return None
    return f"record {numbers[found[0]]}{str(error)[found[1] :]}"


def _number(error: InputError) -> tuple[int, int] | None:
    """Return (i, end) if an error's message begins with "record i"; `end` is the index after this beginning.

    The result is None if the message has another beginning, or already names a place in the input.
    """
    found = None if error.placed else _NUMBER.match(str(error))
    return None if found is None else (int(found[1]), found.end())


def readable(records: Iterable[Any], counts: dict[str, int], after: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield (number, record) for each record that can be read, from number `after` on; numbers begin at 0.

    Records that a `RecordStream` skips, since they cannot be read, are counted in ``counts["bad_skipped"]``. `after`
    must be 0 if `records` are not a `RecordStream`.

    Raises:
        RecordError: a record cannot be decoded, and the `RecordStream` does not skip such records.
        FormatError, SourceError: the input of the `RecordStream` is damaged, or cannot be read.
    """
    items = records.each(after=after) if isinstance(records, RecordStream) else iter(records)
    for number, record in enumerate(items, after):
        if isinstance(record, Bad):
            counts["bad_skipped"] = counts.get("bad_skipped", 0) + 1
        else:
            yield number, record


@contextmanager
def placed(records: Any) -> Iterator[None]:
    """Return a context manager that adds the record's place to an error about a record, such as ``a.jsonl, line 7``.

    If `records` is a `RecordStream` of files, the message of a `RecordError` or `LengthError` from the ``with`` block
    then begins with the place. For this, the message must begin with "record N", where N is the record's number, from
    0, among all records of the stream. Other errors are not changed.
    """
    try:
        yield
    except (RecordError, LengthError) as error:
        found = _number(error)
        place = records.place(found[0]) if found and isinstance(records, RecordStream) else None
        if place is None:
            raise
        said = type(error)(f"{place}: {error}")
        said.placed = True
        raise said from error


def numbered(records: Iterable[Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (number, record) for each record; numbers begin at 0.

    Raises:
        RecordError: a record is not a mapping of columns, or `records` are not iterable.
        LengthError: there is no record.
    """
    number = -1
    try:
        given = enumerate(records)
    except TypeError as error:  # not iterable
        raise RecordError(f"the records are a {type(records).__name__}; expected a list of dicts of columns") from error
    for number, record in given:
        if not isinstance(record, Mapping):
            raise RecordError(f"record {number} is a {type(record).__name__}; expected a dict of columns")
        yield number, record
    if number < 0:
        raise LengthError("there is no record, so there is nothing to train on or to predict")


def field_of(
    record: Mapping[str, Any], name: str, number: int, kind: type | tuple[type, ...] = str, option: str = "text"
) -> Any:
    """Return the value of column `name` of record `number`, after checking that it is of type `kind`.

    True and False are accepted only if `kind` is bool, although a bool is an int in Python. `option` is the task's
    option that names the column, for messages.

    Raises:
        RecordError: the record has no such column, its value is of another type, or it is a text with a lone surrogate.
    """
    if name not in record:
        raise RecordError(
            f'record {number} has no {name!r}, only {columns_in(record)}; name the column that holds it: {option}="..."'
        )
    value = record[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        kinds = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise RecordError(f"record {number}: {name} is a {type(value).__name__}, expected {kinds}: {shown(value)[:60]}")
    if isinstance(value, str):
        check_text(value, f"record {number}: {name}")
    return value


def float_of(value: Any, where: str) -> float:
    """Return a number as a float, after checking that it is finite in float32, in which losses are computed.

    Raises:
        RecordError: `value` is no number, or is not finite in float32; the message begins with `where`.
    """
    with np.errstate(over="ignore"):
        if not (is_number(value) and np.isfinite(np.float32(float(value)))):
            raise RecordError(f"{where} is {shown(value)}; it is a finite number, up to 3.4e38 (float32)")
    return float(value)


def paired(
    predictions: Sequence[dict[str, Any] | None], records: Iterable[Any]
) -> Iterator[tuple[int, Mapping[str, Any], dict[str, Any] | None]]:
    """Yield (number, record, prediction) for each record; numbers begin at 0.

    The prediction is None if the task left the record out.

    Raises:
        RecordError: a record is not a mapping; or, at the end, there were more or fewer predictions than records.
        LengthError: there is no record.
    """
    count = 0
    for number, record in numbered(records):
        count += 1
        if number < len(predictions):
            yield number, record, predictions[number]
    if count != len(predictions):
        raise RecordError(f"there are {len(predictions)} predictions for {count} records; expected one for each record")
