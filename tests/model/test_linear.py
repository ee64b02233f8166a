"""The faster kernel for linear layers: chosen by trying, never visible but in time."""

from __future__ import annotations

import copy

import pytest
import torch
from zoo import build

import nopad
from nopad.model import linear
from nopad.model.linear import FastLinear


@pytest.fixture
def chosen(monkeypatch):
    """Let oneDNN win, whatever this CPU is."""
    monkeypatch.setattr(FastLinear, "where_faster", classmethod(lambda cls, model: cls()))


def states(model, batch):
    with torch.no_grad():
        return model(**batch).last_hidden_state


def test_the_same_numbers_by_other_kernels(chosen, monkeypatch, sequences):
    called = []
    real = linear._by_onednn
    monkeypatch.setattr(linear, "_by_onednn", lambda *args: called.append(1) or real(*args))
    model = build("bert", dtype=torch.float32)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        alone = model(input_ids=sequences[2][None]).last_hidden_state[0]
    assert not called
    batch = nopad.PackedBatch.from_sequences(sequences)
    found = batch.unpack(states(nopad.packed(model), batch))[2]
    assert len(called) == 2 * 6 + 1  # each layer's six, and the pooler
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_changed_parameter_is_laid_out_again(chosen, sequences):
    model = nopad.packed(build("bert", dtype=torch.float32))
    batch = nopad.PackedBatch.from_sequences(sequences)
    first = states(model, batch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    changed = states(model, batch)
    assert not torch.allclose(first, changed, atol=1e-3)
    fresh = nopad.packed(copy.deepcopy(nopad.unpacked(model)))
    torch.testing.assert_close(states(fresh, batch), changed)
    model.load_state_dict(build("bert", dtype=torch.float32).state_dict())
    nopad.packed(model)
    torch.testing.assert_close(states(model, batch), first)


@pytest.mark.parametrize("why", ["gradients", "float64", "an ordinary call"])
def test_where_it_stays_off(chosen, monkeypatch, sequences, why):
    monkeypatch.setattr(linear, "_by_onednn", lambda *args: pytest.fail("laid-out weights were used"))
    model = nopad.packed(build("bert", dtype=torch.float64 if why == "float64" else torch.float32))
    batch = nopad.PackedBatch.from_sequences(sequences)
    if why == "gradients":
        model(**batch).last_hidden_state.sum().backward()
    elif why == "float64":
        states(model, batch)
    else:
        with torch.no_grad():
            model(input_ids=sequences[0][None])


def test_an_error_leaves_no_mode_behind(chosen, sequences):
    model = nopad.packed(build("bert", dtype=torch.float32))
    handle = model.encoder.layer[0].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        states(model, nopad.PackedBatch.from_sequences(sequences))
    handle.remove()
    assert torch.overrides._get_current_function_mode() is None


@pytest.fixture
def measure(monkeypatch):
    """Let every try end with this gain; what is asked for more than once is still tried once."""

    def measure(gain):
        tried = []
        real = linear._fastest
        linear._gain.cache_clear()
        monkeypatch.setattr(linear, "_fastest", lambda *ways: tried.append(real(*ways, turns=1)) or [gain, 1.0])
        return tried

    yield measure
    linear._gain.cache_clear()


@pytest.mark.parametrize(("gain", "taken"), [(1.85, True), (1.15, True), (1.14, False), (0.5, False)])
def test_it_says_what_it_found_once_and_draws_nothing(caplog, measure, gain, taken):
    tried = measure(gain)
    model = build("bert", dtype=torch.float32)
    state = torch.random.get_rng_state()
    with caplog.at_level("INFO", logger="nopad"):
        mode = FastLinear.where_faster(model)
        again = FastLinear.where_faster(model)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert isinstance(mode, FastLinear) == isinstance(again, FastLinear) == taken
    assert (mode is None, again is None) == (not taken, not taken)
    assert len(tried) == 1
    [record] = caplog.records
    assert record.message == (
        "linear layers of 24 x 24 on this CPU: oneDNN with laid-out weights is "
        f"{gain:.2f} times as fast as PyTorch's own; {'taken for inference' if taken else 'not taken'}"
    )
    assert FastLinear.where_faster(torch.nn.ReLU()) is None
