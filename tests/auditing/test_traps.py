"""Seven ways in which packing goes wrong in silence with stock transformers: the audit must see each, and where."""

from __future__ import annotations

import pytest
import torch
import transformers as t
from zoo import build

import nopad


def flat(features):
    """All sequences in one row, with positions that begin again."""
    ids = [feature["input_ids"] for feature in features]
    tokens = torch.tensor([[token for sequence in ids for token in sequence]])
    positions = torch.tensor([[place for sequence in ids for place in range(len(sequence))]])
    number = torch.tensor([[n for n, sequence in enumerate(ids, 1) for _ in sequence]])
    return tokens, positions, number


def block(number):
    return (number[:, :, None] == number[:, None, :])[:, None]


def found(model, collator, **how):
    return nopad.audit(model, collator=collator, capacity=32, **how)


def test_1_causal_models_with_a_cache_ignore_positions():
    verdict = found(build("llama", "causal LM"), t.DataCollatorWithFlattening(return_tensors="pt"))
    assert not verdict.isolated
    assert verdict.first_difference.startswith("model.layers.0.self_attn")

    def without_a_cache(features):
        tokens, positions, _ = flat(features)
        return {"input_ids": tokens, "position_ids": positions, "use_cache": False}

    assert found(build("llama", "causal LM"), without_a_cache).isolated

    def with_a_mask(features):
        return without_a_cache(features) | {"attention_mask": torch.ones_like(flat(features)[0])}

    assert not found(build("llama", "causal LM"), with_a_mask).isolated


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_2_encoders_never_look_at_positions(attention):
    model = build("bert")
    model.set_attn_implementation(attention)
    verdict = found(model, t.DataCollatorWithFlattening(return_tensors="pt"))
    assert (verdict.isolated, verdict.first_difference) == (False, "encoder.layer.0.attention.self")
    assert verdict.max_abs_diff > 1e-2


def test_3_numbers_of_sequences_in_a_mask_become_ones():
    def numbered(features):
        tokens, positions, number = flat(features)
        return {"input_ids": tokens, "position_ids": positions, "attention_mask": number}

    verdict = found(build("bert"), numbered)
    assert (verdict.isolated, verdict.first_difference) == (False, "encoder.layer.0.attention.self")


def test_4_a_bool_mask_is_added_by_eager_attention():
    def masked(features):
        tokens, positions, number = flat(features)
        return {"input_ids": tokens, "position_ids": positions, "attention_mask": block(number)}

    model = build("bert")
    model.set_attn_implementation("eager")
    assert not found(model, masked).isolated
    model.set_attn_implementation("sdpa")
    assert found(model, masked).isolated


def test_5_a_model_off_the_interface_stays_as_it_was():
    def masked(features):
        tokens, positions, number = flat(features)
        return {"input_ids": tokens, "position_ids": positions + 2, "attention_mask": block(number)}

    model = build("mpnet")
    model.set_attn_implementation("sdpa")  # only a warning: its attention adds whatever mask it gets
    verdict = found(model, masked)
    assert not verdict.isolated
    assert verdict.first_difference.startswith("encoder.layer.0.attention.attn")


def test_6_one_mask_for_local_and_global_layers():
    def masked(features):
        tokens, positions, number = flat(features)
        return {"input_ids": tokens, "position_ids": positions, "attention_mask": block(number)}

    model = build("modernbert")
    verdict = found(model, masked)
    assert not verdict.isolated  # nobody sees the neighbours, but local layers look too far
    poison = [check for check in verdict.checks if "poison" in check.name]
    assert all(check.passed for check in poison)
    assert verdict.first_difference.startswith("layers.1.attn")


def test_7_an_attention_without_its_mask_gets_none():
    def blind(module, query, key, value, attention_mask, **kwargs):
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        return out.transpose(1, 2).contiguous(), None

    t.AttentionInterface.register("blind", blind)
    model = build("bert")
    model.set_attn_implementation("blind")

    def padded(features):
        longest = max(len(feature["input_ids"]) for feature in features)
        rows = [feature["input_ids"] + [0] * (longest - len(feature["input_ids"])) for feature in features]
        mask = [[1] * len(feature["input_ids"]) + [0] * (longest - len(feature["input_ids"])) for feature in features]
        return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}

    verdict = found(model, padded)  # not even packed: padding is attended to
    assert (verdict.isolated, verdict.first_difference) == (False, "encoder.layer.0.attention.self")
    model.set_attn_implementation("sdpa")
    assert found(model, padded).isolated
