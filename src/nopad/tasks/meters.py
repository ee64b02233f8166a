"""Metrics of the objectives over all batches and ranks.

Counts are summed as float64, so whole numbers are exact below 2**53. Of the meters in this module, only
`RegressionMeter` keeps and gathers the predictions and labels themselves, since Spearman's correlation cannot be
computed from sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.losses import Accuracy, Confusion, Spans, best_spans, over_ranks
from nopad.losses.means import Per
from nopad.tasks.objective import Meter

__all__ = ["ClassMeter", "RegressionMeter", "SeveralMeter", "SpanMeter", "TokenMeter", "over_all_ranks"]


def over_all_ranks(mine: Any) -> list[Any]:
    """Gather `mine` from every rank of the default process group; return a list, in the order of ranks.

    Without a process group, the list is ``[mine]``. Values must be picklable; every rank must call this.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [mine]
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, mine)
    return found


class TokenMeter(Meter):
    """Accuracy per labelled token; for the accuracy of next tokens, see `nopad.tasks.perplexity.CausalMeter`.

    With ``per="sequence"``, accuracy is averaged within each sequence first, then over sequences.
    """

    def __init__(self, *, per: Per = "token") -> None:
        self.counts = Accuracy(per)

    def add(self, outputs: Any, batch: PackedBatch) -> None:
        """Add the outputs for a batch: ``logits`` ``[R, L, C]``. The targets are the batch's ``labels``."""
        self.counts.add(outputs["logits"], batch["labels"], batch)

    def reduce(self) -> None:
        """Sum the counts over all ranks; every rank must call this."""
        self.counts.reduce()

    def values(self) -> dict[str, float]:
        """Return ``accuracy``, from 0 to 1; NaN if nothing was counted."""
        return {"accuracy": self.counts.value}


class ClassMeter(Meter):
    """Accuracy, F1 and Matthews correlation of classes; one class per sequence.

    With two classes, F1 is that of class 1; with more, it is the mean of the F1 of all classes.
    """

    def __init__(self, classes: int) -> None:
        self.counts = Confusion(classes)

    def add(self, outputs: Any, batch: PackedBatch) -> None:
        """Add the outputs for a batch: ``logits`` ``[S, C]``. The targets are the batch's ``labels``."""
        self.counts.add(outputs["logits"], batch["labels"])

    def reduce(self) -> None:
        """Sum the counts over all ranks; every rank must call this."""
        self.counts.reduce()

    def values(self) -> dict[str, float]:
        """Return ``accuracy``, ``f1`` and ``matthews_correlation``; without sequences accuracy is NaN, the others 0."""
        found = self.counts
        f1 = found.f1(1 if len(found.counts) == 2 else None)
        return {"accuracy": found.accuracy, "f1": f1, "matthews_correlation": found.matthews}


class SeveralMeter(Meter):
    """Micro-averaged F1 over all classes of all sequences, and the share of sequences with every class right."""

    def __init__(self) -> None:
        self.counts = torch.zeros(5, dtype=torch.double)

    def add(self, outputs: Any, batch: PackedBatch) -> None:
        """Add the outputs for a batch: ``logits`` ``[S, C]``. The targets are the batch's ``labels``.

        A class is predicted for a sequence if its probability is above 0.5.
        """
        guess, labels = outputs["logits"] > 0, batch["labels"] > 0.5
        right = (guess == labels).all(1)
        added = [(guess & labels).sum(), guess.sum(), labels.sum(), right.sum(), torch.ones_like(right).sum()]
        self.counts = self.counts.to(right.device) + torch.stack(added).double()

    def reduce(self) -> None:
        """Sum the counts over all ranks; every rank must call this."""
        self.counts = over_ranks(self.counts)

    def values(self) -> dict[str, float]:
        """Return ``f1``, and ``accuracy`` (the share of sequences with every class right), from 0 to 1.

        Without sequences, ``f1`` is 0 and ``accuracy`` is NaN.
        """
        both, guessed, labelled, right, sequences = self.counts.tolist()
        given = guessed + labelled
        return {"f1": 2 * both / given if given else 0.0, "accuracy": right / sequences if sequences else float("nan")}


class RegressionMeter(Meter):
    """Mean squared error, and Pearson's and Spearman's correlation; keeps two numbers per sequence."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []

    def add(self, outputs: Any, batch: PackedBatch) -> None:
        """Add the outputs for a batch: ``logits`` ``[S, 1]``. The targets are the batch's ``labels``."""
        guess, labels = outputs["logits"].detach().reshape(-1), batch["labels"].reshape(-1)
        self.parts.append(torch.stack([guess.double(), labels.double()]).cpu())

    def reduce(self) -> None:
        """Gather predictions and labels from all ranks, so that `values` covers all of them.

        Every rank must call this.
        """
        mine = torch.cat(self.parts, 1).numpy() if self.parts else np.zeros((2, 0))
        self.parts = [torch.from_numpy(part) for part in over_all_ranks(mine)]

    def values(self) -> dict[str, float]:
        """Return ``mse``, ``pearson`` and ``spearman``.

        Both correlations are NaN if there are fewer than two sequences, if all predictions are equal, or if all labels
        are equal. ``mse`` is NaN without sequences.
        """
        from scipy.stats import pearsonr, spearmanr

        guess, labels = (torch.cat(self.parts, 1) if self.parts else torch.zeros(2, 0)).numpy()
        found = {"mse": float(((guess - labels) ** 2).mean()) if guess.size else float("nan")}
        varied = guess.size > 1 and np.ptp(guess) > 0 and np.ptp(labels) > 0
        for name, function in (("pearson", pearsonr), ("spearman", spearmanr)):
            found[name] = float(function(guess, labels).statistic) if varied else float("nan")
        return found


class SpanMeter(Meter):
    """Exact match and F1 of answer spans, compared as token positions; `Answers.scores` compares texts instead.

    A prediction has at most `longest` tokens.
    """

    def __init__(self, longest: int) -> None:
        self.counts, self.longest = Spans(), longest

    def add(self, outputs: Any, batch: PackedBatch) -> None:
        """Add the outputs for a batch: ``start_logits`` and ``end_logits``, ``[S, L]`` each.

        The targets are the batch's ``start_positions`` and ``end_positions``.
        """
        starts, ends = best_spans(outputs["start_logits"], outputs["end_logits"], self.longest)
        self.counts.add(starts, ends, batch["start_positions"], batch["end_positions"])

    def reduce(self) -> None:
        """Sum the counts over all ranks; every rank must call this."""
        self.counts.reduce()

    def values(self) -> dict[str, float]:
        """Return ``exact`` and ``f1``, from 0 to 1; NaN if nothing was counted."""
        return {"exact": self.counts.exact, "f1": self.counts.f1}
