"""A training loop around the user's own functions: it deals examples to micro-batches of ranks, and runs these batches.

`Loop.take` runs one micro-batch forward and backward. `whole_step` runs the micro-batches of all ranks; as in DDP,
gradients are summed over micro-batches and averaged over ranks.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from nopad.auditing.failure import inside_model
from nopad.auditing.steps.examples import Example
from nopad.auditing.steps.found import Micro
from nopad.auditing.steps.quiet import Exact, inner
from nopad.auditing.steps.ranks import Step, World
from nopad.auditing.steps.truth import Gradients, taken
from nopad.auditing.trial import fitted
from nopad.batch import PackedBatch
from nopad.batch.images import VIDEOS
from nopad.errors import BatchError, NopadError, OptionError
from nopad.sequences import IGNORED
from nopad.wording import numbers_of

__all__ = ["Collate", "Loop", "Loss", "Runner", "as_trainer", "collated", "dealt", "made_of", "moved", "whole_step"]

Collate = Callable[[list[Any]], Any]
Loss = Callable[..., Any]


class Runner(Protocol):
    """Computes the losses of a step and their gradients: a `Loop`, or a trainer's step."""

    def take(self, model: Any, micro: Micro, world: World) -> float:
        """Compute the loss of one micro-batch, call ``backward()`` on it, and return its value.

        `world` simulates the ranks; its `rank` is that of the micro-batch.
        """


class Loop:
    """A training loop that calls the user's `loss` on each micro-batch.

    The call is ``loss(model, batch, step)``, or ``loss(model, batch)`` if the function takes only two arguments.
    """

    def __init__(self, micros: Sequence[Micro], loss: Loss, ranks: int, accumulation: int, shifts: bool) -> None:
        self.micros, self.loss, self.ranks, self.accumulation = micros, loss, ranks, accumulation
        self.takes_step = _positions(loss) > 2
        counts = [_labels_counted(micro.batch, shifts) for micro in micros]
        known = [count for count in counts if count is not None]
        self.items = sum(known) if len(known) == len(counts) else None

    def take(self, model: Any, micro: Micro, world: World) -> float:
        """Compute the loss of one micro-batch, call ``backward()`` on it if it needs a gradient, and return its value.

        `world` simulates the ranks; its `rank` is that of the micro-batch.

        Raises:
            BatchError: the loss is neither a number nor a tensor with a single value.
        """
        parameter = next(model.parameters())
        mine = [moved(one.batch, parameter) for one in self.micros if one.rank == micro.rank]
        items = None if self.items is None else torch.tensor(self.items, device=parameter.device)
        step = Step(micro.rank, self.ranks, micro.number, self.accumulation, mine, items, world)
        batch = moved(micro.batch, parameter)
        found = self.loss(model, batch, step) if self.takes_step else self.loss(model, batch)
        if isinstance(found, Tensor) and found.numel() == 1:
            if found.requires_grad:
                found.reshape(()).backward()  # type: ignore[no-untyped-call]
            return float(found.detach())
        if isinstance(found, int | float) and not isinstance(found, bool):
            return float(found)  # a batch without labels may have a plain 0 as its loss
        said = f"of shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise BatchError(f"the loss is {said}; expected the scalar that the training loop calls backward() on")


def whole_step(
    model: Any, micros: Sequence[Micro], runner: Runner, ranks: int, exact: Exact, seed: int
) -> tuple[list[float], Gradients]:
    """Run a step on all ranks; return the loss of each micro-batch, and the gradients that DDP would give.

    `runner` runs each of `micros`, the micro-batches. `exact` is the PyTorch mode in which the step runs (without
    dropout), and `seed` the seed of torch's random numbers.

    Raises:
        ModelFailedError: the user's model, loss or trainer raised an exception, or the ranks cannot be simulated
            (`World.settled`).
    """
    world = World(ranks)

    def once() -> list[float]:
        model.zero_grad(set_to_none=True)
        losses = []
        for micro in micros:
            world.rank = micro.rank
            with inside_model(micro.where):
                losses.append(runner.take(model, micro, world))
        return losses

    with exact, world.open(), inside_model("the ranks of a step"):
        torch.manual_seed(seed)
        losses: list[float] = world.settled(once)
    return losses, taken(model, ranks)


def as_trainer(model: Any, batch: Mapping[str, Any], step: Step) -> Tensor:
    """Return the loss on which transformers' Trainer would call ``backward()`` for this batch.

    `audit_step` uses this function if no `loss` is given. `step` says how many ranks, micro-batches and labels the step
    has.

    Raises:
        BatchError: the batch is not a mapping, or the model gives no loss for it.
    """
    count = step.num_items_in_batch if accepts_loss_kwargs(model) else None
    if not isinstance(batch, Mapping):
        raise BatchError(
            f"the collator gave {type(batch).__name__}; expected the arguments of a forward call by name, or give loss="
        )
    extra = {} if count is None else {"num_items_in_batch": count}
    output = model(**batch, **extra)
    loss: Any = output.get("loss") if isinstance(output, Mapping) else output[0]
    if not isinstance(loss, Tensor):
        raise BatchError(
            f"the model gives no loss from a batch of {', '.join(map(str, batch))}; give labels, or loss=, a function "
            "(model, batch, step) -> the scalar that the training loop calls backward() on"
        )
    return loss / step.accumulation if count is None else loss * step.ranks


def accepts_loss_kwargs(model: Any) -> bool:
    """Return whether transformers' Trainer passes `num_items_in_batch` to this model."""
    named = inner(model)
    named = named.get_base_model() if hasattr(named, "get_base_model") else named
    said = getattr(named, "accepts_loss_kwargs", None)
    if said is not None:
        return bool(said)
    parameters = inspect.signature(named.forward).parameters.values()
    return any(one.kind == inspect.Parameter.VAR_KEYWORD for one in parameters)


def dealt(count: int, ranks: int, accumulation: int) -> list[int]:
    """Return how many of `count` examples each micro-batch gets, rank by rank.

    Each rank has `accumulation` micro-batches. No number is smaller than the one before it. Among several
    micro-batches, the last number is larger than the first if there are more examples than micro-batches.

    Raises:
        OptionError: there are fewer examples than micro-batches.

    >>> dealt(10, 2, 2)
    [1, 2, 3, 4]
    """
    parts = ranks * accumulation
    if count < parts:
        raise OptionError(
            f"{count} sequences are too few for {ranks} ranks with {accumulation} micro-batches each; give at least "
            f"{parts}, better {parts * 3}, or ranks=1, accumulation=1"
        )
    sizes = [1] * parts
    total = parts * (parts + 1) // 2
    wanted = [count * (at + 1) / total for at in range(parts)]
    for _ in range(count - parts):
        most = max(range(parts), key=lambda at: (wanted[at] - sizes[at], at))
        sizes[most] += 1
    return sorted(sizes)


def collated(
    features: Sequence[Any], examples: Sequence[Example], collate: Collate, ranks: int, accumulation: int
) -> list[Micro]:
    """Deal examples to ranks and micro-batches, and collate each micro-batch; return the micro-batches, rank by rank.

    `features` are the dicts from which `examples` were made; the collator gets copies of them.

    Raises:
        ModelFailedError: the collator raised an exception.
        OptionError: there are fewer examples than micro-batches.
    """
    found, begin = [], 0
    for at, size in enumerate(dealt(len(examples), ranks, accumulation)):
        rank, number = divmod(at, accumulation)
        end = begin + size
        with inside_model(f"the collator, on {numbers_of('sequence', begin, end - 1)}"):
            batch = collate(copy.deepcopy(list(features[begin:end])))
        found.append(Micro(rank, number, batch, list(examples[begin:end]), begin))
        begin = end
    return found


def moved(batch: Any, parameter: Tensor) -> Any:
    """Return a copy of a batch on a parameter's device, with float tensors (masks, labels) in the parameter's dtype.

    Finite values beyond the range of that dtype become its largest or smallest value. The seconds of videos
    (``second_per_grid_ts``) keep their dtype. The copy may share tensors that need no change. A batch that is no
    mapping is copied whole, and not changed.
    """
    if isinstance(batch, PackedBatch):
        made: Any = batch.to(parameter.device)
    elif isinstance(batch, Mapping):
        try:
            made = copy.copy(batch) if hasattr(batch, "__setitem__") else dict(batch)
        except NopadError:
            made = dict(batch)
    else:
        return copy.deepcopy(batch)
    for name, value in list(made.items()):
        if isinstance(value, Tensor):
            made[name] = value.to(parameter.device) if name == VIDEOS.seconds else fitted(value, parameter)
    return made


def made_of(functions: Sequence[Any], ranks: int, accumulation: int) -> str:
    """Return a description of a step: its functions, and the numbers of its ranks and micro-batches.

    An entry of `functions` may be a text. A function or class is described by its name, any other object by the name of
    its class.
    """
    names = [one if isinstance(one, str) else str(getattr(one, "__name__", type(one).__name__)) for one in functions]
    times = f"{ranks} rank{'s' * (ranks > 1)} x {accumulation} micro-batch{'es' * (accumulation > 1)}"
    return ", ".join([*names, times])


def _labels_counted(batch: Any, shifts: bool) -> int | None:
    """Return the number of labels in a batch, as transformers' Trainer counts them; None: the batch has no ``labels``.

    Labels of -100 do not count. `shifts`: whether the loss shifts labels by one; the first label of each row then does
    not count either. If the batch also has ``shift_labels``, these are counted instead, with the first of each row.
    """
    if not isinstance(batch, Mapping) or not isinstance(batch.get("labels"), Tensor):
        return None
    labels = batch["labels"]
    if isinstance(batch.get("shift_labels"), Tensor):
        labels = batch["shift_labels"]
    elif shifts:
        labels = labels[..., 1:]
    return int((labels != IGNORED).sum())


def _positions(function: Any) -> int:
    """Return how many positional arguments a function takes; 3 if it takes any number, or has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 3
    if any(one.kind == inspect.Parameter.VAR_POSITIONAL for one in parameters):
        return 3
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in kinds for one in parameters)
