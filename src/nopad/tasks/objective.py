"""The interface of training: objectives, which compute the loss of a packed batch, and meters, which count metrics.

An `Objective` knows which items of a batch are targets. It runs the model without them, and computes the loss itself: a
sum over labelled tokens or sequences, divided by a denominator. For the denominator, the caller sums the counts of all
micro-batches of a step, on all ranks. So the loss over packs equals the loss of the same sequences without packs, in
value and gradient, however sequences are spread over batches and ranks. A `Meter` sums the counts of a metric over
batches and ranks, and divides at the end.

A trainer needs only an objective. `nopad.tasks.Task` also knows how records become sequences, and how model outputs
become predictions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.errors import BatchError, OptionError
from nopad.losses.checks import check_batch
from nopad.tasks.fit import check_head, check_outputs
from nopad.tasks.routing import auxiliary

__all__ = ["Meter", "Objective"]


class Meter(ABC):
    """Base class of metrics that are counted over batches and summed over ranks.

    >>> from nopad.tasks import OfSequences
    >>> meter = OfSequences("classes", classes=2).meter()
    >>> meter.reduce()
    >>> sorted(meter.values())
    ['accuracy', 'f1', 'matthews_correlation']
    """

    @abstractmethod
    def add(self, outputs: Any, batch: PackedBatch) -> None:
        """Add the model's outputs for a batch, with the targets that the batch holds."""

    @abstractmethod
    def reduce(self) -> None:
        """Sum the counts over all ranks, so that every rank has the total.

        Call it once, after the last batch, on every rank.
        """

    @abstractmethod
    def values(self) -> dict[str, float]:
        """Return the metrics of all batches added so far, by name."""


class Objective(ABC):
    """Base class of objectives: a loss with a denominator, and its metrics.

    Attributes:
        targets: names of the batch items that the loss reads and the model does not get.
        reads: names of the model outputs that the loss reads.
        gives: whether the first of these outputs has one entry per "token" or per "sequence".
        heads: names of the heads that a model may have, such as "causal" (`nopad.model.known.NAMES`); empty: any head.
        classes: number of logits per token or sequence; None: any number.
        parts: number of means whose sum is the loss; if there are several, denominators are ``[parts]``.
        alone: for audits, a function ``(model, inputs)`` that runs one sequence alone, and returns the losses of its n
            labelled items, ``[n]``; if there are several parts, a tuple of such losses, one for each part. None: the
            model's own loss is used.
    """

    targets: tuple[str, ...] = ("labels",)
    reads: tuple[str, ...] = ("logits",)
    gives: Literal["token", "sequence"] = "sequence"
    heads: tuple[str, ...] = ()
    classes: int | None = None
    parts: int = 1
    alone: Any = None

    @abstractmethod
    def denominator(self, batch: PackedBatch) -> Tensor:
        """Return the number of labelled tokens, sequences or pairs in the batch, by which the loss is divided.

        The result is a float64 scalar, or ``[parts]``, a number for each part, if there are several `parts`.
        """

    @abstractmethod
    def loss(self, outputs: Any, batch: PackedBatch, denominator: Tensor) -> Tensor:
        """Return the sum of the losses of labelled items, divided by `denominator`; a scalar, float32 or wider."""

    def each(self, outputs: Any, batch: PackedBatch, denominator: Tensor) -> Tensor:
        """Return the parts of the loss, ``[parts]``, whose sum `loss` returns.

        The arguments are those of `loss`. An objective with several parts overrides this method.
        """
        return self.loss(outputs, batch, denominator).reshape(1)

    @abstractmethod
    def meter(self) -> Meter:
        """Return a new, empty meter."""

    def outputs(self, model: Any, batch: PackedBatch) -> Any:
        """Run the model on the batch without its targets, and return the model's outputs.

        Raises:
            OptionError: `model` cannot be called.
        """
        if not callable(model):
            raise OptionError(f"the model is a {type(model).__name__}, which cannot be called; give one made pack-safe")
        return model(**{name: batch[name] for name in batch if name not in self.targets})

    def count(self, batch: PackedBatch) -> Tensor:
        """Return the batch's `denominator`; 0 for a stand-in, a batch that does not count (`PackedBatch.as_stand_in`).

        Raises:
            BatchError: `batch` is not a `PackedBatch`, is for an encoder-decoder model, or lacks a target; or a target
                does not fit the batch.
        """
        self.check(batch)
        if not batch.weight:
            shape = () if self.parts == 1 else (self.parts,)
            return torch.zeros(shape, dtype=torch.double, device=batch["input_ids"].device)
        return self.denominator(batch)

    def step(self, model: Any, batch: PackedBatch, denominator: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return the loss of a batch, and the model's outputs.

        Args:
            model: a pack-safe model (`nopad.packed`), bare or wrapped.
            batch: the batch, with the targets.
            denominator: the sum of `count` over all batches of the step, on all ranks; None: the `count` of this batch.
                If it is 0, since nothing is labelled, the loss is 0.

        With DDP or FSDP, which average gradients over ranks, multiply the loss by the number of ranks.

        If gradients are enabled and the model is a mixture of experts whose configuration sets `output_router_logits`,
        the loss that balances experts (`aux_loss`) is added. It is multiplied by its coefficient in the configuration,
        and by the batch's share of the step, which is its `count` divided by `denominator`. If there are several
        `parts`, the share is that of the first part.

        Raises:
            BatchError: `batch` is not a `PackedBatch`, is for an encoder-decoder model, or lacks a target; or a target
                does not fit the batch.
            OptionError: the model cannot be called, has a head that the objective cannot train, returns outputs without
                names, lacks an output that the loss reads, or has another number of classes than the objective. With
                gradients enabled: the model returns a loss of its own other than `aux_loss`, or returns `aux_loss`
                without a coefficient for it in its configuration.
            NotPackSafeError, OptionError: the model is not pack-safe.
        """
        counted = self.count(batch) if denominator is None else denominator
        self.check(batch)
        check_head(self, model)
        outputs = self.outputs(model, batch)
        check_outputs(self, outputs)
        if not batch.weight:
            return self.nothing(outputs, batch), outputs
        counted = torch.where(counted > 0, counted, torch.ones_like(counted))
        loss, balance = self.loss(outputs, batch, counted), auxiliary(model, outputs)
        if balance is not None:
            share = (self.count(batch) / counted).reshape(-1)[0]
            loss = loss + share.to(loss.device, torch.promote_types(balance.dtype, torch.float32)) * balance
        return loss, outputs

    def nothing(self, outputs: Any, batch: PackedBatch) -> Tensor:
        """Return 0, the loss of a stand-in: a batch that a rank runs only so that it takes part in a step.

        A stand-in does not count. The 0 is computed from all outputs, so that every parameter used in them gets a
        gradient of 0. An objective whose loss communicates with other ranks overrides this method, and communicates
        here too.

        Raises:
            BatchError: there is no floating-point output.
        """
        return _nothing(outputs)

    def check(self, batch: PackedBatch) -> None:
        """Check that `batch` is a `PackedBatch` with all targets.

        Raises:
            BatchError: `batch` is another object, is for an encoder-decoder model, or lacks a target.
        """
        check_batch(batch)
        missing = [name for name in self.targets if name not in batch]
        if missing:
            has = ", ".join(name for name in batch if name != "attention_mask")
            raise BatchError(
                f"the batch has no {', '.join(missing)} ({has}), so there is nothing to learn from; give records with "
                "labels, and for a causal language model collate=nopad.loading.causal"
            )


def _nothing(outputs: Any) -> Tensor:
    """Return a loss of 0, computed from all floating-point outputs.

    So every parameter used in them gets a gradient; other ranks may be waiting for it.

    Raises:
        BatchError: there is no floating-point output.
    """
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    floats = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    total = sum((value.new_zeros(()) * value.masked_fill(~value.isfinite(), 0).sum() for value in floats), start=0)
    if not isinstance(total, Tensor):
        raise BatchError(f"the model gave nothing to learn from: {type(outputs).__name__}")
    return total
