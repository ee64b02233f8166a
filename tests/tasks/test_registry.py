"""Tasks by name, with what a model's folder says of them."""

from __future__ import annotations

import copy
import json

import pyarrow.parquet as pq
import pytest
import transformers
from tests.tasks.tiny import bert, llama, tokenizer

import nopad
from nopad import tasks
from nopad.corpus.transformers_tokenizer import load_transformers_tokenizer
from nopad.errors import FormatError, OptionError
from nopad.tasks import Answers, Classification, Embedding, Regression, predict, predict_files
from nopad.tasks.folder import default_folder
from nopad.tasks.registry import load_task, options_of, task_named, tasks_by_name
from nopad.training.models import load_tokenizer as of_training
from nopad.training.tables import Model


@pytest.fixture
def folder(tmp_path):
    def saved(task, kind=None, **options):
        bert(task, kind, **options).float().save_pretrained(tmp_path)
        tokenizer().save_pretrained(tmp_path)
        return tmp_path

    return saved


def test_every_exported_task_is_there_by_its_name():
    found = tasks_by_name()
    assert {"classify", "tag", "regress", "causal", "embed"} <= set(found)
    assert list(found) == sorted(found)
    assert all(getattr(tasks, kind.__name__) is kind for kind in found.values())


def test_options_are_those_of_all_classes():
    assert {"labels", "text", "pair", "label", "max_length", "over_long"} <= set(options_of(Classification))
    assert "tokenizer" not in options_of(Embedding)
    with pytest.raises(OptionError, match=r"the task regress has no option 'txt'; did you mean text"):
        task_named("regress", tokenizer(), {"txt": "a"})
    with pytest.raises(OptionError, match="the task tag needs labels"):
        task_named("tag", tokenizer(), {})
    with pytest.raises(OptionError, match=r"there is no task 'summarise'; there are .*classify"):
        task_named("summarise", tokenizer(), {})


def test_labels_and_length_are_the_models(folder):
    path = folder(Classification(tokenizer(), ["bad", "good"]))
    task, model = load_task("classify", path, {"text": "title", "over_long": "truncate"})
    assert (task.names, task.max_length, task.over_long, task.text) == (["bad", "good"], 256, "truncate", "title")
    assert type(model) is transformers.BertForSequenceClassification
    assert load_task("classify", path, {"labels": ["no", "yes"]})[0].names == ["no", "yes"]
    assert load_task("classify", path, {"labels": 2, "max_length": 9})[0].max_length == 9
    with pytest.raises(OptionError, match=r"labels are good, bad, and the model in .* has them as bad, good"):
        load_task("classify", path, {"labels": ["good", "bad"]})
    with pytest.raises(OptionError, match=r"3 labels are given, and the model in .* has 2: bad, good"):
        load_task("classify", path, {"labels": 3})
    for labels in (2.5, "no", True, {"no", "yes"}):
        with pytest.raises(OptionError, match=r"^labels are .*; expected their names, or their number$"):
            load_task("classify", path, {"labels": labels})
    with pytest.raises(OptionError, match=r"max_length is 300, and .* has 256 positions"):
        load_task("classify", path, {"max_length": 300})


@pytest.mark.parametrize(("positions", "length"), [(512, 384), (256, 256)])
def test_a_task_with_a_length_of_its_own_keeps_it(folder, positions, length):
    """So that answers are found in windows of the length of which the model has learned them."""
    path = folder(Answers(tokenizer()), max_position_embeddings=positions)
    task, _ = load_task("answer", path, {})
    assert (task.max_length, task.over_long) == (length, "split")


def test_a_model_without_the_tasks_head_is_refused(folder):
    path = folder(Embedding(tokenizer()), "BertModel")
    with pytest.raises(FormatError, match=r"has no weights for classifier.bias, .* would predict at random"):
        load_task("regress", path, {})
    assert type(load_task("embed", path, {})[1]) is transformers.BertModel


def test_a_folder_without_a_tokenizer_is_refused(folder):
    """transformers makes one with an empty vocabulary then, and every text would be unknown tokens."""
    path = folder(Classification(tokenizer(), ["no", "yes"]))
    for file in path.glob("token*"):
        file.unlink()
    said = "has no tokenizer, only a model: save the tokenizer there too"
    for load in (
        lambda: load_task("classify", path, {}),
        lambda: nopad.load_tokenizer(path),
        lambda: load_transformers_tokenizer(path),
        lambda: of_training(Model(name=str(path))),
    ):
        with pytest.raises(FormatError, match=said):
            load()


def test_no_model_at_all(tmp_path):
    with pytest.raises(FormatError, match=r"is no folder with a model: it has no config.json"):
        load_task("regress", tmp_path, {})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FormatError, match="transformers cannot load this model for regress"):
        load_task("regress", tmp_path, {})


def test_what_a_sentence_transformers_folder_says(folder):
    task, model = load_task("embed", default_folder(), {})
    assert (task.objective.pooling, task.objective.normalize, task.max_length) == ("mean", True, 256)
    assert model.pooler is None
    assert load_task("embed", default_folder(), {"pooling": "first"})[0].objective.pooling == "first"


def test_a_prompt_of_the_folder(folder):
    path = folder(Embedding(tokenizer()), "BertModel")
    modules = [
        {"name": kind, "path": where, "type": f"sentence_transformers.models.{kind}"}
        for kind, where in (("Transformer", ""), ("Pooling", "1_Pooling"))
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 32}))
    named = {"prompts": {"query": "what is "}, "default_prompt_name": "query"}
    (path / "config_sentence_transformers.json").write_text(json.dumps(named))
    assert load_task("embed", path, {})[0].prompt == "what is "
    assert load_task("embed", path, {"prompt": ""})[0].prompt == ""


TEXTS = [{"text": "is it ?"}, {"text": "why"}, {"text": "a house [MASK]"}]
TURNS = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "yes no"}]
CASES = {  # records, kind of model, options
    "answer": ([{"question": "who ?", "context": "dog was born in Paris", "id": "a"}] * 3, bert, {}),
    "causal": (TEXTS, llama, {}),
    "chat": ([{"messages": TURNS}] * 3, llama, {}),
    "classify": (TEXTS, bert, {"labels": 3}),
    "contrast": ([{"anchor": "why"}] * 3, bert, {}),
    "dpo": ([{"prompt": "why ", "chosen": "yes", "rejected": "no"}] * 3, llama, {}),
    "embed": (TEXTS, bert, {}),
    "mask": (TEXTS, bert, {}),
    "pretrain": ([{"text": "is it [MASK]", "pair": "why"}] * 3, bert, {}),
    "regress": (TEXTS, bert, {}),
    "reward": (TEXTS, llama, {}),
    "tag": (TEXTS, bert, {"labels": 3}),
    "token-classify": (
        [{"words": ["dog", "was"]}, {"words": ["Paris"]}, {"words": ["a"]}],
        bert,
        {"labels": ["O", "B-X"]},
    ),
}


@pytest.mark.parametrize("name", tasks_by_name())
def test_every_task_predicts_from_a_folder_into_files(name, tmp_path):
    given, build, options = CASES[name]
    template = "{% for m in messages %}<|{{ m['role'] }}|> {{ m['content'] }} [EOS] {% endfor %}"
    own = copy.deepcopy(tokenizer())
    own.chat_template = template
    task = task_named(name, own, options)
    made = build(task, {"embed": "BertModel", "contrast": "BertModel"}.get(name))
    made.float().save_pretrained(tmp_path / "model")
    own.save_pretrained(tmp_path / "model")
    task, model = load_task(name, tmp_path / "model", {"over_long": "truncate"} if "labels" in options else {})
    files = predict_files(task, model, given, tmp_path / "out", part_records=2)
    assert (files.records, len(files.parts)) == (3, 2)
    table = pq.read_table(tmp_path / "out")
    assert table.num_rows == 3
    assert len(table.column_names) > 1
    alone = list(predict(task, model, given, batch_records=1))
    for column in table.column_names[1:]:
        for found, one in zip(table[column].to_pylist(), alone, strict=True):
            for left, right in zip(flat(found), flat(one[column]), strict=True):
                assert left == (pytest.approx(right, abs=1e-5) if isinstance(right, float) else right)


def flat(value):
    """All single values in lists and dicts, however deep, which `approx` compares."""
    inner = [value[name] for name in sorted(value)] if isinstance(value, dict) else value
    return [one for part in inner for one in flat(part)] if isinstance(inner, list) else [inner]


def test_a_number_needs_one(folder):
    path = folder(Regression(tokenizer()))
    assert load_task("regress", path, {})[1].config.num_labels == 1
