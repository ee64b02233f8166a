"""Evaluation over packs: one loss with one denominator, metrics summed over batches, predictions in input order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.batch.columns import RECORDS
from nopad.errors import OptionError
from nopad.losses import over_ranks
from nopad.tasks.meters import over_all_ranks
from nopad.tasks.objective import Objective

__all__ = ["Evaluated", "Evaluation", "stacked_arrays"]

FILL = -100  # what transformers' Trainer pads predictions with


class Evaluated(NamedTuple):
    """The results of an evaluation, the same on every rank.

    Attributes:
        loss: the sum of the losses of all sequences, divided by the objective's denominator for all of them, such as
            the number of labelled tokens. For an objective with several parts, such a quotient is computed for each
            part, and the loss is the sum of the quotients. NaN if nothing is labelled.
        metrics: the metrics by name.
        sequences: number of evaluated sequences.
        predictions, labels: one array or a tuple of arrays, in input order; None unless they were kept.
    """

    loss: float
    metrics: dict[str, float]
    sequences: int
    predictions: Any
    labels: Any


class Evaluation:
    """One evaluation: a pass over packs, on all ranks.

    Args:
        objective: computes the loss and the metrics.
        keep: whether predictions and labels are kept, in host memory.
        reduced: a function such as transformers' ``preprocess_logits_for_metrics``. It is called with ``(logits,
            labels)`` of each batch; if they are per token, they are padded to ``[S, longest, ...]``. The function's
            result is kept instead of the logits. None: the logits are kept.
    """

    def __init__(
        self, objective: Objective, *, keep: bool = False, reduced: Callable[[Any, Any], Any] | None = None
    ) -> None:
        self.objective, self.keep, self.reduced = objective, keep, reduced
        self.meter = objective.meter()
        # Sums of losses, their denominators, and the number of sequences.
        self.sums = torch.zeros(2 * objective.parts + 1, dtype=torch.double)
        self.kept: list[tuple[NDArray[np.int64], list[list[NDArray[Any]]], list[list[NDArray[Any]]]]] = []

    def run(self, model: Any, batch: PackedBatch) -> Tensor:
        """Run the model on a batch, and add the batch's losses and metrics; return the sum of its losses.

        A stand-in (`PackedBatch.as_stand_in`: the batch that a rank without sequences runs) adds nothing, and its loss
        is 0.
        """
        count = self.objective.count(batch)
        loss, outputs = self.objective.step(model, batch, torch.ones_like(count))
        if not batch.weight:
            return loss
        self.meter.add(outputs, batch)
        parts = loss if self.objective.parts == 1 else self.objective.each(outputs, batch, torch.ones_like(count))
        sides = [parts.detach().reshape(-1), count.reshape(-1), torch.tensor([batch.layout.sequences])]
        self.sums += torch.cat([side.double().cpu() for side in sides])
        if self.keep:
            self._keep(outputs, batch)
        return loss

    def finished(self) -> Evaluated:
        """Return the results over all ranks; call it once, on every rank."""
        found = over_ranks(self.sums)
        sums, counts = found[:-1].reshape(2, -1).tolist()
        loss = sum(one / count for one, count in zip(sums, counts, strict=True) if count) if any(counts) else math.nan
        self.meter.reduce()
        predictions, labels = self._gathered() if self.keep else (None, None)
        metrics = self.meter.values()
        return Evaluated(loss, metrics, int(found[-1]), predictions, labels)

    def _keep(self, outputs: Any, batch: PackedBatch) -> None:
        """Keep predictions and labels of a batch, one array per sequence.

        If `reduced` is set, its results for the batch are kept in place of the predictions.
        """
        logits = [_split(outputs[name].detach(), batch, self.objective.gives) for name in self.objective.reads]
        labels = [_split(batch[name], batch, self.objective.gives) for name in self.objective.targets]
        if self.reduced is not None:
            tensors = [
                tuple(torch.from_numpy(stacked_arrays(one)) for one in side)
                if len(side) > 1
                else torch.from_numpy(stacked_arrays(side[0]))
                for side in (logits, labels)
            ]
            found = self.reduced(*tensors)
            logits = [
                _listed(one, batch.layout.sequences) for one in (found if isinstance(found, tuple | list) else [found])
            ]
        self.kept.append((_numbers(batch), logits, labels))

    def _gathered(self) -> tuple[Any, Any]:
        """Return predictions and labels of all ranks, in the order of the input.

        The predictions are one array, or a tuple of arrays if they come from several outputs of the model, such as
        start and end logits. The labels are one array, or a tuple of arrays if the objective has several targets.
        """
        parts = [part for rank in over_all_ranks(self.kept) for part in rank]
        order = np.lexsort(np.concatenate([numbers for numbers, _, _ in parts], axis=1)[::-1])
        found = []
        for side in (1, 2):
            columns = []
            for name in range(len(parts[0][side])):
                each = [array for part in parts for array in part[side][name]]
                columns.append(stacked_arrays([each[at] for at in order.tolist()]))
            found.append(columns[0] if len(columns) == 1 else tuple(columns))
        return found[0], found[1]


def stacked_arrays(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Return n arrays ``[length, ...]`` stacked into one, ``[n, longest, ...]``.

    Arrays that are smaller than others, along any axis, are padded at the end with -100.
    """
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    shape = tuple(max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True))
    made = np.full((len(arrays), *shape), FILL, arrays[0].dtype)
    for row, array in zip(made, arrays, strict=True):
        row[tuple(slice(size) for size in array.shape)] = array
    return made


def _numbers(batch: PackedBatch) -> NDArray[np.int64]:
    """Return where in the input each of the S sequences of a batch is; int64 ``[3, S]``.

    The rows are the number of the source, the number of the record, and where the sequence begins in the record. If the
    batch lacks one of these, its row is all 0.
    """
    source, record, start = ("seq_source", "seq_index", "seq_start")
    assert {source, record, start} == set(RECORDS)
    nothing = np.zeros(batch.layout.sequences, np.int64)
    return np.stack([np.asarray(batch.records.get(name, nothing), np.int64) for name in (source, record, start)])


def _listed(value: Tensor, sequences: int) -> list[NDArray[Any]]:
    """Return `value`, a result of ``preprocess_logits_for_metrics``, as one array per sequence.

    `sequences` is the number of sequences.

    Raises:
        OptionError: the result does not have one entry per sequence, so it cannot be put in the order of the input.
    """
    if not value.dim() or len(value) != sequences:
        raise OptionError(
            f"preprocess_logits_for_metrics gave {list(value.shape)} for {sequences} sequences; expected one entry for "
            "each"
        )
    return list(value.cpu().numpy())


def _split(value: Tensor, batch: PackedBatch, gives: str) -> list[NDArray[Any]]:
    """Divide a tensor with a value per token or per sequence (`gives`) into arrays, one per sequence of `batch`.

    `gives` is "token" or "sequence". The arrays are in the order in which the sequences were given to the batch. Half
    precision becomes float32.

    A tensor may also have a row for each sequence, with one logit per token, as for question answering. Such a tensor
    is recognised by its values: minus infinity at all positions after a sequence's end, and at no others. Each row is
    then cut to the length of its sequence.
    """
    value = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if gives == "token" and tuple(value.shape[:2]) == batch.layout.shape:
        return [part.cpu().numpy() for part in batch.unpack_tokens(value)]
    rows = value.cpu().numpy()
    if rows.dtype.kind == "f" and rows.ndim == 2:
        behind = np.arange(rows.shape[1]) >= np.asarray(batch.seq_lengths)[:, None]
        if behind.any() and np.array_equal(np.isneginf(rows), behind):  # a logit per token, as for answers
            return [row[: int(length)] for row, length in zip(rows, batch.seq_lengths, strict=True)]
    return list(rows)
