"""One rank of real runs, in every trainer: gloo on the CPU. Started by test_ranks.py, once per rank.

`python ranks_program.py FOLDER` trains a tiny model in each trainer in turn, and prints one line of JSON for each: the
token ids of every batch that this rank trained on, by count, and how many micro-steps it took.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests`
from runs import ACCUMULATION, EPOCHS, Seen, arguments, balance, classify, loader, model, prefer, tokenizer, watched


def main() -> None:
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(folder / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    for name, run in RUNS.items():
        try:
            seen = run(folder / name)
            told = (
                seen
                if isinstance(seen, dict)
                else {"tokens": seen.tokens, "steps": seen.steps, "stand_ins": seen.stand_ins, "losses": seen.losses}
            )
        except ModuleNotFoundError as error:
            told = {"absent": error.name}
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"name": name, **told}), flush=True)
        dist.barrier()
    os._exit(0)  # no clean-up of gloo waits for, or stumbles over, a rank that has left already


def plain(folder: Path) -> Seen:
    ddp = torch.nn.parallel.DistributedDataParallel(model())
    optimizer, batches, seen = torch.optim.SGD(ddp.parameters(), lr=0.1), loader(), Seen()
    for _ in range(EPOCHS):
        for number, batch in enumerate(batches):
            seen.add(batch)
            ddp(**batch, num_items_in_batch=1000).loss.backward()
            if (number + 1) % ACCUMULATION == 0:
                optimizer.step()
                optimizer.zero_grad()
    return seen


def trainer(folder: Path) -> Seen:
    from nopad.training import PackedTrainer

    made = watched(PackedTrainer)(model(), arguments(folder), train_dataset=loader())
    made.train()
    made.seen.losses = made.losses
    return made.seen


def cut(folder: Path) -> Seen:
    """The same, stopped after three steps, with a checkpoint."""
    import transformers

    from nopad.training import PackedTrainer

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step == 3

    how = arguments(folder, save_strategy="steps", save_steps=3)
    made = watched(PackedTrainer)(model(), how, train_dataset=loader(), callbacks=[Stop()])
    made.train()
    return made.seen


def resumed(folder: Path) -> Seen:
    """The rest of what was cut."""
    from nopad.training import PackedTrainer

    made = watched(PackedTrainer)(model(), arguments(folder), train_dataset=loader())
    made.train(resume_from_checkpoint=str(folder.with_name("cut") / "checkpoint-3"))
    made.seen.losses = made.losses
    return made.seen


def sft(folder: Path) -> Seen:
    import trl

    from nopad.errors import OptionError
    from nopad.training import PackedSFTTrainer

    same = {"kind": trl.SFTConfig, "gradient_checkpointing": False, "bf16": False}
    how = arguments(folder, average_tokens_across_devices=False, **same)
    with pytest.raises(OptionError, match="average_tokens_across_devices=False is a mean"):
        PackedSFTTrainer(model(), how, train_dataset=loader(), processing_class=tokenizer())
    how = arguments(folder, **same)
    made = watched(PackedSFTTrainer)(model(), how, train_dataset=loader(), processing_class=tokenizer())
    made.train()
    return made.seen


def classifies(folder: Path) -> dict:
    """A task in float64, with evaluation and prediction."""
    from nopad.training import PackedTrainer

    return classify(folder, ACCUMULATION, PackedTrainer)[1]


def balances(folder: Path) -> dict:
    """A mixture of experts, with the loss that balances them."""
    from nopad.training import PackedTrainer

    return balance(folder, ACCUMULATION, PackedTrainer)


def prefers(folder: Path) -> dict:
    """DPO, whose reference is computed by both ranks."""
    from nopad.training import PackedTrainer

    return prefer(folder, ACCUMULATION, PackedTrainer)


def lightning(folder: Path) -> Seen:
    import lightning

    seen = Seen()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model()

        def training_step(self, batch, _):
            seen.add(batch)
            return self.model(**batch, num_items_in_batch=1000).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    made = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=EPOCHS,
        accumulate_grad_batches=ACCUMULATION,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    made.fit(Module(), train_dataloaders=loader().dataloader())
    return seen


RUNS = {
    "plain": plain,
    "trainer": trainer,
    "cut": cut,
    "resumed": resumed,
    "sft": sft,
    "classifies": classifies,
    "balances": balances,
    "prefers": prefers,
    "lightning": lightning,
}

if __name__ == "__main__":
    main()
