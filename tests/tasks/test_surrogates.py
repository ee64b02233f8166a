"""A lone surrogate, which JSON allows and no tokenizer reads, is refused by name wherever a record holds text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.tasks.templates import tokenizer

from nopad.errors import RecordError
from nopad.tasks.registry import task_named, tasks_by_name

TURNS = [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "it sat"}]
ANSWERS = {"text": ["cat"], "answer_start": [2]}
# By task: its options, and a record with text at every place where the task reads it
RECORDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "answer": ({}, {"question": "why", "context": "a cat", "answers": ANSWERS}),
    "causal": ({}, {"text": "a cat"}),
    "chat": ({}, {"messages": TURNS}),
    "classify": ({"pair": "other"}, {"text": "a cat", "other": "it sat", "label": 0}),
    "contrast": ({}, {"anchor": "a cat", "positive": "it sat", "negative": ["why", "not"]}),
    "dpo": ({}, {"prompt": "why ", "chosen": "a cat", "rejected": "it sat"}),
    "embed": ({"text": "title"}, {"title": "a cat"}),
    "mask": ({}, {"text": "a cat"}),
    "pretrain": ({"max_length": 16}, {"text": "A cat sat. It sat. A cat."}),
    "regress": ({}, {"text": "a cat", "label": 0.5}),
    "reward": ({}, {"chosen": "a cat", "rejected": "it sat"}),
    "tag": ({"labels": 3}, {"text": "a cat", "labels": [0, 1]}),
    "token-classify": ({"labels": ["O", "B-X"]}, {"words": ["a", "cat"], "tags": [0, 1]}),
}


def spoiled(value: Any) -> Iterator[Any]:
    """Copies of `value`, each with a lone surrogate at the end of one of its texts; keys stay as they are."""
    if isinstance(value, str):
        yield value + "\ud800"
    elif isinstance(value, list):
        yield from ([*value[:at], one, *value[at + 1 :]] for at in range(len(value)) for one in spoiled(value[at]))
    elif isinstance(value, dict):
        yield from ({**value, name: one} for name in value for one in spoiled(value[name]))


def test_every_task_has_a_record():
    assert set(RECORDS) == set(tasks_by_name())


@pytest.mark.parametrize("name", RECORDS)
def test_refused_by_name(name):
    options, record = RECORDS[name]
    task = task_named(name, tokenizer(), options)
    task.encode([record, record])
    for wrong in spoiled(record):
        with pytest.raises(RecordError, match="record 1"):
            task.encode([record, wrong])
