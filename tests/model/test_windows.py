"""Windows of layers: the model makes masks from its configuration, nopad's attention takes the window of the layer."""

from __future__ import annotations

import copy
import threading
import time

import numpy as np
import pytest
import torch
import transformers as t
from packaging.version import Version
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
from zoo import build

import nopad
from nopad.errors import UnsupportedModelError
from nopad.model.windows import Windows, seen_in

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


def who(name, value):
    def change(model):
        setattr(model.config, name, value)

    return change


def of_another_mask(model):
    model.layers[1].attention_type = "full_attention"


def exchanged_without_their_attention(model):
    layers = model.layers
    layers[0], layers[1] = layers[1], layers[0]
    layers[0].attn, layers[1].attn = layers[1].attn, layers[0].attn


SIDES = {"layer_types": ["full_attention"] * 2, "use_bidirectional_attention": False}
CHANGED = {  # kind, settings, change, what the message says
    "both sides": ("gemma3_text", SIDES, who("use_bidirectional_attention", True), "has is_causal = True"),
    "one side": (
        "gemma3_text",
        {**SIDES, "use_bidirectional_attention": True},
        who("use_bidirectional_attention", False),
        "has is_causal = False",
    ),
    "type of a layer": ("modernbert", {}, of_another_mask, r"layers\.1, a ModernBertEncoderLayer, has attention_type"),
    "layers but not attention": ("modernbert", {}, exchanged_without_their_attention, "has attention_type = "),
    "a decoder": ("bert", {}, who("is_decoder", True), "has is_decoder = False"),
    "not causal": ("qwen3", {}, who("is_causal", False), "cannot run on packs"),
    "its own masks": ("phimoe", {"sliding_window": None}, who("sliding_window", 3), "cannot run on packs"),
}


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("case", CHANGED)
def test_who_sees_later_tokens_is_changed_in_a_model_that_was_built(case, before):
    kind, settings, change, says = CHANGED[case]
    shape = {**TINY, "global_attn_every_n_layers": 2, "local_attention": 6, "num_local_experts": 2, **settings}
    model = t.AutoModel.from_config(t.AutoConfig.for_model(kind, **shape)).eval()
    if before:
        change(model)
    else:
        nopad.packed(model)(**nopad.PackedBatch.from_sequences([[5, 6, 7], [8]]))
        change(model)
    with pytest.raises(UnsupportedModelError, match=says):
        (nopad.packed(model) if before else model)(**nopad.PackedBatch.from_sequences([[5, 6, 7], [8]]))


APART = pytest.mark.skipif(
    Version(t.__version__) < Version("5.20"),
    reason="transformers does not set the attention of a base with a configuration of its own, and nopad refuses it",
)


def with_another_base(**settings):
    """A language model whose base has a configuration of its own, with these settings."""
    torch.manual_seed(0)
    model = t.Qwen3ForCausalLM(t.Qwen3Config(**{**TINY, **ALTERNATING, "use_sliding_window": True}))
    model.model = t.Qwen3Model(t.Qwen3Config(**{**TINY, **ALTERNATING, "use_sliding_window": True, **settings}))
    for matrix in (one for one in model.parameters() if one.dim() > 1):
        nn.init.normal_(matrix, std=0.3)
    return model.double().eval()


@APART
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("change", [of_another_size, of_other_types])
def test_a_base_model_whose_own_configuration_is_changed(change, before):
    model, batch = with_another_base(), nopad.PackedBatch.from_sequences(GIVEN)
    if before:
        change(model.model)
        nopad.packed(model)
    else:
        nopad.packed(model)(**batch)
        change(model.model)
    with pytest.raises(UnsupportedModelError, match=r"model\.layers\.0\.self_attn, a Qwen3Attention, has "):
        model(**batch)


@APART
@pytest.mark.parametrize(
    "settings",
    [{"sliding_window": 5}, {"layer_types": ["full_attention"] * 4}, {"layer_types": ["sliding_attention"] * 4}],
    ids=str,
)
def test_a_base_model_with_a_configuration_of_its_own(settings):
    stock, batch = with_another_base(**settings), nopad.PackedBatch.from_sequences(GIVEN)
    model = nopad.packed(copy.deepcopy(stock))
    with torch.no_grad():
        for one, ids in zip(batch.unpack_tokens(model(**batch).logits), GIVEN, strict=True):
            alone = stock(input_ids=torch.tensor([ids])).logits[0]
            assert float((one - alone).abs().max()) <= 1e-11


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class OwnAttention(Qwen3Attention):
    pass


def around_layers(model):
    model.layers = nn.ModuleList(map(Around, model.layers))


def around_attention(model):
    for layer in model.layers:
        layer.self_attn = Around(layer.self_attn)


def attention_of_ones_own(model):
    for number, layer in enumerate(model.layers):
        layer.self_attn = OwnAttention(model.config, number)


def compiled(model):
    for number, layer in enumerate(model.layers):
        model.layers[number] = torch.compile(layer)


def checkpointed(model):
    for number, layer in enumerate(model.layers):
        model.layers[number] = checkpoint_wrapper(layer)


def another_window_in_attention(model):
    next(one for one in model.modules() if isinstance(one, Qwen3Attention)).sliding_window = 2


def meta(wrap):
    """A model of which `wrap` put some modules into others, and what it said then"""
    with torch.device("meta"):
        model = t.Qwen3Model(t.Qwen3Config(**{**TINY, **ALTERNATING, "use_sliding_window": True}))
        wrap(model)
    return model, seen_in(model)


def check(model, first):
    Windows(model, [one for one in model.modules() if isinstance(one, Qwen3Attention)], first).check()


WRAPS = [around_layers, around_attention, attention_of_ones_own, compiled, checkpointed]


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch.compile
@pytest.mark.parametrize("change", [of_another_size, of_other_types, exchanged, another_window_in_attention])
@pytest.mark.parametrize("wrap", WRAPS)
def test_layers_in_modules_of_others_say_what_they_said(wrap, change):
    model, first = meta(wrap)
    check(model, first)
    change(model)
    with pytest.raises(UnsupportedModelError, match=r"make it pack-safe anew|make both agree"):
        check(model, first)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch.compile
def test_settings_that_decide_nothing_may_change():
    model, batch = build("qwen3", "base", **ALTERNATING), nopad.PackedBatch.from_sequences([[5, 6, 7], [8]])
    nopad.packed(model)(**batch)
    model.gradient_checkpointing = True
    model.train().eval()
    for name, value in {"pad_token_id": 3, "use_cache": False, "attention_dropout": 0.5}.items():
        setattr(model.config, name, value)
    ours = {"my_window": 7, "local_array": np.ones(2), "global_list": [np.ones(2)], "lock": threading.Lock()}
    vars(model.config).update(ours, windowed=float("nan"), pattern=object())
    model(**batch)
    windows = model._nopad_state.windows
    model(**batch)
    assert model._nopad_state.windows is windows  # compared once
    model.config.id2label, model.config.problem_type = {0: "a"}, "regression"
    for layer in model.layers:
        layer.self_attn.attention_dropout = 0.5
    model(**batch)
    for wrap in (compiled, checkpointed):
        first = seen_in(model)
        wrap(model)
        check(model, first)


def test_the_check_of_each_call_takes_little_time():
    model = t.BertModel(t.BertConfig(**{**TINY, "num_hidden_layers": 12}))
    windows = Windows(model, [one for one in model.modules() if type(one).__name__ == "BertSelfAttention"], {})
    took = []
    for _ in range(50):
        began = time.perf_counter()
        assert windows.are_current
        windows.check()
        took.append(time.perf_counter() - began)
    assert min(took) < 1e-4


@pytest.mark.parametrize("config", [{"hidden": 16}, "small", (1, 2)], ids=str)
def test_parts_whose_config_is_no_configuration(config):
    model, batch = build("bert", "base"), nopad.PackedBatch.from_sequences(GIVEN)
    model.pooler.config = config
    nopad.packed(model, prove="never")(**batch)


def test_attributes_that_a_user_adds_to_a_model():
    model, batch = nopad.packed(build("qwen3", "base", **ALTERNATING)), nopad.PackedBatch.from_sequences(GIVEN)
    model.global_step, model.local_rank, model.layers[0].local_name = 0, 3, "first"
    model(**batch)
    model.global_step += 1
    model(**batch)
    model.layers[0].self_attn.sliding_window = 9
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\.self_attn, a Qwen3Attention, has sliding_window = 9"):
        model(**batch)


def test_building_a_model_draws_no_random_numbers_of_the_call():
    """An audited step that draws some is reported as random."""

    class Drawn(TorchDispatchMode):
        seen = ()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += (func.name(),) if "normal" in func.name() or "uniform" in func.name() else ()
            return func(*args, **kwargs or {})

    model, batch = nopad.packed(build("qwen3", "base", **ALTERNATING)), nopad.PackedBatch.from_sequences(GIVEN)
    state = torch.random.get_rng_state()
    with Drawn() as drawn:
        model(**batch)
    assert drawn.seen == ()
    assert torch.equal(state, torch.random.get_rng_state())


class BothWays(t.LlamaModel):
    """A decoder made bidirectional, as LLM2Vec does it."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers:
            layer.self_attn.is_causal = False


def test_a_class_of_ones_own_that_sees_both_ways_is_compared_with_itself():
    """A proof is of what it made, and not of what transformers' class would make."""
    from nopad.model.attention import looks_up

    model = BothWays(t.LlamaConfig(**TINY))
    attends = [one for one in model.modules() if looks_up(type(one))]
    first = seen_in(model)
    Windows(model, attends, first).check()
    model.layers[1].self_attn.is_causal = True
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.self_attn, .* had is_causal = False when"):
        Windows(model, attends, first).check()


@pytest.mark.parametrize("size", [0, -1])
def test_a_window_in_which_nothing_is_seen(size):
    model = nopad.packed(build("qwen3", "base", **{**ALTERNATING, "sliding_window": size}))
    with pytest.raises(
        UnsupportedModelError, match=f"Qwen3Attention has a window of {size} tokens, so it would see noth"
    ):
        model(**nopad.PackedBatch.from_sequences(GIVEN))
