"""A value of any kind, wherever a task reads one, is read or refused by name, also if no message can show it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest
from tests.tasks.templates import tokenizer
from tests.tasks.test_surrogates import RECORDS, TURNS

from nopad.errors import NopadError, RecordError
from nopad.tasks.registry import task_named


class Unshown:
    """An object whose `repr` fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


ODD = [
    10**5000,
    reduce(lambda inner, _: [inner], range(3000), 0),
    Unshown(),
    np.array(1),
    np.array([[1, 2]]),
    np.array([None, "a"]),
    {10**5000: 1},
    float("nan"),
    1e39,
    b"a",
    (1, 2, 3),
    object,
]
FORMS = [
    *ODD,
    *([odd] * 2 for odd in ODD),
    *([{"start": 0, "end": odd, "label": odd}] for odd in ODD),
    *({"text": ["cat"], "answer_start": [odd]} for odd in ODD),
    *([{**TURNS[0], name: odd}, TURNS[1]] for name in ("role", "content", "weight") for odd in ODD),
]


def spoiled(record: dict[str, Any]) -> Iterator[dict[Any, Any]]:
    """Copies of a record with an odd value in one column, or without one column beside a key that is no text."""
    for name in record:
        yield from ({**record, name: form} for form in FORMS)
        yield {10**5000: 1, None: 2, **{other: record[other] for other in record if other != name}}
    yield from ({**record, name: odd} for name in ("tools", "margin", "chat_template_kwargs") for odd in ODD)


@pytest.mark.parametrize(
    "name", [*sorted(RECORDS.keys() - {"pretrain"}), "spans"]
)  # its text is read as that of "mask"
def test_read_or_refused_by_name(name):
    options, record = RECORDS.get(name) or (
        {"labels": ["O", "B-X"], "text": "text"},
        {"text": "a cat", "spans": [{"start": 2, "end": 5, "label": "X"}]},
    )
    task = task_named("token-classify" if name == "spans" else name, tokenizer(), options)
    refused: list[str] = []
    for odd in spoiled(record):
        try:
            task.encode([record, odd])
        except NopadError as error:
            refused.append(str(error))
    assert refused
    assert [said for said in refused if "record 1" not in said] == []


@pytest.mark.parametrize("number", [1e39, -1e300, 10**300, np.float64(3.5e38)])
@pytest.mark.parametrize(("name", "column"), [("regress", "label"), ("reward", "margin")])
def test_numbers_that_are_infinite_in_float32_are_refused(name, column, number):
    task, record = task_named(name, tokenizer(), {}), RECORDS[name][1]
    with pytest.raises(
        RecordError, match=rf"record 0: {column} is .*; it is a finite number, up to 3.4e38 \(float32\)"
    ):
        task.encode([{**record, column: number}])
    made = task.encode([{**record, column: np.finfo(np.float32).max}])
    assert np.isfinite(made.sequences.values["labels" if name == "regress" else column]).all()
