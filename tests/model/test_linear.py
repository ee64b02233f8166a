"""The faster kernel for linear layers: taken inside its scope only, never visible but in time."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from zoo import build

import nopad
from nopad.model import fast_linear, linear, static_inputs


@pytest.fixture
def chosen(monkeypatch):
    """Let oneDNN win, whatever this CPU is."""
    monkeypatch.setattr(linear, "_gain", lambda inputs, outputs: 2.0)


@pytest.fixture
def called(monkeypatch):
    """The calls of oneDNN's kernel."""
    seen = []
    real = linear._by_onednn
    monkeypatch.setattr(linear, "_by_onednn", lambda *args: seen.append(1) or real(*args))
    return seen


def states(model, batch):
    with torch.no_grad():
        return model(**batch).last_hidden_state


def fast(model, batch):
    with fast_linear(model):
        return states(model, batch)


def test_the_same_numbers_by_other_kernels(chosen, called, sequences):
    model = build("bert", dtype=torch.float32)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        alone = model(input_ids=sequences[2][None]).last_hidden_state[0]
    batch = nopad.PackedBatch.from_sequences(sequences)
    found = batch.unpack_tokens(fast(nopad.packed(model), batch))[2]
    assert len(called) == 2 * 6 + 1  # each layer's six, and the pooler
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Lowered(torch.Tensor):
    """A weight of another type, as torchao's int8 weights are: only its own kernels can multiply by it."""


def test_weights_of_another_type_keep_their_own_kernel(chosen, called, sequences):
    model = build("bert", dtype=torch.float32)
    layers = [layer for layer in model.modules() if type(layer) is torch.nn.Linear]
    model, batch = nopad.packed(model), nopad.PackedBatch.from_sequences(sequences)
    for left, layer in zip((12, 6, 0), (layers[0], layers[1:7], layers[7:]), strict=True):
        for one in [layer] if isinstance(layer, torch.nn.Module) else layer:
            one.weight = torch.nn.Parameter(one.weight.detach().as_subclass(Lowered), requires_grad=False)
        called.clear()
        fast(model, batch)
        assert len(called) == left
    assert not linear.is_worth_it(model)


def test_nothing_but_the_scope_takes_it(chosen, called, sequences):
    model, other = (nopad.packed(build("bert", dtype=torch.float32)) for _ in range(2))
    batch = nopad.PackedBatch.from_sequences(sequences)
    states(model, batch)
    with fast_linear(other):
        states(model, batch)
        with torch.no_grad():
            model(input_ids=sequences[0][None])
    assert not called
    assert torch.overrides._get_current_function_mode() is None


CHANGES = {
    "in place": lambda p: p.add_(0.01),
    "swapped": lambda p: setattr(p, "data", p.data + 0.01),
    "written through .data": lambda p: p.data.copy_(p.data + 0.01),
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_changed_are_never_stale(chosen, called, sequences, change):
    model = nopad.packed(build("bert", dtype=torch.float32))
    batch = nopad.PackedBatch.from_sequences(sequences)
    first = fast(model, batch)
    with torch.no_grad():
        for parameter in model.parameters():
            CHANGES[change](parameter)
    plain = states(model, batch)
    torch.testing.assert_close(fast(model, batch), plain, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(first, plain, atol=1e-3)
    assert len(called) == 2 * 13


@pytest.mark.parametrize("change", ["in place", "swapped"])
def test_changes_inside_a_scope_that_pytorch_shows_are_seen(chosen, sequences, change):
    model = nopad.packed(build("bert", dtype=torch.float32))
    batch = nopad.PackedBatch.from_sequences(sequences)
    with fast_linear(model):
        states(model, batch)
        with torch.no_grad():
            for parameter in model.parameters():
                CHANGES[change](parameter)
        found = states(model, batch)
    torch.testing.assert_close(found, states(model, batch), atol=1e-5, rtol=1e-5)


def test_a_weight_in_the_place_of_one_that_was_freed_is_another(chosen):
    """Of two weights that come one after the other, the second may get the memory of the one before both."""
    layer, values = torch.nn.Linear(64, 64), torch.randn(4, 64)
    with fast_linear(layer), torch.no_grad():
        for _ in range(20):
            layer(values)
            for _ in range(2):
                layer.weight.data = torch.randn(64, 64)
            torch.testing.assert_close(layer(values), values @ layer.weight.T + layer.bias, rtol=1e-4, atol=1e-4)
        for _ in range(20):
            layer(values)
            for _ in range(2):
                layer.weight = torch.nn.Parameter(torch.randn(64, 64))
            torch.testing.assert_close(layer(values), values @ layer.weight.T + layer.bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("why", ["gradients", "float64", "autocast", "weights made for inference"])
def test_where_it_stays_off(chosen, called, sequences, why):
    dtype = torch.float64 if why == "float64" else torch.float32
    with torch.inference_mode(why == "weights made for inference"):
        model = nopad.packed(build("bert", dtype=dtype))
    batch = nopad.PackedBatch.from_sequences(sequences)
    with fast_linear(model):
        if why == "gradients":
            model(**batch).last_hidden_state.sum().backward()
        elif why == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert states(model, batch).isfinite().all()
        else:
            states(model, batch)
    assert not called


@pytest.mark.slow
@pytest.mark.parametrize("what", ["the model", "its layers"])
def test_what_is_compiled_is_left_to_the_compiler(chosen, sequences, what):
    torch._dynamo.reset()
    model = nopad.packed(build("bert", dtype=torch.float32), backend="mask")
    batch = nopad.PackedBatch.from_sequences(sequences, nopad.Rows(40))
    real = batch.layout.sequence_ids > 0
    wanted = states(model, batch)[real]
    if what == "its layers":
        for layer in model.encoder.layer:
            layer.compile(backend="eager")
        found = fast(model, batch)[real]
    else:
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        with fast_linear(model):
            found = states(compiled, static_inputs(model, batch))[real]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_an_error_leaves_no_mode_behind(chosen, sequences):
    model = nopad.packed(build("bert", dtype=torch.float32))
    handle = model.encoder.layer[0].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fast(model, nopad.PackedBatch.from_sequences(sequences))
    handle.remove()
    assert torch.overrides._get_current_function_mode() is None


@pytest.fixture
def measure(monkeypatch):
    """Let every try end with this gain; what is asked for more than once is still tried once."""

    def measure(gain):
        tried = []
        real = linear.fastest
        linear._gain.cache_clear()
        monkeypatch.setattr(linear, "fastest", lambda *ways: tried.append(real(*ways, turns=1)) or [gain, 1.0])
        return tried

    yield measure
    linear._gain.cache_clear()


@pytest.mark.parametrize(("gain", "taken"), [(1.85, True), (1.15, True), (1.14, False), (0.5, False)])
def test_it_says_what_it_found_once_and_draws_nothing(caplog, measure, gain, taken):
    tried = measure(gain)
    model = build("bert", dtype=torch.float32)
    state = torch.random.get_rng_state()
    with caplog.at_level("INFO", logger="nopad"):
        worth = linear.is_worth_it(model)
        with fast_linear(model):
            assert (torch.overrides._get_current_function_mode() is not None) == worth
    assert torch.equal(torch.random.get_rng_state(), state)
    assert worth == taken
    assert len(tried) == 1
    [record] = caplog.records
    assert record.message == (
        "linear layers of 24 x 24 on this CPU: oneDNN with laid-out weights is "
        f"{gain:.2f} times as fast as PyTorch's own; {'taken for inference' if taken else 'not taken'}"
    )
    assert not linear.is_worth_it(torch.nn.ReLU())


def test_an_embedder_takes_it_for_many_tokens_and_weights_as_they_are(chosen, called):
    from nopad.tasks import Embedder

    embedder = Embedder(build("bert", dtype=torch.float32), nopad.load_tokenizer())
    few, many = [[5] * 9] * 3, [[5 + n % 9] * (1 + n % 30) for n in range(200)]
    embedder.encode_ids(few)
    assert not called
    first = embedder.encode_ids(many)
    assert called
    for parameter in embedder.model.parameters():
        parameter.data.copy_(parameter.data + 0.01)  # as averages of weights are swapped in
    changed = embedder.encode_ids(many)
    assert np.abs(first - changed).max() > 1e-3
    np.testing.assert_allclose(changed[:3], embedder.encode_ids(many[:3]), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_default_dtype_or_device_changes_nothing(dtype):
    layer, given = torch.nn.Linear(23, 11), torch.ones(3, 23)
    wanted = layer(given)
    torch.set_default_dtype(dtype)
    try:
        linear._gain.cache_clear()
        with torch.inference_mode(), fast_linear(layer):
            assert torch.allclose(layer(given), wanted, atol=1e-6)
    finally:
        torch.set_default_dtype(torch.float32)
    linear._gain.cache_clear()
    with torch.device("meta"), torch.inference_mode(), fast_linear(layer):
        assert torch.allclose(layer(given), wanted, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("sizes", [(16, 0), (0, 8)])
def test_layers_without_inputs_or_outputs(chosen, called, sizes):
    layer = torch.nn.Linear(*sizes)
    given = torch.ones(3, sizes[0])
    with torch.inference_mode(), fast_linear(layer):
        found = layer(given)
    assert torch.equal(found, layer(given))
    assert not called
