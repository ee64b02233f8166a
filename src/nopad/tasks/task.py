"""The interface of tasks: how records become sequences, what is learned from them, and what a prediction looks like.

A task is a subclass of `Task`. Training, evaluation, `nopad train`, `nopad predict` and serving all use the same tasks,
so a model's predictions and its training use sequences that are built in the same way.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from nopad.batch import PackedBatch
from nopad.corpus.options import OverLong, TextUnit
from nopad.corpus.record_stream import RecordStream
from nopad.errors import LengthError, OptionError
from nopad.loading import PackedLoader
from nopad.loading.supply import Collate
from nopad.options import BOOLEAN, Option, shown
from nopad.tasks.examples import Examples, encoded_part, placed, readable
from nopad.tasks.objective import Objective

__all__ = ["Task", "check_tokenizer"]

_LONGEST = Option(default=None, none=True, help="most tokens of a sequence")


def _noting(constructor: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that stores its arguments in the object's `options`, and then calls `constructor`.

    Only arguments that the caller gives are stored, not defaults, and never the tokenizer. If `options` is there
    already, it is not changed: the constructor of a subclass stores its arguments, and then calls that of its base
    class. Arguments that are annotated as booleans or texts are checked first (`_check_kind`), and "" is refused as a
    column's name.
    """
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        given: dict[str, Any] = {}
        with suppress(TypeError):  # for wrong arguments, the constructor's own error is clearer
            given = signature.bind(self, *args, **kwargs).arguments
        for name, value in given.items():
            _check_kind(name, value, signature.parameters[name].annotation)
            if isinstance(value, str) and not value and name in (*self.texts_by, *self.columns_by):
                raise OptionError(f"{name} is ''; give the name of a column, or leave it out")
        if "options" not in vars(self):
            self.options = {}
            for name, value in list(given.items())[1:]:
                several = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
                self.options.update(value if several else {name: value})
            self.options.pop("tokenizer", None)
        constructor(self, *args, **kwargs)

    return noted


def _check_kind(name: str, value: Any, annotation: Any) -> None:
    """Check an argument that is annotated as a boolean or a text (which may be None); ignore any other argument.

    So a task need not check such arguments itself. Without a check, "no" would count as true where a boolean is needed.

    Raises:
        OptionError: the value is no boolean, or no text.
    """
    if annotation in _BOOLEANS:
        _BOOLEAN.check(name, value)
    elif annotation in _TEXTS and not isinstance(value, str | None):
        raise OptionError(f"{name} is {shown(value)}; it is a text")


# As annotations are: texts, where a module has `from __future__ import annotations`
_BOOLEANS, _TEXTS = (bool, "bool"), (str, "str", str | None, "str | None")
_BOOLEAN = Option(default=False, choices=BOOLEAN, help="")


def _placing(encode: Callable[..., Examples]) -> Callable[..., Examples]:
    """Return a task's method `encode`, wrapped so that it can also read a `RecordStream`.

    Records that are not a `RecordStream` are passed to `encode` unchanged. For a `RecordStream`, records that it skips,
    since they cannot be read, are counted in `Examples.counts` as ``bad_skipped``. An error about a record then gives
    the record's number in the stream, and its place, such as ``a.jsonl, line 7``. The argument `labels` is checked to
    be True or False.
    """

    @functools.wraps(encode)
    def placing(self: Any, records: Iterable[Mapping[str, Any]], **options: Any) -> Examples:
        if "labels" in options:
            _BOOLEAN.check("labels", options["labels"])
        if not isinstance(records, RecordStream):
            return encode(self, records, **options)
        numbers: list[int] = []
        counts: dict[str, int] = {}

        def read() -> Iterator[Mapping[str, Any]]:
            for number, record in readable(records, counts):
                numbers.append(number)
                yield record

        with placed(records):
            made = encoded_part(lambda part: encode(self, part, **options), read(), numbers)
        return replace(made, counts={**made.counts, **counts}) if counts else made

    return placing


class Task(ABC):
    """Base class of tasks: how records become sequences, what is learned, and how outputs become predictions.

    Attributes:
        name: the task's name on the command line.
        options: the options that were given to the constructor, by name, without the tokenizer.
        auto: name of the Auto class of transformers whose models have the task's head.
        tokenizer: the model's tokenizer, a tokenizer of transformers.
        max_length: most tokens of a sequence; None: unlimited.
        over_long: what happens to sequences longer than `max_length`: "error", "truncate" or "drop"; some tasks also
            have "split".
        objective: computes the loss and the metrics.
        policies: values of `over_long` that the task accepts.
        texts_by: names of the task's attributes that hold names of text columns, such as "text".
        columns_by: names of the options that hold names of further columns, such as "label".
        texts_always: names of text columns that no option changes.
        record_columns: names of per-sequence columns that hold the number of a sequence's record, from 0 in each call
            of `encode`. If records are encoded in parts, `nopad.tasks.examples.encoded_after` replaces these numbers by
            the records' numbers in the whole source.
        draws: whether `encode` makes random choices that depend on the numbers of the sequences. `encode` then has one
            more option, ``before``: how many sequences were made from earlier parts of the records.
        compares: whether the loss compares the model with a reference (`nopad.tasks.reference_logprobs`), which
            `nopad train` computes before the first step.
        fewest: smallest number of records that `encode` should get in one call (if there are so many); above 1 for
            tasks that combine records at random.
        text_unit: what becomes one record when text files are read for training, unless the user says otherwise: a
            "line", a "paragraph", or the whole "file".
        dtypes: for some keys of a prediction, the dtype (NumPy's name) in which files store the numbers under this key,
            such as ``{"embedding": "float32"}``. Numbers under other keys are stored as int64 or float64.

    Raises:
        OptionError: an option has an invalid value, such as "" for the name of a column; `over_long` is not "error" and
            there is no `max_length`; or the tokenizer is not one of transformers.
    """

    name: ClassVar[str]
    auto: ClassVar[str]
    policies: ClassVar[tuple[OverLong, ...]] = ("error", "truncate", "drop")
    texts_by: ClassVar[tuple[str, ...]] = ()
    columns_by: ClassVar[tuple[str, ...]] = ()
    texts_always: ClassVar[tuple[str, ...]] = ()
    dtypes: ClassVar[Mapping[str, str]] = {}
    record_columns: ClassVar[tuple[str, ...]] = ()
    draws: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    fewest: ClassVar[int] = 1
    text_unit: ClassVar[TextUnit] = "line"
    objective: Objective
    options: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap two methods of a subclass, if it defines them: its constructor and `encode`.

        The constructor then also stores its arguments in `options` (`_noting`), and `encode` also reads a
        `RecordStream` (`_placing`).
        """
        super().__init_subclass__(**kwargs)
        if "encode" in vars(cls):
            cls.encode = _placing(cls.encode)  # type: ignore[method-assign]
        if "__init__" in vars(cls):
            cls.__init__ = _noting(cls.__init__)  # type: ignore[method-assign]

    @_noting
    def __init__(self, tokenizer: Any, *, max_length: int | None = None, over_long: OverLong = "error") -> None:
        self.tokenizer = check_tokenizer(tokenizer)
        self.max_length = _LONGEST.check("max_length", max_length)
        if not isinstance(over_long, str) or over_long not in self.policies:
            raise OptionError(
                f"over_long is {shown(over_long)}; for {self.name} it is {' or '.join(map(repr, self.policies))}"
            )
        if over_long != "error" and max_length is None:
            raise OptionError(f"over_long is {shown(over_long)}, and without max_length nothing is too long; give both")
        self.over_long = over_long

    @abstractmethod
    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn records into sequences; the result is empty if the task leaves out every record.

        Args:
            records: dicts of columns.
            labels: True: the records have labels, which become columns; False: the records are for predictions, without
                labels.

        Raises:
            RecordError: a record lacks a column, or has a value that the task cannot use; the message gives its number.
            LengthError: a sequence is longer than `max_length`, and `over_long` is "error"; a sequence has no token; or
                there is no record.
            OptionError: `labels` is not True or False; the tokenizer lacks what the task needs, such as a chat
                template; or the task lacks an option that training needs.
        """

    @abstractmethod
    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return the predictions that a model's `outputs` give, one dict per sequence of `batch`, in order.

        All values of the dicts are JSON types.
        """

    def merged(self, results: Sequence[dict[str, Any]], examples: Examples) -> list[dict[str, Any] | None]:
        """Combine `results`, one per sequence of `examples`, into one prediction per record.

        The prediction is None for a record that the task left out. A task overrides this method if its records can have
        several sequences; by default, the result of a record's last sequence becomes the record's prediction.
        """
        found: list[dict[str, Any] | None] = [None] * examples.records
        for record, result in zip(examples.record.tolist(), results, strict=True):
            found[record] = result
        return found

    def scores(
        self, predictions: Sequence[dict[str, Any] | None], records: Iterable[Mapping[str, Any]]
    ) -> dict[str, float]:
        """Return metrics, by name, that compare each prediction with the record for which it was made.

        The result is {} unless a task overrides this method.
        """
        return {}

    def model_options(self) -> dict[str, Any]:
        """Return the settings that this task needs in the model's configuration, by name, such as the problem type.

        The result is {} unless a task overrides this method.
        """
        return {}

    def model(self, name: Any, **options: Any) -> Any:
        """Load a model with this task's head from a folder or the hub; `options` go to ``from_pretrained``.

        Raises:
            OSError: there is no such model; raised by transformers.
        """
        import transformers

        return getattr(transformers, self.auto).from_pretrained(name, **{**self.model_options(), **options})

    @classmethod
    def labels_in(cls, record: Mapping[str, Any], number: int, options: Mapping[str, Any]) -> Sequence[Any]:
        """Return the labels in record `number`: names or numbers of classes; () for a task without classes.

        `options` are all options of the task, by name. They are an argument, since a task can be made only when its
        classes are known, and these are found by reading the labels.

        Raises:
            RecordError: the record has no label, or its labels are not in the form that the task reads.
        """
        return ()

    @classmethod
    def found_options(cls, folder: Path) -> dict[str, Any]:
        """Return options of this task that a model's folder states outside ``config.json``, by name.

        The result is {} unless a task overrides this method.
        """
        return {}

    def text_columns(self) -> tuple[str, ...]:
        """Return the columns that hold texts.

        In files without types (CSV, TSV), they must be read as text, and not as numbers.
        """
        named = [getattr(self, name) for name in self.texts_by]
        return tuple(dict.fromkeys(one for one in (*named, *self.texts_always) if one is not None))

    def read(self, records: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        """Return `records`, with this task's text columns read as text.

        So "007" or "1.0" in a CSV or TSV file stay strings. Records that are not a `RecordStream` are returned
        unchanged.
        """
        return records.as_text(self.text_columns()) if isinstance(records, RecordStream) else records

    @property
    def collate(self) -> Collate | None:
        """The `collate` of the task's loader (`nopad.PackedLoader`); None: the loader's default."""
        return None

    def _check_capacity(self, made: Examples, capacity: int | None) -> None:
        """Refuse sequences that are longer than `capacity` (None: any length is accepted).

        The error message says how the task can cut them.

        Raises:
            LengthError: there is such a sequence.
        """
        if not isinstance(capacity, int):
            return  # None, or a wrong value, which the loader refuses
        over = made.sequences.seq_lengths > capacity
        if capacity < 1 or not over.any():
            return
        first, longest = int(made.record[int(over.argmax())]), int(made.sequences.seq_lengths.max())
        cut = f'{type(self).__name__}(tokenizer, max_length={capacity}, over_long="truncate")'
        raise LengthError(
            f"{int(over.sum()):,} of {len(made):,} sequences are longer than the capacity of {capacity:,}, the first "
            f"is of record {first}, the longest has {longest:,} tokens; let the task cut them: {cut}, or give a larger "
            "capacity"
        )

    def loader(
        self, data: Examples | Iterable[Mapping[str, Any]], capacity: int | None = None, **options: Any
    ) -> PackedLoader:
        """Return a `nopad.PackedLoader` over `data`: records with labels, or examples that this task made of them.

        `capacity` and `options` are those of the loader. Unless `options` say otherwise, the loader uses the task's
        `collate`, and keeps sequences together that belong together (`Examples.group`).

        Raises:
            LengthError: the task left every record out; a sequence is longer than `capacity`; or as for `encode` and
                `PackedLoader`.
            RecordError, OptionError: as for `encode` and `PackedLoader`.
        """
        made = data if isinstance(data, Examples) else self.encode(self.read(data))
        if not len(made):
            raise LengthError(f"nothing is left to train on: {made}; raise max_length, or truncate")
        self._check_capacity(made, capacity)
        if made.group > 1:
            options.setdefault("groups", made.group)
        options.setdefault("collate", self.collate)
        return PackedLoader(made.sequences, capacity, **options)


def check_tokenizer(tokenizer: Any) -> Any:
    """Return `tokenizer` after checking that it is a tokenizer of transformers.

    Raises:
        OptionError: `tokenizer` is not a tokenizer of transformers.
    """
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise OptionError(
            f"the tokenizer is a {type(tokenizer).__name__}; give one of transformers: "
            "transformers.AutoTokenizer.from_pretrained(...)"
        )
    return tokenizer
