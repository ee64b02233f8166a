from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertModel

import nopad
from nopad.errors import OptionError
from nopad.serving import Batching, OnlinePacker
from nopad.study import serving_runs
from nopad.study.serving import GRIDS, Grid, workload
from nopad.study.serving_runs import WAYS, model_for, real_rows

SMALL = Grid(name="small", rows=4, capacity=32, max_sequences=10)
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nopad.packed(BertModel(BertConfig(**SIZES, vocab_size=120)).double().eval())


def test_each_way_answers_the_same(model):
    said = []
    rows = real_rows(SMALL, model, batches=8, say=said.append)
    assert [row.way for row in rows] == list(WAYS)
    assert said == [*WAYS, *WAYS, *(f"{way}, as requests arrive" for way in WAYS)]
    first, *others = rows
    assert (first.speed_up, first.difference, first.requests) == (1, 0, 32)
    for row in others:
        assert 0 <= row.difference <= 1e-12
        assert row.offered_per_s == first.offered_per_s == pytest.approx(0.6 * first.per_s)
        assert row.speed_up == pytest.approx(row.per_s / first.per_s)
        assert 0 < row.p50_ms <= row.p99_ms


def test_the_original_way_runs_full_grids_of_single_rows(model):
    """However short its requests are, it takes four at a time, and computes 4 x 32 slots."""
    seen = []
    original, batching = serving_runs._served(WAYS[0], SMALL, model)
    requests = [{"input_ids": [20] * length} for length in (1, 32, 3, 5, 1, 7)]
    expected = [model(input_ids=torch.tensor([one["input_ids"]])).last_hidden_state[0] for one in requests]
    hook = model.register_forward_pre_hook(lambda _, given, named: seen.append(named), with_kwargs=True)
    with nopad.PackRunner(original, batching, warm_up=False) as runner:
        found = runner(requests)
    hook.remove()
    assert {tuple(one["input_ids"].shape) for one in seen} == {(4, 32)}
    assert len(seen) >= 2
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours["last_hidden_state"], theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS[1:4])
def test_the_grids_are_those_of_the_simulation(model, way):
    _, batching = serving_runs._served(way, GRIDS[0], model)
    packer = OnlinePacker(batching)
    for length in workload(GRIDS[0]).tolist():
        packer.add(length, 0)
    batches = 0
    while len(packer):
        packer.poll(0)
        batches += 1
    assert batches == {"end_to_end": 52, "first_fit": 56, "next_fit": 65}[way]
    assert serving_runs._served(WAYS[4], GRIDS[0], model)[1] == Batching(capacity=4096)


@pytest.mark.parametrize("batches", [0, 101, 2.0])
def test_how_many_batches(model, batches):
    with pytest.raises(OptionError, match="batches must be an integer from 1 to 100, got"):
        real_rows(SMALL, model, batches=batches)


def test_the_models_are_of_one_size():
    bert, deberta = (model_for(grid) for grid in GRIDS)
    for model in (bert, deberta):
        assert (model.config.hidden_size, model.config.num_hidden_layers) == (384, 6)
        assert not model.training
