from __future__ import annotations

import copy
import json

import pytest
import torch
import transformers as t
from collators import blocks
from zoo import build

import nopad
from nopad.admitting.proof import LONG, SHORT, audited, room_of
from nopad.auditing.trial import longest_of
from nopad.errors import BatchError, OptionError, UnsupportedModelError
from nopad.model import is_packed
from nopad.model.safety import state_of


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
    assert "attention calls, missing or extra" in names
    assert "float32 outputs, flat" in names
    assert "float64 gradients, rows" in names
    assert "float32 gradients, flat" in names
    poisoned = [check for check in verdict.checks if "poison" in check.name]
    assert len(poisoned) == (6 if backend in ("auto", "segments") else 4)  # NaN too
    assert all(check.value == 0 for check in poisoned), str(verdict)


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
    checks = {check.name: check for check in verdict.checks if check.name.startswith("bfloat16")}
    for form in ("flat", "rows"):
        outputs, gradients = checks.pop(f"bfloat16 outputs, {form}"), checks.pop(f"bfloat16 gradients, {form}")
        assert outputs.value <= outputs.limit == 5e-2
        assert 0 < gradients.value <= gradients.limit == 5e-2
    assert checks.pop("bfloat16 outputs, end to end").limit == 5e-2
    assert [(check.value, check.limit) for check in checks.values()] == [(0, 0)] * 3  # poison


def test_a_leak_in_the_dtype_of_the_model_only():
    model = build("bert", dtype=torch.float32)

    def leak(module, args, output):
        return output + output.mean((0, 1)) * 1e-2 if output.dtype == torch.float32 else output

    model.encoder.layer[1].intermediate.register_forward_hook(leak)
    verdict = nopad.audit(model, capacity=32)
    assert not verdict.isolated
    assert verdict.max_abs_diff < 1e-12  # of float64
    assert verdict.first_difference == "encoder.layer.1.intermediate"
    failed = [check.name for check in verdict.checks if not check.passed]
    assert failed == [
        "float32 outputs, flat",
        "float32 gradients, flat",
        "float32 outputs, rows",
        "float32 gradients, rows",
        "float32 outputs, end to end",
        "float32 poison, other tokens",
        "float32 poison, embeddings x 1e+06",
        "float32 poison, NaN",
    ]


def test_float16_is_poisoned_within_its_numbers():
    verdict = nopad.audit(build("bert", "question answering", dtype=torch.float16), backend="mask", capacity=32)
    assert verdict.isolated, str(verdict)
    assert "float16 poison, embeddings x 1e+03" in [check.name for check in verdict.checks]


def test_wrong_positions_are_no_contamination_and_still_wrong():
    model = build("roberta")
    plain = nopad.packed(copy.deepcopy(model))

    def zero_based(features):
        return nopad.PackedBatch.from_features(features)

    assert nopad.audit(plain, collator=zero_based, capacity=32).isolated
    plain._nopad_state.family = nopad.model.families.FAMILIES["bert"]  # which counts from 0
    verdict = nopad.audit(plain, collator=zero_based, capacity=32)
    assert verdict.first_difference == "embeddings.position_embeddings"
    assert all(check.passed for check in verdict.checks if "poison" in check.name)
    assert (verdict.outcome, verdict.unseen, verdict.isolated) == ("different", True, False)
    assert verdict.reason == "other positions; no sequence sees another"
    said = "DIFFERENT FROM ALONE at embeddings.position_embeddings: other positions; no sequence sees another"
    assert str(verdict).splitlines()[0].endswith(said)
    found = json.loads(verdict.to_json())
    assert (found["outcome"], found["reason"]) == ("different", verdict.reason)
    assert said in verdict.to_junit()


def test_a_neighbour_that_poison_of_one_sequence_does_not_reach():
    """Wrong positions, and a leak from the first sequence into the next one, which the poison checks do not touch."""
    model = build("bert")

    def collate(features):
        batch = blocks()(features)
        batch["position_ids"] = torch.arange(batch["input_ids"].shape[1])[None]
        batch["attention_mask"][..., len(features[0]["input_ids"]), 0] = True
        return batch

    verdict = nopad.audit(model, collator=collate, capacity=32)
    assert all(check.passed for check in verdict.checks if "poison" in check.name), str(verdict)
    assert (verdict.outcome, verdict.reason) == ("contaminated", "")
    assert "CONTAMINATED at embeddings.position_embeddings" in str(verdict)


def test_another_mask_within_a_sequence():
    model = build("bert")

    def collate(features):
        batch = blocks()(features)
        return batch | {"attention_mask": batch["attention_mask"].tril()}

    verdict = nopad.audit(model, collator=collate, capacity=32)
    assert verdict.outcome == "different"
    assert verdict.reason == "other positions, token types or mask within a sequence; no sequence sees another"


def test_json_and_text():
    verdict = nopad.audit(build("bert"), collator=t.DataCollatorWithFlattening(return_tensors="pt"), capacity=32)
    document = json.loads(verdict.to_json())
    assert document["isolated"] is False
    assert document["first_difference"] == "encoder.layer.0.attention.self"
    assert document["max_abs_diff"] == verdict.max_abs_diff
    text = str(verdict)
    head = "BertModel, as it is, with DataCollatorWithFlattening: CONTAMINATED at encoder.layer.0.attention.self"
    assert text.startswith(head)
    assert text.count("✗") == sum(not check.passed for check in verdict.checks)


def test_a_head_that_gives_one_result_a_row():
    model = build("bert", "sequence classification")
    verdict = nopad.audit(model, collator=t.DataCollatorWithFlattening(return_tensors="pt"), capacity=32)
    assert verdict.first_difference == "bert.encoder.layer.0.attention.self"
    assert [check.passed for check in verdict.checks] == [False]
    assert verdict.checks[0].detail == "logits: of a row, whatever is in it, and of no sequence"
    assert json.loads(verdict.to_json())["max_abs_diff"] is None

    def padded(features):
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(f["input_ids"]) for f in features], batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}

    alone = nopad.audit(model, collator=padded, capacity=32)
    assert alone.isolated, str(alone)
    assert {"logits"} == {check.detail for check in alone.checks if "outputs" in check.name}


class NoNumbers(torch.autograd.Function):
    """Does nothing, and has gradients only for what is no longer than the longest sequence alone."""

    @staticmethod
    def forward(context, states):
        context.packed = states.shape[0] * states.shape[1] > 32
        return states.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * (torch.nan if context.packed else 1)


def test_gradients_that_are_no_numbers():
    model = build("bert")
    model.embeddings.register_forward_hook(lambda module, args, output: NoNumbers.apply(output))
    verdict = nopad.audit(model, capacity=32)
    failed = [(check.name, check.value) for check in verdict.checks if not check.passed]
    forms = ("flat", "rows", "end to end")
    assert failed == [(f"float64 gradients, {form}", torch.inf) for form in forms]


def test_gradients_that_are_mostly_rounding():
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 2}
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16}
    torch.manual_seed(0)
    model = t.DebertaV2Model(t.DebertaV2Config(vocab_size=200, initializer_range=0.002, **sizes, **relative))
    verdict = nopad.audit(model, backend="mask")
    assert verdict.isolated, str(verdict)
    [check] = [check for check in verdict.checks if check.name == "float32 gradients, flat"]
    assert check.limit >= check.value > 2e-5
    assert "key_proj.bias, where rounding alone does" in check.detail


def test_a_collator_that_loses_tokens():
    def cut(features):
        return {"input_ids": torch.tensor([[token for feature in features for token in feature["input_ids"]][:40]])}

    with pytest.raises(BatchError, match=r"sequence \d of \d+ tokens is not whole in the collator's batch of 1 x 40"):
        nopad.audit(build("bert"), collator=cut, capacity=32)


def test_what_cannot_be_audited():
    from transformers import XLNetConfig, XLNetModel

    model = XLNetModel(XLNetConfig(vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=16))
    with pytest.raises(UnsupportedModelError, match="xlnet cannot run on packs: its relative attention"):
        nopad.audit(model)
    with pytest.raises(OptionError, match=r"capacity must be an integer from 4 to .*, got 3"):
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
    [ran] = [check for check in verdict.checks if check.name == "attention calls, missing or extra"]
    assert ran.detail == "1 call in 1 layer"
    assert model.config.num_hidden_layers == 4
    for kind in ("bert", "llama", "deberta-v2", "gpt2"):
        assert nopad.audit(build(kind, "base"), layers=1, capacity=32).isolated, kind
    stock = nopad.audit(
        build("bert"), layers=1, collator=t.DataCollatorWithFlattening(return_tensors="pt"), capacity=32
    )
    assert stock.first_difference == "encoder.layer.0.attention.self"
    safe = nopad.packed(build("bert"), backend="mask")
    assert "backend 'mask'" in nopad.audit(safe, layers=1, capacity=32).how


def test_layers_that_are_not_there():
    with pytest.raises(OptionError, match="layers is 3; this BertModel has 2"):
        nopad.audit(build("bert"), layers=3)


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
        with pytest.raises(BatchError, match="expected the arguments of a forward call by name"):
            nopad.audit(build("bert"), collator=lambda features, gives=gives: gives)


@pytest.mark.parametrize(("positions", "window"), [(64, None), (100, None), (300, 100)])
def test_rows_of_no_more_slots_than_positions(positions, window):
    """All sequences of a flat row must fit into it; the length was limited to the positions of one sequence."""
    config = _few_positions(positions)
    if window is not None:
        config.sliding_window = window  # as the code of a user may have it
    verdict = nopad.audit(t.RoFormerModel(config))
    assert verdict.isolated, str(verdict)
    assert "float64 outputs, flat" in [check.name for check in verdict.checks]
    safe = nopad.packed(t.RoFormerModel(config))
    room = room_of(safe, state_of(safe).family)
    assert room == positions // 3
    verdicts = audited(safe, min(room, SHORT), min(room, LONG))
    assert all(one.isolated for one in verdicts)


@pytest.mark.parametrize("positions", [3, 6, 12, 14])
def test_rows_of_very_few_positions(positions):
    """Below 14 positions, six sequences took more slots than a row may have, and the audit failed."""
    config = _few_positions(positions)
    verdict = nopad.audit(t.RoFormerModel(config), gradients=False)
    assert verdict.isolated, str(verdict)


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (t.T5Config(), 64),
        (t.MambaConfig(), 64),
        (t.BertConfig(), 64),
        (t.BertConfig(max_position_embeddings=60), 58),
        (t.GPT2Config(n_positions=2), 1),
    ],
)
def test_the_longest_sequence(config, longest):
    """Models that state no number of positions got sequences of 2 tokens less than the capacity."""
    assert longest_of(config, 64) == longest


def test_a_collator_gets_sequences_of_the_full_length():
    """Its rows are the stock model's, which hold what the collator makes of them."""
    taken = []

    def padded(features):
        taken.extend(len(one["input_ids"]) for one in features)
        return {
            name: torch.nn.utils.rnn.pad_sequence([torch.tensor(one[name]) for one in features], True)
            for name in ("input_ids", "labels")
        }

    nopad.audit(t.RoFormerModel(_few_positions(100)), collator=padded)
    assert max(taken) == 64


def _few_positions(positions):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return t.RoFormerConfig(vocab_size=300, max_position_embeddings=positions, **sizes)
