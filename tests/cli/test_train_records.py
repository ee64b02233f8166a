"""`nopad train --dry-run` on records of every kind: what is left out and counted, SQuAD's files, documented tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import transformers
from tests.tasks.tiny import SIZES, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")

DOCS = Path(__file__).parents[2] / "docs/train-command.md"
CONFIG = """
[model]
name = "{folder}/model"
fresh = true
[packing]
capacity = 32
[trainer]
use_cpu = true
num_train_epochs = 1
[output]
folder = "{folder}/out"
"""
SQUAD = {
    "data": [
        {
            "title": "a",
            "paragraphs": [
                {
                    "context": "the cat sleeps in the house",
                    "qas": [{"id": "7", "question": "why", "answers": [{"text": "cat", "answer_start": 4}]}],
                }
            ],
        }
    ]
}


@pytest.fixture
def folder(tmp_path):
    transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, max_position_embeddings=512)).save_pretrained(
        tmp_path / "model"
    )
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path


@pytest.fixture
def dry(folder, call):
    """Return what a dry run with these tables says; paths are relative to the folder."""

    def run(tables, *more):
        text = re.sub(r'"([^"]+\.(?:jsonl?|csv)|notes)"', lambda found: f'"{folder}/{found[1]}"', tables)
        (folder / "c.toml").write_text(CONFIG.format(folder=folder) + text)
        return call("train", folder / "c.toml", "--dry-run", *more)

    return run


def texts(folder):
    (folder / "notes").mkdir()
    (folder / "notes/a.txt").write_text("the cat is it\n\n" + "why not ? " * 20 + "\n")
    (folder / "notes/b.txt").write_text("")
    (folder / "notes/c.txt").write_text("yes\nwhy\n \n" * 40)


MASK = '[data]\ntrain = "notes"\n[task]\nname = "mask"\n'


def test_blank_lines_and_empty_files_are_left_out_and_counted(folder, dry):
    texts(folder)
    said = dry(MASK + 'over_long = "truncate"\n')
    assert "train    123 records: 82 sequences, " in said
    assert ", 41 skipped as empty, 1 truncated\n" in said
    assert "training 1 epoch, about" in said
    said = dry(MASK, "--set", "task.over_long=split", "--set", "data.text_unit=file")
    assert "train    3 records: " in said
    assert "1 skipped as empty" in said


def test_an_error_about_a_record_names_file_and_line(folder, dry):
    texts(folder)
    said = dry(MASK, "--set", "data.empty=error").error()
    assert re.search(r"data\.train: \S+notes/a\.txt, line 2: record 1 has no token: .*data\.empty = \"skip\"", said)
    said = dry(MASK).error()
    assert re.search(r"data\.train: \S+notes/a\.txt, line 3: record 2 has \d+ tokens, and max_length is 32", said)
    assert "task.empty: leave it out; data.empty says it" in dry(MASK + 'empty = "skip"\n').error()
    classify = '[data]\ntrain = "a.json"\nempty = "error"\n[task]\nname = "answer"\n'
    (folder / "a.json").write_text(json.dumps(SQUAD))
    assert "the task answer has no choice about it" in dry(classify).error()


def test_bad_records_are_skipped_if_asked(folder, dry):
    (folder / "a.jsonl").write_text('{"text": "the cat", "label": 0}\n{"text": bro\n' * 2)
    tables = '[data]\ntrain = "a.jsonl"\n[task]\nname = "classify"\n'
    assert re.search(r"a\.jsonl, line 2: ", dry(tables).error())
    assert "train    2 records: 2 sequences, 8 tokens, 2 skipped as bad\n" in dry(
        tables, "--set", "data.on_bad_record=skip"
    )
    (folder / "ids.jsonl").write_text('{"input_ids": [5, 6]}\n')
    said = dry('[data]\ntrain = "ids.jsonl"\non_bad_record = "skip"\n').error()
    assert "data.on_bad_record is 'skip'" in said


def blocks():
    found = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return [one for one in found if one.startswith("[data]")]


@pytest.mark.parametrize("number", range(3))
def test_the_documented_tables_train(folder, dry, number):
    texts(folder)
    (folder / "pairs.csv").write_text(
        "first,second,label\nthe cat,why not,related\n" + "is it " * 40 + ",7,unrelated\n"
    )
    for name in ("train", "dev"):
        (folder / f"{name}-v2.0.json").write_text(json.dumps(SQUAD))
    assert len(blocks()) == 3
    said = dry(blocks()[number], "--set", "packing.capacity=384" if number == 2 else "packing.capacity=32")
    wanted = ["train    2 records: 2 sequences", "skipped as empty", "eval     1 records: 1 sequences"]
    assert wanted[number] in said, said.err


def test_a_run_without_weights_is_not_recommended_for_its_weights(folder, dry, call):
    from nopad.errors import ResumeError
    from nopad.training.config import read_config
    from nopad.training.folder import RunFolder

    texts(folder)
    dry(MASK + 'over_long = "split"\n')
    run = RunFolder(str(folder / "out"))
    run.take(read_config(folder / "c.toml"), resume=False)
    run.begin(read_config(folder / "c.toml"), per_step="1 rows")
    run.leave()
    other = read_config(folder / "c.toml", ["trainer.learning_rate=1.0"])
    with pytest.raises(ResumeError, match=r"begin anew in another output\.folder: this run has no weights yet"):
        run.take(other, resume=True)
    run.leave()
    (folder / "out/checkpoint-1").mkdir()
    with pytest.raises(ResumeError, match="take only its weights, with --init-from"):
        run.take(other, resume=True)
    run.leave()
