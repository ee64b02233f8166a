"""SQuAD's own files are read as records of questions wherever records are read."""

from __future__ import annotations

import gzip
import json

import pytest
from tests.tasks.tiny import bert, tokenizer

from nopad.corpus import ReaderOptions, open_records, open_source
from nopad.errors import FormatError, RecordError
from nopad.tasks import Answers, predict, read_squad

ASKED = [{"id": str(n), "question": q, "answers": [{"text": "cat", "answer_start": 4}]} for n, q in enumerate("ab")]
PARAGRAPH = {"context": "the cat is it", "qas": ASKED}
ARTICLE = {"title": 'one "two" {', "paragraphs": [PARAGRAPH]}


@pytest.mark.parametrize(
    "content",
    [
        {"data": [ARTICLE], "version": "1.1"},
        {"version": "v2.0", "data": [ARTICLE, ARTICLE]},
        {"data": [{"paragraphs": [PARAGRAPH] * 600, "title": "x"}]},
    ],
)
@pytest.mark.parametrize(("suffix", "indent"), [(".json", None), (".json", 2), (".json.gz", 1)])
def test_a_file_is_read_as_its_questions(tmp_path, content, suffix, indent):
    path = tmp_path / f"train{suffix}"
    data = json.dumps(content, indent=indent).encode()
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    stream = open_records(path)
    assert stream.kind == "squad"
    records = read_squad(content)
    assert (list(stream), stream.count()) == (records, len(records))
    assert list(stream.read(after=len(records) - 1)) == records[-1:]
    assert stream.place(len(records) - 1) == f"{path}, question 1"
    task = Answers(tokenizer(), max_length=16)
    assert str(task.encode(stream)) == str(task.encode(records))


@pytest.mark.parametrize(
    "record", [{"data": [1], "paragraphs": 2}, {"text": '"data": [{"paragraphs": ['}, {"data": [{"text": "a"}]}]
)
def test_other_objects_are_json_lines(tmp_path, record):
    line = json.dumps(record)
    (tmp_path / "a.json").write_text(f"{line}\n{line}\n")
    stream = open_records(tmp_path / "a.json")
    assert (stream.kind, list(stream)) == ("jsonl", [record] * 2)


def test_what_is_wrong_names_the_file(tmp_path):
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"qas": ASKED}]}]}))
    with pytest.raises(FormatError, match=r"dev\.json: this is no file of SQuAD: data\[0\]\.paragraphs\[0\]"):
        list(open_records(path))
    path.write_text(json.dumps({"data": [ARTICLE]})[:-3])
    with pytest.raises(FormatError, match=r"dev\.json is no JSON"):
        list(open_records(path))
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "a", "qas": [ASKED[0] | {"question": " "}]}]}]}))
    task = Answers(tokenizer())
    with pytest.raises(RecordError, match=r"dev\.json, question 0: record 0: question is empty"):
        list(predict(task, bert(task), open_records(path)))


def test_a_missing_column_names_the_option_that_names_it():
    task = Answers(tokenizer())
    with pytest.raises(RecordError, match="record 0 has no 'question', only q; name the column that holds it: quest"):
        task.encode([{"q": "a"}])
    with pytest.raises(RecordError, match='name the column that holds it: context="'):
        task.encode([{"question": "a"}])


def test_packing_reads_them_too(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"data": [ARTICLE]}))
    [block] = open_source(tmp_path / "a.json", ReaderOptions(text_field="context")).blocks()
    [run] = block.records()
    assert run.texts == ["the cat is it"] * 2


def test_a_byte_order_mark_is_not_content(tmp_path):
    path = tmp_path / "train.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"data": [ARTICLE]}).encode())
    assert read_squad(path) == list(open_records(path)) == read_squad({"data": [ARTICLE]})


@pytest.mark.parametrize("read", [read_squad, lambda path: list(open_records(path))])
def test_nesting_beyond_the_parser_is_no_crash(tmp_path, read):
    path = tmp_path / "train.json"
    path.write_text('{"data": [{"paragraphs": [' + "[" * 100_000)
    with pytest.raises(FormatError, match=r"train\.json is no JSON"):
        read(path)
