"""The objective of BERT's pre-training: masked tokens, and whether the second text of a pair follows the first.

The loss is the sum of two means, as in transformers' ``BertForPreTraining`` and in the packing papers: one over masked
tokens (or over each sequence's masked tokens, then over sequences), one over sequences. So it has two denominators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nopad.batch import PackedBatch
from nopad.corpus.pairs import NEXT
from nopad.losses import (
    Accuracy,
    over_ranks,
    sequence_denominator,
    sequence_loss,
    token_denominator,
    token_loss,
)
from nopad.losses.checks import check_per
from nopad.losses.means import Per
from nopad.sequences import IGNORED
from nopad.tasks.objective import Meter, Objective

__all__ = ["OfPretraining"]

TOKENS, FOLLOWS = "prediction_logits", "seq_relationship_logits"


class OfPretraining(Objective):
    """The loss of masked tokens plus that of next sentences, for models like ``BertForPreTraining``.

    Args:
        per: how the loss of masked tokens is averaged: over tokens ("token"), or within each sequence first
            ("sequence"); see `nopad.losses`.
        next_sentence: whether next-sentence prediction is learned too.

    Raises:
        OptionError: `per` has another value.
    """

    targets: tuple[str, ...] = ("labels", NEXT)
    reads: tuple[str, ...] = (TOKENS, FOLLOWS)
    gives = "token"
    heads = ("tokens",)
    parts = 2

    def __init__(self, per: Per = "token", *, next_sentence: bool = True) -> None:
        check_per(per)
        self.per, self.next_sentence = per, next_sentence
        if not next_sentence:
            self.targets, self.reads, self.parts = ("labels",), (TOKENS,), 1

    def outputs(self, model: Any, batch: PackedBatch) -> Any:
        """Run the model on the batch without its targets, and return the model's outputs."""
        return model(**{name: batch[name] for name in batch if name not in ("labels", NEXT)})

    def denominator(self, batch: PackedBatch) -> Tensor:
        """Return the denominators of both losses; float64 ``[2]``, or a scalar without next sentences.

        The first is the number of masked tokens; with ``per="sequence"``, the number of sequences with a masked token.
        The second is the number of sequences with a label for next-sentence prediction.
        """
        tokens = token_denominator(batch["labels"], batch, per=self.per)
        return torch.stack([tokens, sequence_denominator(batch[NEXT])]) if self.next_sentence else tokens

    def each(self, outputs: Any, batch: PackedBatch, denominator: Tensor) -> Tensor:
        """Return the loss of masked tokens and that of next sentences, each a sum divided by its denominator; ``[2]``.

        If next sentences are not learned, the result is ``[1]``.

        `denominator` is what the method `denominator` returns, summed over all batches of the step.
        """
        counts = denominator.reshape(-1)
        found = [token_loss(outputs[TOKENS], batch["labels"], batch, per=self.per, denominator=counts[0])]
        if self.next_sentence:
            found.append(sequence_loss(outputs[FOLLOWS], batch[NEXT], denominator=counts[1]))
        return torch.stack(found)

    def loss(self, outputs: Any, batch: PackedBatch, denominator: Tensor) -> Tensor:
        """Return the sum of the losses that `each` returns, a scalar.

        `denominator` is what the method `denominator` returns, summed over all batches of the step.
        """
        return self.each(outputs, batch, denominator).sum()

    def meter(self) -> Meter:
        """Return a meter of loss and accuracy: of masked tokens, and of next sentences if these are learned."""
        return _PretrainingMeter(self)

    def alone(self, model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Return the losses of one sequence that is run alone, for an audit.

        The first tensor has a loss for each of the n masked tokens, ``[n]``. The second has the loss of next-sentence
        prediction, ``[1]``; it is empty if the sequence has no label for it. If next sentences are not learned, there
        is only the first tensor. `inputs` are the model's arguments and the targets, with a batch dimension of 1.
        """
        hidden = {name: value for name, value in inputs.items() if name not in ("labels", NEXT)}
        outputs, labels = model(**hidden), inputs["labels"][0]
        masked = cross_entropy(outputs[TOKENS][0], labels, ignore_index=IGNORED, reduction="none")[labels != IGNORED]
        if not self.next_sentence:
            return (masked,)
        known = inputs[NEXT] != IGNORED
        return masked, cross_entropy(outputs[FOLLOWS][known], inputs[NEXT][known], reduction="none")


class _PretrainingMeter(Meter):
    """Mean loss and accuracy of masked tokens, and of next sentences if the objective learns them.

    The loss and accuracy of masked tokens are averaged over tokens, or first within sequences, as the objective's `per`
    says.
    """

    def __init__(self, objective: OfPretraining) -> None:
        self.objective, self.tokens = objective, Accuracy(objective.per)
        self.sums = torch.zeros(2, objective.parts, dtype=torch.double)  # sums of the losses, their denominators
        self.follows = torch.zeros(2, dtype=torch.double)  # right predictions, labelled sequences

    def add(self, outputs: Any, batch: PackedBatch) -> None:
        """Add the model's outputs for a batch. The targets are the batch's ``labels`` and ``next_sentence_label``."""
        self.tokens.add(outputs[TOKENS].detach(), batch["labels"], batch)
        counts = self.objective.denominator(batch).reshape(-1)
        with torch.no_grad():
            sums = self.objective.each(outputs, batch, torch.ones_like(counts))
        self.sums = self.sums.to(sums.device) + torch.stack([sums.double(), counts.double()])
        if self.objective.next_sentence:
            labels = batch[NEXT]
            known = labels != IGNORED
            right = (outputs[FOLLOWS].argmax(-1) == labels) & known
            self.follows = self.follows.to(right.device) + torch.stack([right.sum(), known.sum()])

    def reduce(self) -> None:
        """Sum the counts over all ranks; every rank must call this."""
        self.tokens.reduce()
        self.sums, self.follows = over_ranks(self.sums), over_ranks(self.follows)

    def values(self) -> dict[str, float]:
        """Return ``accuracy`` and ``masked_loss``, the mean accuracy and loss of masked tokens.

        If next sentences are learned, the result also has ``next_sentence_accuracy`` and ``next_sentence_loss``. A
        value is NaN if nothing was counted.
        """
        losses = (self.sums[0] / self.sums[1]).tolist()
        found = {"accuracy": self.tokens.value, "masked_loss": losses[0]}
        if self.objective.next_sentence:
            right, count = self.follows.tolist()
            follows = right / count if count else float("nan")
            found |= {"next_sentence_accuracy": follows, "next_sentence_loss": losses[1]}
        return found
