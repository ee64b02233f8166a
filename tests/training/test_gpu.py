"""A training run on a GPU: batches are pinned and moved, and it learns what a CPU learns."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
from runs import LENGTHS, arguments, loader, model, watched

from nopad.training import PackedTrainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(torch.cuda.device_count() > 1, reason="for one GPU: set CUDA_VISIBLE_DEVICES=0"),
    pytest.mark.filterwarnings("ignore"),
]


def trained(folder, **options):
    made = watched(PackedTrainer)(model(), arguments(folder, **options), train_dataset=loader())
    made.train()
    return made


def test_steps_are_those_of_a_cpu(tmp_path):
    there = trained(tmp_path / "gpu", use_cpu=False)
    here = trained(tmp_path / "cpu", use_cpu=True)
    assert next(there.model.parameters()).device.type == "cuda"
    assert there.seen.tokens == here.seen.tokens
    assert sum(there.seen.tokens) % LENGTHS.sum() == 0
    assert there.losses == pytest.approx(here.losses, abs=1e-3)
    for mine, other in zip(there.model.parameters(), here.model.parameters(), strict=True):
        assert torch.allclose(mine.cpu(), other, atol=1e-2)


def test_in_bf16(tmp_path):
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU has no bfloat16")
    half, whole = trained(tmp_path / "half", use_cpu=False, bf16=True), trained(tmp_path / "whole", use_cpu=False)
    assert half.seen.batches == whole.seen.batches
    assert half.losses == pytest.approx(whole.losses, rel=5e-2)
