from __future__ import annotations

import copy
import json

import pytest
import torch
from transformers import DataCollatorWithFlattening
from zoo import build

import nopad
from nopad.errors import BatchError, OptionError, UnsupportedModelError
from nopad.model import is_packed


@pytest.mark.parametrize(
    ("kind", "head", "backend"),
    [
        ("bert", "base", "auto"),
        ("bert", "pre-training", "mask"),
        ("roberta", "question answering", "segments"),
        ("deberta-v2", "sequence classification", "segments"),
        ("deberta", "token classification", "mask"),
        ("modernbert", "sequence classification", "repack"),
        ("llama", "causal LM", "mask"),
        ("qwen3", "sequence classification", "segments"),
        ("albert", "masked LM", "auto"),
        ("mpnet", "base", "auto"),
        ("t5", "base", "auto"),
    ],
)
def test_nopad_is_isolated(kind, head, backend):
    model = build(kind, head, dtype=torch.float32)
    before = copy.deepcopy(model.state_dict())
    verdict = nopad.audit(model, backend=backend, capacity=32)
    assert verdict.isolated, str(verdict)
    assert verdict.first_difference is None
    assert verdict.max_abs_diff < 1e-12
    assert not is_packed(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    names = [check.name for check in verdict.checks]
    assert "attention ran once a layer" in names
    assert "float32 outputs, flat" in names
    assert "float64 gradients, rows" in names
    assert ("poison, NaN" in names) == (backend in ("auto", "segments"))


def test_a_model_that_is_pack_safe_already():
    model = nopad.packed(build("bert"), backend="mask")
    verdict = nopad.audit(model, capacity=32)
    assert verdict.isolated
    assert "backend 'mask'" in verdict.how
    assert is_packed(model)


def test_partly_in_single_precision():
    verdict = nopad.audit(build("gemma", "causal LM"), capacity=32)
    assert verdict.isolated
    assert "this model computes some of it in float32, even in float64" in verdict.notes


def test_bfloat16():
    verdict = nopad.audit(build("bert", dtype=torch.bfloat16), capacity=32)
    assert verdict.isolated, str(verdict)
    [own] = [check for check in verdict.checks if check.name.startswith("bfloat16")]
    assert own.value <= own.limit == 5e-2


def test_wrong_positions_are_no_contamination_and_still_wrong():
    model = build("roberta")
    plain = nopad.packed(copy.deepcopy(model))

    def zero_based(features):
        return nopad.PackedBatch.from_features(features)

    assert nopad.audit(plain, collator=zero_based, capacity=32).isolated
    plain._nopad_state.family = nopad.model.families.FAMILIES["bert"]  # which counts from 0
    verdict = nopad.audit(plain, collator=zero_based, capacity=32)
    assert verdict.first_difference == "embeddings.position_embeddings"
    assert all(check.passed for check in verdict.checks if check.name.startswith("poison"))


def test_json_and_text():
    verdict = nopad.audit(build("bert"), collator=DataCollatorWithFlattening(return_tensors="pt"), capacity=32)
    document = json.loads(verdict.to_json())
    assert document["isolated"] is False
    assert document["first_difference"] == "encoder.layer.0.attention.self"
    assert document["max_abs_diff"] == verdict.max_abs_diff
    text = str(verdict)
    head = "BertModel, as it is, with DataCollatorWithFlattening: CONTAMINATED at encoder.layer.0.attention.self"
    assert text.startswith(head)
    assert text.count("✗") == sum(not check.passed for check in verdict.checks)


def test_a_collator_that_loses_tokens():
    def cut(features):
        return {"input_ids": torch.tensor([[t for feature in features for t in feature["input_ids"]][:40]])}

    with pytest.raises(BatchError, match=r"sequence \d of \d+ tokens is not whole in the collator's batch of 1 x 40"):
        nopad.audit(build("bert"), collator=cut, capacity=32)


def test_what_cannot_be_audited():
    from transformers import XLNetConfig, XLNetModel

    model = XLNetModel(XLNetConfig(vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=16))
    with pytest.raises(UnsupportedModelError, match="xlnet cannot run on packs: its relative attention"):
        nopad.audit(model)
    with pytest.raises(OptionError, match="needs a capacity of at least 4, got 3"):
        nopad.audit(build("bert"), capacity=3)
    with pytest.raises(OptionError, match="Linear is no transformers model"):
        nopad.audit(torch.nn.Linear(1, 1))


def test_the_first_layers_only():
    model = build(
        "modernbert", "masked LM", num_hidden_layers=4, layer_types=["full_attention"] + ["sliding_attention"] * 3
    )
    verdict = nopad.audit(model, layers=1, capacity=32)
    assert verdict.isolated, str(verdict)
    assert "the first 1 of 4 layers only, without any of sliding_attention" in verdict.notes
    [ran] = [check for check in verdict.checks if check.name == "attention ran once a layer"]
    assert ran.detail == "1 times in 1 layers"
    assert model.config.num_hidden_layers == 4
    for kind in ("bert", "llama", "deberta-v2", "gpt2"):
        assert nopad.audit(build(kind, "base"), layers=1, capacity=32).isolated, kind
    stock = nopad.audit(build("bert"), layers=1, collator=DataCollatorWithFlattening(return_tensors="pt"), capacity=32)
    assert stock.first_difference == "encoder.layer.0.attention.self"
    safe = nopad.packed(build("bert"), backend="mask")
    assert "backend 'mask'" in nopad.audit(safe, layers=1, capacity=32).how


def test_layers_that_are_not_there():
    for layers in (0, 3):
        with pytest.raises(OptionError, match=f"layers is {layers}; this BertModel has 2"):
            nopad.audit(build("bert"), layers=layers)


@pytest.mark.parametrize(("kind", "head"), [("bert", "sequence classification"), ("llama", "sequence classification")])
def test_heads_of_a_model_that_is_pack_safe_already(kind, head):
    model = nopad.packed(build(kind, head))
    assert nopad.audit(model, capacity=32).isolated
    assert nopad.audit(model, capacity=32, layers=1).isolated


def test_a_collator_that_fails_is_not_our_bug():
    def fails(features):
        raise RuntimeError("boom")

    with pytest.raises(BatchError, match=r"the collator failed .* RuntimeError: boom"):
        nopad.audit(build("bert"), collator=fails)
    for gives in (None, {"input_ids": [[1, 2]]}, {}):
        with pytest.raises(BatchError, match="wanted are the arguments of a forward call by name"):
            nopad.audit(build("bert"), collator=lambda features, gives=gives: gives)
