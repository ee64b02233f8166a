from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import DataLoader

from nopad import PackedLoader
from nopad.errors import MissingExtraError, OptionError
from nopad.loading.torch import TorchDataset

LENGTHS = np.random.default_rng(0).integers(1, 40, size=120)
DATA = [np.full(length, number) for number, length in enumerate(LENGTHS)]


def loader(**options):
    return PackedLoader(DATA, 40, rows=2, rank=1, world_size=2, accumulation=2, **options)


def test_without_torch_the_error_names_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "nopad.loading.torch")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match="a DataLoader needs torch; in a clone: pip install"):
        loader().dataloader()


def contents(batches):
    return [batch["input_ids"].tolist() for batch in batches]


@pytest.fixture(scope="module")
def expected():
    """Three epochs in a plain loop, and the state five batches into the third."""
    plain = loader()
    epochs = [contents(plain) for _ in range(3)]
    plain.set_epoch(2)
    for _ in zip(range(5), plain, strict=False):
        pass
    return epochs, plain.state_dict()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_workers_change_neither_order_nor_state(expected, num_workers):
    epochs, state = expected
    ours = loader()
    batches = ours.dataloader(num_workers=num_workers)
    assert len(batches) == len(epochs[0])
    assert contents(batches) == epochs[0]
    assert ours.epoch == 1
    assert contents(batches) == epochs[1]
    begun = iter(batches)
    assert [next(begun)["input_ids"].tolist() for _ in range(5)] == epochs[2][:5]
    assert batches.state_dict()["legs"] == state["legs"]
    resumed = loader().dataloader(num_workers=num_workers)
    resumed.load_state_dict(batches.state_dict())
    assert contents(resumed) == epochs[2][5:]


def test_a_plain_data_loader_without_workers(expected):
    ours = loader()
    batches = DataLoader(TorchDataset(ours), batch_size=None)
    assert contents(batches) == expected[0][0]
    assert ours.epoch == 1
    batches.dataset.set_epoch(0)
    assert contents(batches) == expected[0][0]


@pytest.mark.parametrize("collate", [{}, {"collate_fn": lambda batches: batches[0]}, {"collate_fn": list}])
@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"batch_size": 1, "drop_last": True}])
def test_a_data_loader_that_would_batch_batches_is_refused(options, collate):
    ours = loader()
    before = ours.state_dict()
    with pytest.raises(OptionError, match=r"these are whole batches; give it batch_size=None, as in DataLoader"):
        next(iter(DataLoader(TorchDataset(ours), **options, **collate)))
    assert ours.state_dict() == before


def test_a_collate_function_may_change_single_batches(expected):
    batches = DataLoader(TorchDataset(loader()), batch_size=None, collate_fn=lambda batch: batch["input_ids"].tolist())
    assert list(batches) == expected[0][0]


def test_options_that_are_left_as_they_are(expected):
    assert contents(loader().dataloader(batch_size=None, num_workers=np.int64(0))) == expected[0][0]
    with pytest.raises(OptionError, match="num_workers must be an integer"):
        loader().dataloader(num_workers="2")


def test_workers_that_the_loader_would_not_know_of_are_refused(monkeypatch):
    for module in (
        torch.utils.data._utils,
        torch.utils.data._utils.worker,
    ):  # for so many seconds PyTorch waits for them
        monkeypatch.setattr(module, "MP_STATUS_CHECK_INTERVAL", 0.5)
    batches = iter(DataLoader(TorchDataset(loader()), batch_size=None, num_workers=2))
    with pytest.raises(OptionError, match=r"use loader.dataloader\(num_workers=2\) instead"):
        next(batches)
    del batches
    gc.collect()  # which ends the workers


@pytest.mark.parametrize("option", [{"shuffle": True}, {"batch_size": 3}, {"persistent_workers": True}])
def test_what_would_change_the_batches_is_refused(option):
    with pytest.raises(OptionError, match=f"{next(iter(option))} is the loader's business"):
        loader().dataloader(**option)


def test_a_worker_that_dies_is_an_error(monkeypatch):
    def dying(sequences, form, per_row):
        import os

        os._exit(5)

    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader(collate=dying, prefetch=0).dataloader(num_workers=1))


def test_an_error_in_a_worker_says_what_was_wrong():
    def broken(sequences, form, per_row):
        raise ValueError("the tokenizer has no such id")

    with pytest.raises(ValueError, match="the tokenizer has no such id"):
        list(loader(collate=broken).dataloader(num_workers=2))
