"""The loader in Lightning: its own DataLoader, left as it is, with its state in Lightning's checkpoints."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("lightning", reason="Lightning is not installed")

import lightning
import torch
from runs import ACCUMULATION, EPOCHS, LENGTHS, Seen, loader, model

pytestmark = pytest.mark.filterwarnings("ignore")


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.seen, self.losses = model(), Seen(), []

    def training_step(self, batch, _):
        self.seen.add(batch)
        loss = self.model(**batch, num_items_in_batch=1000).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def fitted(folder, *, resumed=None, workers=0):
    module = Module()
    made = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        accumulate_grad_batches=ACCUMULATION,
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    made.fit(module, train_dataloaders=loader().dataloader(num_workers=workers), ckpt_path=resumed)
    return module, made


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return *fitted(folder), folder


def test_every_epoch_is_the_loaders(whole):
    module, made, _ = whole
    assert made.global_step == EPOCHS * len(loader()) // ACCUMULATION
    assert module.seen.tokens == (EPOCHS * LENGTHS).tolist()
    plain = loader()
    assert module.seen.batches == [batch["input_ids"].tolist() for _ in range(EPOCHS) for batch in plain]


@pytest.mark.parametrize(("step", "workers"), [(5, 0), (13, 0), (17, 2)])
def test_a_run_that_was_cut_goes_on_exactly(whole, tmp_path, step, workers):
    first, _, folder = whole
    again, made = fitted(tmp_path, resumed=folder / f"step={step}.ckpt", workers=workers)
    assert again.seen.batches == first.seen.batches[step * ACCUMULATION :]
    assert again.losses == first.losses[step * ACCUMULATION :]
    assert made.global_step == EPOCHS * len(loader()) // ACCUMULATION
    for ours, theirs in zip(again.parameters(), first.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_module_that_makes_its_own_loader():
    class Own(Module):
        def train_dataloader(self):
            return loader().dataloader()

    module = Own()
    made = lightning.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False)
    made.fit(module)
    assert module.seen.tokens == LENGTHS.tolist()
