"""`TaskSource`: the sequences that a task makes of records, as a source for `nopad.pack_corpus`.

Records are encoded a thousand at a time while they are read, so memory does not grow with their number. ``seq_index``
is the number of a sequence's record, even if the task leaves records out or makes several sequences of one. Records
that the task truncates, drops or splits are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nopad.arrow import array_of, list_array, list_parts
from nopad.corpus.records import Carried, Kind, Origin, Records
from nopad.corpus.selection import is_list, is_string
from nopad.corpus.source import Block, Source
from nopad.errors import OptionError, RecordError, SourceError
from nopad.sequences import Sequences
from nopad.tasks.examples import Examples, encoded_after, numbered, parts_of
from nopad.tasks.task import Task

__all__ = ["TaskSource"]

_NUMBER = "seq_index"
_AT_ONCE = 1000


class TaskSource(Source):
    """A source of the sequences that a task makes of records, such as chats or pairs of texts.

    Args:
        task: the task; its `max_length` and `over_long` decide what happens to long records.
        records: dicts; an iterable that starts anew each time, or an iterator, which can be read only once.
        labels: whether the records have labels for the task to read, as in training.
        carry: names of further columns to keep. Each record that becomes sequences must have a value there, not None.
        name: name of the input, in fingerprints and messages.

    Raises:
        OptionError: the task makes groups of sequences that must stay together, or a column has several numbers per
            sequence (a packed dataset can hold neither); or the task or its tokenizer lacks what `Task.encode` needs.
        RecordError, LengthError: the task cannot encode one of the first records, or one of them lacks a column of
            `carry`.

    >>> import nopad
    >>> from nopad.tasks.source import TaskSource
    >>> task = nopad.tasks.Classification(tokenizer, max_length=3, over_long="drop")
    >>> records = [{"text": "is it red ?", "label": 0}, {"text": "yes", "label": 1}]
    >>> [run] = next(TaskSource(task, records).blocks()).records()
    >>> run.origin.record.tolist(), run.values["labels"].to_pylist(), dict(run.counts)
    ([1], [1], {'dropped': 1, 'empty_skipped': 0, 'split': 0, 'truncated': 0})

    The first record has more than 3 tokens, so the task drops it; the sequence that is left is of record 1.
    """

    kind: Kind | None = "ids"
    made_here = True

    def __init__(
        self,
        task: Task,
        records: Iterable[Mapping[str, Any]],
        *,
        labels: bool = True,
        carry: Sequence[str] = (),
        name: str = "memory",
    ) -> None:
        self.left_out = ()
        self.task, self._records, self._labels, self._carry, self._name = task, records, labels, tuple(carry), name
        self._read = False
        self._schema: pa.Schema | None = None
        self._first = self._pass()
        self._ahead = list(islice(self._first, 1))  # the first block shows which columns there are

    def blocks(self) -> Iterator[Block]:
        """Yield the encoded sequences in blocks of about a thousand records.

        Raises:
            SourceError: the records are an iterator that was read before.
            RecordError, LengthError: the task cannot encode a record, a record lacks a column of `carry`, or records
                give other columns than those before.
        """
        if not self._read:
            self._read = True
            ahead, self._ahead = self._ahead, []
            yield from ahead
            yield from self._first
        elif isinstance(self._records, Iterator):
            raise SourceError(f"{self._name}: an iterator can be read once; give a list, or a datasets.Dataset")
        else:
            yield from self._pass()

    def settings(self) -> dict[str, Any]:
        """Return the task's name under ``"task"``, for the manifest."""
        return {"task": self.task.name}

    def _pass(self) -> Iterator[Block]:
        first = before = 0
        held: _Made | None = None
        for part in parts_of(self._records, _AT_ONCE, self.task.fewest):
            made = self._made(part, first, before)
            first, before = first + len(part), before + made.size
            if held is None or not (held.size and made.size):
                held = made if held is None else held.with_next(made)
                continue
            yield self._block(held)
            held = made
        if held is not None:
            yield self._block(held)

    def _made(self, part: list[Mapping[str, Any]], first: int, before: int) -> _Made:
        """Encode the records `part`, and return their sequences.

        `first` is the number of the first of these records in the input; `before` is the number of sequences made from
        all earlier records. If `first` is 0, this also sets `left_out`: the columns of the input's first record that
        the task has not read and that `carry` does not name.

        Raises:
            OptionError: the task makes groups; a column has several numbers per sequence; or the task or its tokenizer
                lacks what `Task.encode` needs.
            RecordError, LengthError: the task cannot encode a record, or a record lacks a column of `carry`.
        """
        if not first:  # columns of the first record that the task does not read are reported to the user
            looked = _Looked(next(numbered(part))[1])
            part = [looked, *part[1:]]
        made = encoded_after(self.task, part, range(first, first + len(part)), before, labels=self._labels)
        if made.group > 1:
            raise OptionError(
                f"the task {self.task.name} makes {made.group} sequences that stay in one step, which packs on disk "
                "cannot promise; give task and records to a trainer, or to task.loader"
            )
        columns = _columns(made) | self._carried(part, made, first) if len(made) else {}
        if not first:
            self.left_out = tuple(name for name in looked if name not in {*looked.read, *self._carry})
        return _Made(columns, made.record, first, len(part), dict(made.counts))

    def _block(self, made: _Made) -> Block:
        data = pa.RecordBatch.from_pydict({_NUMBER: pa.array(made.record, pa.int64()), **made.columns})
        if self._schema is None:
            self._schema = data.schema
            self.carried = tuple(
                _carried_as(field) for field in data.schema if field.name not in (_NUMBER, "input_ids")
            )
        elif data.schema != self._schema:
            raise RecordError(
                f"the task {self.task.name} makes the columns {_told(data.schema)} of records from {made.first} on, "
                f"and {_told(self._schema)} of those before"
            )
        counted = Counter(made.counts).__getitem__
        decoder = partial(_decode, of=made.of, truncated=counted("truncated"), empty=counted("empty_skipped"))
        return Block(name=self._name, data=data, decoder=decoder, first_line=made.first + 1, path=self._name)

    def _carried(self, part: list[Mapping[str, Any]], made: Examples, first: int) -> dict[str, pa.Array]:
        """Return the columns named by `carry`, with a value per sequence: that of the sequence's record.

        `made` are the examples of the records `part`. `first` is the number of the first of these records in the input.

        Raises:
            RecordError: a record with a sequence lacks such a column or has None there, or the values of a column have
                no common type.
        """
        found = {}
        for name in self._carry:
            values = []
            for number in made.record.tolist():
                if part[number].get(name) is None:
                    raise RecordError(f"record {first + number} has no {name!r}; leave it out of carry=")
                values.append(part[number][name])
            try:
                found[name] = array_of(values)
            except pa.ArrowException as error:
                raise RecordError(f"{name!r} of records from {first} on is not of one type ({error})") from error
        return found


class _Looked(dict[str, Any]):
    """A copy of a record; its set `read` holds the names of the columns that were looked up so far."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        super().__init__(record)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


@dataclass(frozen=True)
class _Made:
    """The sequences made from some consecutive records.

    Attributes:
        columns: the columns of the sequences, by name.
        record: index of each sequence's record among these records, ascending; int64.
        first: number of the first of these records in the input.
        of: number of these records.
        counts: what happened to these records, as in `Examples.counts`.
    """

    columns: Mapping[str, pa.Array]
    record: NDArray[np.int64]
    first: int
    of: int
    counts: Mapping[str, int]

    @property
    def size(self) -> int:
        return self.record.size

    def with_next(self, other: _Made) -> _Made:
        """Return one `_Made` of these records and of `other`, the records after them.

        At least one of the two must have no sequences: the task left out all of its records.
        """
        record = self.record if self.size else other.record + self.of
        columns = self.columns if self.size else other.columns
        counts = Counter(self.counts) + Counter(other.counts)
        return _Made(columns, record, self.first, self.of + other.of, counts)


def _columns(made: Examples) -> dict[str, pa.Array]:
    """Return the columns of a task's sequences as Arrow arrays; a per-token column has a list per sequence.

    Raises:
        OptionError: a column has several numbers per sequence.
    """
    whole = made.sequences.gathered()
    ends = np.concatenate([[0], np.cumsum(whole.seq_lengths, dtype=np.int64)])
    found = {name: list_array(ends, column) for name, column in whole.tokens.items()}
    for name, column in whole.values.items():
        if np.ndim(column) != 1:
            raise OptionError(
                f"the column {name!r} has {column.shape[1:]} numbers per sequence, and a packed dataset holds one; "
                "give task and records to a trainer, or to task.loader"
            )
        found[name] = pa.array(column)
    return found


def _carried_as(field: pa.Field) -> Carried:
    if is_list(field.type):
        return Carried(name=field.name, per="token", type=str(field.type.value_type))
    return Carried(name=field.name, per="sequence", type="string" if is_string(field.type) else str(field.type))


def _told(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema if field.name != _NUMBER)


def _decode(data: pa.RecordBatch, first_line: int, *, of: int, truncated: int, empty: int) -> Iterator[Records]:
    """Yield the sequences of a block, the rows of `data`, as one `Records`.

    The block is made from `of` records. Of these, `truncated` were truncated, and `empty` were left out since they had
    no token. The first of these records has the line number `first_line`.
    """
    record = data.column(_NUMBER).to_numpy()
    lists = {field.name: list_parts(data.column(field.name)) for field in data.schema if is_list(field.type)}
    offsets = lists["input_ids"][0] if lists else np.zeros(1, np.int64)
    lengths = np.diff(offsets).astype(np.int32)
    ids = Sequences(
        seq_lengths=lengths, tokens={name: values for name, (_, values) in lists.items()} or {"input_ids": lengths}
    )
    values = {name: data.column(name) for name in data.schema.names if name not in lists and name != _NUMBER}
    per_record = np.bincount(record, minlength=of)
    yield Records(
        lines=first_line + record,
        ids=ids,
        values=values,
        origin=Origin(record=record, of=of),
        counts={
            "dropped": int(np.count_nonzero(per_record == 0)) - empty,
            "empty_skipped": empty,
            "split": int(np.count_nonzero(per_record > 1)),
            "truncated": truncated,
        },
    )
