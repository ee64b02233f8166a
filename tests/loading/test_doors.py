"""What trainers lean on: a loop that counts batches, torch's generator, labels of causal language models."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from nopad import PackedLoader
from nopad.errors import BatchError, OptionError
from nopad.loading import causal

DATA = [np.full(length, number) for number, length in enumerate(np.random.default_rng(0).integers(1, 40, size=60))]


def loader(**options):
    return PackedLoader(DATA, 40, rows=2, accumulation=2, rank=0, world_size=1, **options)


def contents(batches):
    return [batch["input_ids"].tolist() for batch in batches]


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_a_loop_that_counts_never_asks_for_one_more(workers):
    plain = loader()
    expected = [contents(plain) for _ in range(3)]
    ours = loader()
    batches = ours if workers is None else ours.dataloader(num_workers=workers)
    for epoch in range(3):
        begun = iter(batches)
        assert contents(next(begun) for _ in range(len(ours))) == expected[epoch]
        assert ours.epoch == epoch
        assert ours.state_dict()["epoch"] == epoch + 1


def test_torchs_generator_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    batches = loader().dataloader(num_workers=1)
    assert len(list(batches)) == len(batches)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    other = loader().dataloader(num_workers=1)
    assert other.generator.initial_seed() != batches.generator.initial_seed()


def test_order_is_kept():
    with pytest.raises(OptionError, match="in_order=False would change the order of batches"):
        loader().dataloader(in_order=False)


def test_there_is_no_batch_by_number():
    with pytest.raises(
        OptionError, match=r"gives whole batches in order, and none by number; .*nopad.training.PackedTrainer"
    ):
        loader()[0]


@pytest.mark.parametrize(
    ("step", "per_rank"), [({"rows": 3, "capacity": 80}, 3), ({"tokens": 99}, 1), ({"sequences": 6}, 6)]
)
@pytest.mark.parametrize("groups", [None, 2])
def test_the_step_in_numbers(step, per_rank, groups):
    ours = PackedLoader(DATA, accumulation=4, rank=0, world_size=1, groups=groups, last="fill", **step)
    assert (ours.accumulation, ours.per_rank) == (4, per_rank)


@pytest.mark.parametrize("name", [None, "labels", "label_ids", "label"])
def test_labels_of_causal_models(name):
    data = [{"input_ids": [7, 8, 9]}, {"input_ids": [5, 6]}]
    if name:
        data = [{**one, name: [-100, *one["input_ids"][1:-1], 3]} for one in data]
    ours = PackedLoader(data, 6, rows=1, rank=0, world_size=1, collate=causal)
    (batch,) = ours
    assert batch["input_ids"].tolist() == [[7, 8, 9, 5, 6, 0]]
    assert batch["labels"].tolist() == [[-100, 8, 3 if name else 9, -100, 3 if name else 6, -100]]
    assert batch.layout.causal


def test_one_label_per_sequence_is_none_per_token():
    data = [{"input_ids": [7, 8, 9], "label": 1}, {"input_ids": [5, 6], "label": 0}]
    with pytest.raises(BatchError, match="label has one value per sequence; a causal language model has a label per"):
        list(PackedLoader(data, 6, rows=1, rank=0, world_size=1, collate=causal))


@pytest.mark.parametrize(
    ("name", "ours"), [("batch_size", "rows="), ("shuffle", "seed="), ("num_workers", "dataloader")]
)
def test_options_of_torchs_loader_are_told_their_names_here(name, ours):
    with pytest.raises(OptionError, match=rf"{name} is an option of torch's DataLoader.*{ours}"):
        PackedLoader(DATA, 40, **{name: 2})
