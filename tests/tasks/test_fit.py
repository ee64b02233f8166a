"""A model that is not the task's: another head, other classes, outputs without names."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tests.tasks.tiny import bert, llama, tokenizer

import nopad
from nopad.errors import BatchError, OptionError
from nopad.tasks import (
    CausalLM,
    Classification,
    MaskedLM,
    OfSequences,
    Regression,
    SeveralLabels,
    TokenClassification,
)
from nopad.tasks.fit import check_rows, fit

pytestmark = pytest.mark.filterwarnings("ignore")

TEXTS = [{"text": "is it why not", "label": 1, "words": ["is", "it"], "tags": [0, 1]}] * 3
NAMES = ["bad", "fair", "good"]


def task(kind, *args):
    return kind(tokenizer(), *args)


def step(task, model):
    batch = next(iter(task.loader(TEXTS, 32, rows=1)))
    return task.objective.step(nopad.packed(model), batch)


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        (task(CausalLM), lambda one: bert(one, "BertForMaskedLM"), "needs a causal language model's"),
        (task(MaskedLM), lambda one: llama(one, "LlamaForCausalLM"), "is a causal language model's, and what is to be"),
        (task(TokenClassification, ["O", "B-X"]), lambda one: bert(one, "BertForMaskedLM"), "gives 96 logits each"),
        (task(Classification, 3), lambda one: bert(one, "BertForTokenClassification"), "needs one result per sequence"),
        (task(Classification, 3), lambda one: bert(one, "BertModel"), "head of this BertModel is .* or none"),
        (task(Classification, 3), lambda one: bert(one, id2label=None, num_labels=5), "gives 5 logits each, and there"),
        (task(Regression), lambda one: bert(task(Classification, 3)), "gives 3 logits each, and there are 1 classes"),
        (task(Classification, 3), lambda one: bert(one, return_dict=False), "return_dict = True"),
    ],
)
def test_a_step_with_another_model_is_refused(task, model, message):
    with pytest.raises(OptionError, match=message):
        step(task, model(task))


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("classes", torch.tensor([0.0, 1.0])),
        ("classes", torch.tensor([[0.0, 1.0], [1.0, 1.0]])),
        ("several", torch.tensor([0, 1])),
        ("several", torch.tensor([0.0, 1.0])),
        ("numbers", torch.tensor([0, 1])),
        ("numbers", torch.tensor([[0.0, 1.0], [1.0, 1.0]])),
    ],
)
def test_labels_of_another_kind_are_refused(kind, labels):
    batch = nopad.PackedBatch({**nopad.PackedBatch.from_sequences([[5, 6], [7]]), "labels": labels})
    with pytest.raises(BatchError, match=r"labels are torch\.\w+ \[2.*\], and what is to be learned is"):
        OfSequences(kind, 2).count(batch)


def test_a_model_is_told_what_its_classes_are():
    plain = bert(task(Classification, 3), num_labels=3, id2label=None, label2id=None, problem_type=None)
    fit(task(Classification, NAMES), plain)
    assert plain.config.id2label == dict(enumerate(NAMES))
    assert plain.config.label2id == {"bad": 0, "fair": 1, "good": 2}
    assert plain.config.problem_type == "single_label_classification"
    fit(task(Classification, 3), plain)  # which has no names to give
    assert plain.config.id2label == dict(enumerate(NAMES))
    fit(task(Classification, ["x", "y", "z"]), plain)
    assert plain.config.id2label == {0: "x", 1: "y", 2: "z"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (task(Classification, ["Good", "fair", "bad"]), "labels are Good, fair, bad, and the model has them as bad"),
        (task(Classification, 4), "classify has 4 labels, and the model has 3"),
        (task(Regression), "regress has 1 labels, and the model has 3"),
        (task(SeveralLabels, NAMES), "tag is multi_label_classification, and the model's is single_label"),
    ],
)
def test_a_model_of_other_labels_is_refused(other, message):
    with pytest.raises(OptionError, match=message):
        fit(other, bert(task(Classification, NAMES)))


def padless():
    """A decoder that classifies, without a pad id; what it gives each text alone; and packs of these texts."""
    one = task(Classification, 3)
    model = llama(one, "LlamaForSequenceClassification", pad_token_id=None)
    texts = [{"text": text, "label": 1} for text in ("is it why not", "yes", "one two three four five", "no dog")]
    with torch.no_grad():
        alone = [model(**tokenizer()(text["text"], return_tensors="pt")).logits[0] for text in texts]
    return one, nopad.packed(model), texts, alone


def test_a_decoder_without_a_pad_id_runs_on_flat_batches_as_alone():
    one, model, texts, alone = padless()
    loader = one.loader(texts, tokens=64, capacity=None)
    assert loader.rows == 1
    [batch] = loader
    with torch.no_grad():
        _, outputs = one.objective.step(model, batch)
    wanted = [alone[number] for number in batch.records["seq_index"]]
    assert (outputs["logits"] - torch.stack(wanted)).abs().max() < 1e-12


def test_a_decoder_without_a_pad_id_is_refused_several_rows():
    _, model, _, _ = padless()
    check_rows(model, 1)
    check_rows(model, 2, tokenizer())  # which gives the model its pad id
    with pytest.raises(OptionError, match=r"has no pad id, .* batches have 2: take flat batches"):
        check_rows(model, 2)
    model.config.pad_token_id = 0
    check_rows(model, 2)
    check_rows(nopad.packed(bert(task(Classification, 3), pad_token_id=None)), 2)  # which reads its first token


def test_it_predicts_in_rows_of_one():
    one, model, texts, alone = padless()
    predictor = nopad.tasks.Predictor(one, model, capacity=16, form=nopad.Rows(16))
    assert predictor.rows == 1
    found = [prediction["probabilities"] for prediction in predictor(texts)]
    assert (torch.tensor(found, dtype=torch.double) - torch.softmax(torch.stack(alone), -1)).abs().max() < 1e-12
    with pytest.raises(OptionError, match="has no pad id"):
        nopad.tasks.Predictor(one, model, capacity=16, form=nopad.Rows(16), rows=2)
