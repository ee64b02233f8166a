"""Objectives for preference pairs: a chosen and a rejected answer, which must be in the same batch.

Two per-sequence values say which sequences of a batch are a pair: ``pair`` (the number of the pair) and ``chosen`` (1
or 0). A batch with half a pair is an error; a loader with ``groups=2`` never makes one. Both values are read on the
host; if the batch is on an accelerator, this waits for it. The denominator is the number of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.errors import BatchError
from nopad.losses import PreferenceLoss, label_logprobs, over_ranks, preference_loss, reward_loss
from nopad.losses.preferences import check_preferences
from nopad.options import check_number
from nopad.tasks.objective import Meter, Objective

__all__ = ["OfPreferences", "OfRewards", "PairMeter", "pairs_in"]

REFERENCE = "reference_logp"


def pairs_in(batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Return the indices of a batch's chosen and rejected sequences, in the order of pair numbers; int64 ``[P]`` each.

    Raises:
        BatchError: the batch has only one answer of a pair, or two pairs with the same number; ``pair`` or ``chosen``
            does not have one value per sequence; or a value of ``chosen`` is not 0 or 1.

    >>> import nopad
    >>> from nopad.tasks.pairing import pairs_in
    >>> columns = {"pair": [7, 3, 3, 7], "chosen": [0, 1, 0, 1]}
    >>> [at.tolist() for at in pairs_in(nopad.PackedBatch.from_sequences([[1], [2], [3], [4]], columns=columns))]
    [[1, 3], [2, 0]]
    """
    numbers, chosen = batch["pair"], batch["chosen"]
    wanted = (batch.layout.sequences,)
    if tuple(numbers.shape) != wanted or tuple(chosen.shape) != wanted:
        raise BatchError(
            f"pair and chosen have the shapes {list(numbers.shape)} and {list(chosen.shape)}; expected {list(wanted)}, "
            "one value per sequence"
        )
    sides: dict[int, dict[int, int]] = {}
    for at, (number, side) in enumerate(zip(numbers.tolist(), chosen.tolist(), strict=True)):
        if side not in (0, 1):
            raise BatchError(f"chosen[{at}] is {side}; it is 1 for the chosen answer of a pair, 0 for the rejected one")
        if sides.setdefault(number, {}).setdefault(int(side), at) != at:
            raise BatchError(
                f"two {'chosen' if side else 'rejected'} answers of a batch have the pair number {number}, so which "
                "belong together is not known; encode the records of several sets as one list"
            )
    for number, both in sides.items():
        if len(both) < 2:
            has, lacks = ("chosen", "rejected") if 1 in both else ("rejected", "chosen")
            raise BatchError(
                f"the {has} answer of pair {number} is in the batch, and the {lacks} one is not; keep pairs together: "
                "task.loader(...), or PackedLoader(..., groups=2)"
            )
    ordered = sorted(sides)
    device = batch["input_ids"].device
    first, second = (torch.tensor([sides[number][side] for number in ordered], device=device) for side in (1, 0))
    return first.long(), second.long()


class _OfPairs(Objective):
    """Base class of the objectives of pairs, whose denominator is the number of pairs."""

    def denominator(self, batch: PackedBatch) -> Tensor:
        """Return the number of pairs in the batch; a float64 scalar."""
        chosen, _ = pairs_in(batch)
        return torch.full((), len(chosen), dtype=torch.double, device=chosen.device)


class OfRewards(_OfPairs):
    """The loss of a reward model: the reward of a pair's chosen answer should be larger (`nopad.losses.reward_loss`).

    Besides ``pair`` and ``chosen``, a batch has the per-sequence value ``margin``: by how much the chosen reward should
    exceed the rejected one. It is read at the chosen sequence of each pair.

    Args:
        center_rewards_coefficient: weight of the squared sum of a pair's two rewards, as in TRL's `RewardConfig`; None:
            0.

    Raises:
        OptionError: the coefficient is not a number of at least 0.

    >>> from nopad.tasks import OfRewards
    >>> objective = OfRewards(center_rewards_coefficient=0.01)
    >>> objective.center
    0.01
    """

    targets = ("pair", "chosen", "margin")
    heads = ("classification",)

    def __init__(self, *, center_rewards_coefficient: float | None = None) -> None:
        self.center = 0.0
        if center_rewards_coefficient is not None:
            self.center = check_number("center_rewards_coefficient", center_rewards_coefficient, low=0)

    def loss(self, outputs: Any, batch: PackedBatch, denominator: Tensor) -> Tensor:
        """Return the sum of the pairs' losses, divided by `denominator`; a scalar.

        Raises:
            BatchError: the logits are not ``[S, 1]``, or ``pair`` and ``chosen`` do not give whole pairs (`pairs_in`).
        """
        rewards, (chosen, rejected) = self.rewards(outputs, batch), pairs_in(batch)
        margin = batch["margin"][chosen]
        return reward_loss(
            rewards[chosen], rewards[rejected], margin=margin, center=self.center, denominator=denominator
        )

    def rewards(self, outputs: Any, batch: PackedBatch) -> Tensor:
        """Return the reward of each sequence, in the dtype of the logits; ``[S]``.

        Raises:
            BatchError: the logits are not ``[S, 1]``, one per sequence.
        """
        logits: Tensor = outputs["logits"]
        if tuple(logits.shape) != (batch.layout.sequences, 1):
            raise BatchError(
                f"logits have the shape {list(logits.shape)}; expected {[batch.layout.sequences, 1]}, one reward per "
                "sequence: load the model with num_labels=1"
            )
        return logits[:, 0]

    def meter(self) -> Meter:
        """Return a meter of the pairs' accuracy and margin, and of the mean rewards of both kinds of answer."""
        return PairMeter(self.rewards, accuracy="accuracy", margin="margin", side="{}_reward")


class OfPreferences(_OfPairs):
    """The DPO loss of a causal language model against a reference model (`nopad.losses.preference_loss`).

    Only labelled tokens count, which are those of the answers. A batch has, for each sequence, its log-probability
    under the reference model: the per-sequence value ``reference_logp`` (`nopad.tasks.reference_logprobs`). Source:
    arXiv 2305.18290 ("sigmoid"), 2310.12036 ("ipo").

    Args:
        beta: how strongly the model is held to the reference model; above 0, as in TRL.
        loss_type: "sigmoid", "ipo" or "robust".
        label_smoothing: share of pairs whose answers are assumed to be swapped; from 0 to below 0.5.

    Raises:
        OptionError: an option has an invalid value, or "ipo" gets a `label_smoothing` above 0.

    >>> from nopad.tasks import OfPreferences
    >>> objective = OfPreferences(beta=0.2, loss_type="ipo")
    >>> objective.beta, objective.loss_type
    (0.2, 'ipo')
    """

    targets = ("labels", "pair", "chosen", REFERENCE)
    gives = "token"
    heads = ("causal",)

    def __init__(
        self, *, beta: float = 0.1, loss_type: PreferenceLoss = "sigmoid", label_smoothing: float = 0.0
    ) -> None:
        self.beta, self.label_smoothing = check_preferences(beta, loss_type, label_smoothing, "loss_type")
        self.loss_type: PreferenceLoss = loss_type

    def check(self, batch: PackedBatch) -> None:
        """Check that `batch` is a `PackedBatch` with ``labels``, ``pair``, ``chosen`` and ``reference_logp``.

        Raises:
            BatchError: `batch` lacks one of these, is not a `PackedBatch`, or is for an encoder-decoder model.
        """
        if isinstance(batch, PackedBatch) and "labels" in batch and REFERENCE not in batch:
            raise BatchError(
                f"the batch has no {REFERENCE}, so there is nothing to hold the model against; compute it before "
                "training: examples = nopad.tasks.reference_logprobs(model, task.encode(records), capacity)"
            )
        super().check(batch)

    def moved(self, outputs: Any, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Return the log-ratio of each sequence, and its number of labelled tokens; ``[S]`` each, float32 or wider.

        The log-ratio is the log-probability of the labelled tokens under the model minus that under the reference
        model. Sequences are in the order of the batch.
        """
        sums, counts = label_logprobs(outputs["logits"], batch["labels"], batch)
        return sums - batch[REFERENCE].to(sums), counts

    def loss(self, outputs: Any, batch: PackedBatch, denominator: Tensor) -> Tensor:
        """Return the sum of the pairs' losses, divided by `denominator`; a scalar.

        Raises:
            BatchError: ``pair`` and ``chosen`` do not give whole pairs (`pairs_in`), or logits or labels do not fit the
                batch.
        """
        moved, counts = self.moved(outputs, batch)
        chosen, rejected = pairs_in(batch)
        return preference_loss(
            moved[chosen],
            moved[rejected],
            (counts[chosen], counts[rejected]),
            beta=self.beta,
            kind=self.loss_type,
            label_smoothing=self.label_smoothing,
            denominator=denominator,
        )

    def meter(self) -> Meter:
        """Return a meter of rewards, under TRL's names; a reward is `beta` times the log-ratio that `moved` returns."""

        def rewards(outputs: Any, batch: PackedBatch) -> Tensor:
            return self.beta * self.moved(outputs, batch)[0]

        return PairMeter(rewards, accuracy="rewards/accuracies", margin="rewards/margins", side="rewards/{}")


class PairMeter(Meter):
    """Means over pairs: how often the chosen answer has the larger reward, the margin, and the rewards of both answers.

    The margin of a pair is the reward of its chosen answer minus that of its rejected answer.

    Args:
        rewards: function of (outputs, batch) that returns the reward of each sequence, ``[S]``.
        accuracy: name of the metric for the share of pairs whose chosen answer has the larger reward.
        margin: name of the metric for the mean margin.
        side: name of the two metrics for the mean rewards, with ``{}`` in place of "chosen" or "rejected".
    """

    def __init__(self, rewards: Callable[[Any, PackedBatch], Tensor], *, accuracy: str, margin: str, side: str) -> None:
        self.rewards = rewards
        self.names = (side.format("chosen"), side.format("rejected"), accuracy, margin)
        self.sums = torch.zeros(4, dtype=torch.double)

    def add(self, outputs: Any, batch: PackedBatch) -> None:
        """Add the model's outputs for a batch of pairs.

        Raises:
            BatchError: ``pair`` and ``chosen`` do not give whole pairs (`pairs_in`), or `rewards` refuses the outputs.
        """
        each = self.rewards(outputs, batch).detach().double()
        chosen, rejected = (each[at] for at in pairs_in(batch))
        added = [chosen.sum(), rejected.sum(), (chosen > rejected).sum(), chosen.new_tensor(len(chosen))]
        self.sums = self.sums.to(each.device) + torch.stack([one.double() for one in added])

    def reduce(self) -> None:
        """Sum the counts over all ranks; every rank must call this."""
        self.sums = over_ranks(self.sums)

    def values(self) -> dict[str, float]:
        """Return the means over all pairs, by name; NaN if there were no pairs."""
        *sums, pairs = self.sums.tolist()
        chosen, rejected, right = (one / pairs if pairs else math.nan for one in sums)
        return dict(zip(self.names, (chosen, rejected, right, chosen - rejected), strict=True))
