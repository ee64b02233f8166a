"""Packed and unpacked training from equal weights on equal sequences: the same weights, step by step."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np
import torch

from nopad import Rows
from nopad.batch import PackedBatch
from nopad.study.learning.material import material
from nopad.study.learning.runs import SIZES, model_of
from nopad.study.learning.ways import feeding, seen_by
from nopad.tasks import OfPretraining
from nopad.training import Lamb, decay_groups

SIZE = SIZES["toy"]
ROUNDING = ("key.bias",)  # adds the same to all scores of a query, which softmax cancels: gradients are rounding


@pytest.fixture(scope="module")
def given():
    return material(SIZE.capacity, SIZE.vocabulary, SIZE.documents)


def batches(given, step, count=12):
    """The same masked pairs in packs, and one per row."""
    numbers = np.arange(step * count, (step + 1) * count) % len(given.train)
    taken = given.train.take(numbers)
    masked = given.task.masking.masked(replace(taken, values={**taken.values, "seq_index": numbers}), epoch=0)
    alone = np.ones(count, np.int64)
    form = Rows(SIZE.capacity)
    return PackedBatch.from_columns(masked, form), PackedBatch.from_columns(masked, form, per_row=alone)


def stepped(model, way, batch, optimizer, per="token"):
    objective = OfPretraining(per)
    optimizer.zero_grad()
    loss = objective.loss(feeding(model, way)(batch), batch, objective.denominator(batch))
    loss.backward()
    optimizer.step()
    return float(loss.detach())


OPTIMISERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    "lamb": lambda model: Lamb(decay_groups(model), lr=1e-2),
}


def both(given, kind, dtype=torch.float64):
    models = [model_of(given, SIZE, 0).to(dtype) for _ in range(2)]
    return models, [OPTIMISERS[kind](model) for model in models]


def furthest(models, leave_out=()):
    one, other = (dict(model.named_parameters()) for model in models)
    return max(
        float((one[name] - other[name]).abs().max().detach()) for name in one if not name.endswith(tuple(leave_out))
    )


@pytest.mark.parametrize(("kind", "near"), [("sgd", 1e-10), ("adam", 1e-5), ("lamb", 1e-5)])
@pytest.mark.parametrize("per", ["token", "sequence"])
def test_the_first_step(given, kind, near, per):
    models, optimisers = both(given, kind)
    before = copy.deepcopy(models[0])
    packed, alone = batches(given, 0)
    assert packed["input_ids"].shape[0] < alone["input_ids"].shape[0] == 12
    losses = [
        stepped(models[0], "packed", packed, optimisers[0], per),
        stepped(models[1], "one per row", alone, optimisers[1], per),
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert furthest(models, () if kind == "sgd" else ROUNDING) < near
    assert furthest([before, models[0]]) > 1e-4  # it is a step


def test_fifty_steps(given):
    models, optimisers = both(given, "adam", torch.float32)
    for step in range(50):
        packed, alone = batches(given, step)
        stepped(models[0], "packed", packed, optimisers[0])
        last = stepped(models[1], "one per row", alone, optimisers[1])
    assert last < 7.5  # of 8 at first
    assert furthest(models, ROUNDING) < 1e-4


@pytest.mark.parametrize("way", ["no mask", "no reset", "neither"])
def test_what_is_wrong_is_not_equal(given, way):
    models, optimisers = both(given, "sgd")
    packed, _ = batches(given, 0)
    stepped(models[0], "packed", packed, optimisers[0])
    stepped(models[1], way, packed, optimisers[1])
    assert furthest(models) > 1e-6


def test_alone_is_what_transformers_gives_for_a_padded_batch(given):
    model = model_of(given, SIZE, 0).double()
    _, batch = batches(given, 0)
    mask = torch.from_numpy((batch.layout.sequence_ids > 0).astype(np.int64))
    wanted = model(input_ids=batch["input_ids"], attention_mask=mask, token_type_ids=batch["token_type_ids"])
    found = feeding(model, "one per row")(batch)
    real = mask.bool()
    torch.testing.assert_close(found["prediction_logits"][real], wanted.prediction_logits[real], atol=1e-12, rtol=0)
    torch.testing.assert_close(found["seq_relationship_logits"], wanted.seq_relationship_logits, atol=1e-12, rtol=0)


def test_who_sees_whom():
    ids, sides = torch.tensor([[1, 1, 1, 2, 2, 0]]), torch.tensor([[0, 0, 1, 0, 1, 0]])

    def shown(way):
        return ["".join(".x"[cell] for cell in row) for row in seen_by(ids, sides, way)[0].int().tolist()]

    assert shown("one per row") == ["xxx...", "xxx...", "xxx...", "...xx.", "...xx.", ".....x"]
    assert shown("no mask") == ["xxxxx."] * 5 + [".....x"]
    assert shown("segments") == ["xxx...", ".x....", "..x...", "...xx.", "....x.", ".....x"]
