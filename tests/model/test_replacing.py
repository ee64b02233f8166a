"""Modules that are replaced inside a model: under all their names, and shared ones stay shared."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel
from transformers.models.bert.modeling_bert import BertIntermediate

from nopad.auditing.steps.quiet import copied
from nopad.auditing.subject import subject_of
from nopad.model.bfloat16 import Bfloat16Linear, fused
from nopad.model.int8 import Int8Linear, in_int8
from nopad.model.replacing import replace_modules, uncompile

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 99}


class Twice(nn.Module):
    """Holds one layer under two names, and shares it with another module."""

    def __init__(self, layer):
        super().__init__()
        self.first = self.second = layer
        self.inner = nn.ModuleDict({"third": layer})

    def forward(self, states):
        return self.inner["third"](self.second(self.first(states)))


@pytest.mark.parametrize(
    ("lower", "kind", "dtype"),
    [(in_int8, Int8Linear, torch.float32), (fused, Bfloat16Linear, torch.bfloat16)],
    ids=["int8", "bfloat16"],
)
def test_a_layer_that_is_held_twice_becomes_one(lower, kind, dtype):
    """It stayed as it was under its second name, and became another layer in another module."""
    torch.manual_seed(0)
    exact = Twice(nn.Linear(16, 16)).eval()
    states = torch.randn(3, 16)
    with torch.inference_mode():
        wanted = exact(states)
        made = lower(exact.to(dtype))
        assert type(made.first) is kind
        assert made.first is made.second is made.inner["third"]
        assert torch.allclose(made(states.to(dtype)).float(), wanted, atol=0.05)


def intermediates():
    """Two feed-forward blocks that share their layer, each with an activation of its own."""
    torch.manual_seed(0)
    blocks = [BertIntermediate(BertConfig(**SIZES)).eval().bfloat16() for _ in range(2)]
    blocks[1].dense = blocks[0].dense
    return nn.ModuleList(blocks)


def test_a_layer_that_is_fused_with_the_same_activation_stays_shared():
    made = fused(intermediates())
    assert made[0].dense is made[1].dense
    assert made[0].dense.activation is not None
    assert all(type(block.intermediate_act_fn) is nn.Identity for block in made)


def test_a_layer_that_is_fused_with_another_activation_is_another():
    blocks = intermediates()
    blocks[1].intermediate_act_fn = nn.ReLU()
    states = torch.randn(5, 16).bfloat16()
    with torch.inference_mode():
        wanted = [block(states) for block in blocks]
        made = fused(blocks)
        found = [block(states) for block in made]
    assert made[0].dense is not made[1].dense
    assert made[0].dense.weight is made[1].dense.weight
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one.float(), other.float(), atol=0.02)


def test_each_module_is_asked_for_once():
    asked = []
    model = Twice(nn.Linear(2, 2))
    replace_modules(model, asked.append)
    assert [type(one) for one in asked] == [nn.Linear, nn.ModuleDict]


def compiled_twice():
    torch.manual_seed(0)
    model = BertModel(BertConfig(**SIZES))
    layer = torch.compile(model.encoder.layer[0], backend="eager")
    model.encoder.layer[0] = model.encoder.layer[1] = layer
    return model


def kinds_of(model):
    return [type(one).__name__ for one in model.encoder.layer]


def test_compiled_layers_are_uncompiled_in_all_places():
    made = compiled_twice()
    uncompile(made)
    assert kinds_of(made) == ["BertLayer", "BertLayer"]
    assert made.encoder.layer[0] is made.encoder.layer[1]
    with subject_of(compiled_twice(), torch.float64, safe=False) as copy:
        assert kinds_of(copy) == ["BertLayer", "BertLayer"]
    assert kinds_of(copied(compiled_twice(), None, plain=True)) == ["BertLayer", "BertLayer"]
