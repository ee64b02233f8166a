"""Two real ranks in every trainer: each token of each sequence once an epoch, and equal steps."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import numpy as np
from runs import ACCUMULATION, EPOCHS, LENGTHS, arguments, balance, classify, loader, model, prefer, watched

from nopad.training import PackedTrainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", ["plain", "trainer", "sft", "lightning"])
def test_each_sequence_is_trained_on_once_an_epoch(ranks, name):
    told = ranks[0][name]
    if "absent" in told[0]:
        pytest.skip(f"{told[0]['absent']} is not installed")
    assert [one.get("error") for one in told] == [None, None]
    assert [sum(both) for both in zip(*(one["tokens"] for one in told), strict=True)] == (EPOCHS * LENGTHS).tolist()
    assert told[0]["steps"] == told[1]["steps"]
    assert told[0]["steps"] % (EPOCHS * ACCUMULATION) == 0
    assert sum(one["stand_ins"] for one in told) > 0  # the last step of an epoch has fewer packs than micro-batches


def test_two_ranks_go_on_where_they_stopped(ranks):
    told, _ = ranks
    if "tagged with cpu:0" in told["resumed"][0].get("error", ""):
        pytest.skip("this transformers cannot load an optimizer's state on ranks without a GPU")
    for rank in range(2):
        both = zip(told["cut"][rank]["tokens"], told["resumed"][rank]["tokens"], strict=True)
        assert [sum(pair) for pair in both] == told["trainer"][rank]["tokens"]
        assert len(told["trainer"][rank]["losses"]) == told["trainer"][rank]["steps"] // ACCUMULATION
    assert told["resumed"][0]["losses"] == told["trainer"][0]["losses"]


def test_one_rank_goes_on_where_two_stopped(ranks, tmp_path):
    told, folder = ranks
    made = watched(PackedTrainer)(model(), arguments(tmp_path), train_dataset=loader(rank=0, world_size=1))
    made.train(resume_from_checkpoint=str(folder / "cut" / "checkpoint-3"))
    before = [sum(both) for both in zip(*(one["tokens"] for one in told["cut"]), strict=True)]
    assert 0 < sum(before) < LENGTHS.sum()
    both = [sum(pair) for pair in zip(before, made.seen.tokens, strict=True)]
    assert both == (EPOCHS * LENGTHS).tolist()
    # 51 packs: 24 of them seen in 3 steps of 8, so 27 in 7 steps of 4, and then a whole epoch of 13 steps
    assert made.state.global_step == made.state.max_steps == 3 + 7 + 13
    assert made.epochs[-1] == EPOCHS == made.state.num_train_epochs
    assert made.epochs == sorted(set(made.epochs))


def test_two_ranks_learn_and_evaluate_what_one_does(ranks, tmp_path):
    """The same packs a step on one rank: losses, weights, evaluation and predictions agree to rounding."""
    told = ranks[0]["classifies"]
    assert [one.get("error") for one in told] == [None, None]
    alone = classify(tmp_path, 2 * ACCUMULATION, PackedTrainer)[1]
    assert len(alone["losses"]) > 3
    for rank in told:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-6)  # logged in float32
        assert rank["sum"] == pytest.approx(alone["sum"], rel=1e-13)
        assert rank["evaluated"] == pytest.approx(alone["evaluated"], rel=1e-10)
        np.testing.assert_allclose(rank["predicted"], alone["predicted"], rtol=0, atol=1e-10)


def test_two_ranks_balance_experts_as_one_does(ranks, tmp_path):
    """The loss that balances experts is weighted over micro-batches and ranks alike, and stand-ins have no weight."""
    told = ranks[0]["balances"]
    assert [one.get("error") for one in told] == [None, None]
    alone = balance(tmp_path, 2 * ACCUMULATION, PackedTrainer)
    assert len(alone["losses"]) > 3
    for rank in told:
        assert rank["sum"] == pytest.approx(alone["sum"], rel=1e-12)
    assert told[0]["losses"] == pytest.approx(alone["losses"], rel=1e-6)  # logged in float32


def test_two_ranks_prefer_what_one_does(ranks, tmp_path):
    """Each rank computes the reference of its share of the answers, and both get all of it."""
    told = ranks[0]["prefers"]
    assert [one.get("error") for one in told] == [None, None]
    alone = prefer(tmp_path, 2 * ACCUMULATION, PackedTrainer)
    assert len(alone["losses"]) > 3
    assert len(alone["reference"]) == 52
    assert alone["losses"][0] == pytest.approx(np.log(2), rel=1e-6)  # model and reference are the same
    for rank in told:
        np.testing.assert_allclose(rank["reference"], alone["reference"], rtol=0, atol=1e-11)
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-6)
        assert rank["sum"] == pytest.approx(alone["sum"], rel=1e-12)
