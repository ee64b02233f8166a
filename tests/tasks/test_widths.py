"""Flat batches get a few slots more where oneDNN would otherwise make new code for each width."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, CLIPTextConfig, CLIPTextModel

import nopad
from nopad.serving.forward import Tensors
from nopad.tasks import Embedder, core
from nopad.tasks.core import WORTH_TOKENS

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WIDTHS = {1: 4, 16: 16, 17: 20, 64: 64, 65: 72, 129: 144, 512: 512, 513: 544, 1024: 1024, 1025: 1088, 4000: 4032}


def a_model(kind=BertModel):
    torch.manual_seed(0)
    return kind(BertConfig(**SIZES, vocab_size=120, max_position_embeddings=64)).eval()


def width(form, tokens):
    return form.layout(np.array([tokens], np.int32)).shape[1]


def test_which_widths():
    fast = Tensors(nopad.packed(a_model()), fast=True)
    assert {tokens: width(fast.flat(tokens), tokens) for tokens in WIDTHS} == WIDTHS
    assert len({width(fast.flat(tokens), tokens) for tokens in range(1, 4097)}) == 112
    assert width(fast.flat(17, WORTH_TOKENS - 1), 17) == 17  # so few run on PyTorch's own kernel
    assert width(fast.flat(17, WORTH_TOKENS), 17) == 20
    slow = Tensors(nopad.packed(a_model()), fast=False)
    assert width(slow.flat(17), 17) == 17
    low = Tensors(nopad.packed(a_model().to(torch.bfloat16)), fast=False)
    assert width(low.flat(17), 17) == 20


@pytest.mark.parametrize("where", ["meta", torch.float64])
@pytest.mark.parametrize("given", [True, None])
def test_only_where_onednn_multiplies(where, given, monkeypatch):
    """On a GPU, padding would cost time and keep flash attention off."""
    monkeypatch.setattr(core, "is_worth_it", lambda model: True)
    fast = Tensors(nopad.packed(a_model()), fast=given)
    assert width(fast.flat(17), 17) == 20
    fast.model.to(where)
    assert [width(fast.flat(17, total), 17) for total in (None, WORTH_TOKENS)] == [17, 17]


@pytest.mark.parametrize(("given", "asks"), [(None, 1), (True, 0), (False, 0)])
@pytest.mark.parametrize("worth", [True, False])
def test_the_kernel_is_chosen_when_a_model_is_loaded(worth, given, asks, monkeypatch):
    asked, opened = [], []
    monkeypatch.setattr(core, "is_worth_it", lambda model: bool(asked.append(model)) or worth)
    monkeypatch.setattr(core, "fast_linear", lambda model: opened.append(model) or nullcontext())
    made = Tensors(nopad.packed(a_model()), fast=given)
    chosen = worth if given is None else given
    assert (made.fast, len(asked)) == (chosen, asks)
    for tokens in (None, WORTH_TOKENS, WORTH_TOKENS - 1):
        with made.kernels(tokens):
            pass
    assert (len(opened), len(asked)) == (2 * chosen, asks)  # no measurement again, and no few tokens


def test_models_with_rows_of_their_positions_get_none():
    torch.manual_seed(0)
    sizes = {name: SIZES[name] for name in SIZES if name != "num_hidden_layers"}
    config = CLIPTextConfig(**sizes, num_hidden_layers=1, vocab_size=120, max_position_embeddings=17, eos_token_id=119)
    model = CLIPTextModel(config).eval()
    fast = Tensors(nopad.packed(model), fast=True)
    assert width(fast.flat(17), 17) == 17


@pytest.mark.parametrize("kind", [BertModel, BertForSequenceClassification])
def test_a_runner_with_filler(kind, monkeypatch):
    """Answers are those of each request alone, and the slots are counted."""
    widths, run = [], Tensors.results_of

    def results_of(self, batch, model):
        widths.append(batch.layout.shape[1])
        return run(self, batch, model)

    plain, draw = a_model(kind), np.random.default_rng(0)
    sequences = [draw.integers(1, 120, length) for length in draw.integers(1, 60, 40)]
    monkeypatch.setattr(Tensors, "results_of", results_of)
    with nopad.PackRunner(nopad.packed(a_model(kind)), fast=True, warm_up=False) as runner:
        found = runner([{"input_ids": one} for one in sequences])
        statistics = runner.statistics
    tokens = sum(map(len, sequences))
    assert widths
    assert {one % 4 for one in widths} == {0}
    assert statistics.filler_tokens == sum(widths) - tokens > 0
    assert statistics.packer.tokens == tokens
    with torch.no_grad():
        for one, answer in zip(sequences, found, strict=True):
            alone = plain(input_ids=torch.from_numpy(one)[None])
            for name, value in answer.items():
                torch.testing.assert_close(value, alone[name][0], atol=2e-6, rtol=1e-5)


def test_vectors_are_the_same(monkeypatch):
    embedder = Embedder.from_folder()
    texts = [f"text {number} " * (number % 7 + 1) for number in range(60)]
    monkeypatch.setattr(core, "WORTH_TOKENS", 1)
    embedder.fast = False
    wanted = embedder.encode(texts)
    embedder.fast = True
    shapes = []
    embedded = type(embedder)._embedded
    monkeypatch.setattr(
        type(embedder),
        "_embedded",
        lambda self, model, batch, *how: shapes.append(batch.layout.shape[1]) or embedded(self, model, batch, *how),
    )
    assert np.abs(embedder.encode(texts) - wanted).max() <= 1e-6
    assert shapes
    assert {one % 4 for one in shapes} == {0}
