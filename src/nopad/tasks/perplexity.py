"""`CausalMeter`: accuracy and perplexity of causal language models on labelled tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.losses import Accuracy, over_ranks, token_denominator, token_loss
from nopad.losses.means import Per
from nopad.tasks.objective import Meter

__all__ = ["CausalMeter"]


class CausalMeter(Meter):
    """Accuracy of next tokens, and perplexity, which is exp(mean loss) over all batches that were added.

    Args:
        per: whether means are over tokens ("token"), or first within each sequence ("sequence"), as in `nopad.losses`.
    """

    def __init__(self, per: Per = "token") -> None:
        self.per: Per = per
        self.counts, self.sums = Accuracy(per), torch.zeros(2, dtype=torch.double)

    def add(self, outputs: Any, batch: PackedBatch) -> None:
        """Add the outputs for a batch: ``logits`` ``[R, L, V]``. The targets are the batch's ``labels``."""
        logits, labels = outputs["logits"].detach(), batch["labels"]
        self.counts.add(logits, labels, batch, causal=True)
        weight = token_denominator(labels, batch, per=self.per, causal=True)
        loss: Tensor = token_loss(logits, labels, batch, per=self.per, causal=True, denominator=1.0)
        self.sums = self.sums.to(loss.device) + torch.stack([loss.double(), weight.double()])

    def reduce(self) -> None:
        """Sum the counts over all ranks; every rank must call this."""
        self.counts.reduce()
        self.sums = over_ranks(self.sums)

    def values(self) -> dict[str, float]:
        """Return ``accuracy``, from 0 to 1, and ``perplexity``; both are NaN if no token was labelled.

        A perplexity that is too large for a float is infinite.
        """
        loss, weight = self.sums.tolist()
        mean = loss / weight if weight else math.nan
        return {"accuracy": self.counts.value, "perplexity": math.inf if mean > 709 else math.exp(mean)}
