"""`nopad train --dry-run` on records of every kind: what is left out and counted, SQuAD's files, documented tables."""

from __future__ import annotations

import json
import re
import tomllib
from copy import copy
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import transformers
from tests.tasks.tiny import SIZES, tokenizer

from nopad.tasks import Answers
from nopad.training.ready import _check_empty

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


@pytest.mark.parametrize("empty", ["error", "skip"])
def test_a_choice_about_records_without_a_token_that_would_be_ignored_is_refused(folder, dry, empty):
    answer = f'[data]\ntrain = "a.json"\nempty = "{empty}"\n[task]\nname = "answer"\n'
    (folder / "a.json").write_text(json.dumps(SQUAD))
    said = f'data.empty is "{empty}", and the task answer has no choice about it; leave it out'
    assert said in dry(answer).error()
    stored = {"train": "a folder of arrays", "eval": None}  # of tokens, whose empty sequences no task reads
    _check_empty(SimpleNamespace(data=SimpleNamespace(empty=empty)), Answers, stored)


def test_bad_records_are_skipped_if_asked(folder, dry):
    (folder / "a.jsonl").write_text('{"text": "the cat", "label": 0}\n{"text": bro\n' * 2)
    tables = '[data]\ntrain = "a.jsonl"\n[task]\nname = "classify"\nlabels = 2\n'
    assert re.search(r"a\.jsonl, line 2: ", dry(tables).error())
    assert "train    2 records: 2 sequences, 8 tokens, 2 skipped as bad\n" in dry(
        tables, "--set", "data.on_bad_record=skip"
    )
    (folder / "ids.jsonl").write_text('{"input_ids": [5, 6]}\n')
    said = dry('[data]\ntrain = "ids.jsonl"\non_bad_record = "skip"\n').error()
    assert "data.on_bad_record is 'skip'" in said


def blocks():
    """The files that the page shows, by the name of the task; of several, the first."""
    found = {}
    for text in re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL):
        found.setdefault(tomllib.loads(text)["task"]["name"], text)
    return found


def test_every_file_of_the_page_is_a_configuration(tmp_path):
    from nopad.training.config import read_config

    files = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(files) == len(CHOSEN) + 1
    for text in files:
        (tmp_path / "c.toml").write_text(text)
        assert read_config(tmp_path / "c.toml").document()["task"] == tomllib.loads(text)["task"]


def write_documented(folder):
    """Write the data that the page's files name, and the models: a BERT, and a Llama with a chat template."""
    texts(folder)
    pairs = "the cat,why not,related\n" + "is it,7,unrelated\n"
    (folder / "pairs.csv").write_text("first,second,label\n" + pairs * 20)
    for name in ("train", "dev"):
        (folder / f"{name}-v2.0.json").write_text(json.dumps(SQUAD))
    tagged = json.dumps({"words": ["in", "London"], "tags": ["O", "B-LOC"]})
    chat = json.dumps({"messages": [{"role": "user", "content": "why"}, {"role": "assistant", "content": "why not"}]})
    preferred = json.dumps({"prompt": "why", "chosen": " why not", "rejected": " the cat"})
    found = json.dumps({"query": "why", "passage": "why not"})
    for name, line in (("tagged", tagged), ("chats", chat), ("preferences", preferred), ("queries", found)):
        (folder / f"{name}.jsonl").write_text(f"{line}\n" * 90)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, max_position_embeddings=4096)
    talking = copy(tokenizer())
    talking.chat_template = "{% for one in messages %}<|{{ one.role }}|> {{ one.content }} [EOS]{% endfor %}"
    talking.chat_template += "{% if add_generation_prompt %}<|assistant|> {% endif %}"
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "llama")
    talking.save_pretrained(folder / "llama")


CHOSEN = {
    "classify": 'task.labels = ["related", "unrelated"]: the classes in data.train, sorted',
    "answer": "packing.capacity = 512: the model's positions",
    "mask": "task.max_length = 512: the least of packing.capacity and the model's positions",
    "token-classify": 'task.labels = ["O", "B-LOC"]: the classes in data.train, sorted',
    "chat": "packing.capacity = 2048: packs may be longer than sequences",
    "dpo": "compares with the model as it is now: the log-probabilities of 180 answers",
    "contrast": "packing.capacity = 512: the model's positions",
}


@pytest.mark.parametrize("task", list(CHOSEN))
def test_the_documented_files_train(folder, call, monkeypatch, task):
    """Each is complete, has at most 10 lines, says what it leaves out, and trains."""
    write_documented(folder)
    monkeypatch.chdir(folder)
    assert set(blocks()) == set(CHOSEN)
    text = blocks()[task]
    assert len(text.splitlines()) <= 10
    (folder / "c.toml").write_text(text)
    model = "llama" if task in ("chat", "dpo") else "model"
    few = ["--set", "trainer.max_steps=2", "--set", "trainer.use_cpu=true"]
    few += ["--set", "data.held_out=0.4"] if task == "mask" else []  # so that some of these few tokens are masked
    ran = call("train", "c.toml", "--set", f"model.name={model}", *few)
    assert (ran.code, ran.err) == (0, "")
    assert CHOSEN[task] in ran
    assert re.search("packing.rows = 1: enough for 8 (sequences|records) per rank and micro-step, which have", ran)
    assert "trainer.learning_rate = 5e-05, trainer.lr_scheduler_type = " in ran
    assert re.search(r"^eval     \d+ records?: ", ran, re.MULTILINE)
    assert re.search(r"^result   .*loss [\d.]+", ran, re.MULTILINE)
    folder_of = tomllib.loads(text)["output"]["folder"]
    assert (folder / folder_of / "model.safetensors").is_file()


def test_a_run_of_chosen_fields_goes_on_and_predicts(folder, call, monkeypatch):
    import pyarrow.parquet as pq

    write_documented(folder)
    monkeypatch.chdir(folder)
    (folder / "c.toml").write_text(blocks()["classify"])
    few = ["--set", "model.name=model", "--set", "trainer.use_cpu=true", "--set", "trainer.save_steps=1"]
    assert call("train", "c.toml", *few, "--set", "trainer.max_steps=1").code == 0
    ran = call("train", "c.toml", *few, "--set", "trainer.max_steps=2", "--resume")
    assert (ran.code, ran.err) == (0, "")
    assert "step 2/2" in ran
    assert call("predict", "pairs.csv", "-o", "found", "--model", "runs/pairs").code == 0
    assert set(pq.read_table("found").column("label").to_pylist()) <= {"related", "unrelated"}
    pairs = (folder / "pairs.csv").read_text()
    (folder / "pairs.csv").write_text(pairs + "why,yes,other\n")  # another class
    ran = call("train", "c.toml", *few, "--set", "trainer.max_steps=3", "--resume")
    assert ran.code == 2


def test_a_resumed_dpo_compares_with_the_model_of_its_beginning(folder, call, monkeypatch):
    from safetensors.torch import load_file

    write_documented(folder)
    monkeypatch.chdir(folder)
    (folder / "c.toml").write_text(blocks()["dpo"])
    fields = ["model.name=llama", "trainer.use_cpu=true", "trainer.save_steps=1", "trainer.lr_scheduler_type=constant"]
    fields += ["trainer.logging_steps=1", "trainer.learning_rate=0.01"]
    few = [part for one in fields for part in ("--set", one)]

    def train(steps, where, *more):
        ran = call(
            "train", "c.toml", *few, "--set", f"trainer.max_steps={steps}", "--set", f"output.folder={where}", *more
        )
        assert (ran.code, ran.err) == (0, "")
        return ran

    whole = train(3, "whole")
    assert "loss 0.6931" in whole  # log 2: the model equals its reference
    assert "compares with" in train(1, "parts")
    rest = train(3, "parts", "--resume")
    assert "compares with" not in rest
    assert "loss 0.6931" not in rest
    one, other = (load_file(folder / name / "model.safetensors") for name in ("whole", "parts"))
    assert all((one[name] == other[name]).all() for name in one)


def test_what_is_chosen_is_what_the_same_file_with_these_fields_says(folder, dry, call):
    write_documented(folder)
    tables = '[data]\ntrain = "pairs.csv"\n[task]\nname = "classify"\ntext = "first"\npair = "second"\n'
    said = dry(tables, "--set", "packing.capacity=none")
    assert re.search(r"without packs, batches of 8 sequences \(transformers' per_device_train_batch_size\)", said)
    assert "one sequence per row" not in said  # there is one baseline
    rate = (
        r"rate     5e-05 stays as it is, and an optimiser step averages over \d+ sequences instead of 8; single steps"
    )
    assert re.search(rate, said)
    fields = [line[9:].split(": ")[0] for line in said.splitlines() if re.match(r"(chosen  |        ) \w+\.", line)]
    every = [one.replace(" = ", "=") for line in fields for one in re.split(r", (?=\w+\.)", line)]
    assert [one.split("=")[0] for one in every] == [
        "task.labels",
        "packing.capacity",
        "task.max_length",
        "packing.rows",
        "task.over_long",
        "trainer.learning_rate",
        "trainer.lr_scheduler_type",
        "trainer.seed",
    ]
    sets = [part for one in every for part in ("--set", one)]
    again = dry(tables, *sets)
    assert "chosen" not in again
    gone = [line[9:].split(": ")[0] for line in said.splitlines() if line not in again.splitlines()]
    compared = ("5e-05 stays as it is", "without packs, batches of 8")  # beside 1 row, not 8 sequences
    assert [one for one in gone if not one.startswith(compared)] == fields


def test_a_share_that_holds_out_nothing_is_refused(folder, dry):
    (folder / "a.jsonl").write_text('{"text": "the cat", "label": 0}\n{"text": "why", "label": 1}\n')
    said = dry('[data]\ntrain = "a.jsonl"\nheld_out = 0.001\n[task]\nname = "classify"\n').error()
    assert said.startswith("data.held_out: no record was drawn at a share of 0.001; hold out more, or give")


def test_longer_texts_need_more_rows(folder, dry):
    """A micro-step holds about as many sequences as transformers' own, whatever their length."""
    (folder / "a.jsonl").write_text(json.dumps({"text": "why " * 298, "label": 0}) + "\n")
    (folder / "b.jsonl").write_text(json.dumps({"text": "why " * 298, "label": 1}) + "\n")
    tables = '[data]\ntrain = ["a.jsonl", "b.jsonl"]\n[task]\nname = "classify"\n'
    said = dry(tables, "--set", "packing.capacity=600")
    assert "packing.rows = 4: enough for 8 sequences per rank and micro-step, which have 300 tokens on average" in said
    assert "x 4 packs" in said
    assert "task.labels = 2: the classes in data.train\n" in said
    said = dry(tables, "--set", "packing.capacity=none", "--set", "packing.sequences=2")
    assert "packing." not in said.split("step     ")[0].replace("packing.capacity and", "")


def test_a_run_without_weights_is_not_recommended_for_its_weights(folder, dry, call):
    from nopad.errors import ResumeError
    from nopad.training.config import read_config
    from nopad.training.folder import RunFolder

    texts(folder)
    dry(MASK + 'over_long = "split"\n')
    run = RunFolder(str(folder / "out"))
    run.take(read_config(folder / "c.toml"), resume=False)
    run.begin(read_config(folder / "c.toml"), per_step="1 rows", data={})
    run.leave()
    other = read_config(folder / "c.toml", ["trainer.learning_rate=1.0"])
    with pytest.raises(ResumeError, match=r"begin anew in another output\.folder: this run has no weights yet"):
        run.take(other, resume=True)
    run.leave()
    (folder / "out/checkpoint-1").mkdir()
    with pytest.raises(ResumeError, match="take only its weights, with --init-from"):
        run.take(other, resume=True)
    run.leave()


def test_a_label_that_is_missing_is_no_class(folder, dry):
    (folder / "a.csv").write_text("text,label\nthe cat,yes\nwhy,\nis it,no\n")
    said = dry('[data]\ntrain = "a.csv"\n[task]\nname = "classify"\n').error()
    assert f"data.train: {folder}/a.csv, line 3: record 1 has the label '', which names no class; give the" in said
    assert said.endswith("If this is a class, give task.labels with all classes")


def test_a_record_keeps_its_number_when_others_are_skipped(folder, dry):
    (folder / "a.jsonl").write_text('{"text": "a", "label": "x"}\nbroken\n{"text": "b", "label": null}\n')
    said = dry('[data]\ntrain = "a.jsonl"\non_bad_record = "skip"\n[task]\nname = "classify"\n').error()
    assert f"{folder}/a.jsonl, line 3: record 2 has the label None" in said


def test_this_folder_is_a_folder_of_records(folder, dry, monkeypatch):
    (folder / "data" / "records").mkdir(parents=True)
    monkeypatch.chdir(folder / "data" / "records")
    for path in (".", "..", "/"):
        said = dry(f'[data]\ntrain = ["{path}"]\non_bad_record = "skip"\n')
        assert (said.code, "bug in nopad" in said.err) == (2, False), said.err
    Path("a.jsonl").write_text('{"text": "the cat", "label": 0}\n{"text": "why", "label": 1}\n')
    assert "2 records: 2 sequences" in dry('[data]\ntrain = "."\n[task]\nname = "classify"\n')


def weights_of(folder, names):
    labels = dict(enumerate(names))
    config = transformers.BertConfig(**SIZES, id2label=labels, label2id={name: n for n, name in labels.items()})
    transformers.BertForSequenceClassification(config).save_pretrained(folder / "begun")
    tokenizer().save_pretrained(folder / "begun")


def test_the_order_of_classes_is_that_of_the_weights_with_which_training_begins(folder, dry):
    weights_of(folder, ["yes", "no"])
    (folder / "a.jsonl").write_text('{"text": "the cat", "label": "no"}\n{"text": "why", "label": "yes"}\n')
    tables = '[data]\ntrain = "a.jsonl"\n[task]\nname = "classify"\n'
    begun = ["--set", "model.fresh=false", "--init-from", folder / "begun"]
    assert 'task.labels = ["yes", "no"]: the classes in data.train, in the model\'s order' in dry(tables, *begun)
    assert 'task.labels = ["no", "yes"]: the classes in data.train, sorted' in dry(tables)  # random weights
    said = dry(tables + 'labels = ["no", "yes"]\n', *begun).error()
    assert said.startswith(
        'task.labels = ["no", "yes"], and the weights with which training begins have these classes as ["yes", "no"]: '
    )


def test_weights_of_other_classes_are_told(folder, dry):
    weights_of(folder, ["good", "bad"])
    (folder / "a.jsonl").write_text('{"text": "the cat", "label": "no"}\n{"text": "why", "label": "yes"}\n')
    begun = ["--set", "model.fresh=false", "--init-from", folder / "begun"]
    said = dry('[data]\ntrain = "a.jsonl"\n[task]\nname = "classify"\n', *begun)
    assert 'the weights with which training begins are of other classes: ["good", "bad"]' in said


@pytest.mark.parametrize("field", ["train", "eval"])
def test_a_run_does_not_write_where_it_reads(folder, dry, field):
    """Resumed, it would read its own files as records."""
    texts(folder)
    other = {"train": "eval", "eval": "train"}[field]
    (folder / "b.jsonl").write_text('{"text": "why not"}\n')
    tables = f'[data]\n{field} = "notes"\n{other} = "b.jsonl"\n[task]\nname = "mask"\n'
    said = dry(tables.replace('"b.jsonl"', '["b.jsonl"]'), "--set", f"output.folder={folder}/notes/run").error()
    assert said.startswith(f"data.{field}: {folder}/notes/run lies in {folder}/notes, which is read; choose a folder")
