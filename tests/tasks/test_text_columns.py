"""Texts that look like numbers stay texts in files without types: a CSV file gives the ids of the same records."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from tests.tasks.tiny import bert, tokenizer

from nopad.corpus import open_records
from nopad.errors import RecordError
from nopad.tasks import Classification, Regression, predict
from nopad.tasks.registry import task_named, tasks_by_name
from nopad.training.data import loader_of

ODD = ["007", "1", "1.0", "NA", "1e-3", ""]
NUMBERS = ["1", "2.50", "3"]  # every cell is a number
# By task: its options, and the columns of a record that are texts
TEXTS = {
    "answer": ({}, ("question", "context")),
    "causal": ({}, ("text",)),
    "chat": ({}, ("prompt", "completion")),
    "classify": ({"pair": "other"}, ("text", "other")),
    "contrast": ({"negative": "negative"}, ("anchor", "positive", "negative")),
    "dpo": ({}, ("prompt", "chosen", "rejected", "completion")),
    "embed": ({"text": "title"}, ("title",)),
    "mask": ({}, ("text",)),
    "pretrain": ({}, ("text", "pair")),
    "regress": ({"pair": None}, ("text",)),
    "reward": ({}, ("text", "prompt", "chosen", "rejected")),
    "tag": ({"labels": 3}, ("text",)),
    "token-classify": ({"tags": "tags", "labels": ["O", "B-X"], "text": "text", "words": None}, ("text",)),
}


def written(folder, columns):
    """The same records as CSV and as JSON Lines; the file's path without its suffix."""
    records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with open(folder / "a.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(records)
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder / "a")


def test_every_task_says_which_columns_are_texts():
    assert set(TEXTS) == set(tasks_by_name())


@pytest.mark.parametrize("name", TEXTS)
def test_columns_of_texts_are_read_as_texts(tmp_path, name):
    options, columns = TEXTS[name]
    task = task_named(name, tokenizer(), options)
    assert set(columns) == set(task.text_columns())
    path = written(tmp_path, dict.fromkeys([*columns, "number"], NUMBERS))
    found = [*task.read(open_records(path + ".csv"))]
    assert [{one: record[one] for one in columns} for record in found] == [dict.fromkeys(columns, n) for n in NUMBERS]
    assert [record["number"] for record in found] == [1, 2.5, 3]


@pytest.mark.parametrize("texts", [ODD[:-1], NUMBERS])
def test_a_csv_file_gives_the_tokens_of_its_texts(tmp_path, texts):
    path, task = written(tmp_path, {"text": texts, "label": [0.5] * len(texts)}), Regression(tokenizer())
    loaders = [
        loader_of(open_records(path + end), 32, task=task, objective=None, rows=1, prefetch=0)
        for end in (".csv", ".jsonl")
    ]
    ones, others = ([*loader] for loader in loaders)
    assert len(ones) == len(others) > 0
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_array_equal(one["input_ids"].numpy(), other["input_ids"].numpy())
    model = bert(task)
    assert [*predict(task, model, path + ".csv")] == [*predict(task, model, path + ".jsonl")]


def test_names_of_classes_that_look_like_numbers(tmp_path):
    path = written(tmp_path, {"text": ["a", "b", "c"], "label": ["2", "1", "2"]})
    task = Classification(tokenizer(), ["1", "2"])
    made = task.encode(task.read(open_records(path + ".csv")))
    assert made.sequences.values["labels"].tolist() == [1, 0, 1]
    with pytest.raises(RecordError, match="label is 2; it is a number from 0 to 1"):
        task.encode(open_records(path + ".csv"))
    for labels in (3, ["no", "maybe", "yes"]):
        task = Classification(tokenizer(), labels)
        assert task.text_columns() == ("text",)
        assert task.encode(task.read(open_records(path + ".csv"))).sequences.values["labels"].tolist() == [2, 1, 2]


def test_columns_of_a_stream_are_added_to_those_given(tmp_path):
    path = written(tmp_path, {"text": ["007", "1"], "id": ["1", "2"], "n": [1, 2]})
    records = open_records(path + ".csv", strings=["id"]).as_text(["text", "pair"])
    assert [*records] == [{"text": "007", "id": "1", "n": 1}, {"text": "1", "id": "2", "n": 2}]
    assert records.settings()["strings"] == ["id", "pair", "text"]
    assert records.fingerprint() == open_records(path + ".csv").fingerprint()
    typed = open_records(path + ".jsonl")
    assert typed.as_text(["n"]) is typed
