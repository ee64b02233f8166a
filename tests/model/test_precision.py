"""Inference in lower precision: what it may cost, and that int8 leaves sequences independent of their company."""

import copy
import importlib.util

import pytest
import torch
from tests.tasks.tiny import tokenizer
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

import nopad
from nopad.errors import OptionError, UnsupportedModelError
from nopad.model import lowered, precision
from nopad.model.precision import agreement
from nopad.tasks import Classification, Embedder, Predictor

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXTS = ["is it red ?", "yes", "no , it is not", "why not"]
needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


def tiny():
    torch.manual_seed(0)
    return BertModel(BertConfig(**SIZES), add_pooling_layer=False).eval()


def test_a_copy_is_lowered_and_the_model_stays_as_it_is():
    model = tiny()
    before = copy.deepcopy(model.state_dict())
    made = lowered(model, "bfloat16")
    assert {parameter.dtype for parameter in made.parameters()} == {torch.bfloat16}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not nopad.model.is_packed(model)


def test_vectors_in_bfloat16_are_near_those_in_float32():
    exact, rough = (Embedder(tiny(), tokenizer(), precision=one) for one in (None, "bfloat16"))
    one, other = exact.encode(TEXTS), rough.encode(TEXTS)
    assert ((one * other).sum(1) >= (0.9999 if precision._multiplies_bfloat16() else 0.999)).all()
    assert abs(one - other).max() > 1e-6  # it did compute in bfloat16
    assert rough.precision == "bfloat16"
    assert (exact.precision, exact.agreement) == (None, None)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_what_a_precision_costs_is_measured_and_logged(kind, caplog):
    model = tiny()
    with caplog.at_level("INFO", "nopad"):
        embedder = Embedder(model, tokenizer(), precision=kind)
    low = lowered(model, kind)
    tokens = torch.randint(model.config.vocab_size, (4, 32), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        exact, rough = (one.eval()(input_ids=tokens)[0].double().reshape(4, -1) for one in (model, low))
    smallest = min(float(one @ other / one.norm() / other.norm()) for one, other in zip(exact, rough, strict=True))
    assert embedder.agreement == pytest.approx(smallest, abs=1e-12)
    assert 0.99 < smallest < 1 - 1e-9
    [said] = [text for text in caplog.messages if text.startswith("smallest cosine")]
    assert f"BertModel in {kind} with" in said
    assert said.endswith(f": {smallest:.5f}")


def test_predictors_take_a_precision():
    task = Classification(tokenizer(), ["no", "yes"])
    torch.manual_seed(0)
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(**SIZES, **task.model_options()))
    records = [{"text": text} for text in TEXTS]
    exact = Predictor(task, copy.deepcopy(model))(records)
    rough = Predictor(task, model, precision="bfloat16")(records)
    for one, other in zip(exact, rough, strict=True):
        assert other["probabilities"] == pytest.approx(one["probabilities"], abs=0.01)


@pytest.mark.parametrize(
    ("model", "precision", "words"),
    [
        (tiny(), "int4", "precision"),
        (tiny(), "float32", "precision"),
        (tiny().double(), "int8", "float64"),
        (tiny().half(), "bfloat16", "float16"),
        (nopad.packed(tiny()), "bfloat16", "pack-safe already"),
        (GPT2Model(GPT2Config(n_embd=8, n_head=2, n_layer=1)), "int8", "GPT2Model has no linear layer"),
        (tiny().to("meta"), "int8", "another device"),
        ("a folder", "bfloat16", "str"),
    ],
)
def test_what_cannot_be_lowered_is_refused(model, precision, words):
    with pytest.raises(OptionError, match=words):
        lowered(model, precision)


def test_a_sequence_in_int8_gets_the_same_alone_and_in_company():
    embedder = Embedder(tiny(), tokenizer(), precision="int8")
    together = embedder.encode(TEXTS)
    alone = [embedder.encode([text])[0] for text in TEXTS]
    assert max(abs(one - other).max() for one, other in zip(together, alone, strict=True)) <= 1e-6
    exact = Embedder(tiny(), tokenizer()).encode(TEXTS)
    assert ((exact * together).sum(1) >= 0.99).all()
    assert abs(exact - together).max() > 1e-5  # it did compute in int8


@needs_torchao
def test_one_scale_for_the_whole_batch_is_refused():
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, PerTensor, quantize_

    model = tiny()
    quantize_(model, Int8DynamicActivationInt8WeightConfig(granularity=PerTensor()))
    with pytest.raises(UnsupportedModelError, match="one scale for the whole batch"):
        Embedder(model, tokenizer()).encode(TEXTS)


def test_agreement_is_told_by_the_outputs():
    model = tiny()
    assert 0.999 < agreement(model, lowered(model, "bfloat16")) < 1 - 1e-9
    assert agreement(model, copy.deepcopy(model)) == pytest.approx(1, abs=1e-12)
    torch.manual_seed(1)
    assert agreement(model, BertModel(BertConfig(**SIZES), add_pooling_layer=False)) < 0.5
