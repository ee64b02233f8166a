"""Linear layers in bfloat16 with their activations in the same pass: the same numbers up to rounding, once less."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from tests.tasks.tiny import tokenizer
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    LlamaConfig,
    LlamaModel,
)
from transformers.activations import ACT2CLS, ACT2FN

import nopad
from nopad.errors import OptionError
from nopad.model import bfloat16, fast_linear, lowered, precision
from nopad.model.bfloat16 import FORMULAS, Bfloat16Linear, formula_of, fused
from nopad.tasks import Embedder

BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}
KNOWN = {"gelu", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "gelu_python_tanh"}
KNOWN |= {"silu", "swish"}


def by_stand_in(states, weight, bias, name, formula):
    """As oneDNN does it: sums and the activation in float32, and then one rounding."""
    assert weight.laid_out
    found = nn.functional.linear(states.float(), weight.float(), None if bias is None else bias.float())
    return (found if name == "none" else FORMULAS[name, formula](found)).bfloat16()


def laid_out_by_stand_in(weight):
    copied = weight.detach().clone()
    copied.laid_out = True
    return copied


@pytest.fixture
def onednn(monkeypatch):
    """Let layers be laid out on any CPU: stand-ins take the place of operations that oneDNN lacks on this one."""
    if not bfloat16._is_supported():
        monkeypatch.setattr(bfloat16, "_is_supported", lambda: True)
        monkeypatch.setattr(bfloat16, "_lay_out", laid_out_by_stand_in)
        monkeypatch.setattr(bfloat16, "_by_onednn", by_stand_in)
    monkeypatch.setattr(precision, "_multiplies_bfloat16", lambda: True)


@pytest.fixture
def laid_out(monkeypatch, onednn):
    """How often a weight was laid out."""
    seen, real = [], bfloat16._lay_out
    monkeypatch.setattr(bfloat16, "_lay_out", lambda weight: seen.append(weight) or real(weight))
    return seen


def bert():
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**BERT)).eval()


def states_of(model, tokens):
    with fast_linear(model), torch.inference_mode():
        return model(input_ids=tokens)[0].float()


@pytest.mark.usefixtures("onednn")
def test_nearer_to_float32_than_layers_and_activations_one_by_one():
    exact, tokens = bert(), torch.randint(1, 99, (4, 30), generator=torch.Generator().manual_seed(1))
    plain, made = copy.deepcopy(exact).bfloat16(), fused(copy.deepcopy(exact).bfloat16())
    layers = [module for module in made.modules() if type(module) is Bfloat16Linear]
    assert len(layers) == 14
    assert sum(layer.activation is not None for layer in layers) == 2
    wanted = states_of(exact, tokens)
    errors = [float((states_of(model, tokens) - wanted).pow(2).mean().sqrt()) for model in (plain, made)]
    assert errors[1] <= 1.02 * errors[0] < 0.02 * float(wanted.std())


@pytest.mark.usefixtures("onednn")
def test_which_layer_an_activation_belongs_to_is_tried():
    sizes = {"dim": 32, "hidden_dim": 64, "n_layers": 1, "n_heads": 2, "vocab_size": 99}
    distilled = fused(DistilBertModel(DistilBertConfig(**sizes)).eval().bfloat16())
    network = distilled.transformer.layer[0].ffn
    assert type(network.lin1.activation).__name__ == "GELUActivation"
    assert network.lin2.activation is None
    assert type(network.activation) is nn.Identity
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    gated = fused(LlamaModel(LlamaConfig(**sizes, vocab_size=99)).eval().bfloat16()).layers[0].mlp
    assert gated.gate_proj.activation is not None
    assert gated.up_proj.activation is None is gated.down_proj.activation


@pytest.mark.usefixtures("onednn")
def test_what_is_no_transformers_module_or_has_hooks_or_other_formulas_keeps_its_activation():
    own = nn.Sequential(nn.Linear(8, 16), nn.GELU()).bfloat16()
    assert fused(own)[0].activation is None
    assert type(own[1]) is nn.GELU
    watched, seen = bert().bfloat16(), []
    block = watched.bert.encoder.layer[0]
    block.intermediate.dense.register_forward_hook(lambda *_: seen.append("dense"))
    block.attention.self.register_forward_pre_hook(lambda *_: seen.append("attention"))
    fused(watched)
    assert type(block.intermediate.dense) is nn.Linear
    assert type(block.intermediate.intermediate_act_fn) is not nn.Identity
    states_of(watched, torch.tensor([[3, 4]]))
    assert sorted(seen) == ["attention", "dense"]
    other = fused(BertForMaskedLM(BertConfig(**BERT, hidden_act="quick_gelu")).eval().bfloat16())
    assert all(layer.activation is None for layer in other.modules() if type(layer) is Bfloat16Linear)


@pytest.mark.parametrize("name", sorted(set(ACT2CLS) - {"xielu"}))  # which has parameters of its own
def test_formulas_are_known_by_what_they_compute(name):
    activation, states = ACT2FN[name], torch.linspace(-9, 9, 777)
    names = formula_of(activation)
    assert (names is not None) == (name in KNOWN)
    if names is not None:
        layer = nn.Linear(777, 777, bias=False).bfloat16()
        with torch.no_grad():
            layer.weight.copy_(torch.eye(777))
        layer = Bfloat16Linear(layer, activation)
        with fast_linear(layer), torch.inference_mode():
            found = layer(states[None].bfloat16())[0]
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            wanted = activation(states.bfloat16().float())
            torch.testing.assert_close(found.float(), wanted, rtol=2**-7, atol=1e-5)
        else:  # two steps, each rounded
            assert torch.equal(found, activation(states.bfloat16()))


def test_an_activation_without_a_formula_is_refused():
    with pytest.raises(OptionError, match="Tanh cannot be computed together with a linear layer; call it after"):
        Bfloat16Linear(nn.Linear(4, 4).bfloat16(), nn.Tanh())


def test_a_module_that_fails_in_its_own_way_keeps_its_activation():
    """Its modules are called alone, with one argument, and it may raise anything."""
    model = bert().bfloat16()
    block = model.bert.encoder.layer[0].intermediate

    def forward(states):
        raise KeyError("mask")

    block.forward = forward
    fused(model)
    assert type(block.dense) is Bfloat16Linear
    assert block.dense.activation is None
    assert type(block.intermediate_act_fn) is not nn.Identity


def test_models_that_need_more_than_ids_agree_to_no_known_degree():
    class Odd(nn.Module):
        config, device = BertConfig(**BERT), "cpu"

        def forward(self, input_ids):
            raise KeyError("pixels")

    assert math.isnan(precision.agreement(Odd(), Odd()))


def test_a_weight_that_is_changed_or_replaced_is_taken_anew(laid_out):
    layer, states = Bfloat16Linear(nn.Linear(64, 8).bfloat16()), torch.ones(3, 64, dtype=torch.bfloat16)
    with fast_linear(layer), torch.inference_mode():
        before = layer(states)
        layer.weight.mul_(2)
        layer.bias.mul_(2)
        torch.testing.assert_close(layer(states), 2 * before)
        layer.weight = nn.Parameter(torch.zeros(8, 64, dtype=torch.bfloat16))
        layer.bias = None
        assert not layer(states).any()
        assert layer(states[:0]).shape == (0, 8)
        assert layer(states.view(3, 1, 64)).shape == (3, 1, 8)
    assert len(laid_out) == 2  # the last one was made in inference mode, where nothing counts its changes


def by_data(weight, new):
    weight.data.copy_(new)


def by_set(weight, new):
    weight.data = new.clone()


def by_numpy(weight, new):
    weight.data.view(torch.int16).numpy()[:] = new.view(torch.int16).numpy()


@pytest.mark.parametrize("write", [by_data, by_set, by_numpy])
def test_between_scopes_no_write_is_missed(laid_out, write):
    """As averages of weights are swapped in for an evaluation (EMA): by ``.data``, which no count of versions has."""
    layer, states = Bfloat16Linear(nn.Linear(64, 32).bfloat16()), torch.randn(5, 64).bfloat16()
    new = (torch.randn(32, 64) * 3).bfloat16()
    with torch.no_grad():
        wanted = nn.functional.linear(states, new, layer.bias)
        with fast_linear(layer):
            layer(states)
            layer(states)
        assert len(laid_out) == 1
        write(layer.weight, new)
        assert torch.equal(layer(states), wanted)  # outside, the plain layer
        assert len(laid_out) == 1
        with fast_linear(layer):
            torch.testing.assert_close(layer(states), wanted, rtol=0.02, atol=0.2)
        assert len(laid_out) == 2


def test_embedders_see_weights_that_are_written_between_their_calls(laid_out):
    embedder = Embedder(BertModel(BertConfig(**BERT)), tokenizer(), precision="bfloat16")
    texts = ["is it red ?", "yes"]
    laid_out.clear()
    before = embedder.encode(texts)
    layers = [module for module in embedder.model.modules() if type(module) is Bfloat16Linear]
    assert len(laid_out) == len(layers) == 13
    for layer in layers:
        layer.weight.data.mul_(-20)
    after = embedder.encode(texts)
    other = Embedder(embedder.model, tokenizer()).encode(texts)
    assert abs(before - after).max() > 0.01
    assert abs(other - after).max() == 0


def test_an_open_runner_is_one_scope(laid_out):
    embedder = Embedder(BertModel(BertConfig(**BERT)), tokenizer(), precision="bfloat16")
    laid_out.clear()
    with nopad.PackRunner(embedder) as runner:
        before = len(laid_out)
        for _ in range(3):
            runner(["yes", "no"])
        assert len(laid_out) == before == 13
    assert all(layer._copies is None for layer in embedder.model.modules() if type(layer) is Bfloat16Linear)


def test_scopes_of_one_model_end_with_the_last_of_them(laid_out):
    layer, states = Bfloat16Linear(nn.Linear(8, 8).bfloat16()), torch.randn(5, 8).bfloat16()
    with torch.inference_mode(), fast_linear(layer):
        with fast_linear(layer):
            layer(states)
            assert copy.deepcopy(layer)._copies is None
        layer(states)
        assert len(laid_out) == 1
        copy.deepcopy(layer)(states)  # which is in no scope
        assert len(laid_out) == 1
    assert layer._copies is None
    with pytest.raises(KeyError), fast_linear(layer):
        raise KeyError
    assert layer._copies is None


def other_parameter(layer):
    layer.weight = nn.Parameter(torch.randn(64, 64, dtype=torch.bfloat16))


def other_data(layer):
    layer.weight.data = torch.randn(64, 64, dtype=torch.bfloat16)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("change", [other_parameter, other_data])
def test_a_weight_in_the_place_of_one_that_was_freed_is_another(change):
    """Of two weights that come one after the other, the second may get the memory of the one before both."""
    layer, states = Bfloat16Linear(nn.Linear(64, 64).bfloat16()), torch.randn(4, 64).bfloat16()
    with fast_linear(layer):
        for _ in range(30):
            with torch.no_grad():
                change(layer)
                change(layer)
            with torch.inference_mode():
                wanted = nn.functional.linear(states, layer.weight, layer.bias)
                torch.testing.assert_close(layer(states), wanted, rtol=0.02, atol=0.2)


@pytest.mark.usefixtures("onednn")
def test_weights_made_in_inference_mode_are_never_stale():
    with torch.inference_mode():
        layer, states = Bfloat16Linear(nn.Linear(64, 8).bfloat16()), torch.randn(4, 64).bfloat16()
        with fast_linear(layer):
            layer(states)
            layer.weight.zero_()
            assert torch.equal(layer(states), layer.bias.expand(4, 8))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_outputs():
    with torch.inference_mode():
        layer = Bfloat16Linear(nn.Linear(17, 0, bias=False).bfloat16())
        with fast_linear(layer):
            assert layer(torch.randn(3, 17).bfloat16()).shape == (3, 0)


@pytest.mark.usefixtures("onednn")
def test_copies_and_stored_models_compute_the_same():
    made, tokens = fused(bert().bfloat16()), torch.tensor([[2, 5, 7, 11]])
    wanted = states_of(made, tokens)
    assert set(made.state_dict()) == set(bert().state_dict())
    assert made.cls.predictions.decoder.weight is made.bert.embeddings.word_embeddings.weight
    assert torch.equal(states_of(copy.deepcopy(made), tokens), wanted)
    assert torch.equal(states_of(pickle.loads(pickle.dumps(made)), tokens), wanted)


def test_with_gradients_autocast_and_in_other_types_it_is_the_plain_layer():
    torch.manual_seed(0)
    plain, gelu = nn.Linear(16, 4).bfloat16(), nn.GELU()
    layer, states = Bfloat16Linear(plain, gelu), torch.randn(3, 16).bfloat16()
    layer(states).sum().backward()
    assert layer.weight.grad is not None
    assert torch.equal(layer(states), gelu(plain(states)))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(states.float()), gelu(plain(states.float())))
    layer.float()
    with torch.inference_mode():
        assert torch.equal(layer(states.float()), gelu(plain(states.float())))


@pytest.mark.usefixtures("onednn")
def test_on_packs_each_sequence_is_what_it_is_alone():
    model = nopad.packed(lowered(bert(), "bfloat16"))
    assert type(model.bert.encoder.layer[0].output.dense) is Bfloat16Linear
    sequences = [list(range(1, 1 + n)) for n in (1, 2, 3, 17, 17, 40)]
    batch = nopad.PackedBatch.from_sequences(sequences)
    with fast_linear(model), torch.inference_mode():
        found = batch.unpack_tokens(model(**batch).logits)
        for sequence, one in zip(sequences, found, strict=True):
            alone = model(**nopad.PackedBatch.from_sequences([sequence])).logits[0]
            torch.testing.assert_close(one.float(), alone.float(), rtol=0, atol=0.01)


def test_a_cpu_without_the_instructions_keeps_the_plain_layers(monkeypatch):
    monkeypatch.setattr(precision, "_multiplies_bfloat16", lambda: False)
    assert type(lowered(bert(), "bfloat16").bert.encoder.layer[0].output.dense) is nn.Linear


@pytest.mark.parametrize("activation", [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.ReLU()], ids=repr)
def test_nan_stays_nan(activation):
    """oneDNN's ReLU makes 0 of it, so a failed request would get an answer; ReLU is not fused."""
    layers = nn.Sequential(nn.Linear(64, 64), activation).bfloat16().requires_grad_(False)
    if formula_of(activation) is not None:
        layers = Bfloat16Linear(layers[0], activation)
    states = torch.randn(300, 64).bfloat16()
    states[7, 3] = torch.nan
    with fast_linear(layers), torch.inference_mode():
        found = layers(states)
    assert found[7].isnan().all()
    assert found.isnan().any(-1).sum() == 1
