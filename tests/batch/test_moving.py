"""A batch on its way to a device, by the ways that loops have: it stays a packed batch, with its layout."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory

import nopad
from nopad import PackedBatch, Rows
from nopad.errors import MissingExtraError

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture
def batch():
    columns = {"labels": [[1, 2], [3]], "score": [0.5, 1.5], "name": ["a", "b"]}
    return PackedBatch.from_sequences([[7, 8], [9]], Rows(4), columns=columns)


def by_accelerate(batch, device):
    return pytest.importorskip("accelerate").utils.send_to_device(batch, device, non_blocking=True)


def by_transformers(batch, device):
    """As `Trainer._prepare_inputs` does it."""
    return type(batch)({k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()})


@pytest.mark.filterwarnings("ignore")
def by_lightning(batch, device):
    return pytest.importorskip("lightning.fabric.utilities").move_data_to_device(batch, torch.device(device))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", ["cpu", "meta", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
@pytest.mark.parametrize("way", [PackedBatch.to, by_accelerate, by_transformers, by_lightning])
def test_it_stays_a_packed_batch(batch, way, device):
    moved = way(batch, device)
    assert isinstance(moved, PackedBatch)
    assert moved.layout is batch.layout
    assert list(moved) == list(batch)
    for name in ("input_ids", "labels", "position_ids", "score"):
        assert moved[name].device.type == device
        assert moved[name].shape == batch[name].shape
    assert moved["name"].tolist() == ["a", "b"]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("way", [PackedBatch.pin_memory, pin_memory])
def test_pinned_memory(batch, way):
    pinned = way(batch)
    assert isinstance(pinned, PackedBatch)
    assert all(pinned[name].is_pinned() for name in ("input_ids", "labels", "position_ids", "score"))
    assert pinned.layout is batch.layout


@pytest.mark.gpu
@needs_gpu
def test_a_loader_gives_pinned_batches():
    loader = nopad.PackedLoader([[1, 2, 3], [4], [5, 6]], 4, rows=1)
    assert all(batch["input_ids"].is_pinned() for batch in loader.dataloader(pin_memory=True))


def test_torch_pins_a_batch_by_the_batchs_own_method(batch, monkeypatch):
    """What a DataLoader does with `pin_memory=True`; the method is replaced, since pinning needs a device."""
    monkeypatch.setattr(PackedBatch, "pin_memory", lambda self: ("pinned", self))
    assert pin_memory(batch) == ("pinned", batch)


@pytest.mark.parametrize(
    "use",
    [
        lambda batch: batch["input_ids"],
        lambda batch: batch.to("cpu"),
        PackedBatch.pin_memory,
        lambda batch: batch["attention_mask"].sum(),
        lambda batch: PackedBatch.from_embeddings([batch], Rows(4)),
    ],
    ids=["item", "to", "pin_memory", "sum", "embeddings"],
)
def test_without_torch_the_error_names_it(batch, use, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"needs torch; in a clone: pip install -e '\.\[torch\]'"):
        use(batch)
