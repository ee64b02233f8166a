"""Find the classes of a task in its records, for a configuration of `nopad train` that does not name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nopad.corpus.records import check_text
from nopad.errors import LengthError, OptionError, RecordError
from nopad.options import shown
from nopad.tasks.examples import placed, readable
from nopad.tasks.registry import options_of
from nopad.tasks.task import Task

__all__ = ["MOST", "classes_found"]

MOST = 1000  # classes; a column with more different values is hardly one of classes


def classes_found(
    kind: type[Task], records: Iterable[Mapping[str, Any]], options: Mapping[str, Any], known: Sequence[str] = ()
) -> list[str] | int:
    """Return the classes that occur in the labels of records, in the form that the option ``labels`` of a task takes.

    If labels are names, the names are returned: in the order of `known` if they are exactly the names in `known`, else
    sorted, but a tag ``O`` comes first. If labels are numbers, the number of classes is returned; then every number
    from 0 to the largest one must occur. This reads all records once.

    Args:
        kind: the type of the task, a subclass of `Task`.
        records: records with labels.
        options: options of the task, such as the names of its columns; missing ones have their defaults.
        known: names of classes in an order that is to be kept, such as that of a trained model.

    Raises:
        RecordError: a record cannot be decoded, is not a dict, has no label, or has labels in another form than the
            task reads; or a label is neither a name nor an integer from 0. A blank text is not a name (CSV files have
            one where a label is missing), and neither is a text with a lone surrogate. The message begins with the
            record's place, such as ``a.jsonl, line 7``, if it is known.
        SourceError, FormatError: files of records cannot be read, or are damaged.
        LengthError: there is no record.
        OptionError: there are fewer than 2 classes or more than 1,000, some labels are names and others numbers, or a
            number below the largest one does not occur; the message says what to give as ``labels``.

    >>> from nopad.tasks import Classification
    >>> classes_found(Classification, [{"label": "yes"}, {"label": "no"}, {"label": "yes"}], {})
    ['no', 'yes']
    >>> classes_found(Classification, [{"right": 1}, {"right": 0}], {"label": "right"})
    2
    """
    usual = {name: one.default for name, one in options_of(kind).items() if one.default is not one.empty}
    given = {**usual, **options}
    names: set[str] = set()
    numbers: set[int] = set()
    number = -1
    with placed(records):
        for number, record in readable(records, {}):
            if not isinstance(record, Mapping):
                raise RecordError(f"record {number} is a {type(record).__name__}; expected a dict of columns")
            for label in kind.labels_in(record, number, given):
                _add(label, number, names, numbers)
            if len(names) + len(numbers) > MOST:
                raise OptionError(
                    f"there are more than {MOST:,} different labels, such as {_some(names or numbers)}; check the "
                    "column, or give labels= if these are classes"
                )
    if number < 0:
        raise LengthError("there is no record, so there is nothing to train on")
    if names and numbers:
        raise OptionError(
            f"some labels are names ({_some(names)}) and others numbers ({_some(numbers)}); make them the same, or "
            "give labels="
        )
    if len(names) + len(numbers) < 2:
        found = f"only the label {_some(names or numbers)}" if names or numbers else "no label"
        raise OptionError(f"there is {found}, and a task needs at least 2 classes; give labels=")
    if numbers:
        return _count(numbers)
    return list(known) if set(known) == names else sorted(names, key=lambda name: (name != "O", name))


def _add(label: Any, number: int, names: set[str], numbers: set[int]) -> None:
    """Add a label of record `number` to `names` if it is a text, or to `numbers` if it is an integer; in place.

    Raises:
        RecordError: the label is neither a text nor an integer from 0; or it is a blank text, or one with a lone
            surrogate.
    """
    if isinstance(label, str):
        if not label.strip():
            raise RecordError(
                f"record {number} has the label {label!r}, which names no class; give the record a label, or leave it "
                "out. If this is a class, give labels= with all classes"
            )
        check_text(label, f"record {number}: its label")
        names.add(label)
    elif isinstance(label, int | np.integer) and not isinstance(label, bool) and label >= 0:
        numbers.add(int(label))
    else:
        raise RecordError(
            f"record {number} has the label {shown(label)}; the name of a class is a text, and its number is an "
            'integer from 0. The task "regress" learns other numbers'
        )


def _count(numbers: set[int]) -> int:
    """Return the number of classes: `numbers` must be 0, 1, 2, ... without gaps.

    Raises:
        OptionError: there is a gap: a number below the largest one is missing.
    """
    most = max(numbers)
    if len(numbers) <= most:
        raise OptionError(
            f"the labels are the numbers {_some(numbers)}, and numbers of classes are 0, 1, 2, ...; give labels="
            f"{most + 1} if other classes do not occur, or write the names of classes into the column"
        )
    return most + 1


def _some(labels: Iterable[Any]) -> str:
    """Return labels as text for a message: sorted, the first five, and ``...`` if there are more."""
    found = sorted(labels)
    return ", ".join(map(repr, found[:5])) + (", ..." if len(found) > 5 else "")
