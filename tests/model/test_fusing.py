"""Activations that are computed with the layer before them: never seen in a result, whoever holds what."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from zoo import build

import nopad
from nopad.model import fast_linear, linear

gelu, silu = nn.functional.gelu, nn.functional.silu


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    """Let oneDNN win, whatever this CPU is."""
    monkeypatch.setattr(linear, "_gain", lambda inputs, outputs: 2.0)


@pytest.fixture
def formulas(monkeypatch):
    """The activations that oneDNN computes, call by call."""
    seen = []
    real = linear._by_onednn

    def by_onednn(states, laid_out, bias, formula=("none", "")):
        seen.append(formula)
        return real(states, laid_out, bias, formula)

    monkeypatch.setattr(linear, "_by_onednn", by_onednn)
    return seen


class Layer(nn.Module):
    """A layer, and something that is computed of its output."""

    def __init__(self, after):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.after, self.calls = nn.Linear(32, 64), after, 0

    def forward(self, x):
        self.calls += 1
        return self.after(self, self.linear(x))


def held(module, y):
    return gelu(y) + y


def held_on_the_third(module, y):
    z = gelu(y)
    return z + y if module.calls == 3 else z


def another_on_the_third(module, y):
    return gelu(y, approximate="tanh") if module.calls == 3 else gelu(y)


def none_on_the_third(module, y):
    return y * 1 if module.calls == 3 else gelu(y)


def bare_on_the_third(module, y):
    return y if module.calls == 3 else silu(y)


def in_place_on_the_third(module, y):
    return y.mul_(2) if module.calls == 3 else gelu(y)


def stored(module, y):
    module.kept = y
    return gelu(y)


def after_another(module, y):
    torch.ones(3).sum()
    return gelu(y)


def twice(module, y):
    return gelu(gelu(y))


def overwritten(module, y):
    z = silu(y)
    z.mul_(3)
    return z + y


def in_place(module, y):
    return silu(y, inplace=True) + y


def by_shape(module, y):
    return gelu(y.view(y.shape[1], y.shape[0])) if module.calls == 3 else gelu(y)


AFTER = [held, held_on_the_third, another_on_the_third, none_on_the_third, bare_on_the_third, in_place_on_the_third]
AFTER += [stored, after_another, twice, overwritten, in_place, by_shape]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("after", AFTER, ids=lambda after: after.__name__)
def test_whatever_is_done_with_the_output(after, mode, formulas):
    """Five calls, in which the third may do something else; with its states overwritten after each."""
    module, plain = Layer(after).eval(), Layer(after).eval()
    generator = torch.Generator().manual_seed(1)
    draws = [torch.randn(8, 32, generator=generator) for _ in range(5)]
    with mode():
        wanted = [(plain(one), getattr(plain, "kept", None)) for one in draws]
    with mode():
        found = []
        with fast_linear(module):
            for one in draws:
                x = one.clone()
                found.append((module(x), getattr(module, "kept", None)))
                x.fill_(torch.nan)
        for got, want in zip(found, wanted, strict=True):
            for mine, other in zip(got, want, strict=True):
                if other is not None:
                    torch.testing.assert_close(mine, other, atol=2e-6, rtol=1e-5)
    assert len(formulas) >= 5


@pytest.mark.parametrize(("after", "formula"), [(lambda _, y: gelu(y), "gelu"), (lambda _, y: silu(y), "swish")])
def test_which_is_fused(after, formula, formulas):
    module = Layer(after).eval()
    with fast_linear(module), torch.inference_mode():
        for _ in range(3):
            module(torch.ones(8, 32))
    assert [name for name, _ in formulas] == ["none", formula, formula]


def test_what_a_hook_holds(formulas):
    """A hook may keep outputs of layers; they are read after the context."""
    module, kept = Layer(lambda _, y: gelu(y)).eval(), []
    states = torch.randn(8, 32)
    wanted = module.linear(states).detach()
    module.linear.register_forward_hook(lambda module, args, output: kept.append(output))
    with fast_linear(module), torch.inference_mode():
        results = [module(states) for _ in range(4)]
    for one in kept:
        torch.testing.assert_close(one, wanted, atol=2e-6, rtol=1e-5)
    for one in results:
        torch.testing.assert_close(one, gelu(wanted), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("after", [lambda _, y: gelu(y), lambda _, y: silu(y)])
def test_values_that_are_no_numbers_stay_so(after, value):
    module = Layer(after).eval()
    states = torch.randn(8, 32)
    states[3, 5] = value
    with torch.inference_mode():
        wanted = module(states)
        with fast_linear(module):
            found = [module(states) for _ in range(3)][-1]
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_models_as_without(kind, formulas, sequences):
    """Each layer's activation is fused from the second call on."""
    model = nopad.packed(build(kind, dtype=torch.float32))
    batch = nopad.PackedBatch.from_sequences(sequences)
    with torch.inference_mode():
        plain = model(**batch).last_hidden_state
        with fast_linear(model):
            found = [model(**batch).last_hidden_state for _ in range(3)]
    for one in found:
        torch.testing.assert_close(one, plain, atol=1e-5, rtol=1e-5)
    layers = model.config.num_hidden_layers
    name = "gelu" if kind == "bert" else "swish"
    assert [one for one, _ in formulas].count(name) == 2 * layers


def test_a_failing_call_leaves_nothing_behind(formulas):
    module = Layer(lambda _, y: gelu(y)).eval()
    with torch.inference_mode():
        with fast_linear(module):
            for _ in range(2):
                module(torch.ones(8, 32))
            with pytest.raises(RuntimeError):
                module(torch.ones(8, 31))
            found = module(torch.ones(8, 32))
        torch.testing.assert_close(found, module(torch.ones(8, 32)), atol=2e-6, rtol=1e-5)
