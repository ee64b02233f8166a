"""Tasks by name, with what a model's folder says of them."""

from __future__ import annotations

import json

import pytest
import transformers
from tests.tasks.tiny import bert, tokenizer

from nopad import tasks
from nopad.errors import FormatError, OptionError
from nopad.tasks import Classification, Embedding, Regression
from nopad.tasks.embedding import _default_folder
from nopad.tasks.registry import load_task, options_of, task_named, tasks_by_name


@pytest.fixture
def folder(tmp_path):
    def saved(task, kind=None, **options):
        bert(task, kind, **options).float().save_pretrained(tmp_path)
        tokenizer().save_pretrained(tmp_path)
        return tmp_path

    return saved


def test_every_exported_task_is_there_by_its_name():
    found = tasks_by_name()
    assert {"classify", "tag", "regress", "embed", "score"} <= set(found)
    assert list(found) == sorted(found)
    assert all(getattr(tasks, kind.__name__) is kind for kind in found.values())


def test_options_are_those_of_all_classes():
    assert {"labels", "text", "pair", "label", "max_length", "over_long"} <= set(options_of(Classification))
    assert "tokenizer" not in options_of(Embedding)
    with pytest.raises(OptionError, match=r"the task regress has no option 'txt'; did you mean text"):
        task_named("regress", tokenizer(), {"txt": "a"})
    with pytest.raises(OptionError, match="the task tag needs labels"):
        task_named("tag", tokenizer(), {})
    with pytest.raises(OptionError, match="there is no task 'summarise'; there are answer, causal, chat, classify"):
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
    with pytest.raises(OptionError, match=r"max_length is 300, and .* has 256 positions"):
        load_task("classify", path, {"max_length": 300})


def test_a_model_without_the_tasks_head_is_refused(folder):
    path = folder(Embedding(tokenizer()), "BertModel")
    with pytest.raises(FormatError, match=r"has no weights for classifier.bias, .* would predict at random"):
        load_task("regress", path, {})
    assert type(load_task("embed", path, {})[1]) is transformers.BertModel


def test_no_model_at_all(tmp_path):
    with pytest.raises(FormatError, match=r"is no folder with a model: it has no config.json"):
        load_task("regress", tmp_path, {})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FormatError, match="transformers cannot load this model for regress"):
        load_task("regress", tmp_path, {})


def test_what_a_sentence_transformers_folder_says(folder):
    task, model = load_task("embed", _default_folder(), {})
    assert (task.objective.pooling, task.objective.normalize, task.max_length) == ("mean", True, 256)
    assert model.pooler is None
    assert load_task("embed", _default_folder(), {"pooling": "first"})[0].objective.pooling == "first"


def test_a_prompt_of_the_folder(folder):
    path = folder(Embedding(tokenizer()), "BertModel")
    (path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Transformer"}]))
    named = {"prompts": {"query": "what is "}, "default_prompt_name": "query"}
    (path / "config_sentence_transformers.json").write_text(json.dumps(named))
    assert load_task("embed", path, {})[0].prompt == "what is "
    assert load_task("embed", path, {"prompt": ""})[0].prompt == ""


def test_a_number_needs_one(folder):
    path = folder(Regression(tokenizer()))
    assert load_task("regress", path, {})[1].config.num_labels == 1
