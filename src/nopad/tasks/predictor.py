"""`Predictor`: predicts lists of records with a task and a pack-safe model, on packs.

It stores nothing about a call, so several threads may share one `Predictor`, as they do in serving.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from nopad.assignment import pack
from nopad.batch import Flat, PackedBatch, Rows
from nopad.batch.form import FEW, Form, check_form, pack_few
from nopad.errors import LengthError, OptionError, RecordError, RequestError
from nopad.model.admission import device_of, positions_of
from nopad.model.precision import Precision
from nopad.model.safety import bare, state_of
from nopad.options import MAX_LENGTH, Option, shown
from nopad.sequences import Sequences
from nopad.tasks.core import Core, Prepared, by_length
from nopad.tasks.examples import Examples, check_examples
from nopad.tasks.fit import check_rows
from nopad.tasks.task import Task
from nopad.threads import check_free, new_lock

__all__ = ["Predicted", "Predictor"]

CAPACITY = Option(default=None, none=True, high=MAX_LENGTH, help="most tokens of a pack")
ROWS = Option(default=None, none=True, help="packs run at a time")
TOKENS = 4096  # about how many tokens run at a time, if neither capacity nor rows are given

# A tokenizer stores its truncation settings, so two threads must not use one tokenizer at the same time.
_locks: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The predictions of a list of records.

    Attributes:
        predictions: one dict per record, in order; None: the task left the record out.
        counts: number of records truncated or left out, by reason, and other counts of the task (`Examples.counts`).
        sequences, tokens: number of sequences and of tokens that the model ran on.

    >>> import nopad
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> task = nopad.tasks.Classification(tokenizer, ["no", "yes"])
    >>> predictor = nopad.tasks.Predictor(task, BertForSequenceClassification(BertConfig(**sizes)))
    >>> found = predictor.run([{"text": "is it red ?"}, {"text": "yes"}])
    >>> len(found.predictions), found.sequences, found.tokens
    (2, 2, 9)
    """

    predictions: list[dict[str, Any] | None]
    counts: Mapping[str, int]
    sequences: int
    tokens: int


class Predictor(Core):
    """A task with its model, which turns records into predictions; several threads may share it.

    Args:
        task: the task.
        model: the model with the task's head (`Task.model`); it is made pack-safe and put into evaluation mode.
        capacity: most tokens of a pack; None: 4,096, or the model's positions if these are fewer. With None, a longer
            sequence raises the capacity to its length, if the model has so many positions.
        rows: number of packs run at a time; None: as many as hold about 4,096 tokens, but 1 if batches are not flat and
            the model cannot run several rows, for lack of a pad id.
        form: layout of a batch in memory, a `nopad.Rows` or `nopad.Flat`. None: on a CPU or in half precision, one flat
            row, with no padding or only as much as `Core.flat` adds for speed. In other cases, and for models whose
            rows can be no longer than their positions, such as FNet: rows of `capacity` tokens.
        fast: on CPUs, run float32 linear layers with a faster kernel (`nopad.model.fast_linear`), whose results differ
            in the last digit; None: only if a measurement shows that the kernel is faster.
        precision: "bfloat16" or "int8": a copy of the model computes in it (`nopad.model.lowered`); None: the model as
            it is.

    Raises:
        OptionError: `task` is not a `Task`, an option has an invalid value, the model has no pad id and cannot run
            `rows` rows, or the model's precision cannot be lowered.
        UnsupportedModelError: nopad refuses this model; the message gives the reason.

    >>> import nopad
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> task = nopad.tasks.Classification(tokenizer, ["no", "yes"])
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = BertForSequenceClassification(BertConfig(**sizes, **task.model_options()))
    >>> predictor = nopad.tasks.Predictor(task, model)
    >>> found = predictor([{"text": "is it ?"}, {"text": "why not"}])
    >>> [sorted(one) for one in found]
    [['label', 'probabilities'], ['label', 'probabilities']]
    """

    request = "a record, or its texts"

    def __init__(
        self,
        task: Task,
        model: Any,
        *,
        capacity: int | None = None,
        rows: int | None = None,
        form: Form | None = None,
        fast: bool | None = None,
        precision: Precision | None = None,
    ) -> None:
        if not isinstance(task, Task):
            raise OptionError(f"the task is a {type(task).__name__}; give one of nopad.tasks, such as Classification")
        super().__init__(model, fast, precision)
        self.task = task
        family, inner = state_of(self.model).family, bare(self.model)
        positions = positions_of(inner, family)
        given = CAPACITY.check("capacity", capacity)
        self.capacity = given or min(positions or TOKENS, TOKENS)
        self._grows = None if given else positions or MAX_LENGTH  # most to which a longer sequence raises the capacity
        self.longest = self._grows or self.capacity
        kernel = device_of(inner).type == "cpu" or next(inner.parameters()).dtype in (torch.half, torch.bfloat16)
        flat = kernel and not family.narrow
        self._form: Form | None = check_form(form) if form is not None else Flat() if flat else None
        by_row = not isinstance(self._form, Flat) and state_of(self.model).head.one_row
        self.rows = ROWS.check("rows", rows) or (1 if by_row else max(TOKENS // self.capacity, 1))
        if by_row:
            check_rows(self.model, self.rows)

    def __call__(self, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """Return one prediction per record, in order; None: the task left the record out.

        Raises:
            RecordError: the task cannot read a record, or the model gives NaN for it; or `records` have no length.
            LengthError: a record is too long, or has no token.
            OptionError: the model is in training mode, or the tokenizer lacks what the task needs.
        """
        return self.run(records).predictions

    def run(self, records: Sequence[Mapping[str, Any]]) -> Predicted:
        """Return a `Predicted`: the predictions for the records, and how many sequences and tokens the model ran on.

        Raises:
            RecordError: the task cannot read a record, or the model gives NaN for it; the message gives its number. Or
                `records` have no length, as an iterator has none.
            LengthError: a record is too long, or has no token.
            OptionError: the model is in training mode; or the tokenizer lacks what the task needs, such as a chat
                template.
        """
        try:
            empty = not len(records)
        except TypeError as error:  # no length
            raise RecordError(
                f"the records are a {type(records).__name__}; expected a list of dicts of columns, and nopad.tasks."
                "predict takes any iterable"
            ) from error
        if empty:
            return Predicted(predictions=[], counts={}, sequences=0, tokens=0)
        return self.forward(self.encode(records))

    def encode(self, records: Sequence[Mapping[str, Any]]) -> Examples:
        """Turn records, at least one, into sequences (`Task.encode` without labels).

        Threads that share a tokenizer take turns.

        Raises:
            RecordError, LengthError: the task cannot encode a record; the message gives its number.
            OptionError: the tokenizer lacks what the task needs, such as a chat template.
            ServingError: a signal handler or finaliser calls this while it interrupts such a call in the same thread.
        """
        lock = _locks.setdefault(self.task.tokenizer, new_lock())
        check_free(lock, "tokenises")  # a tokenizer keeps the settings of a call in itself
        with lock:
            return self.task.encode(records, labels=False)

    def forward(self, examples: Examples) -> Predicted:
        """Run the sequences of `examples` through the model; return a `Predicted`, with a prediction per record.

        Raises:
            OptionError: the model is in training mode, or `examples` are no `Examples`.
            LengthError: a sequence is longer than a given `capacity`, or, if none was given, than the model's
                positions.
            RecordError: the model's outputs for a record are NaN; the message gives its number.
        """
        check_examples(examples)
        if self.training:
            raise OptionError("the model is in training mode, where dropout changes predictions; call model.eval()")
        results: list[dict[str, Any]] = [{}] * len(examples)
        with self.kernels(examples.tokens):
            for numbers, per_row, form in self._batches(examples):
                chosen = examples.sequences.take(numbers)
                if isinstance(form, Flat):
                    work = partial(self._run_flat, chosen, form, examples.tokens)
                    found = self.lanes.run(chosen.seq_lengths.tolist(), work)
                else:
                    batch = PackedBatch.from_columns(chosen, form, per_row=per_row)
                    found = self.lanes.alone(partial(self.run_batch, batch))
                _refuse_nan(found, examples.record[numbers])
                for number, result in zip(numbers.tolist(), found, strict=True):
                    results[number] = result
        return Predicted(
            predictions=list(self.task.merged(results, examples)),
            counts=dict(examples.counts),
            sequences=len(examples),
            tokens=examples.tokens,
        )

    def _run_flat(self, sequences: Sequences, form: Flat, total: int, indices: list[int]) -> list[Any]:
        """Return the task's results for the sequences with these `indices`, which are run as one flat batch.

        `form` is the predictor's layout. If `form` adds no padding, `Core.flat` chooses the layout instead; `total` is
        an argument of `Core.flat`.
        """
        chosen = sequences.take(np.array(indices))
        if form.pad_to_multiple_of == 1:
            form = self.flat(int(chosen.seq_lengths.sum()), total)
        return self.run_batch(PackedBatch.from_columns(chosen, form))

    def is_one(self, given: Any) -> bool:
        """Return whether `given` is a single record or text."""
        return isinstance(given, str | Mapping)

    def prepare(self, requests: Sequence[Any], **how: Any) -> tuple[list[Prepared], Mapping[str, int]]:
        """Tokenise records; return one `Prepared` per record, in order, and counts by name (`Examples.counts`).

        A request is a record (a dict of columns), a text, or a tuple or list of texts, one per text column of the task.
        There are no options, so `how` must be empty.

        Raises:
            OptionError: an option is given in `how`; the task combines records at random (`Task.fewest` is above 1), so
                it cannot answer single ones; or the tokenizer lacks what the task needs, such as a chat template.
            RecordError, LengthError: a request is not valid, too long, or has no token, and the message gives its
                number; or there is no request.
        """
        if how:
            raise OptionError(f"this task has no {', '.join(how)}; give them to the task itself")
        if self.task.fewest > 1:
            raise OptionError(f"the task {self.task.name} combines records at random, and answers none by itself")
        examples = self.encode([self._record(one, number) for number, one in enumerate(requests)])
        self._check_lengths(examples)
        return [Prepared(one.sequences, one) for one in examples.of_each_record()], examples.counts

    def results_of(self, batch: PackedBatch, model: Any) -> list[Any]:
        """Run the model on a batch, and return the task's result for each sequence, in the order of the batch.

        A sequence for which the model gives NaN gets a RequestError instead. `model` is the predictor's own model, or a
        `nopad.model.compiled.CompiledRows` of it.
        """
        outputs = self.task.objective.outputs(model, batch)
        odd = self._odd(outputs, batch)
        if len(odd) == batch.layout.sequences:
            return [odd[at] for at in range(len(odd))]
        found: list[Any] = list(self.task.results(outputs, batch))
        for at, error in odd.items():
            found[at] = error
        return found

    def finish(self, prepared: Prepared, results: Sequence[Any]) -> dict[str, Any] | None:
        """Return the prediction for a record; None: the task left it out."""
        [found] = self.task.merged(results, prepared.details)
        return found

    @property
    def shape(self) -> tuple[int, int | None]:
        """Size of the batches that a `PackRunner` makes if no `batching` is given to it: (tokens per row, rows).

        These are `capacity` and `rows`. If the form is `Flat`, the result is (4096, None) instead: flat batches of
        about 4,096 tokens, whatever `capacity` and `rows` are.
        """
        return (TOKENS, None) if isinstance(self._form, Flat) else (self.capacity, self.rows)

    def _record(self, given: Any, number: int) -> Mapping[str, Any]:
        """Return a request as a record.

        Raises:
            RecordError: the request is neither a record nor one text per text column.
        """
        if isinstance(given, Mapping):
            return given
        texts = (given,) if isinstance(given, str) else given
        columns = [name for one in self.task.texts_by if (name := getattr(self.task, one)) is not None]
        many = isinstance(texts, tuple | list) and all(isinstance(text, str) for text in texts)
        if not many or not columns or len(texts) != len(columns):
            what = f"{', '.join(columns)}" if columns else "columns"
            raise RecordError(
                f"record {number} is {shown(given)[:60]}; the task {self.task.name} takes a dict of {what}"
                + (f", or {len(columns)} texts" if columns else "")
            )
        return dict(zip(columns, texts, strict=True))

    def _odd(self, outputs: Any, batch: PackedBatch) -> dict[int, RequestError]:
        """Return a RequestError for each sequence with NaN in its outputs, by the sequence's index in the batch."""
        objective, found = self.task.objective, dict[int, list[str]]()
        for name in objective.reads:
            value = outputs.get(name)
            # The sum is NaN if any value is, or if there are opposite infinities, which the test below lets through
            if not isinstance(value, torch.Tensor) or not bool(value.sum().isnan()):
                continue
            per_token = objective.gives == "token" and tuple(value.shape[:2]) == tuple(batch.layout.shape)
            each = batch.unpack_tokens(value) if per_token else list(value)  # of several outputs, some are per sequence
            for at, one in enumerate(each):
                if bool(one.isnan().any()):
                    found.setdefault(at, []).append(name)
        return {at: RequestError(f"the model gives NaN for this request, in {', '.join(found[at])}") for at in found}

    def _check_lengths(self, examples: Examples) -> None:
        """Refuse a sequence that is longer than a pack can be.

        Raises:
            LengthError: there is such a sequence; the message gives the number of its record.
        """
        lengths, most = examples.sequences.seq_lengths, self.longest
        if lengths.size and most is not None and int(lengths.max()) > most:
            number = int(examples.record[int(lengths.argmax())])
            what = "the model's positions are" if self._grows else "the capacity is"
            raise LengthError(
                f"record {number} has a sequence of {int(lengths.max())} tokens, and {what} {most}; give "
                'the task max_length, and over_long="truncate" or "drop"'
            )

    def _batches(self, examples: Examples) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Form]]:
        """Yield, for each batch: the indices of its sequences, the number of sequences in each pack, and its layout.

        Raises:
            LengthError: a sequence is longer than a pack can be.
        """
        lengths = examples.sequences.seq_lengths
        if not lengths.size:
            return
        self._check_lengths(examples)
        capacity = max(self.capacity, int(lengths.max()))
        if isinstance(self._form, Flat):
            for numbers in by_length(lengths.tolist(), capacity * self.rows):
                yield np.array(numbers, np.int64), np.array([len(numbers)], np.int64), self._form
            return
        if lengths.size <= FEW:
            packs = [np.array(one, np.int64) for one in pack_few(lengths.tolist(), capacity, None)]
        else:
            packs = [one.astype(np.int64) for one in pack(lengths, capacity, order="source")]
        form = self._form or Rows(capacity)
        for first in range(0, len(packs), self.rows):
            part = packs[first : first + self.rows]
            yield np.concatenate(part), np.array([one.size for one in part], np.int64), form


def _refuse_nan(results: Sequence[Any], record: NDArray[np.int64]) -> None:
    """Raise a RecordError if a result is a RequestError; `record` has each result's record number, for the message."""
    for number, result in zip(record.tolist(), results, strict=True):
        if isinstance(result, RequestError):
            raise RecordError(
                f"record {number}: the model gives NaN for it, so nothing is predicted; are its weights damaged, "
                "or too large for half precision?"
            )
