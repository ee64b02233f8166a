"""What depends on who shares a batch is refused by name; what does not stays equal to alone, on the stock model."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import transformers
from kinds import AllDouble, tiny
from test_families import build
from torch import nn

import nopad
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model.attention import packed_attention
from nopad.model.batchwide import check_layers
from nopad.model.refused import REFUSED

LONGROPE = {
    "original_max_position_embeddings": 16,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": 16,
    },
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def texts(*lengths):
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(4, 61, (length,), generator=generator) for length in lengths]


def alone(config, sequences):
    """From a stock model of its own for each sequence: some keep what an earlier one left."""
    return [build(config, "base")(input_ids=one[None]).last_hidden_state[0].detach() for one in sequences]


def packs(model, sequences, **how):
    batch = nopad.PackedBatch.from_sequences(sequences, **how)
    return [part.detach() for part in batch.unpack_tokens(model(**batch).last_hidden_state)]


def assert_equal(found, wanted):
    for mine, value in zip(found, wanted, strict=True):
        assert float((mine - value).abs().max()) < 1e-12


@pytest.fixture
def double():
    with AllDouble():
        yield


@pytest.mark.usefixtures("double")
class TestRope:
    @pytest.mark.parametrize("lengths", [(20, 18, 31), (16, 3, 1)])
    def test_longrope_on_one_side_of_the_switch(self, lengths):
        config = tiny("phi3", **LONGROPE)
        sequences = texts(*lengths)
        model = nopad.packed(build(config, "base"))
        assert_equal(packs(model, sequences), alone(config, sequences))
        assert_equal(packs(model, sequences, form=nopad.Rows(40)), alone(config, sequences))

    def test_the_switch_matters(self):
        config = tiny("phi3", **LONGROPE)
        (sequence,) = texts(30)
        long = build(config, "base")(input_ids=sequence[None]).last_hidden_state[0, :16]
        short = build(config, "base")(input_ids=sequence[None, :16]).last_hidden_state[0]
        assert float((long - short).detach().abs().max()) > 1e-3

    def test_longrope_across_the_switch(self):
        model = nopad.packed(build(tiny("phi3", **LONGROPE), "base"))
        with pytest.raises(
            BatchError,
            match=r"sequence 1 has 17 tokens and sequence 0 has 5: beyond 16 .* longrope switches the frequencies of "
            "the whole batch; put longer sequences into batches of their own",
        ):
            model(**nopad.PackedBatch.from_sequences(texts(5, 17, 3)))
        batch = nopad.PackedBatch.from_sequences(texts(3, 18, 9, 17), form=nopad.Rows(20))
        assert batch.layout.order.tolist() == [0, 3, 1, 2]  # not the order of the list
        with pytest.raises(BatchError, match="sequence 1 has 18 tokens and sequence 0 has 3: "):
            model(**batch)

    def test_dynamic_rope(self):
        config = tiny("llama", rope_parameters=DYNAMIC)
        model = build(config, "base")
        model(input_ids=texts(60)[0][None])  # its frequencies have grown now
        nopad.packed(model)
        for lengths in [(40, 3), (39, 40, 7), (12, 2)]:
            assert_equal(packs(model, texts(*lengths)), alone(config, texts(*lengths)))
        with pytest.raises(BatchError, match=r"sequence 1 has 41 tokens, and beyond 40 .* dynamic rope stretches the"):
            model(**nopad.PackedBatch.from_sequences(texts(3, 41)))
        batch = nopad.PackedBatch.from_sequences(texts(3, 41, 9, 39), form=nopad.Rows(42))
        assert batch.layout.order.tolist() == [0, 3, 1, 2]
        with pytest.raises(BatchError, match="sequence 1 has 41 tokens, and beyond 40 "):
            model(**batch)


@pytest.mark.filterwarnings("ignore")  # torch.ao is to move elsewhere
class TestQuantised:
    def quantised(self, dtype):
        model = build(tiny("ernie"), "base").float()
        return torch.ao.quantization.quantize_dynamic(nopad.packed(model), {nn.Linear}, dtype=dtype)

    def test_one_scale_for_all_activations(self):
        model = self.quantised(torch.qint8)
        with pytest.raises(UnsupportedModelError, match="Linear quantises activations with one scale for the"):
            model(**nopad.PackedBatch.from_sequences(texts(5, 7)))

    def test_half_precision_weights_have_no_scale(self):
        model = self.quantised(torch.float16)
        wanted = [model(input_ids=one[None]).last_hidden_state[0] for one in texts(5, 7)]
        for mine, value in zip(packs(model, texts(5, 7)), wanted, strict=True):
            torch.testing.assert_close(mine, value, atol=1e-5, rtol=1e-5)

    @pytest.fixture
    def trained_for_it(self):
        model = build(tiny("ernie"), "base").float()
        model.encoder.qconfig = torch.ao.quantization.get_default_qat_qconfig("x86")
        torch.ao.quantization.prepare_qat(model.train(), inplace=True)
        return nopad.packed(model.eval())

    def test_a_scale_that_follows_each_batch(self, trained_for_it):
        batch = nopad.PackedBatch.from_sequences(texts(5, 7))
        wanted = "FakeQuantize takes one scale of activations from the whole batch .*disable_observer"
        with pytest.raises(UnsupportedModelError, match=wanted):
            trained_for_it(**batch)
        trained_for_it.apply(torch.ao.quantization.disable_fake_quant)  # it only looks on
        trained_for_it(**batch)

    def test_fixed_scales_of_activations_and_scales_of_weights(self, trained_for_it):
        trained_for_it(input_ids=texts(20)[0][None])
        for name, module in trained_for_it.named_modules():
            if isinstance(module, torch.ao.quantization.FakeQuantize) and not name.endswith("weight_fake_quant"):
                module.disable_observer()
        wanted = [trained_for_it(input_ids=one[None]).last_hidden_state[0] for one in texts(5, 7)]
        for mine, value in zip(packs(trained_for_it, texts(5, 7)), wanted, strict=True):
            torch.testing.assert_close(mine, value, atol=0.05, rtol=0.05)  # a rounding may fall to the other side

    def test_a_scale_by_definition(self):
        model = nopad.packed(build(tiny("ernie"), "base").float())
        fixed = torch.ao.quantization.default_fixed_qparams_range_neg1to1_fake_quant()
        model.encoder.layer[0].output.activation_post_process = fixed
        model(**nopad.PackedBatch.from_sequences(texts(5, 7)))

    def test_outlier_columns_of_the_whole_batch(self):
        model = nopad.packed(build(tiny("ernie"), "base"))
        layer = type("Linear8bitLt", (nn.Linear,), {"__module__": "bitsandbytes.nn.modules"})(32, 32).double()
        layer.state = type("State", (), {"threshold": 6.0})()
        model.encoder.layer[0].output.dense = layer
        batch = nopad.PackedBatch.from_sequences(texts(5, 7))
        with pytest.raises(UnsupportedModelError, match="Linear8bitLt looks for outlier columns in the whole batch"):
            model(**batch)
        layer.state.threshold = 0.0
        model(**batch)

    @pytest.mark.parametrize(("granularity", "refused"), [("PerTensor", True), ("PerRow", False)])
    def test_weights_that_quantise_what_they_meet(self, granularity, refused):
        model = nopad.packed(build(tiny("ernie"), "base"))
        dense = model.encoder.layer[0].output.dense
        weight = type("Float8Tensor", (nn.Parameter,), {})(dense.weight.detach().clone())
        weight.act_quant_kwargs = type("Kwargs", (), {"granularity": type(granularity, (), {})()})()
        dense.weight = weight
        batch = nopad.PackedBatch.from_sequences(texts(5, 7))
        if refused:
            with pytest.raises(UnsupportedModelError, match="Linear quantises activations with one scale"):
                model(**batch)
        else:
            model(**batch)


def test_a_cache():
    model = nopad.packed(build(tiny("llama"), "base"))
    batch = nopad.PackedBatch.from_sequences(texts(5, 7))
    with pytest.raises(BatchError, match="past_key_values hold earlier tokens of rows"):
        model(**batch, past_key_values=transformers.DynamicCache(config=model.config))


class TestLayersThatDoNotSay:
    def test_causal_or_not(self):
        model = nopad.packed(build(tiny("ernie"), "base"))
        for layer in model.encoder.layer:
            del layer.attention.self.is_causal
        for call in (nopad.PackedBatch.from_sequences(texts(5, 7)), {"input_ids": texts(5)[0][None]}):
            with pytest.raises(UnsupportedModelError, match="does not say whether it attends causally"):
                model(**call)

    @pytest.mark.parametrize("kind", ["layoutlm", "markuplm", "splinter"])
    def test_kinds_of_that(self, kind):
        assert "do not say whether they attend causally" in REFUSED[kind]
        with pytest.raises(UnsupportedModelError, match=f"{kind} cannot run on packs: its layers do not say"):
            nopad.packed(build(tiny(kind), "base"))

    def test_what_a_layer_hands_over_that_nobody_knows(self):
        module = type("Layer", (nn.Module,), {"is_causal": True})()
        states = torch.zeros(1, 2, 3, 4)
        numbers = torch.ones(1, 1, 1, 3, dtype=torch.int32)
        with pytest.raises(UnsupportedModelError, match="Layer hands top_tokens to its attention, of which"):
            packed_attention(module, states, states, states, numbers, top_tokens=torch.zeros(3))
        packed_attention(module, states, states, states, numbers, num_items_in_batch=torch.tensor(3))


@pytest.mark.filterwarnings("ignore")  # of PEFT
class TestAdaptersPerRow:
    def wrapped(self, **how):
        peft = pytest.importorskip("peft")
        model = build(tiny("llama"), "causal LM")
        config = peft.LoraConfig(
            task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False, **how
        )
        return peft.get_peft_model(model, config).double().eval(), config

    @pytest.mark.parametrize("after", [False, True])
    def test_adapters_that_a_tokens_in_the_row_switch_on(self, after):
        model, _ = self.wrapped(alora_invocation_tokens=[50, 51])
        sequences = [torch.tensor(one) for one in ([5, 50, 51, 7], [9, 10, 11], [12, 50, 51, 13])]
        wanted = model(input_ids=sequences[0][None]).logits
        nopad.packed(model if after else model.get_base_model())
        with pytest.raises(UnsupportedModelError, match="PEFT hands alora_offsets to each layer, one per row"):
            model(**nopad.PackedBatch.from_sequences(sequences))
        assert torch.equal(model(input_ids=sequences[0][None]).logits, wanted)

    @pytest.mark.parametrize("form", [nopad.Flat(), nopad.Rows(20, rows=3)])
    def test_adapters_by_name(self, form):
        model, config = self.wrapped()
        model.add_adapter("other", config)
        nopad.packed(model)
        batch = nopad.PackedBatch.from_sequences(texts(5, 7, 3), form)
        with pytest.raises(UnsupportedModelError, match="PEFT hands adapter_names to each layer, one per row"):
            model(**batch, adapter_names=["default", "other", "default"])
        model(**batch)

    def test_no_hook_stays_if_a_cache_is_refused_too(self):
        """PEFT leaves its hooks on the layers after an error, and they act on the next call, packed or not."""
        model, config = self.wrapped()
        model.add_adapter("other", config)
        sequences = texts(5, 7, 3)
        wanted = model(input_ids=sequences[0][None]).logits
        nopad.packed(model)
        batch = nopad.PackedBatch.from_sequences(sequences)
        with pytest.raises(UnsupportedModelError, match="PEFT hands adapter_names to each layer, one per row"):
            model(**batch, adapter_names=["other", "other", "other"], past_key_values=[1])
        assert torch.equal(model(input_ids=sequences[0][None]).logits, wanted)


class Linear8bitLt(nn.Linear):
    """As far as is looked at, a layer of bitsandbytes."""

    state = SimpleNamespace(threshold=6.0)


@pytest.mark.parametrize("quantised_first", [False, True])
def test_hooks_per_row_are_removed_wherever_they_are(quantised_first):
    """With a quantised layer in front, they stayed on the model, and every later call was refused."""
    layers = [nn.Linear(2, 2), Linear8bitLt(2, 2), nn.Linear(2, 2)]
    model = nn.Sequential(*(layers if quantised_first else layers[::-1]))
    model[2 if quantised_first else 0].register_forward_pre_hook(
        partial(lambda *_, **__: None, adapter_names=["a"]), with_kwargs=True
    )
    with pytest.raises(UnsupportedModelError, match="PEFT hands adapter_names to each layer, one per row"):
        check_layers(model)
    assert not any(layer._forward_pre_hooks for layer in model)
    with pytest.raises(UnsupportedModelError, match="Linear8bitLt looks for outlier columns in the whole batch"):
        check_layers(model)


def test_noise_by_the_width_of_a_row():
    from transformers.integrations.neftune import neftune_post_forward_hook

    model = nopad.packed(build(tiny("llama"), "causal LM"))
    batch = nopad.PackedBatch.from_sequences(texts(5, 7))
    handle = model.get_input_embeddings().register_forward_hook(neftune_post_forward_hook)
    with pytest.raises(UnsupportedModelError, match="NEFTune adds noise to embeddings"):
        model(**batch)
    handle.remove()
    model(**batch)
