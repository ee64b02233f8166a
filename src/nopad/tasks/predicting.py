"""`predict`: predict any number of records with a task and a pack-safe model, in input order.

The records go through a `Predictor` (`nopad.tasks.predictor`) in chunks of consecutive records. Memory depends only on
the size of a chunk, not on the number of records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from nopad.batch.form import Form
from nopad.corpus.record_stream import RecordStream, open_records
from nopad.corpus.runs import Bad
from nopad.errors import LengthError, RecordError
from nopad.loading.ahead import ahead
from nopad.options import Option
from nopad.tasks.examples import Examples, placed, renumbered
from nopad.tasks.predictor import Predicted, Predictor
from nopad.tasks.task import Task

__all__ = ["BATCH_RECORDS", "Chunk", "Predictions", "predict"]

BATCH_RECORDS = Option(default=1000, help="records read, packed and run at a time")


class Predictions(Iterator["dict[str, Any] | None"]):
    """An iterator over the predictions of records, in input order, which also counts records, sequences and tokens.

    Attributes:
        counts: number of records truncated or left out so far, by reason, and the task's other counts.
        records: number of records so far, those left out included.
        sequences, tokens: number of sequences and tokens that the model has run on so far.

    These numbers grow by a chunk of `batch_records` records at a time.

    Raises:
        OptionError: `batch_records` is not an integer of at least 1.

    >>> import nopad
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> task = nopad.tasks.Classification(tokenizer, ["no", "yes"])
    >>> model = BertForSequenceClassification(BertConfig(**sizes))
    >>> found = nopad.tasks.predict(task, model, iter([{"text": "is it red ?"}, {"text": "yes"}]))
    >>> len(list(found)), found.records, found.tokens
    (2, 2, 9)
    """

    def __init__(self, predictor: Predictor, records: Iterable[Mapping[str, Any]], batch_records: int) -> None:
        self.counts: Counter[str] = Counter()
        self.records = self.sequences = self.tokens = 0
        self._items = self._run(predictor, records, BATCH_RECORDS.check("batch_records", batch_records))

    def __iter__(self) -> Predictions:
        """Return the object itself; predictions can be read only once."""
        return self

    def __next__(self) -> dict[str, Any] | None:
        """Return the next record's prediction; None: the record was left out.

        The task may leave a record out. The input may skip one that cannot be decoded (`nopad.open_records` with
        ``on_bad_record="skip"``).

        Raises:
            RecordError: a record cannot be decoded and is not to be skipped, lacks what the task needs, or the model
                gives NaN for it.
            LengthError: a record is too long, or has no token.
            OptionError: the tokenizer lacks what the task needs, such as a chat template; or the model is in training
                mode.
            SourceError, FormatError: the input cannot be read, or is damaged.
        """
        return next(self._items)

    def _run(
        self, predictor: Predictor, records: Iterable[Mapping[str, Any]], size: int
    ) -> Generator[dict[str, Any] | None, None, None]:
        for chunk, examples in ahead(_encoded(predictor, records, size), 1, "nopad-predict"):
            with placed(records):
                found = chunk.predicted(predictor, examples)
            self.counts.update(found.counts)
            self.records += len(found.predictions)
            self.sequences += found.sequences
            self.tokens += found.tokens
            yield from found.predictions


def predict(
    task: Task,
    model: Any,
    records: Any,
    *,
    capacity: int | None = None,
    rows: int | None = None,
    form: Form | None = None,
    fast: bool | None = None,
    batch_records: int = BATCH_RECORDS.default,
) -> Predictions:
    """Predict any number of records on packs, in input order, a chunk of `batch_records` at a time.

    The next chunk is tokenised in a thread while the model runs. `nopad predict` does the same from files to files.

    Args:
        task: the task.
        model: the model with the task's head.
        records: dicts of columns, or whatever `nopad.corpus.open_records` opens.
        capacity: most tokens of a pack; None: `Predictor` chooses it.
        rows: number of packs run at a time; None: `Predictor` chooses it.
        form: layout of a batch in memory, a `nopad.Rows` or `nopad.Flat`; None: `Predictor` chooses it.
        fast: whether to use a faster kernel on CPUs; None: a measurement decides.
        batch_records: number of records in a chunk; larger chunks make better packs, and take more memory.

    Returns:
        An iterator over one dict per record, or None where the record was left out: by the task, or since it cannot be
        read (`open_records` with ``on_bad_record="skip"``). `Predictions.counts` says how often, by reason.

    Raises:
        OptionError: `task` is not a `Task`, an option has an invalid value, or the model cannot run `rows` rows; or,
            during iteration, the tokenizer lacks what the task needs.
        UnsupportedModelError: nopad refuses this model; the message gives the reason.
        RecordError, LengthError: during iteration, if the task cannot read a record, a record is too long, or the model
            gives NaN for it. The message gives the record's number in the input.
        SourceError, FormatError: the input cannot be read, or is damaged.

    >>> import nopad
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> task = nopad.tasks.Regression(tokenizer, max_length=6, over_long="drop")
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = BertForSequenceClassification(BertConfig(**sizes, **task.model_options()))
    >>> found = nopad.tasks.predict(task, model, [{"text": "is it ?"}, {"text": "one two three four five"}])
    >>> [one if one is None else list(one) for one in found], dict(found.counts)
    ([['score'], None], {'dropped': 1})

    The second text has more than 6 tokens, so the task drops its record.
    """
    predictor = Predictor(task, model, capacity=capacity, rows=rows, form=form, fast=fast)
    return Predictions(predictor, task.read(open_records(records)), batch_records)


class Chunk:
    """Some consecutive records of an input, which are encoded and predicted together.

    A record that cannot be read, and is to be skipped, gets None as its prediction.

    Args:
        items: the records, with a `nopad.corpus.runs.Bad` in place of each record that cannot be read.
        first: number in the input, from 0, of the first of these records.

    Attributes:
        first: as given.
        size: number of `items`.
        records: the records that can be read, by their numbers in the input.
    """

    def __init__(self, items: Sequence[Mapping[str, Any] | Bad], first: int) -> None:
        self.first, self.size = first, len(items)
        self.records = {number: one for number, one in enumerate(items, first) if not isinstance(one, Bad)}
        self._numbers = [*self.records]

    def encode(self, predictor: Predictor) -> Examples | None:
        """Return the examples of the records that can be read; None: there is no such record.

        Raises:
            RecordError, LengthError: the task cannot encode a record; the message gives its number in the input.
            OptionError: the tokenizer lacks what the task needs, such as a chat template.
        """
        with self._numbered():
            return predictor.encode([*self.records.values()]) if self.records else None

    def predicted(self, predictor: Predictor, examples: Examples | None) -> Predicted:
        """Return a `Predicted` with a prediction for each of the chunk's records; None: the record was left out.

        The task may leave a record out; a record that cannot be read is always left out.

        `examples` is the result of `encode`.

        Raises:
            RecordError: the model gives NaN for a record; the message gives its number in the input.
            LengthError: a sequence is longer than a pack can be; the message gives its record's number in the input.
            OptionError: the model is in training mode.
        """
        counts = {"bad_skipped": bad} if (bad := self.size - len(self.records)) else {}
        if examples is None:
            return Predicted(predictions=[None] * self.size, counts=counts, sequences=0, tokens=0)
        with self._numbered():
            found = predictor.forward(examples)
        given = dict(zip(self.records, found.predictions, strict=True))
        predictions = [given.get(number) for number in range(self.first, self.first + self.size)]
        return replace(found, predictions=predictions, counts={**found.counts, **counts})

    @contextmanager
    def _numbered(self) -> Iterator[None]:
        """In a ``with`` block, change the record number in an error's message to the record's number in the input.

        If the message does not begin with a record number, "(in the records from number N on)" is put after it. N is
        the number of the chunk's first record. In the first chunk, such a message is not changed.
        """
        try:
            yield
        except (RecordError, LengthError) as error:
            said = renumbered(error, self._numbers)
            if said is None:
                said = f"{error} (in the records from number {self.first} on)" if self.first else str(error)
            raise type(error)(said) from error


def _encoded(
    predictor: Predictor, records: Iterable[Mapping[str, Any]], size: int
) -> Generator[tuple[Chunk, Examples | None], None, None]:
    """Encode records in chunks of `size`; yield each chunk with its examples (None: none of its records can be read).

    Raises:
        RecordError, LengthError: the task cannot encode a record. For records of files, the message begins with the
            record's place, such as ``a.jsonl, line 7``.
        OptionError: the tokenizer lacks what the task needs, such as a chat template.
        SourceError, FormatError: the input cannot be read, or is damaged.
    """
    items = records.each() if isinstance(records, RecordStream) else iter(records)
    first = 0
    while part := list(islice(items, size)):
        chunk = Chunk(part, first)
        with placed(records):
            made = chunk.encode(predictor)
        yield chunk, made
        first += chunk.size
