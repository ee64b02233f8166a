"""Backward passes of output embeddings that leave out tokens without a gradient: the same gradients, for less."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy
from zoo import build

import nopad
from nopad.model import vocabulary
from nopad.model.hooks import Hook
from nopad.model.linear import is_plain_layer
from nopad.tasks import OfPretraining, OfTokens

LENGTHS = [30, 7, 1, 22, 9]
KINDS = [
    ("bert", "masked LM"),
    ("bert", "pre-training"),
    ("roberta", "masked LM"),
    ("modernbert", "masked LM"),
    ("deberta-v2", "masked LM"),
    ("llama", "causal LM"),
    ("gemma", "causal LM"),
]


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """Small vocabularies too; a list of how many tokens had a gradient, of each backward pass that looked at it."""
    found, real = [], vocabulary._not_zero
    monkeypatch.setattr(vocabulary, "SMALLEST", 1)

    def looked(rows):
        at = real(rows)
        found.append(None if at is None else len(at))
        return at

    monkeypatch.setattr(vocabulary, "_not_zero", looked)
    return found


def made(kind: str, head: str, share: float = 0.2):
    """A model in float64, a batch with so many tokens labelled, and its objective."""
    model = build(kind, head).double().eval()
    draw = torch.Generator().manual_seed(1)
    features = []
    for number, n in enumerate(LENGTHS):
        ids = torch.randint(5, 90, (n,), generator=draw)
        labels = torch.where(torch.rand(n, generator=draw) < share, ids, -100)
        feature = {"input_ids": ids.tolist(), "labels": labels.tolist()}
        features.append(feature | ({"next_sentence_label": number % 2} if head == "pre-training" else {}))
    causal = head == "causal LM"
    batch = nopad.PackedBatch.from_features(features, causal=causal)
    return model, batch, OfPretraining() if head == "pre-training" else OfTokens(causal=causal)


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def assert_same(model, wanted) -> None:
    found = gradients(model)
    assert found.keys() == wanted.keys()
    largest = max(float(one.abs().max()) for one in wanted.values())
    assert max(float((found[name] - wanted[name]).abs().max()) for name in wanted) < 1e-12 * largest


@pytest.mark.parametrize(("kind", "head"), KINDS)
def test_gradients_are_those_of_all_tokens(kind, head, counted, monkeypatch):
    model, batch, objective = made(kind, head)
    nopad.packed(model)
    objective.step(model, batch)[0].backward()
    wanted = int((batch["labels"] != -100).sum())
    assert len(counted) == 1
    assert 0 < counted[0] <= wanted
    found = gradients(model)
    model.zero_grad()
    monkeypatch.setattr(vocabulary, "SMALLEST", 10**9)  # PyTorch's own backward pass
    counted.clear()
    objective.step(model, batch)[0].backward()
    assert not counted
    assert_same(model, found)


@pytest.mark.parametrize(("kind", "head"), [("bert", "masked LM"), ("llama", "causal LM")])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_equal_to_sequences_alone(kind, head, share, counted):
    """However many tokens are labelled: the model's own loss too, which reads all logits."""
    model, batch, _ = made(kind, head, share)
    alone = copy.deepcopy(model)
    total, causal = torch.zeros((), dtype=torch.float64), head == "causal LM"
    for ids, labels in zip(*(batch.unpack_tokens(batch[name]) for name in ("input_ids", "labels")), strict=True):
        logits = alone(input_ids=ids[None]).logits[0]
        logits, labels = (logits[:-1], labels[1:]) if causal else (logits, labels)
        total = total + cross_entropy(logits, labels, reduction="sum")
    total.backward()
    denominator = torch.ones((), dtype=torch.double)
    nopad.packed(model)
    OfTokens(causal=causal).step(model, batch, denominator)[0].backward()
    assert [one is None for one in counted] == [share == 1.0]
    wanted = gradients(alone)
    if share:
        assert_same(model, wanted)
    else:
        assert not any(one.any() for one in gradients(model).values())


def test_a_loss_of_all_logits_keeps_all_of_them(counted):
    model, batch, _ = made("bert", "masked LM")
    plain = copy.deepcopy(model)
    nopad.packed(model)
    model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.square().sum().backward()
    assert counted == [None]
    for ids in batch.unpack_tokens(batch["input_ids"]):
        plain(input_ids=ids[None]).logits.square().sum().backward()
    assert_same(model, gradients(plain))


def test_nan_is_not_hidden(counted):
    model, batch, _ = made("bert", "masked LM")
    nopad.packed(model)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    (logits[0, 3] * torch.nan).sum().backward()
    assert counted == [1]
    assert model.get_output_embeddings().weight.grad.isnan().any()


def test_second_derivatives(counted, monkeypatch):
    model, batch, objective = made("bert", "masked LM")
    nopad.packed(model)
    weight = model.get_output_embeddings().weight
    found = []
    for smallest in (1, 10**9):
        monkeypatch.setattr(vocabulary, "SMALLEST", smallest)
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = objective.loss({"logits": logits}, batch, torch.ones(()))
        first = torch.autograd.grad(loss, logits, create_graph=True, retain_graph=True)[0]
        (slope,) = torch.autograd.grad(
            loss + first.square().sum(), model.get_output_embeddings().bias, create_graph=True
        )
        found.append(torch.autograd.grad(slope.square().sum(), weight)[0])
    assert len(counted) == 1  # the last pass, of which no derivative is taken
    assert (found[0] - found[1]).abs().max() < 1e-12 * found[1].abs().max()


def test_frozen_weights_and_logits_changed_in_place(counted, monkeypatch):
    model, batch, objective = made("llama", "causal LM")
    model.get_output_embeddings().weight.requires_grad_(False)
    plain = copy.deepcopy(model)
    for one, smallest in ((model, 1), (plain, 10**9)):
        monkeypatch.setattr(vocabulary, "SMALLEST", smallest)
        nopad.packed(one)
        output = one(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        objective.loss({"logits": output.logits.mul_(0.5)}, batch, torch.ones(())).backward()
    assert len(counted) == 1
    assert model.get_output_embeddings().weight.grad is None
    assert_same(model, gradients(plain))


@pytest.mark.parametrize("why", ["hook", "forward", "autocast", "no gradient", "not packed"])
def test_where_pytorchs_own_backward_pass_stays(why, counted):
    model, batch, _ = made("bert", "masked LM")
    model = nopad.packed(model.float())
    layer = model.get_output_embeddings()
    given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    if why == "hook":
        layer.register_forward_hook(_doubled)
        nopad.packed(nopad.unpacked(model))
    if why == "forward":
        layer.forward = layer.forward
    if why == "not packed":
        given = {"input_ids": batch["input_ids"][:, :5]}
    with torch.autocast("cpu", enabled=why == "autocast"), torch.set_grad_enabled(why != "no gradient"):
        logits = model(**given).logits
    if why != "no gradient":
        cross_entropy(logits[0, :2].float(), given["input_ids"][0, :2]).backward()
    assert not counted


def _doubled(module, args, output):
    return output * 2


def test_the_layer_stays_plain_for_faster_kernels():
    model = nopad.packed(made("bert", "masked LM")[0])
    layer = model.get_output_embeddings()
    assert any(isinstance(hook, Hook) for hook in layer._forward_hooks.values())
    assert is_plain_layer(layer)
    layer.register_forward_hook(_doubled)
    assert not is_plain_layer(layer)
    assert not nopad.unpacked(nopad.packed(made("bert", "masked LM")[0])).get_output_embeddings()._forward_hooks
