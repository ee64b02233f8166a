"""`audit_samples`: what is planted in a packed run of any module is found, and what is right passes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import nopad
from nopad.errors import OptionError


class Small(nn.Module):
    """A mean over each sample's rows between two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, rows, owner, count):
        states = torch.tanh(self.first(rows))
        sums = states.new_zeros(count, 4).index_add(0, owner, states)
        return self.second(sums / torch.bincount(owner, minlength=count)[:, None])


def owners(samples):
    return torch.repeat_interleave(torch.arange(len(samples)), torch.tensor([len(one) for one in samples]))


def alone(model, sample):
    return model(sample, torch.zeros(len(sample), dtype=torch.long), 1)[0]


def right(model, samples):
    return list(model(torch.cat(list(samples)), owners(samples), len(samples)))


@pytest.fixture
def samples():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, generator=generator) for n in (4, 1, 6, 2, 3)]


def audit(samples, packed, **how):
    torch.manual_seed(0)
    return nopad.audit_samples(Small(), samples, alone=alone, packed=packed, **how)


def failed(verdict):
    return {check.name for check in verdict.checks if not check.passed}


def test_what_is_right_passes(samples):
    verdict = audit(samples, right)
    assert verdict.isolated
    assert verdict.outcome == "isolated"
    assert len(verdict.checks) == 14  # 2 dtypes x (2 orders x outputs and gradients, 3 poisons)
    assert 0 < verdict.max_abs_diff < 1e-14 or verdict.max_abs_diff == 0
    assert "5 samples, packed by right" in str(verdict)
    assert len(audit(samples, right, gradients=False).checks) == 10


def test_the_model_is_left_as_it_was(samples):
    model = Small().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    nopad.audit_samples(model, samples, alone=alone, packed=right)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert samples[0].dtype == torch.float32


def test_a_leak_is_found(samples):
    def leaks(model, samples):
        found = torch.stack(right(model, samples))
        return list(found + 1e-9 * found.roll(1, 0))

    verdict = audit(samples, leaks)
    assert verdict.outcome == "contaminated"
    assert {"float64 outputs, in order", "float64 poison, NaN", "float64 poison, other values"} <= failed(verdict)


def test_what_only_the_order_shows_is_found(samples):
    def first_is_special(model, samples):
        found = right(model, samples)
        return [found[0], *found[1:]] if len(samples[0]) == 4 else [found[0] * 1.001, *found[1:]]

    assert failed(audit(samples, first_is_special)) == {
        "float64 outputs, reversed",
        "float32 outputs, reversed",
    }


def test_a_wrong_gradient_is_found(samples):
    def detached(model, samples):
        return [right(model, samples)[0].detach(), *right(model, samples)[1:]]

    verdict = audit(samples, detached)
    assert {"float64 gradients, in order", "float64 gradients, reversed"} <= failed(verdict)
    assert not any("outputs" in name or "poison" in name for name in failed(verdict))


def test_an_order_that_is_mixed_up_is_found(samples):
    assert "float64 outputs, in order" in failed(audit(samples, lambda model, samples: right(model, samples)[::-1]))


@pytest.mark.parametrize(
    ("packed", "says"),
    [
        (lambda model, samples: right(model, samples)[:-1], "results of packs are 4 of them; expected a list"),
        (lambda model, samples: torch.stack(right(model, samples)), "results of packs are Tensor"),
        (
            lambda model, samples: [{"a": one} for one in right(model, samples)],
            "sample 0: a in packs, and result alone",
        ),
        (lambda model, samples: [1.0 for _ in samples], "is float; expected a float tensor"),
        (lambda model, samples: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_what_gives_no_results_fails(samples, packed, says):
    verdict = audit(samples, packed)
    assert verdict.outcome == "failed"
    assert any(says in check.detail for check in verdict.checks)


def test_samples_may_be_dicts_and_results_too(samples):
    given = [{"rows": one, "name": str(at), "n": at} for at, one in enumerate(samples)]

    def both(model, ones):
        return [{"out": one, "twice": 2 * one} for one in right(model, [one["rows"] for one in ones])]

    verdict = nopad.audit_samples(Small(), given, alone=lambda model, one: both(model, [one])[0], packed=both)
    assert verdict.isolated
    assert verdict.checks[0].detail == "out, twice"


def test_without_floats_nothing_is_poisoned():
    table = nn.Embedding(9, 3)
    verdict = nopad.audit_samples(
        table,
        [torch.tensor([1, 2]), torch.tensor([3])],
        alone=lambda model, sample: model(sample),
        packed=lambda model, samples: list(model(torch.cat(list(samples))).split([len(one) for one in samples])),
    )
    assert verdict.isolated
    assert "no sample was poisoned: they hold no floats" in verdict.notes


def test_a_dense_mask_is_not_asked_to_keep_nan_apart():
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = nopad.packed(BertModel(BertConfig(**sizes), add_pooling_layer=False), backend="mask")

    def packed(model, samples):
        batch = nopad.PackedBatch.from_embeddings(samples, nopad.Rows(12))
        return batch.unpack_tokens(model(**batch).last_hidden_state)

    verdict = nopad.audit_samples(
        model,
        [torch.randn(n, 16) for n in (3, 8, 4)],
        alone=lambda model, one: model(inputs_embeds=one[None]).last_hidden_state[0],
        packed=packed,
    )
    assert verdict.isolated, verdict
    assert not any("NaN" in check.name for check in verdict.checks)
    assert any("NaN was not tried" in note for note in verdict.notes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": 1}, "model is a int; expected a torch module"),
        ({"samples": [torch.ones(1, 3)]}, "at least 2 samples are audited"),
        ({"samples": "ab"}, "at least 2 samples are audited"),
        ({"samples": b"ab"}, "at least 2 samples are audited"),
        ({"alone": 3}, "alone is a int; expected a function"),
        ({"packed": None}, "packed is a NoneType; expected a function"),
        ({"seed": -1}, "seed must be an integer from 0"),
    ],
)
def test_what_is_no_audit(samples, change, says):
    given = {"model": Small(), "samples": samples, "alone": alone, "packed": right} | change
    with pytest.raises(OptionError, match=says):
        nopad.audit_samples(**given)


@pytest.mark.parametrize("what", ["shapes", "names"])
def test_results_of_other_shapes_from_run_to_run_are_refused(samples, what):
    count = itertools.count(2)

    def drawn(model, sample):
        found = alone(model, sample)
        return found.expand(next(count), *found.shape) if what == "shapes" else {f"output {next(count)}": found}

    with pytest.raises(OptionError, match="have other names or shapes from one run to the next"):
        nopad.audit_samples(model=Small(), samples=samples, alone=drawn, packed=right)


def test_chance_is_refused(samples):
    def drawn(model, sample):
        return alone(model, sample) + torch.rand(())

    with pytest.raises(OptionError, match="the results alone differ from one run to the next"):
        nopad.audit_samples(Small(), samples, alone=drawn, packed=right)
