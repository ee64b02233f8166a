"""Linear layers in int8: exactly the products of the rounded numbers, one scale per token and per output."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers import BertConfig, BertForMaskedLM

import nopad
from nopad.errors import UnsupportedModelError
from nopad.model import int8, lowered
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


@pytest.mark.parametrize("tiny", [1e-45, 1e-40, 3e-38])
def test_the_smallest_numbers_are_zero_or_nearly(tiny):
    whole, scales = compiled(np.full((1, 3), tiny, np.float32))
    assert (np.abs(whole * scales[:, None] - tiny) <= tiny).all()


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(2, 33), st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_results_are_the_products_of_the_rounded_numbers(tokens, inputs, outputs, biased, seed):
    torch.manual_seed(seed)
    exact = torch.nn.Linear(inputs, outputs, bias=biased)
    rough, states = Int8Linear(exact), torch.randn(tokens, inputs)
    with torch.inference_mode():
        found = rough(states).numpy()
    whole, scales = compiled(states.numpy())
    expected = whole.astype(np.float64) @ rough.weight.numpy().T.astype(np.float64)
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


def test_products_that_are_not_exact_are_noticed(monkeypatch):
    """As of kernels that add pairs of products in 16 bits, which saturate."""
    real = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda one, other: real(one, other).clamp(-40_000, 40_000))
    Int8Linear(torch.nn.Linear(2, 4))  # whose sums are small enough
    with pytest.raises(UnsupportedModelError, match="does not multiply 8-bit integers exactly on this CPU"):
        Int8Linear(torch.nn.Linear(20, 4))


def test_layers_whose_sums_might_not_fit_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(int8, "MOST_INPUTS", 8)
    found = int8.in_int8(torch.nn.Sequential(*(torch.nn.Linear(inputs, 2) for inputs in (1, 2, 8, 9))))
    assert [type(one) for one in found] == [torch.nn.Linear, Int8Linear, Int8Linear, torch.nn.Linear]
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
