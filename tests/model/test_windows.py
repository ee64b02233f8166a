"""Windows of layers: the model makes masks from its configuration, nopad's attention takes the window of the layer."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as t
from torch import nn
from zoo import build

import nopad
from nopad.errors import UnsupportedModelError

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 3, "num_hidden_layers": 4}


def without_the_first(model):
    del model.layers[0]
    model.config.num_hidden_layers -= 1


def exchanged(model):
    model.layers[0], model.layers[1] = model.layers[1], model.layers[0]


def taken_from_another(model):
    other = build("qwen3", "base", **{**ALTERNATING, "sliding_window": 2}).layers[0]
    for module in other.modules():
        if hasattr(module, "config"):
            module.config = model.config
    model.layers[0] = other


def of_another_size(model):
    model.config.sliding_window = 2


def of_other_types(model):
    model.config.layer_types = model.config.layer_types[::-1]


GIVEN = [[*range(5, 24)], [7], [*range(30, 41)]]


def equals(model, stock, near=1e-12):
    batch = nopad.PackedBatch.from_sequences(GIVEN)
    with torch.no_grad():
        for one, ids in zip(batch.unpack_tokens(model(**batch).last_hidden_state), GIVEN, strict=True):
            alone = stock(input_ids=torch.tensor([ids])).last_hidden_state[0]
            assert float((one - alone).abs().max()) <= near


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("change", [without_the_first, exchanged, taken_from_another, of_another_size, of_other_types])
def test_a_layer_that_has_another_window_than_its_mask_is_refused(change, before):
    model, batch = build("qwen3", "base", **ALTERNATING), nopad.PackedBatch.from_sequences([[5, 6, 7, 8, 9]])
    if before and change is not taken_from_another:
        change(model)
        nopad.packed(model)
    else:
        nopad.packed(model)(**batch)
        change(model)
        model.set_attn_implementation(model.config._attn_implementation)
    says = r"layers\.\d\.self_attn, a Qwen3Attention, has (sliding_window|layer_type|layer_types) = .* there"
    with pytest.raises(UnsupportedModelError, match=says):
        model(**batch)


@pytest.mark.parametrize("size", [2, 4, None])
def test_layers_that_read_it_in_a_configuration_that_is_not_the_models(size):
    model = nopad.packed(t.MistralModel(t.MistralConfig(**TINY, sliding_window=3)).double().eval())
    batch = nopad.PackedBatch.from_sequences([[5, 6, 7, 8, 9]])
    model(**batch)
    model.config = copy.deepcopy(model.config)
    model(**batch)  # an equal one
    model.config.sliding_window = size
    says = rf"layers\.0\.self_attn, a MistralAttention, has sliding_window = 3, .* makes it {size} there"
    with pytest.raises(UnsupportedModelError, match=says):
        model(**batch)


@pytest.mark.parametrize("change", [exchanged, of_another_size])
def test_in_a_class_of_ones_own(change):
    class Mine(t.Qwen3Model):
        pass

    config = t.Qwen3Config(**{**TINY, **ALTERNATING, "use_sliding_window": True})
    model, batch = Mine(config).double().eval(), nopad.PackedBatch.from_sequences([[5, 6, 7, 8, 9]])
    nopad.packed(model, head="tokens", prove="never")(**batch)
    change(model)
    with pytest.raises(UnsupportedModelError, match=r"layers\.\d\.self_attn, a Qwen3Attention, has "):
        model(**batch)


@pytest.mark.parametrize("by", [-1, 1])
def test_a_window_that_is_off_by_one(by):
    """The token itself counts on one side in some classes, and on both in others."""
    model, batch = build("modernbert", "base"), nopad.PackedBatch.from_sequences([[5, 6, 7, 8, 9]])
    nopad.packed(model)(**batch)
    model.config.sliding_window += by
    with pytest.raises(UnsupportedModelError, match=r"a ModernBertAttention, has .* = "):
        model(**batch)


def test_a_configuration_of_which_no_model_can_be_built():
    config = t.SmolLM3Config(**{**TINY, **ALTERNATING, "use_sliding_window": True, "no_rope_layers": [1, 0, 1, 0]})
    model, batch = t.SmolLM3Model(config).double().eval(), nopad.PackedBatch.from_sequences([[5, 6, 7, 8, 9]])
    nopad.packed(model)(**batch)
    model.layers.insert(1, model.layers[1])
    model.config.layer_types = [*model.config.layer_types, "sliding_attention"]
    model.config.num_hidden_layers += 1
    with pytest.raises(UnsupportedModelError, match=r"no SmolLM3Model can be built .*IndexError"):
        model(**batch)


@pytest.mark.parametrize("kind", ["exaone4", "mistral", "gemma3_text", "qwen2", "cohere2", "olmo3"])
def test_the_windows_of_a_configurations_default(kind):
    """In six layers, so that each pattern of layers shows; EXAONE 4 keeps a window where none is used."""
    config = t.AutoConfig.for_model(kind, **{**TINY, "num_hidden_layers": 6, "sliding_window": 3})
    torch.manual_seed(0)
    stock = t.AutoModel.from_config(config, dtype=torch.float64).eval()
    given = [torch.randint(3, 50, (n,)) for n in (11, 1, 8)]
    model, batch = nopad.packed(copy.deepcopy(stock)), nopad.PackedBatch.from_sequences(given)
    with torch.no_grad():
        for one, ids in zip(batch.unpack_tokens(model(**batch).last_hidden_state), given, strict=True):
            alone = stock(input_ids=ids[None]).last_hidden_state[0]
            assert float((one - alone).abs().max()) <= 2e-5  # some compute their softmax in float32


def chosen(model, layers):
    """Keep these layers, by number, as one who prunes a model does: what the configuration says by layer goes along."""
    config = model.config
    model.layers = nn.ModuleList(model.layers[one] for one in layers)
    config.num_hidden_layers = len(layers)
    config.layer_types = [config.layer_types[one] for one in layers]
    return model


@pytest.mark.parametrize("layers", [[0, 2, 4], [0, 1, 3], [5, 4, 3, 2, 1, 0], [0, 0, 1, 1]], ids=str)
@pytest.mark.parametrize("kind", ["cohere2", "exaone4", "gemma3_text", "modernbert", "olmo3", "qwen3"])
def test_layers_removed_moved_or_repeated_with_their_types(kind, layers):
    """A layer's own number is then another one than its place, or beyond the last."""
    types = ["sliding_attention", "full_attention"] * 3
    shape = {**TINY, "num_hidden_layers": 6, "layer_types": types, "use_sliding_window": True, "use_cache": False}
    config = t.AutoConfig.for_model(kind, **shape, sliding_window=3, local_attention=6)
    torch.manual_seed(0)
    stock = t.AutoModel.from_config(config, dtype=torch.float64).eval()
    for matrix in (one for one in stock.parameters() if one.dim() > 1):
        nn.init.normal_(matrix, std=0.3)  # so that a wrong window shows
    model = nopad.packed(chosen(copy.deepcopy(stock), layers))
    equals(model, chosen(stock, layers))


def test_a_layer_that_cannot_pass_its_window_on():
    """Qwen2-MoE has a window in its masks only."""
    shape = {**TINY, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    config = t.Qwen2MoeConfig(**shape, sliding_window=3, use_sliding_window=True, layer_types=["sliding_attention"] * 2)
    model = t.Qwen2MoeModel(config).eval()
    with pytest.raises(
        UnsupportedModelError, match="Qwen2MoeAttention of layer 0 attends within a window and does not"
    ):
        nopad.packed(model, prove="never")(**nopad.PackedBatch.from_sequences(GIVEN))


def test_layers_of_one_window_may_be_exchanged():
    def changed(model):
        model.layers[0], model.layers[2] = model.layers[2], model.layers[0]
        return model

    model, stock = (build("qwen3", "base", **ALTERNATING) for _ in range(2))
    nopad.packed(model)(**nopad.PackedBatch.from_sequences([[5, 6, 7], [8]]))
    equals(changed(model), changed(stock))
