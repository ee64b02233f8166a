"""Mixtures of experts: padding is in no routing statistic, and the loss that balances experts is the padded batch's.

The judge is the stock model on the padded batch with its mask, and the formula computed here from its routers' logits.
"""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
import transformers as t
from hypothesis import given
from hypothesis import strategies as st
from kinds import AllDouble, tiny
from test_families import build, texts
from torch import nn

import nopad
from nopad.batch.guard import PackedMask
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model import static_inputs
from nopad.model.routers import of_real_tokens

LIMIT = 1e-12
# Kinds whose causal language model gives the loss in each transformers that is supported.
KINDS = ("gpt_oss", "jamba", "jetmoe", "minimax", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_next")
FORMS = {
    "flat": nopad.Flat(),
    "rows": nopad.Rows(14),
    "more rows than needed": nopad.Rows(13, rows=6),
    "end to end": nopad.Rows(8, end_to_end=True),
}


def padded(sequences):
    """The sequences as a padded batch, with labels, and where its real tokens are."""
    shape = len(sequences), max(len(one) for one in sequences)
    ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    for row, one in enumerate(sequences):
        ids[row, : len(one)], mask[row, : len(one)] = one, 1
    labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}, mask.reshape(-1).bool()


def balance(layers, chosen):
    """The formula: experts times the sum over experts of (share of tokens that chose it) x (its mean probability)."""
    every = torch.cat(list(layers)).double().softmax(-1)
    picked = nn.functional.one_hot(every.topk(chosen, -1).indices, every.shape[-1]).double()
    return every.shape[-1] * (picked.sum(1).mean(0) * every.mean(0)).sum()


def slopes(model, value):
    model.zero_grad()
    value.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def assert_equal(found, wanted, limit=LIMIT):
    scale = max(1.0, float(wanted.detach().abs().max()))
    assert found.shape == wanted.shape
    assert float((found - wanted).detach().abs().max()) <= limit * scale


def models(kind):
    stock = build(tiny(kind), "causal LM")
    return stock, nopad.packed(deepcopy(stock))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_the_loss_and_its_gradients_are_those_of_the_padded_batch(kind, form):
    stock, model = models(kind)
    sequences = texts(stock.config)
    plain, real = padded(sequences)
    with AllDouble():
        wanted = stock(**plain, output_router_logits=True)
        judge = balance([layer[real] for layer in wanted.router_logits], stock.num_experts_per_tok)
        without = stock(input_ids=plain["input_ids"], output_router_logits=True).aux_loss
        batch = nopad.PackedBatch.from_sequences(sequences, form=FORMS[form])
        found = model(**batch, output_router_logits=True)
    assert abs((wanted.aux_loss - judge).item()) <= LIMIT
    assert abs((without - judge).item()) > 1e-3  # padding would show
    assert_equal(found.aux_loss, wanted.aux_loss)
    assert len(found.router_logits) == len(wanted.router_logits)
    for mine, theirs in zip(found.router_logits, wanted.router_logits, strict=True):
        assert_equal(mine, theirs[real])
    expected, given = slopes(stock, wanted.aux_loss), slopes(model, found.aux_loss)
    assert expected.keys() == given.keys()
    assert any(float(one.abs().max()) > 1e-6 for one in expected.values())
    for name, one in expected.items():
        assert_equal(given[name], one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["flat", "rows", "more rows than needed"])
def test_the_models_own_loss_has_it(kind, form):
    stock, model = models(kind)
    sequences = texts(stock.config)
    plain, _ = padded(sequences)
    batch = nopad.PackedBatch.from_sequences(sequences, columns={"labels": sequences}, form=FORMS[form])
    with AllDouble():
        wanted, found = (one(**given, output_router_logits=True) for one, given in ((stock, plain), (model, batch)))
        bare = model(**batch, output_router_logits=False)
    # Cross-entropy is transformers' own, in float32.
    assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=1e-6)
    coefficient = getattr(stock, "router_aux_loss_coef", None) or stock.aux_loss_coef
    assert (found.loss - bare.loss).item() == pytest.approx(coefficient * found.aux_loss.item(), rel=1e-3)
    assert bare.get("aux_loss") is None


def test_in_single_precision():
    stock, model = models("mixtral")
    stock, model = stock.float(), model.float()
    sequences = texts(stock.config)
    wanted = stock(**padded(sequences)[0], output_router_logits=True)
    for form in FORMS.values():
        found = model(**nopad.PackedBatch.from_sequences(sequences, form=form), output_router_logits=True)
        assert abs((found.aux_loss - wanted.aux_loss).item()) <= 1e-5


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    more=st.integers(0, 9),
    extra=st.integers(0, 2),
    kind=st.sampled_from(["flat", "rows", "end to end"]),
)
def test_any_layout(mixtral, lengths, more, extra, kind):
    stock, model = mixtral
    generator = torch.Generator().manual_seed(sum(lengths))
    sequences = [torch.randint(4, 61, (length,), generator=generator) for length in lengths]
    width = max(lengths) + more
    if kind == "rows":
        form = nopad.Rows(width, rows=len(lengths) + extra)
    else:
        form = nopad.Flat() if kind == "flat" else nopad.Rows(max(2, width // 2), end_to_end=True)
    plain, real = padded(sequences)
    with AllDouble():
        wanted = stock(**plain, output_router_logits=True)
        found = model(**nopad.PackedBatch.from_sequences(sequences, form=form), output_router_logits=True)
    assert_equal(found.aux_loss, wanted.aux_loss)
    for mine, theirs in zip(found.router_logits, wanted.router_logits, strict=True):
        assert_equal(mine, theirs[real])  # in the order given, however rows were filled


@pytest.fixture(scope="module")
def mixtral():
    return models("mixtral")


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_a_base_model_gives_logits_of_real_tokens(kind):
    stock = build(tiny(kind), "base")
    model = nopad.packed(deepcopy(stock))
    sequences = texts(stock.config)
    wanted = [stock(input_ids=one[None], output_router_logits=True).router_logits for one in sequences]
    batch = nopad.PackedBatch.from_sequences(sequences, form=nopad.Rows(14))
    for number, layer in enumerate(model(**batch, output_router_logits=True).router_logits):
        for mine, theirs in zip(layer.split(batch.seq_lengths.tolist()), wanted, strict=True):
            assert_equal(mine, theirs[number], 1e-6)


def test_under_gradient_checkpointing_and_as_a_tuple():
    stock, model = models("mixtral")
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    sequences = texts(stock.config)
    batch = nopad.PackedBatch.from_sequences(sequences, form=FORMS["rows"])
    wanted = stock(**padded(sequences)[0], output_router_logits=True).aux_loss
    found = model.train()(**batch, output_router_logits=True)
    assert_equal(found.aux_loss, wanted, 1e-6)
    assert len(found.router_logits) == 2
    expected, given_ = slopes(stock, wanted), slopes(model, found.aux_loss)
    for name, one in expected.items():
        assert_equal(given_[name], one, 1e-6)
    tokens = sum(len(one) for one in sequences)
    whole = model(**batch, output_router_logits=True, return_dict=False)
    assert [tuple(layer.shape) for layer in whole[-1]] == [(tokens, 4)] * 2


@pytest.mark.parametrize("asked", ["by the call", "by the configuration"])
def test_static_shapes_are_refused(asked):
    _, model = models("mixtral")
    batch = nopad.PackedBatch.from_sequences(texts(model.config), form=FORMS["rows"])
    given_ = static_inputs(model, batch)
    model(**given_)
    if asked == "by the call":
        given_["output_router_logits"] = True
    else:
        model.config.output_router_logits = True
    with pytest.raises(BatchError, match="output_router_logits was asked for in a call of static shapes"):
        model(**given_)
    model(**{**given_, "output_router_logits": False})


class OwnLoss(t.MixtralForCausalLM):
    """Its loss of the whole batch is a mean over all slots."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **more):
        found = super().forward(input_ids, attention_mask=attention_mask, position_ids=position_ids, **more)
        found["aux_loss"] = found.logits.mean()
        return found


class Inherited(t.MixtralForCausalLM):
    pass


def test_a_loss_of_ones_own_is_refused_where_there_is_padding():
    config = tiny("mixtral")
    sequences = texts(config)
    rows, flat = (nopad.PackedBatch.from_sequences(sequences, form=FORMS[form]) for form in ("rows", "flat"))
    own = nopad.packed(OwnLoss(config), head="causal", prove="never")
    with pytest.raises(BatchError, match=r"aux_loss of OwnLoss, .* has \d+ slots of padding, .* nopad\.Flat\(\)"):
        own(**rows)
    assert own(**flat).aux_loss.dim() == 0
    inherited = nopad.packed(Inherited(config), head="causal", prove="never")
    values = [inherited(**batch, output_router_logits=True).aux_loss for batch in (rows, flat)]
    assert_equal(*values, 1e-6)


def test_logits_of_another_shape_are_refused():
    layout = nopad.PackedBatch.from_sequences([[1, 2], [3]], form=nopad.Rows(2)).layout
    at = SimpleNamespace(layout=layout, given=lambda slots: slots[[0, 1, 2]])
    one, other = torch.arange(8.0).reshape(4, 2), torch.arange(8.0).reshape(2, 2, 2)
    assert torch.equal(of_real_tokens(None, at, {"router_logits": one})["router_logits"], one[:3])
    assert torch.equal(of_real_tokens(None, at, {"router_logits": (other, None)})["router_logits"][0], one[:3])
    with pytest.raises(UnsupportedModelError, match=r"have the shape \[3, 2\] and not \[4, experts\]"):
        of_real_tokens(nn.Linear(1, 1), at, {"router_logits": (one[:3],)})
    assert isinstance(nopad.PackedBatch.from_sequences([[1]])["attention_mask"], PackedMask)


class TestCapacity:
    @pytest.mark.parametrize("kind", ["SwitchTransformers", "NllbMoe"])
    def test_kinds(self, kind):
        sizes = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 16, "d_kv": 8, "num_experts": 2}
        sizes |= {
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_sparse_step": 1,
            "encoder_ffn_dim": 16,
            "decoder_ffn_dim": 16,
        }
        sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 61}
        with torch.device("meta"):
            model = getattr(t, f"{kind}Model")(getattr(t, f"{kind}Config")(**sizes))
        with pytest.raises(UnsupportedModelError, match="its experts have a capacity, and which tokens they drop"):
            nopad.packed(model)
        with pytest.raises(UnsupportedModelError, match="has experts of limited capacity"):
            nopad.packed(model, prove="always")

    @pytest.mark.parametrize(("name", "value"), [("expert_capacity", 8), ("capacity_factor", 1.25), ("capacity", 1)])
    def test_modules(self, name, value):
        _, model = models("mixtral")
        batch = nopad.PackedBatch.from_sequences(texts(model.config))
        model(**batch)
        other = deepcopy(model.model.layers[1].mlp)
        setattr(other, name, value)
        model.model.layers[1].mlp = other
        said = (
            rf"model\.layers\.1\.mlp \(Mixtral\w+\) of MixtralForCausalLM has .* capacity \({name} = {value}\): which"
        )
        with pytest.raises(UnsupportedModelError, match=said):
            model(**batch)
        with pytest.raises(UnsupportedModelError, match=said):
            nopad.packed(nopad.unpacked(model))

    @pytest.mark.parametrize("value", [None, 0, -1, True, "auto"])
    def test_no_limit(self, value):
        _, model = models("mixtral")
        nopad.unpacked(model).model.layers[0].mlp.capacity_factor = value
        model.model.layers[1].mlp.capacity_factor, model.model.layers[1].mlp.drop_tokens = 1.5, False
        nopad.packed(model)
