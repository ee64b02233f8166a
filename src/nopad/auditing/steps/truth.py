"""The right loss and gradients of a step.

Every sequence runs alone, without padding. The right loss is the mean over all labelled items of the step or, with
`per` "sequence", the mean of the sequences' own means. If the loss is a sum of means, each is computed like this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nopad.auditing.failure import inside_model
from nopad.auditing.steps.examples import Example, loss_of
from nopad.auditing.steps.quiet import parameters_of
from nopad.errors import BatchError, OptionError
from nopad.sequences import IGNORED
from nopad.wording import counted

__all__ = ["Alone", "Gradients", "Truth", "borders", "sum_alone"]

Alone = Callable[[Any, Mapping[str, Any]], Tensor | tuple[Tensor, ...]]
Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Truth:
    """Losses and gradients of the sequences alone.

    An item has one loss: it is a labelled token, or a whole sequence with a label.

    Attributes:
        sums: for each sequence, the sum of its items' losses.
        items: for each sequence, the number of its items.
        per: "token" or "sequence": which mean is right.
        gradients: gradients of `loss`, by parameter name.
        further: if the loss is a sum of means, a `Truth` for each mean after the first; else empty. `sums` and `items`
            are then those of the first mean.
    """

    sums: list[float]
    items: list[int]
    per: str
    gradients: Gradients
    further: tuple[Truth, ...] = ()

    @property
    def denominator(self) -> int:
        """The number by which a sum is divided to give the right mean.

        If `per` is "token", the sum of all losses is divided by the number of all items. If `per` is "sequence", the
        sum of the sequences' means is divided by the number of sequences that have items.
        """
        return sum(self.items) if self.per == "token" else sum(count > 0 for count in self.items)

    @property
    def loss(self) -> float:
        """The right loss: the mean that `per` says, or the sum of all such means if there are several.

        It is NaN if a sequence's loss is infinite or NaN.
        """
        pairs = [(value, count) for value, count in zip(self.sums, self.items, strict=True) if count]
        parts = [value if self.per == "token" else value / count for value, count in pairs]
        mine = math.fsum(parts) / max(self.denominator, 1) if all(map(math.isfinite, parts)) else math.nan
        return mine + sum(one.loss for one in self.further)

    @property
    def scale(self) -> float:
        """The value to which differences of losses are relative; at least 1e-300.

        It is computed as `loss` is, but from the absolute value of each sequence's sum of losses.
        """
        pairs = zip(self.sums, self.items, strict=True)
        parts = [abs(value) / (1 if self.per == "token" else count) for value, count in pairs if count]
        mine = math.fsum(parts) / max(self.denominator, 1) + sum(one.scale for one in self.further)
        return max(mine, 1e-300)

    @classmethod
    def of(cls, model: Any, examples: Sequence[Example], per: str, causal: bool, alone: Alone | None) -> Truth:
        """Run every sequence alone, forward and backward; return the losses and gradients.

        `per` is the mean that is right, "token" or "sequence". `causal`: whether a label is predicted by the token
        before it. `alone` is the user's function for the losses of a sequence (None: the model's own loss). The
        gradients in the parameters of `model` are None afterwards.

        Raises:
            OptionError: no sequence has a label.
            BatchError: the model gives no loss, or `alone` does not return losses, or the number of means that it
                returns is not the same for each sequence.
            ModelFailedError: the model or `alone` raised an exception.
        """
        parts = 1 if alone is None or not examples else len(_parts_alone(model, examples[0], alone, 0))
        found = [cls._of_part(model, examples, per, causal, alone, part, parts) for part in range(parts)]
        if not found[0].denominator:
            raise OptionError("no sequence has a label, so there is no loss to compare; give labels to some")
        first = found[0].gradients
        total = {name: sum((one.gradients[name] for one in found[1:]), first[name]) for name in first}
        return cls(found[0].sums, found[0].items, per, total, tuple(found[1:]))

    @classmethod
    def _of_part(
        cls, model: Any, examples: Sequence[Example], per: str, causal: bool, alone: Alone | None, part: int, parts: int
    ) -> Truth:
        """Return the losses and gradients of the sequences alone for one of the means, whose index is `part`.

        `parts` is the number of means. `per` is the mean that is right, "token" or "sequence". `causal`: whether a
        label is predicted by the token before it. `alone` is the user's function for the losses of a sequence (None:
        the model's own loss).

        Raises:
            BatchError: the model gives no loss, or `alone` does not return losses, or the number of means that it
                returns is not the same for each sequence.
            ModelFailedError: the model or `alone` raised an exception.
        """
        model.zero_grad(set_to_none=True)
        sums, items = [], []
        for number, example in enumerate(examples):
            total, count = sum_alone(model, example, causal, alone, number, part, parts)
            items.append(count)
            sums.append(0.0 if total is None else float(total.detach()))
            if total is not None:
                with inside_model(f"gradients of sequence {number} alone"):
                    (total if per == "token" else total / count).backward()  # type: ignore[no-untyped-call]
        divisor = sum(items) if per == "token" else sum(count > 0 for count in items)
        return cls(sums, items, per, taken(model, max(divisor, 1)))


def taken(model: Any, divisor: float) -> Gradients:
    """Return a model's gradients divided by `divisor`, as float64 on the CPU, and clear them in the model.

    A trainable parameter without a gradient gets zeros.
    """
    found = {}
    for name, value in parameters_of(model).items():
        gradient = torch.zeros_like(value) if value.grad is None else value.grad
        found[name] = (gradient.to_dense() if gradient.is_sparse else gradient).detach().double().cpu() / divisor
        value.grad = None
    return found


def _parts_alone(model: Any, example: Example, alone: Alone, number: int) -> tuple[Tensor, ...]:
    """Run `alone` on one sequence, and return the losses of the sequence's items as a tuple of tensors ``[n]``.

    If the loss is a sum of several means, the tuple has one tensor for each of them; otherwise, it has only one.
    `number` is the sequence's number, for messages.

    Raises:
        BatchError: `alone` returns neither a tensor ``[n]`` nor a tuple of such tensors.
        ModelFailedError: the model or `alone` raised an exception.
    """
    with inside_model(f"sequence {number} alone"):
        found = alone(model, example.inputs(model))
    parts: tuple[Tensor, ...] = found if isinstance(found, tuple) and found else (found,)  # type: ignore[assignment]
    for each in parts:
        if not isinstance(each, Tensor) or each.dim() != 1:  # a scalar would be a mean, of how many items is not known
            said = f"shape {list(each.shape)}" if isinstance(each, Tensor) else type(each).__name__
            raise BatchError(
                f"alone gave {said} for sequence {number}; expected the losses of its items, a tensor [n], or for a "
                "sum of means a tuple of them"
            )
    return parts


def sum_alone(
    model: Any,
    example: Example,
    causal: bool,
    alone: Alone | None,
    number: int,
    part: int = 0,
    parts: int | None = None,
) -> tuple[Tensor | None, int]:
    """Run one sequence alone; return (sum of its items' losses, number of items), or (None, 0) if it has no item.

    If the loss is a sum of means, `part` is the index of the mean whose losses are summed, and `parts` is the number of
    means (None: not checked). `number` is the sequence's number, for messages.

    Raises:
        BatchError: the model gives no loss, or `alone` does not return losses, or returns those of another number of
            means than `parts`.
        ModelFailedError: the model or `alone` raised an exception.
    """
    if alone is not None:
        found = _parts_alone(model, example, alone, number)
        if parts is not None and len(found) != parts:
            raise BatchError(
                f"alone gave losses of {counted(len(found), 'mean')} for sequence {number}, and of {parts} for "
                "sequence 0; give a tensor for each mean of the loss, an empty one ([0]) where a sequence has no item "
                "of a mean"
            )
        each = found[part]
        return (each.sum(), each.numel()) if each.numel() else (None, 0)
    count = example.items(causal)
    if not count:
        return None, 0
    with inside_model(f"sequence {number} alone"):
        output = model(**example.inputs(model))
    loss = loss_of(output)
    if loss is None or loss.numel() != 1:
        raise BatchError(
            f"{type(model).__name__} gives no loss of sequence {number} alone, from {', '.join(example.columns)}; add "
            "labels, or give alone=, a function (model, inputs) -> the losses of one sequence's items [n]"
        )
    return loss.reshape(()) * count, count


def weighted(
    model: Any, examples: Sequence[Example], weights: Sequence[float], causal: bool, alone: Alone | None
) -> Gradients:
    """Return the gradients, by parameter name, of a weighted sum: each sequence's sum of losses times its weight.

    The sequences run alone. `causal`: whether a label is predicted by the token before it. `alone` is the user's
    function for the losses of a sequence (None: the model's own loss).
    """
    model.zero_grad(set_to_none=True)
    for number, (example, weight) in enumerate(zip(examples, weights, strict=True)):
        total, _ = sum_alone(model, example, causal, alone, number) if weight else (None, 0)
        if total is not None:
            (total * weight).backward()  # type: ignore[no-untyped-call]
    return taken(model, 1)


def borders(model: Any, examples: Sequence[Example], before: Sequence[int | None]) -> list[float | None]:
    """Return, for each sequence, the loss of predicting its first label from the last token of the sequence before it.

    `before` has, for each sequence, the index of the sequence that ends right before it, or None. The loss is None for
    a sequence without such a predecessor, or whose first token has no label.
    """
    found: list[float | None] = []
    for example, other in zip(examples, before, strict=True):
        labels = example.labels
        if other is None or labels is None or "labels" not in example.per_token or int(labels[0]) == IGNORED:
            found.append(None)
            continue
        inputs = {name: value for name, value in examples[other].inputs(model).items() if name != "labels"}
        with torch.no_grad():
            logits = model(**inputs).logits[0, -1]
            found.append(float(cross_entropy(logits[None], labels[:1].to(logits.device))))
    return found
