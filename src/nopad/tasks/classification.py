"""Classification and regression of texts, or of pairs of texts: one class, several classes, or a number.

A record has one or two texts, and a label. The texts become one sequence with the tokenizer's special tokens and token
types, built as in transformers' own examples. `glue` makes the tasks of GLUE's nine sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from nopad.batch import PackedBatch
from nopad.corpus.framing import tokenised
from nopad.corpus.glue import GLUE
from nopad.corpus.records import columns_in, listed
from nopad.errors import OptionError, RecordError
from nopad.options import check_choice, check_integer, shown
from nopad.tasks.examples import Examples, field_of, float_of, numbered, stacked
from nopad.tasks.objectives import OfSequences
from nopad.tasks.texts import OfTexts

__all__ = ["GLUE", "Classification", "Regression", "SeveralLabels", "glue"]


LabelsAs = Literal["classes", "flags"]
MOST_CLASSES = 1_000_000
_NUMERIC = re.compile(r"[-+.0-9].*")


class _Judged(OfTexts):
    """Base class of `Classification`, `SeveralLabels` and `Regression`; a record has one or two texts, and a label."""

    auto: ClassVar[str] = "AutoModelForSequenceClassification"
    texts_by: ClassVar[tuple[str, ...]] = ("text", "pair")
    columns_by: ClassVar[tuple[str, ...]] = ("label",)

    def __init__(
        self, tokenizer: Any, *, text: str = "text", pair: str | None = None, label: str = "label", **options: Any
    ) -> None:
        super().__init__(tokenizer, **options)
        self.text, self.pair, self.label = text, pair, label

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn records into sequences (`Task.encode`), with the column ``labels`` unless `labels` is False.

        Raises:
            RecordError: a record lacks a column, a text is not a string, or a label is not one of this task.
            LengthError: a sequence is longer than `max_length`, and `over_long` is "error"; a sequence has no token,
                and `empty` is "error"; special tokens leave no room for a text that is to be cut; or there is no
                record.
        """
        texts: list[str] = []
        pairs: list[str] = []
        targets: list[Any] = []
        for number, record in numbered(records):
            texts.append(field_of(record, self.text, number))
            if self.pair is not None:
                pairs.append(field_of(record, self.pair, number, option="pair"))
            if labels:
                targets.append(self.target(_label(record, self.label, number), number))
        found = tokenised(
            self.tokenizer,
            texts,
            pairs if self.pair is not None else None,
            max_length=self.max_length,
            over_long=self.over_long,
            empty=self.empty,
        )
        made = stacked(found.ids, found.kept, tokens=found.columns)
        if labels:
            made = replace(made, values={"labels": np.array([targets[n] for n in found.kept], self.dtype)})
        return Examples(sequences=made, record=np.array(found.kept, np.int64), records=len(texts), counts=found.counts)

    dtype: ClassVar[Any] = np.int64

    def target(self, value: Any, number: int) -> Any:
        """Return `value`, the label of record `number`, as the loss reads it: a number, or a list of numbers.

        Raises:
            RecordError: `value` is not a label of this task.
        """
        raise NotImplementedError


class Classification(_Judged):
    """Classification into one of several classes, of texts or of pairs of texts.

    Args:
        tokenizer: the model's tokenizer.
        labels: names of the classes, or how many classes there are. A record's label is the name of its class, or the
            number of its class, from 0.
        text: column of the text.
        pair: column of the second text; None: records have one text.
        label: column of the label.
        max_length, over_long: most tokens of a sequence, and what happens to longer ones; see `Task`.
        empty: what happens to a record for which the tokenizer gives no token; see `nopad.tasks.texts.OfTexts`.

    Raises:
        OptionError: an option has an invalid value.

    >>> import nopad
    >>> task = nopad.tasks.Classification(tokenizer, labels=["no", "yes"], text="question")
    >>> made = task.encode([{"question": "is it?", "label": "yes"}, {"question": "why", "label": 0}])
    >>> made.sequences.values["labels"].tolist(), made.sequences.seq_lengths.tolist()
    ([1, 0], [5, 3])
    """

    name = "classify"

    def __init__(self, tokenizer: Any, labels: Sequence[str] | int = 2, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.names = names_of(labels)
        self.objective = OfSequences("classes", len(self.names))

    @classmethod
    def labels_in(cls, record: Mapping[str, Any], number: int, options: Mapping[str, Any]) -> Sequence[Any]:
        """Return the label of record `number`, as a list of one; see `Task.labels_in`.

        Raises:
            RecordError: the record has no label.
        """
        return [_label(record, options["label"], number)]

    def target(self, value: Any, number: int) -> int:
        """Return the class of a record whose label is `value`, as a number.

        Raises:
            RecordError: `value` is not a class, or is a number that is also the name of another class. The message
                gives the record's `number`.
        """
        return number_of(value, self.names, f"record {number}: {self.label}")

    def text_columns(self) -> tuple[str, ...]:
        """Return the columns that must be read as text from files without types (CSV, TSV).

        These are the columns of texts. The label's column is added if a class name begins with a digit, a sign or a
        point, unless the names are "0", "1", "2", ... in this order.
        """
        odd = any(_NUMERIC.fullmatch(name) for name in self.names) and self.names != names_of(len(self.names))
        return (*super().text_columns(), *([self.label] if odd else []))

    def model_options(self) -> dict[str, Any]:
        """Return settings of the model's configuration: ``id2label``, ``label2id`` and ``problem_type``."""
        return _named(self.names, "single_label_classification")

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return a dict for each sequence, with ``label`` and ``probabilities``.

        ``label`` is the name of the most likely class; ``probabilities`` has one number per class.
        """
        each = torch.softmax(outputs["logits"].double(), -1).tolist()
        return [{"label": self.names[max(range(len(one)), key=one.__getitem__)], "probabilities": one} for one in each]


class SeveralLabels(_Judged):
    """Multi-label classification: any number of classes per text, or per pair of texts.

    It takes the arguments of `Classification`, but `labels` must be given, and `label` is "labels" by default. One
    argument is added:

    Args:
        labels_as: form of a record's label: "classes", a list of the names or numbers of the classes that apply; or
            "flags", a list with a 0 or 1 for each class. None: "classes", but with two classes, ``[0, 1]`` and
            ``[1, 0]`` are refused, since they could be either.

    Raises:
        OptionError: an option has an invalid value.

    >>> from nopad.tasks import SeveralLabels
    >>> task = SeveralLabels(tokenizer, ["red", "green", "blue"])
    >>> made = task.encode([{"text": "is it red or blue ?", "labels": ["red", "blue"]}])
    >>> made.sequences.values["labels"].tolist()
    [[1.0, 0.0, 1.0]]
    """

    name = "tag"
    dtype = np.float32

    def __init__(
        self,
        tokenizer: Any,
        labels: Sequence[str] | int,
        *,
        label: str = "labels",
        labels_as: LabelsAs | None = None,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, label=label, **options)
        self.names = names_of(labels)
        self.labels_as = None if labels_as is None else check_choice("labels_as", labels_as, LabelsAs)
        self.objective = OfSequences("several", len(self.names))

    @classmethod
    def labels_in(cls, record: Mapping[str, Any], number: int, options: Mapping[str, Any]) -> Sequence[Any]:
        """Return the classes that the label of record `number` lists; see `Task.labels_in`.

        If the option `labels_as` is "flags", the numbers of all flags are returned: 0, 1, 2, ... There is one flag per
        class. The values of the flags do not matter, since they say nothing about which classes exist.

        Raises:
            RecordError: the record has no label, or it is not a list.
        """
        value = _label(record, options["label"], number)
        entries = listed(value)
        if entries is None:
            raise RecordError(f"record {number}: {options['label']} is {shown(value)}; it is a list of classes")
        return range(len(entries)) if options["labels_as"] == "flags" else entries

    def target(self, value: Any, number: int) -> list[float]:
        """Return a list with a 1 for each class that applies, and a 0 for each other class.

        Raises:
            RecordError: `value` is not in the form that `labels_as` says; has a class twice; has an entry that
                `number_of` refuses, such as a class that does not exist; or, with two classes and `labels_as` None, is
                ``[0, 1]`` or ``[1, 0]``. The message gives the record's `number`.
        """
        where, entries = f"record {number}: {self.label}", listed(value)
        if entries is None:
            raise RecordError(f"{where} is {shown(value)}; it is a list of classes, by name or number")
        if self.labels_as == "flags":
            return self._flags(entries, where)
        if self.labels_as is None and len(self.names) == 2 and _either(entries):
            raise RecordError(
                f"{where} is {shown(entries)}, which with two classes is either both of them by number, or a 0 or 1 "
                "for each; say which: labels_as='classes' or 'flags'"
            )
        found = [0.0] * len(self.names)
        for place, one in enumerate(entries):
            at = number_of(one, self.names, f"{where} is {shown(value)}: entry {place}")
            if found[at]:
                raise RecordError(
                    f"{where} is {shown(value)}, which has the class {self.names[at]} twice; it is a list of the "
                    "classes that apply, by name or number, and not a 0 or 1 for each class (labels_as='flags')"
                )
            found[at] = 1.0
        return found

    def _flags(self, value: list[Any], where: str) -> list[float]:
        if len(value) != len(self.names) or not all(
            isinstance(one, int | float | np.number | np.bool_) for one in value
        ):
            raise RecordError(f"{where} is {shown(value)}; it is {len(self.names)} flags, a 0 or 1 for each class")
        if not all(one in (0, 1) for one in value):
            raise RecordError(f"{where} is {shown(value)}; each flag is 0 or 1")
        return [float(one) for one in value]

    def model_options(self) -> dict[str, Any]:
        """Return settings of the model's configuration: ``id2label``, ``label2id`` and ``problem_type``."""
        return _named(self.names, "multi_label_classification")

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return a dict for each sequence, with ``labels`` and ``probabilities``.

        ``probabilities`` has a number from 0 to 1 for each class. ``labels`` has the names of the classes whose
        probability is above 0.5.
        """
        each = torch.sigmoid(outputs["logits"].double()).tolist()
        return [
            {
                "labels": [name for name, share in zip(self.names, one, strict=True) if share > 0.5],
                "probabilities": one,
            }
            for one in each
        ]


class Regression(_Judged):
    """Regression: a number per text, or per pair of texts, such as a similarity or a grade.

    It takes the arguments of `Classification`, except `labels`.

    Raises:
        OptionError: an option has an invalid value.

    >>> from nopad.tasks import Regression
    >>> task = Regression(tokenizer, text="first", pair="second", label="score")
    >>> made = task.encode([{"first": "the cat sleeps", "second": "the dog sleeps", "score": 0.5}])
    >>> made.sequences.values["labels"].tolist()
    [0.5]
    """

    name = "regress"
    dtype = np.float32

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.objective = OfSequences("numbers", 1)

    def target(self, value: Any, number: int) -> float:
        """Return the number that a record has as its label.

        Raises:
            RecordError: `value` is not a number that is finite in float32; the message gives the record's `number`.
        """
        return float_of(value, f"record {number}: {self.label}")

    def model_options(self) -> dict[str, Any]:
        """Return settings of the model's configuration: ``num_labels``, which is 1, and ``problem_type``."""
        return {"num_labels": 1, "problem_type": "regression"}

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return a dict for each sequence, with ``score``, the predicted number."""
        return [{"score": score} for score in outputs["logits"].double().reshape(-1).tolist()]


def _label(record: Mapping[str, Any], column: str, number: int) -> Any:
    """Return the label of record `number`: the value of its column `column`, whatever it is.

    Raises:
        RecordError: the record has no such column.
    """
    if column not in record:
        raise RecordError(
            f'record {number} has no {column!r}; its columns are {columns_in(record)}. Name the label\'s: label="..."'
        )
    return record[column]


def _either(entries: Sequence[Any]) -> bool:
    """Return whether a label could mean two things: the numbers of two classes, or a 0 or 1 for each of two classes.

    Such a label is a list of one 0 and one 1. One of the two entries may be a text ("0" or "1").
    """
    known = [one for one in entries if isinstance(one, str | int | np.integer) and one in (0, 1, "0", "1")]
    if not len(known) == len(entries) == 2 or all(isinstance(one, str) for one in known):
        return False
    return int(known[0]) != int(known[1])


def names_of(labels: Sequence[str] | int) -> list[str]:
    """Return the names of classes; if only the number of classes is given, their names are "0", "1", "2", ...

    Sets are refused, since their order changes from run to run, and with it the numbers of classes.

    Raises:
        OptionError: there are fewer than two classes, two have the same name, or names are not strings; `labels` is a
            number above 1,000,000; or it is neither a number nor a sequence of names.
    """
    if isinstance(labels, int | np.integer) and not isinstance(labels, bool):
        return [str(number) for number in range(check_integer("labels", labels, 2, MOST_CLASSES))]
    try:
        names = [] if isinstance(labels, str | bytes | bool | Mapping | Set) else list(labels)
    except TypeError:  # not iterable
        names = []
    if len(names) < 2 or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise OptionError(
            f"labels are {shown(labels)[:200]}; give a list of the different names of at least 2 classes, or their "
            "number"
        )
    return list(map(str, names))


def number_of(value: Any, names: Sequence[str], where: str) -> int:
    """Return the number of a class, given its name or its number (from 0).

    Raises:
        RecordError: `value` is not a class, or is a number that is also the name of another class; the message begins
            with `where`.
    """
    if isinstance(value, str) and value in names:
        return names.index(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= value < len(names):
        number = int(value)
        if str(number) in names and names[number] != str(number):
            raise RecordError(
                f"{where} is the number {number}, which is the class {names[number]!r} by number, and the class "
                f"{str(number)!r} by name; give names, as strings"
            )
        return number
    unnamed = list(names) == names_of(len(names))
    known = "" if unnamed else f", or one of {', '.join(names[:20])}"
    way = (
        f'; name the classes in the order of their numbers with labels=, such as ["{value}", ...]'
        if isinstance(value, str) and unnamed
        else ""
    )
    raise RecordError(f"{where} is {shown(value)}; it is a number from 0 to {len(names) - 1}{known}{way}")


def _named(names: Sequence[str], problem: str) -> dict[str, Any]:
    by_number = dict(enumerate(names))
    return {"id2label": by_number, "label2id": {name: n for n, name in by_number.items()}, "problem_type": problem}


def glue(name: str, tokenizer: Any, **options: Any) -> Classification | Regression:
    """Return the task of one of GLUE's nine sets, with the columns and classes of ``nyu-mll/glue`` on the hub.

    `options` are further options of the task, such as `max_length`.

    Raises:
        OptionError: there is no such set, or an option has an invalid value.

    >>> from nopad.tasks import glue
    >>> glue("mrpc", tokenizer).names
    ['not_equivalent', 'equivalent']
    """
    if name not in GLUE:
        raise OptionError(f"there is no set {shown(name)} in GLUE; it has {', '.join(GLUE)}")
    text, pair, names = GLUE[name]
    columns = {"text": text, "pair": pair, **options}
    return Classification(tokenizer, names, **columns) if names else Regression(tokenizer, **columns)
