"""Modules of one's own around a model: admitted with the results of each sequence alone, or refused by name."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

import own
import wrapping

import nopad
from nopad.errors import BatchError, NotPackSafeError, OptionError, UnsupportedModelError
from nopad.model import is_packed
from nopad.model.wrappers import leaves_of

LENGTHS = (9, 1, 40, 17)
FORMS = {"flat": nopad.Flat(), "rows": nopad.Rows(44), "end to end": nopad.Rows(41, end_to_end=True)}
CLASS = "classification"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def drawn(kind):
    torch.manual_seed(3)
    made = kind().double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made


def sequences():
    torch.manual_seed(4)
    return [torch.randint(0, 300, (n,)) for n in LENGTHS]


def tensors(output):
    return {name: value.double() for name, value in leaves_of(output) if isinstance(value, torch.Tensor)}


def alone(stock, ids):
    mask = {} if isinstance(stock, wrapping.Unmasked) else {"attention_mask": torch.ones_like(ids[None])}
    return tensors(stock(input_ids=ids[None], **mask))


def apart(one, two):
    return float((one - two).detach().abs().max()) / max(float(two.detach().abs().max()), 1e-30)


@pytest.mark.parametrize("kind", wrapping.ADMITTED)
def test_outputs_and_gradients_are_those_of_each_sequence_alone(kind):
    stock, given = drawn(kind), sequences()
    wanted = [alone(stock, ids) for ids in given]
    weights = [{name: torch.randn_like(value[0]) for name, value in one.items()} for one in wanted]
    total = sum((one[name][0] * by[name]).sum() for one, by in zip(wanted, weights, strict=True) for name in one)
    slopes = torch.autograd.grad(total, list(stock.parameters()), allow_unused=True)
    model = nopad.packed(copy.deepcopy(stock))
    assert is_packed(model)
    for form in FORMS.values():
        batch = nopad.PackedBatch.from_sequences(given, form=form)
        made = tensors(model(**batch))
        assert made.keys() == wanted[0].keys()
        total = 0.0
        for name, value in made.items():
            per_token = tuple(value.shape[:2]) == batch.layout.shape
            parts = (batch.unpack_tokens if per_token else batch.unpack_sequences)(value)
            for one, other, by in zip(parts, wanted, weights, strict=True):
                assert one.shape == other[name][0].shape
                assert apart(one, other[name][0]) <= 1e-12
                total = total + (one * by[name]).sum()
        again = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
        largest = max(float(slope.abs().max()) for slope in slopes if slope is not None)
        for one, two in zip(again, slopes, strict=True):
            assert (one is None) == (two is None)
            assert one is None or float((one - two).abs().max()) <= 1e-12 * largest


@pytest.mark.parametrize("kind", wrapping.REFUSED)
def test_what_is_not_each_sequences_own_is_refused_by_name(kind):
    model = kind().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises((UnsupportedModelError, OptionError), match=wrapping.REFUSED[kind]) as error:
        nopad.packed(model)
    assert "wrapped." not in str(error.value)
    assert not is_packed(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
