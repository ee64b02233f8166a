"""Records that are left out: texts without a token, and records that cannot be read. Both are counted, and no error."""

from __future__ import annotations

import copy

import pyarrow.parquet as pq
import pytest
from tests.tasks.tiny import bert, llama, tokenizer

import nopad
from nopad.corpus import open_records
from nopad.errors import LengthError, RecordError
from nopad.tasks import CausalLM, Classification, Embedding, MaskedLM, predict, predict_files
from nopad.tasks.examples import encoded_part
from nopad.tasks.source import TaskSource

TEXTS = "is it\n\nwhy not ?\n \nthe cat\n"
LEFT = [True, False, True, False, True]


def bare():
    """Return a tokenizer that puts no special tokens around a text, so that an empty text has no token at all."""
    made = copy.deepcopy(tokenizer())
    made.backend_tokenizer.post_processor = None
    return made


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(TEXTS)
    return path


@pytest.mark.parametrize("kind", [MaskedLM, CausalLM, Embedding, Classification])
def test_texts_without_a_token_are_skipped_and_counted(kind, texts):
    task = kind(bare())
    made = task.encode(task.read(open_records(texts)), labels=False)
    assert (made.records, made.record.tolist(), made.counts) == (5, [0, 2, 4], {"empty_skipped": 2})
    assert str(made).endswith(", 2 skipped as empty")
    same = task.encode([{"text": text} for text in TEXTS.splitlines() if text.strip()], labels=False)
    assert same.sequences.tokens["input_ids"].tolist() == made.sequences.tokens["input_ids"].tolist()
    with pytest.raises(
        LengthError, match=r"notes\.txt, line 2: record 1 has no token: its text is ''; leave it out, or"
    ):
        kind(bare(), empty="error").encode(open_records(texts), labels=False)


@pytest.mark.parametrize("options", [{}, {"copies": 2}, {"whole_words": True}])
def test_nothing_but_empty_texts(options):
    made = MaskedLM(tokenizer(), **options).encode([{"text": ""}, {"text": " "}])
    assert (len(made), made.records, made.counts) == (0, 2, {"empty_skipped": 2})
    with pytest.raises(
        LengthError, match="nothing is left to train on: 1 record: 0 sequences, 0 tokens, 1 skipped as e"
    ):
        MaskedLM(tokenizer(), **options).loader([{"text": ""}], 8)


def test_a_prompt_that_is_not_pooled_is_no_token():
    texts = {"prompts": {"a": "is it "}, "default_prompt_name": "a", "include_prompt": False}
    records = [{"text": "why not"}, {"text": ""}, {"text": "the cat"}]
    made = Embedding(bare(), texts=texts).encode(records)
    assert (made.counts, made.record.tolist(), made.records) == ({"empty_skipped": 1}, [0, 2], 3)
    with pytest.raises(LengthError, match="record 1 has no token"):
        Embedding(bare(), texts=texts, empty="error").encode(records)


@pytest.mark.parametrize(("kind", "model"), [(MaskedLM, bert), (CausalLM, llama)])
def test_predictions_keep_their_place(kind, model, texts, tmp_path):
    task = kind(tokenizer())
    made = model(task)
    found = predict(task, made, open_records(texts))
    assert [one is not None for one in found] == LEFT
    assert (found.counts, found.records) == ({"empty_skipped": 2}, 5)
    files = predict_files(task, made, open_records(texts), tmp_path / "out", keep={"text": "text"})
    assert (files.counts, files.records) == ({"empty_skipped": 2}, 5)
    table = pq.read_table(tmp_path / "out" / files.parts[0]).to_pydict()
    assert table["text"] == TEXTS.splitlines()
    name = "fill" if kind is MaskedLM else "logprob"
    assert [one is not None for one in table[name]] == LEFT


def test_a_packed_dataset_counts_them():
    source = TaskSource(
        MaskedLM(tokenizer(), max_length=3, over_long="drop"), [{"text": t} for t in ("", "is", "is it")]
    )
    [run] = next(source.blocks()).records()
    assert (run.counts["empty_skipped"], run.counts["dropped"]) == (1, 1)


@pytest.mark.parametrize("kind", [{"text": "is it why not the cat", "label": 1}, {"text": "is", "label": 7}])
def test_a_source_that_a_task_can_no_longer_encode_is_a_problem_of_a_dataset(kind, tmp_path):
    """Whether it refuses a record for its length or for its label, among later records than it looks at first."""
    task = Classification(tokenizer(), ["no", "yes"], max_length=5, over_long="error")
    records = [{"text": "is it", "label": number % 2} for number in range(3500)]
    nopad.pack_corpus(TaskSource(task, records), tmp_path / "out", nopad.CorpusOptions(capacity=16))
    assert nopad.verify(tmp_path / "out", source=TaskSource(task, records)) == []
    changed = [*records[:3000], kind, *records[3001:]]
    problems = nopad.verify(tmp_path / "out", source=TaskSource(task, changed))
    assert problems[0].startswith("this is not the source that was packed: ")
    assert "record 3000" in problems[0]


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "is it", "label": 0}\n{"text": broken\n\n[]\n{"text": "why", "label": 9}\n')
    return path


def test_bad_records_are_skipped_counted_and_keep_their_place(lines, tmp_path):
    stream = open_records(lines, on_bad_record="skip")
    assert ([one["text"] for one in stream], stream.count()) == (["is it", "why"], 4)
    assert [one["text"] for one in stream.read(after=1)] == ["why"]
    assert [stream.place(number) for number in (0, 3, 4)] == [f"{lines}, line 1", f"{lines}, line 5", None]
    task = Classification(tokenizer(), 2)
    assert task.encode(stream, labels=False).counts == {"bad_skipped": 2}
    found = predict(task, bert(task), stream, batch_records=2)
    assert [one is not None for one in found] == [True, False, False, True]
    assert (found.counts, found.records) == ({"bad_skipped": 2}, 4)
    files = predict_files(
        task, bert(task), stream, tmp_path / "out", keep={"n": "label"}, batch_records=2, part_records=2
    )
    table = [one for part in files.parts for one in pq.read_table(tmp_path / "out" / part).to_pylist()]
    assert [(one["record"], one["n"], one["label"] is None) for one in table] == [
        (0, 0, False),
        (1, None, True),
        (2, None, True),
        (3, 9, False),
    ]
    assert files.counts == {"bad_skipped": 2}


def test_errors_name_file_and_line(lines, tmp_path):
    task = Classification(tokenizer(), 2)
    with pytest.raises(RecordError, match=r"a\.jsonl, line 5: record 3: label is 9"):
        task.encode(open_records(lines, on_bad_record="skip"))
    with pytest.raises(RecordError, match=r"a\.jsonl, line 2: "):
        task.encode(open_records(lines))
    short = Classification(tokenizer(), 2, max_length=3)
    with pytest.raises(LengthError, match=r"a\.jsonl, line 1: record 0 has 4 tokens"):
        list(predict(short, bert(short), open_records(lines, on_bad_record="skip")))
    table = tmp_path / "b.csv"
    table.write_text('text,label\n"is\nit",0\nwhy,x\n')
    with pytest.raises(RecordError, match=r"b\.csv, line 4: record 1: label is 'x'"):
        task.encode(open_records(table, strings=["label"]))


class TestFilesCalledRecord:
    """A file's name is no number of a record, wherever the message is changed on its way."""

    @pytest.fixture
    def broken(self, tmp_path, monkeypatch):
        (tmp_path / "record 12.jsonl").write_text('{"text": "is it"}\n{broken\n')
        monkeypatch.chdir(tmp_path)  # so that the message begins with the name
        return "record 12.jsonl"

    def test_encoding(self, broken):
        with pytest.raises(RecordError, match=r"^(\S*/)?record 12\.jsonl, line 2: "):
            Classification(tokenizer()).encode(open_records(broken), labels=False)

    def test_predicting(self, broken):
        task = Classification(tokenizer())
        with pytest.raises(RecordError, match=r"^(\S*/)?record 12\.jsonl, line 2: "):
            list(predict(task, bert(task), broken, batch_records=1))

    def test_packing(self, broken):
        with pytest.raises(RecordError, match=r"^(\S*/)?record 12\.jsonl, line 2: "):
            list(TaskSource(CausalLM(tokenizer()), open_records(broken)).blocks())

    def test_what_is_no_record(self):
        with pytest.raises(RecordError, match="record 0 is a str; expected a dict of columns"):
            list(TaskSource(CausalLM(tokenizer()), ["abc"]).blocks())

    def test_a_record_of_such_a_file(self, broken):
        """The record that the message is about still gets its line and number."""
        records = open_records(broken, on_bad_record="skip")
        with pytest.raises(RecordError, match=r"^(\S*/)?record 12\.jsonl, line 1: record 0 has no 'label'"):
            Classification(tokenizer(), ["no", "yes"]).encode(records)


def test_a_message_with_a_number_that_no_record_has_is_left_alone():
    """It gave an IndexError."""

    def encode(part):
        raise RecordError("record 7 of my own counting")

    with pytest.raises(RecordError, match=r"^record 7 of my own counting$"):
        encoded_part(encode, [{}, {}], [3, 4])


def test_a_column_that_is_carried_is_not_left_out_where_the_first_record_is():
    records = [{"text": "is it red ?", "id": 3, "more": 1}, {"text": "yes", "id": 4, "more": 2}]
    task = Classification(tokenizer(), max_length=3, over_long="drop")
    source = TaskSource(task, records, carry=("id",), labels=False)
    next(source.blocks())
    assert source.left_out == ("more",)
