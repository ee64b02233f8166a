"""Linear layers in int8: exactly the products of the rounded numbers, one scale per token and per output."""

from __future__ import annotations

import copy
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.model.kinds import tiny
from tests.model.zoo import build
from transformers import AutoModelForCausalLM, BertConfig, BertForMaskedLM

import nopad
from nopad.errors import UnsupportedModelError
from nopad.model import int8, lowered, precision
from nopad.model._int8_kernels import quantise
from nopad.model.int8 import Int8Linear

FLOATS = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


def rounded(values):
    """Rows as 8-bit numbers and scales, in float64."""
    values = values.astype(np.float64)
    scale = np.abs(values).max(1, keepdims=True) / 127
    whole = np.divide(values, scale, out=np.zeros_like(values), where=scale > 0)
    return whole, scale[:, 0]


def compiled(values):
    whole, scales = np.empty(values.shape, np.int8), np.empty(len(values), np.float32)
    quantise(values, values.view(np.uint32), whole, scales)
    return whole, scales


@given(arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 40)), elements=FLOATS))
def test_a_row_is_rounded_to_the_nearest_of_255_steps(values):
    values[np.abs(values) < 1e-30] = 0  # below, a step is no normal number
    whole, scales = compiled(values)
    exact, scale = rounded(values)
    np.testing.assert_allclose(scales, scale, rtol=1e-6)
    assert np.abs(whole - exact).max() <= 0.5 + 1e-4
    for row, of_zero in zip(whole, scale == 0, strict=True):
        assert np.abs(row.astype(int)).max() == (0 if of_zero else 127)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_gets_the_scale_nan_and_no_other_row_does(odd):
    values = np.ones((3, 20), np.float32)
    values[1, 7] = odd
    whole, scales = compiled(values)
    assert np.isnan(scales).tolist() == [False, True, False]
    assert (whole[[0, 2]] == 127).all()


@pytest.mark.parametrize("tiny", [1e-45, 3e-45, 1e-42, 1e-40, 3e-38, 1.4e-36])
def test_the_smallest_numbers_are_rounded_as_the_others_are(tiny):
    """Their scale has fewer bits; large weights may make something of them."""
    values = np.array([[tiny, -tiny / 2, tiny / 5, 0]], np.float32)
    whole, scales = compiled(values)
    step = scales.astype(np.float64)[:, None]
    assert (np.abs(whole * step - values) <= step * 0.5001).all()
    assert step[0, 0] <= max(tiny / 127 * 1.01, 2.0**-149 + tiny / 127)


def test_the_smallest_weights_are_rounded_as_the_others_are():
    for small in (1e-44, 1e-40, 1e-38):
        exact = torch.nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            exact.weight[:] = torch.tensor([small, -small / 3, small / 7])
        made = Int8Linear(exact)
        step = made.weight_scale.double()[:, None]
        assert (made.whole * step - exact.weight.double()).abs().max() <= step * 0.5001


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(2, 33), st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_results_are_the_products_of_the_rounded_numbers(tokens, inputs, outputs, biased, seed):
    torch.manual_seed(seed)
    exact = torch.nn.Linear(inputs, outputs, bias=biased)
    rough, states = Int8Linear(exact), torch.randn(tokens, inputs)
    with torch.inference_mode():
        found = rough(states).numpy()
    whole, scales = compiled(states.numpy())
    expected = whole.astype(np.float64) @ rough.whole.numpy().T.astype(np.float64)
    expected *= scales[:, None].astype(np.float64) * rough.weight_scale.numpy()
    expected += exact.bias.detach().numpy() if biased else 0
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    # Each factor is off by at most half a step
    steps = scales[:, None] * rough.weight_scale.numpy()
    assert (np.abs(found - exact(states).detach().numpy()) <= steps * inputs * (127 + 0.25) * 1.01 + 1e-5).all()


def test_any_number_of_dimensions_and_views():
    layer, states = Int8Linear(torch.nn.Linear(6, 4)), torch.randn(2, 3, 5, 12)[..., ::2]
    with torch.inference_mode():
        found = layer(states)
        assert found.shape == (2, 3, 5, 4)
        assert torch.equal(found[1, 2], layer(states[1, 2]))
        assert layer(states[:, :0]).shape == (2, 0, 5, 4)
    assert "in_features=6, out_features=4, bias=True" in repr(layer)


def test_weights_that_are_not_finite_stay_so():
    exact = torch.nn.Linear(3, 3)
    with torch.no_grad():
        exact.weight[1, 2] = float("nan")
        exact.weight[2] = 0
        found = Int8Linear(exact)(torch.ones(1, 3))
    assert found.isnan().tolist() == [[False, True, False]]
    assert found[0, 2] == exact.bias[2]


def test_what_it_cannot_do_is_refused():
    layer = Int8Linear(torch.nn.Linear(3, 3))
    with pytest.raises(UnsupportedModelError, match=r"torch\.float64 on cpu; on a GPU, and under autocast"):
        layer(torch.ones(1, 3).double())
    with pytest.raises(UnsupportedModelError, match="have no gradient"):
        layer(torch.ones(1, 3, requires_grad=True))


def test_results_are_float32_whatever_the_usual_dtype_and_device_are():
    layer, states = Int8Linear(torch.nn.Linear(6, 4)), torch.randn(3, 6)
    expected = layer(states)
    torch.set_default_dtype(torch.float64)
    try:
        found = layer(states)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    with torch.device("meta"):
        assert torch.equal(layer(states), expected)


def test_a_layer_of_any_dtype_gets_scales_in_float32():
    for dtype in (torch.float64, torch.bfloat16):
        layer = Int8Linear(torch.nn.Linear(6, 4).to(dtype))
        assert (layer.weight_scale.dtype, layer.bias.dtype) == (torch.float32, torch.float32)
        assert layer(torch.ones(2, 6)).dtype == torch.float32


def test_weights_of_a_layer_in_float32_are_refused():
    """They would be copied into 8 bits as they are: all 0."""
    exact = torch.nn.Linear(6, 4)
    layer, states = Int8Linear(exact), torch.randn(3, 6)
    expected = layer(states)
    for strict in (True, False):
        with pytest.raises(RuntimeError, match="weight is of a layer that is not in int8"):
            layer.load_state_dict(exact.state_dict(), strict=strict)
        assert torch.equal(layer(states), expected)
    other = Int8Linear(torch.nn.Linear(6, 4))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(states), expected)


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "jamba", "deberta", "t5"])
def test_models_that_read_the_weights_of_a_layer_themselves(kind):
    torch.manual_seed(0)
    if kind in ("deberta", "t5"):
        exact = build(kind, dtype=torch.float32)
    else:
        exact = AutoModelForCausalLM.from_config(tiny(kind)).eval()
    made = int8.in_int8(copy.deepcopy(exact))
    ids = torch.randint(5, 60, (1, 12))
    with torch.inference_mode():
        found, wanted = made(ids)[0].flatten(), exact(ids)[0].flatten()
    assert torch.nn.functional.cosine_similarity(found, wanted, dim=0) > 0.99
    layer = next(one for one in made.modules() if isinstance(one, Int8Linear))
    assert layer.weight.dtype == torch.float32


@pytest.mark.parametrize("inputs", [2, 384, 1024, 1025, 2048, 4097, int8.MOST_INPUTS])
def test_products_in_float32_are_the_integers_whatever_their_sums_are(inputs):
    draw = torch.Generator().manual_seed(inputs)
    states, weight = (torch.randint(-127, 128, (n, inputs), generator=draw).to(torch.int8) for n in (7, 5))
    states[0], weight[0] = 127, 127  # the largest sums
    states[1], weight[1] = 127 * weight[2].sign(), -127 * weight[2].sign()
    found = int8._by_float32(states, weight)
    assert found.dtype == torch.int32
    assert found[0, 0] == 127**2 * inputs
    assert torch.equal(found, (states.double() @ weight.double().t()).int())
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        assert torch.equal(int8._by_float32(states, weight), found)


def test_results_are_the_same_to_the_last_bit_in_both_ways_to_multiply(monkeypatch):
    layers = [Int8Linear(torch.nn.Linear(inputs, 9)) for inputs in (64, 1500)]
    states = [torch.randn(20, layer.in_features) for layer in layers]
    found, ways = [], (int8._by_pytorch, int8._by_float32)
    for way in ways:
        monkeypatch.setattr(int8, "_fastest_product", lambda way=way: way)
        found.append([layer(given) for layer, given in zip(layers, states, strict=True)])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("slow", ["_by_pytorch", "_by_float32"])
def test_the_faster_way_to_multiply_is_taken(monkeypatch, slow):
    real, calls = getattr(int8, slow), []
    monkeypatch.setattr(int8, slow, lambda *given: (calls.append(1), time.sleep(0.05), real(*given))[-1])
    int8._fastest_product.cache_clear()
    try:
        other = {"_by_pytorch": "_by_float32", "_by_float32": "_by_pytorch"}[slow]
        assert int8._fastest_product() is getattr(int8, other)
        timed = len(calls)
        assert int8._fastest_product() is getattr(int8, other)
        assert len(calls) == timed > 0  # once per process
    finally:
        int8._fastest_product.cache_clear()


@pytest.mark.parametrize(("gain", "said"), [(0.6612, "at 0.66 of its speed in float32"), (1.7, "")])
def test_a_cpu_on_which_int8_is_no_faster_is_warned_about(monkeypatch, caplog, gain, said):
    monkeypatch.setattr(precision, "gain_of_int8", lambda: gain)
    lowered(build("bert", dtype=torch.float32), "int8")
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(warnings) == bool(said)
    assert all("int8 is no faster than float32 on this CPU" in one and said in one for one in warnings)


def test_timing_int8_draws_no_random_numbers():
    int8.gain_of_int8.cache_clear()
    before = torch.get_rng_state()
    assert 0.01 < int8.gain_of_int8() < 100
    assert torch.equal(torch.get_rng_state(), before)


def test_products_that_are_not_exact_are_noticed(monkeypatch):
    """As of kernels that add pairs of products in 16 bits, which saturate."""
    monkeypatch.setattr(int8, "_fastest_product", lambda: int8._by_pytorch)
    real = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda one, other: real(one, other).clamp(-40_000, 40_000))
    Int8Linear(torch.nn.Linear(2, 4))  # whose sums are small enough
    with pytest.raises(UnsupportedModelError, match="does not multiply 8-bit integers exactly on this CPU"):
        Int8Linear(torch.nn.Linear(20, 4))


def test_layers_whose_sums_might_not_fit_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(int8, "MOST_INPUTS", 8)
    empty = torch.nn.Linear(2, 1)
    empty.weight, empty.out_features = torch.nn.Parameter(empty.weight[:0].detach()), 0
    found = int8.in_int8(torch.nn.Sequential(*(torch.nn.Linear(inputs, 2) for inputs in (1, 2, 8, 9)), empty))
    plain = torch.nn.Linear
    assert [type(one) for one in found] == [plain, Int8Linear, Int8Linear, plain, plain]
    assert 133_144 * 127**2 < 2**31 <= 133_145 * 127**2


def test_packs_of_a_model_in_int8_are_each_sequence_alone_to_the_last_bit():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(**sizes, vocab_size=90)).eval()
    made = lowered(model, "int8")
    assert type(model.cls.predictions.decoder) is torch.nn.Linear
    assert type(made.cls.predictions.decoder) is Int8Linear  # though its weights were the embedding's
    made = copy.deepcopy(made)
    packs = nopad.packed(made)
    draw = np.random.default_rng(0)
    sequences = [draw.integers(5, 90, size).tolist() for size in (7, 30, 1, 12)]
    for form in (nopad.Flat(), nopad.Rows(32)):
        batch = nopad.PackedBatch.from_sequences(sequences, form)
        with torch.inference_mode():
            found = batch.unpack_tokens(packs(**batch).logits)
            for ids, one in zip(sequences, found, strict=True):
                alone = made(input_ids=torch.tensor([ids])).logits[0]
                torch.testing.assert_close(one, alone, rtol=0, atol=1e-6)
