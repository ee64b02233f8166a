"""Activations that are computed with the layer before them: never seen in a result, whoever holds what."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import build

import nopad
from nopad.model import fast_linear, fusing, linear

gelu, silu = nn.functional.gelu, nn.functional.silu


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    """Let oneDNN win, whatever this CPU is, and let activations be fused in the modules of this file too."""
    monkeypatch.setattr(linear, "_gain", lambda inputs, outputs: 2.0)
    monkeypatch.setattr(linear, "may_fuse", lambda model: True)


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


def doubled(y):
    return y * 2


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of `torch.jit.script`, from PyTorch 2.10 on
    scripted, scripted_gelu = torch.jit.script(doubled), torch.jit.script(nn.GELU())
compiled = torch.compile(doubled, backend="aot_eager")


def by_thread(y):
    found = []
    thread = threading.Thread(target=lambda: found.append(y * 2))
    thread.start()
    thread.join()
    return found[0]


def unfollowed(y):
    with torch._C.DisableTorchFunction():
        return y * 2


class Unseen(nn.Module):
    """Reads the output of a layer in a way that no mode can follow, and then calls its activation."""

    def __init__(self, read):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.read, self.end = nn.Linear(32, 64), read, nn.Linear(64, 32)

    def forward(self, x):
        y = self.linear(x)
        other, z = self.read(y), gelu(y)
        del y
        return self.end(z) + self.end(other)


READS = {"script": scripted, "compiled": compiled, "thread": by_thread, "no function": unfollowed}


def equal_thrice(model, states):
    """Three calls in `fast_linear`; the first teaches it the activations, and the second uses them."""
    with torch.no_grad():
        wanted = model(states)
        with fast_linear(model):
            found = [model(states) for _ in range(3)]
    for one in found:
        torch.testing.assert_close(one, wanted, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_reads_unseen(read, monkeypatch):
    monkeypatch.setattr(linear, "may_fuse", fusing.may_fuse)
    equal_thrice(Unseen(read).eval(), torch.randn(8, 32))


def hooked(model):
    model.encoder.layer[0].intermediate.dense.register_forward_hook(lambda module, args, output: None)


def module_compiled(model):
    model.encoder.layer[0].intermediate.intermediate_act_fn.compile(backend="aot_eager")


def wrapped_in_compiled(model):
    model.pooler = torch.compile(model.pooler, backend="aot_eager")


def forward_compiled(model):
    model.pooler.forward = torch.compile(model.pooler.forward, backend="aot_eager")


def scripted_module(model):
    model.encoder.layer[0].intermediate.intermediate_act_fn = scripted_gelu


def scripted_function(model):
    model.encoder.layer[0].intermediate.intermediate_act_fn = scripted


def own_class(model):
    class Own(nn.GELU):
        pass

    model.encoder.layer[0].intermediate.intermediate_act_fn = Own()


CHANGES = [
    hooked,
    module_compiled,
    wrapped_in_compiled,
    forward_compiled,
    scripted_module,
    scripted_function,
    own_class,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_models_in_which_nothing_is_guessed(change, monkeypatch):
    model = build("bert", dtype=torch.float32)
    assert fusing.may_fuse(model)
    assert fusing.may_fuse(nopad.packed(build("bert", dtype=torch.float32)))
    if change is scripted_function:
        del model.encoder.layer[0].intermediate.intermediate_act_fn
    change(model)
    assert not fusing.may_fuse(model)


class Sums(TorchFunctionMode):
    """Notes the sum of what layers and activations return."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        return self.note(out) if function in (nn.functional.linear, gelu) else out

    def note(self, out):
        self.seen.append(float(out.sum()))
        return out


class DispatchedSums(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return Sums.note(self, function(*args, **(kwargs or {})))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", [Sums, DispatchedSums])
def test_modes_of_the_user_see_what_they_know(kind, inside):
    module, states = Layer(lambda _, y: gelu(y)).eval(), torch.randn(8, 32)
    with torch.no_grad():
        with kind() as plain:
            module(states)
        for _ in range(2):
            mode = kind()
            with fast_linear(module) if inside else mode, mode if inside else fast_linear(module):
                for _ in range(3):
                    module(states)
            assert mode.seen == pytest.approx(3 * plain.seen, rel=1e-4)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch scripts formulas for jvp
def test_transforms_run_as_without(formulas):
    module, states = Layer(lambda _, y: gelu(y)).eval(), torch.randn(8, 32)
    with torch.no_grad():
        wanted = torch.func.jvp(module, (states,), (states,))
        with fast_linear(module):
            found = torch.func.jvp(module, (states,), (states,))
    torch.testing.assert_close(found, wanted)
    assert not formulas
    with torch.no_grad(), torch.device("cpu"), fast_linear(module):  # a mode that changes no product
        module(states)
    assert formulas


def test_a_context_is_left_whatever_fails(monkeypatch):
    module = Layer(lambda _, y: gelu(y)).eval()

    def failing(self):
        raise MemoryError

    with monkeypatch.context() as patch, torch.no_grad(), pytest.raises(MemoryError), fast_linear(module):
        patch.setattr(linear.Activations, "close", failing)
    assert not torch._C._len_torch_function_stack()
