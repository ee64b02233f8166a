"""Models and collators that keep sequences apart, each in a way that looks like contamination."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from collators import blocks, padded
from torch import nn
from zoo import build

import nopad
from nopad.model.families import FAMILIES

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def isolated(verdict):
    assert verdict.isolated, str(verdict)
    return verdict


def causal(features):
    """A collator of one row with a mask to be added, and no cache."""
    batch = blocks(torch.float32)(features)
    later = torch.ones_like(batch["attention_mask"], dtype=torch.bool).triu(1)
    mask = batch["attention_mask"].masked_fill(later, torch.finfo(torch.float32).min)
    return {**batch, "attention_mask": mask, "use_cache": False}


@pytest.fixture(scope="module")
def mixtral():
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        **SIZES,
        vocab_size=99,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=80,
    )
    return transformers.MixtralForCausalLM(config).eval()


class TestExperts:
    def test_fed_by_a_collator(self, mixtral):
        isolated(nopad.audit(mixtral, collator=causal, capacity=32))

    def test_made_pack_safe(self, mixtral, monkeypatch):
        monkeypatch.setitem(FAMILIES, "mixtral", FAMILIES["mistral"])
        before = mixtral.config._experts_implementation
        verdict = isolated(nopad.audit(mixtral, capacity=32))
        poisoned = [check for check in verdict.checks if check.name.startswith("float64 poison")]
        assert len(poisoned) == 3
        assert all(check.limit < 1e-14 for check in poisoned)  # a few roundings
        assert mixtral.config._experts_implementation == before

    def test_rounding_is_no_excuse_where_shapes_stay(self):
        model = build("bert")
        model.encoder.layer[1].register_forward_hook(
            lambda module, args, output: output * (1 + 1e-15 * output.abs().mean((0, 1), keepdim=True))
        )
        failed = [check for check in nopad.audit(model, capacity=32).checks if not check.passed]
        assert failed
        assert all("poison" in check.name and check.limit == 0 for check in failed)


def in_single(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Attention as many models have it: the softmax in float32, whatever else is in."""
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("seed", range(2))
def test_gradients_of_zero_behind_a_softmax_in_single_precision(seed):
    transformers.AttentionInterface.register("in single", in_single)
    model = build("bert")
    model.set_attn_implementation("in single")
    verdict = isolated(nopad.audit(model, collator=blocks(torch.float32), seed=seed))
    assert "this model computes some of it in float32, even in float64" in verdict.notes


def test_a_leak_behind_a_softmax_in_single_precision():
    transformers.AttentionInterface.register("in single", in_single)
    model = build("bert")
    model.set_attn_implementation("in single")
    model.encoder.layer[1].register_forward_hook(lambda module, args, output: Small.apply(output))
    assert not nopad.audit(model, collator=blocks(torch.float32), capacity=32).isolated


class Small(torch.autograd.Function):
    """Does nothing, and lets gradients see each other a little."""

    @staticmethod
    def forward(context, states):
        return states.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient + 1e-3 * gradient.mean((0, 1), keepdim=True)


class NoNumbers(torch.autograd.Function):
    """Does nothing, and has no gradient for sequences of at most so many tokens."""

    @staticmethod
    def forward(context, states):
        return states.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * math.nan


class TestGradientsThatAreNoNumbersAlone:
    def test_of_all_sequences(self):
        model = build("bert", dtype=torch.float32)
        model.register_forward_hook(
            lambda module, args, output: {name: NoNumbers.apply(value) for name, value in output.items()}
        )
        verdict = isolated(nopad.audit(model, capacity=32))
        assert "gradients are not compared: too few of them are finite even alone" in verdict.notes
        assert not [check for check in verdict.checks if "gradients" in check.name]

    def test_of_one_parameter(self):
        model = build("bert")
        model.gain = nn.Parameter(torch.zeros((), dtype=torch.float64))
        model.encoder.register_forward_hook(
            lambda module, args, output: type(output)(last_hidden_state=output[0] + 0 * model_gain(module).sqrt())
        )
        object.__setattr__(model.encoder, "gain_of", model)

        def model_gain(module):
            return module.gain_of.gain

        verdict = isolated(nopad.audit(model, capacity=32))
        assert "gradients that are not finite even alone, left out: gain" in verdict.notes
        assert "float64 gradients, rows" in [check.name for check in verdict.checks]

    def test_of_short_sequences(self):
        model = build("bert")

        def spread(module, args, output):
            one = output.shape[1] == 1
            return NoNumbers.apply(output) if one else output

        model.embeddings.register_forward_hook(spread)
        verdict = isolated(nopad.audit(model, capacity=32))
        assert "gradients that are not finite even alone, left out: those of sequences 1 (of 1)" in verdict.notes
        assert "float64 gradients, rows" in [check.name for check in verdict.checks]


class TestBordersMarkedByEos:
    """A collator that sees only a stream of ids, as many pre-training pipelines do."""

    @staticmethod
    def by_eos(eos):
        def collate(features):
            stream = torch.tensor([token for feature in features for token in feature["input_ids"]])
            number = torch.cumsum(stream == eos, 0) - (stream == eos).long()
            begins = [0, *(torch.nonzero(number.diff()).flatten() + 1).tolist()]
            places = torch.arange(len(stream))
            starts = torch.tensor(begins)[number]
            seen = (number[:, None] == number[None, :]).tril()
            return {
                "input_ids": stream[None],
                "position_ids": (places - starts)[None],
                "attention_mask": seen[None, None],
                "use_cache": False,
            }

        return collate

    def test_with_a_pad_of_its_own(self):
        model = build("llama", "causal LM", eos_token_id=2, bos_token_id=1)
        verdict = isolated(nopad.audit(model, collator=self.by_eos(2), capacity=32))
        assert "each sequence that was tried ends with eos (2); a collator may mark borders by it" in verdict.notes

    def test_with_eos_as_the_pad(self):
        model = build("llama", "causal LM", eos_token_id=2, bos_token_id=2, pad_token_id=2)
        isolated(nopad.audit(model, collator=self.by_eos(2), capacity=32))

    def test_by_another_token_they_are_contaminated(self):
        model = build("llama", "causal LM", eos_token_id=2, bos_token_id=1)
        assert not nopad.audit(model, collator=self.by_eos(5), capacity=32, gradients=False).isolated

    def test_eos_that_is_taken_for_padding(self):
        def by_pad(features):
            batch = padded(features, pad=2)
            return {**batch, "attention_mask": (batch["input_ids"] != 2).long()}

        model = build("llama", "causal LM", eos_token_id=2, bos_token_id=2, pad_token_id=2)
        verdict = isolated(nopad.audit(model, collator=by_pad, capacity=32))
        note = "no sequence that was tried holds eos (2), which is the pad too: with it, this is not so"
        assert note in verdict.notes


@pytest.mark.parametrize(("kind", "head"), [("roberta", "base"), ("llama", "sequence classification")])
def test_tokens_that_the_model_looks_for_are_noted(kind, head):
    model = build(kind, head)
    pad = model.config.pad_token_id
    verdict = nopad.audit(model, capacity=32, gradients=False)
    assert f"this model looks for pad ({pad}) itself, alone and packed; it was tried by itself" in verdict.notes
    plain = [check for check in verdict.checks if "with pad" not in check.name]
    assert all(check.passed for check in plain), str(verdict)
