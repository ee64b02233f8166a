"""Code of one's own that changes gradients, which a forward pass does not show: packs give the gradients of alone."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent))

import own

import nopad
from nopad.admitting.local import Run, backward_of_ones_own
from nopad.errors import UnsupportedModelError
from nopad.model.safety import state_of

LENGTHS = (300, 4, 250, 300)  # more than 500 tokens in a row


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def mean(x):
    return x.mean(1, keepdim=True)


class Mixed(torch.autograd.Function):
    """Gives back what it gets, and sums gradients over tokens."""

    @staticmethod
    def forward(context, x):
        return x

    @staticmethod
    def backward(context, slope):
        return slope + slope.sum(1, keepdim=True)


class MixedIfLong(Mixed):
    """Sums gradients of rows that are longer than those of an audit."""

    @staticmethod
    def backward(context, slope):
        return slope + slope.sum(1, keepdim=True) if slope.shape[1] > 500 else slope


class OfLibrary(Mixed):
    """Changes no gradient; it stands for code of a library that nopad knows."""

    @staticmethod
    def backward(context, slope):
        return slope * 1


OfLibrary.__module__ = "liger_kernel.ops.norm"


@torch.library.custom_op("nopad_tests::same", mutates_args=())
def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


same.register_fake(torch.empty_like)
same.register_autograd(lambda context, slope: MixedIfLong.backward(context, slope))


class Extra(nn.Module):
    """What is put between BERT and the output of a tagger."""

    def forward(self, x):
        return x


class Sum(Extra):
    def forward(self, x):
        return Mixed.apply(x)


class LongSum(Extra):
    def forward(self, x):
        return MixedIfLong.apply(x * 1)


class InTraining(Extra):
    def forward(self, x):
        return MixedIfLong.apply(x * 1) if self.training else x * 1


class InPlace(Extra):
    def forward(self, x):
        x *= 2
        return MixedIfLong.apply(x * 1)


class LaterLong(Extra):
    """Calls its function on rows that are longer than those of an audit."""

    def forward(self, x):
        return MixedIfLong.apply(x * 1) if x.shape[1] > 500 else x * 1


class Hook(Extra):
    def forward(self, x):
        x = x * 1
        if x.requires_grad:
            x.register_hook(lambda slope: MixedIfLong.backward(None, slope))
        return x


class Operator(Extra):
    def forward(self, x):
        return same(x)


class Scores(Extra):
    """Its result is not per token, and it is used where tokens are mixed."""

    def forward(self, x):
        return MixedIfLong.apply((x @ x.transpose(1, 2)).softmax(-1))


class Attention(Extra):
    def __init__(self):
        super().__init__()
        self.scores = Scores()

    def forward(self, x):
        return x + self.scores(x) @ x


class Library(Extra):
    def forward(self, x):
        return OfLibrary.apply(x)


class Checkpointed(Extra):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class Frozen(Extra):
    """Hooks a function of PyTorch to gradients."""

    def forward(self, x):
        x = x * 1
        if x.requires_grad:
            x.register_hook(torch.nan_to_num)
        return x


class Tagger(own.Around):
    def __init__(self, config):
        super().__init__(config)
        self.extra = globals()[config.extra]()

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        states = self.bert(input_ids, attention_mask=attention_mask, position_ids=position_ids).last_hidden_state
        return own.MaskedLMOutput(logits=self.out(self.extra(states)))


class InForward(Tagger):
    """Changes gradients in the forward method of the model itself."""

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        states = self.bert(input_ids, attention_mask=attention_mask, position_ids=position_ids).last_hidden_state
        return own.MaskedLMOutput(logits=self.out(MixedIfLong.apply(states * 1)))


def model_with(extra, kind=Tagger):
    torch.manual_seed(0)
    config = own.bert_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config.extra = extra.__name__
    return kind(config).double().train()


def slopes(model, results, weights):
    total = sum((one * weight).sum() for one, weight in zip(results, weights, strict=True))
    return torch.autograd.grad(total, [one for one in model.parameters() if one.requires_grad])


def held_against_alone(stock):
    """The largest relative difference of gradients between packs and sequences alone, and the pack-safe model."""
    sequences = [torch.randint(0, 200, (n,)) for n in LENGTHS]
    alone = [stock(input_ids=one[None]).logits[0] for one in sequences]
    weights = [torch.randn_like(one) for one in alone]
    wanted = slopes(stock, alone, weights)
    model, worst = nopad.packed(copy.deepcopy(stock)), 0.0
    largest = max(float(one.abs().max()) for one in wanted)
    for form in (nopad.Flat(), nopad.Rows(600)):
        batch = nopad.PackedBatch.from_sequences(sequences, form=form)
        found = slopes(model, batch.unpack_tokens(model(**batch).logits), weights)
        worst = max(worst, *(float((a - b).abs().max()) / largest for a, b in zip(found, wanted, strict=True)))
    return worst, model


@pytest.mark.parametrize("extra", [Sum, LongSum, InTraining, LaterLong, Hook, Operator, Attention])
def test_what_mixes_gradients_never_does_across_sequences(extra):
    worst, model = held_against_alone(model_with(extra))
    assert worst <= 1e-12
    family = state_of(model).family
    assert (family.mixers, family.alone) == ((extra.__name__,), (extra.__name__,))


@pytest.mark.parametrize(("module", "found"), [(InPlace(), "MixedIfLong"), (Hook(), "register_hook"), (Library(), "")])
def test_what_changes_gradients_is_named(module, found):
    run = Run(module, {"x": torch.randn(1, 29, 32)}, {}, 29, 1e-9)
    assert backward_of_ones_own(run) == found


@pytest.mark.parametrize("extra", [Library, Checkpointed, Frozen])
def test_code_of_libraries_that_changes_gradients_runs_on_whole_rows(extra):
    worst, model = held_against_alone(model_with(extra))
    assert worst <= 1e-12
    assert state_of(model).family.mixers == ()


def test_a_model_that_changes_gradients_itself_is_refused():
    wanted = r"InForward changes gradients by code of its own \(MixedIfLong\), which cannot be followed"
    with pytest.raises(UnsupportedModelError, match=wanted):
        nopad.packed(model_with(Extra, InForward))


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_hook_on_the_gradients_of_a_module_is_refused(register):
    stock = model_with(Extra)
    getattr(stock.extra, register)(lambda module, *slopes: None)
    with pytest.raises(UnsupportedModelError, match=r"extra of Tagger has a hook of your own on its gradients"):
        nopad.packed(stock)
