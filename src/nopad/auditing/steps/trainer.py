"""A step of transformers' own Trainer: its batches, label counts and `training_step`, on a copy of its model.

`opened` takes the batches of one optimiser step from the trainer's own data, for one simulated rank after the other,
and records what the trainer's collator was given. `get_train_dataloader`, `get_batch_samples` and `training_step` are
the trainer's own. Inside the ``with`` block of `opened`, the trainer's accelerator and arguments show the simulated
ranks; at its end, the trainer is restored.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import recursively_apply
from torch import Tensor

from nopad.auditing.failure import inside_model
from nopad.auditing.steps.examples import Example, examples_of
from nopad.auditing.steps.found import Micro, told
from nopad.auditing.steps.loop import made_of, moved
from nopad.auditing.steps.ranks import World
from nopad.batch import PackedBatch
from nopad.batch.images import COLUMNS, images_of
from nopad.errors import NopadError, OptionError

__all__ = ["opened"]

LAYOUT = ("attention_mask", "position_ids", "shift_labels", "seq_idx", "decoder_attention_mask")


class _Noting:
    """A wrapper of the trainer's collator that records, in `given`, the features of each call."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate
        self.given: list[Any] = []

    def __call__(self, features: Any, *more: Any, **named: Any) -> Any:
        self.given.append([dict(one) if isinstance(one, Mapping) else one for one in features])
        return self.collate(features, *more, **named)


class _Ranked:
    """A wrapper of the trainer's accelerator that shows the simulated ranks as its processes."""

    def __init__(self, accelerator: Any, ranks: int) -> None:
        self._accelerator, self._ranks = accelerator, ranks
        self._world: World | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    @property
    def num_processes(self) -> int:
        return self._ranks

    def gather(self, value: Any) -> Any:
        """Return the values of all ranks, concatenated in the order of the ranks, as accelerate does.

        `value` is a tensor, or dicts, lists and tuples of tensors. Outside of a step, accelerate's method is called.
        """
        if self._world is None:
            return self._accelerator.gather(value)
        return recursively_apply(self._gathered, value, error_on_other_type=True)

    def _gathered(self, value: Tensor) -> Tensor:
        said: list[Tensor] = self._world.everybody(value)  # type: ignore[union-attr]
        return torch.cat([one.reshape(1) if one.dim() == 0 else one for one in said])

    def gather_for_metrics(self, value: Any, *more: Any, **named: Any) -> Any:
        """Return the values of all ranks, as `gather` does."""
        return self.gather(value)

    def reduce(self, value: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the values of all ranks, reduced to one as accelerate does.

        `reduction` is "mean" or "max"; for any other text, the values are added up.

        `value` is a tensor, or dicts, lists and tuples of tensors. `scale` is not used, as accelerate uses it on XLA
        only. Outside of a step, accelerate's own method is called.
        """
        if self._world is None:
            return self._accelerator.reduce(value, reduction, scale)
        return recursively_apply(self._reduced, value, error_on_other_type=True, reduction=reduction)

    def _reduced(self, value: Tensor, reduction: str) -> Tensor:
        said = torch.stack(self._world.everybody(value))  # type: ignore[union-attr]
        if reduction == "max":
            return said.amax(0)
        return said.sum(0) / self._ranks if reduction == "mean" else said.sum(0)

    def backward(self, loss: Tensor, **named: Any) -> None:
        """Call ``backward()`` on a loss as accelerate does, but without the loss scaling of float16."""
        if getattr(self._accelerator, "scaler", None) is None:
            self._accelerator.backward(loss, **named)
        else:
            (loss / self._accelerator.gradient_accumulation_steps).backward()


class _TrainerStep:
    """A `Runner` that computes the loss of a micro-batch, and its gradients, by the trainer's own methods."""

    def __init__(self, trainer: Any, batches: list[Any], accumulation: int, accelerator: _Ranked) -> None:
        self.trainer, self.batches, self.accumulation, self.accelerator = trainer, batches, accumulation, accelerator
        self.samples: list[Any] = []
        self.count: Any = None
        self.turn: Any = None

    def take(self, model: Any, micro: Micro, world: World) -> float:
        """Call the trainer's `training_step` on a micro-batch; return the loss on which it called ``backward()``.

        The trainer's `get_batch_samples` is called first, on all batches of the rank. It is not called again for the
        rank's further micro-batches in the same run of the step.
        """
        self.accelerator._world = world
        turn = (id(model), id(world), micro.rank)
        if micro.number == 0 or self.turn != turn:
            begin = micro.rank * self.accumulation
            mine = self.batches[begin : begin + self.accumulation]
            fresh = (moved(batch, next(model.parameters())) for batch in mine)
            device = self.trainer.args.device
            self.samples, self.count = self.trainer.get_batch_samples(fresh, self.accumulation, device)
            self.turn = turn
        return float(self.trainer.training_step(model, self.samples[micro.number], self.count))


@contextmanager
def opened(trainer: Any, ranks: int) -> Iterator[tuple[list[Micro], _TrainerStep, str, list[str]]]:
    """Give, for a ``with`` block, one step of a trainer on `ranks` ranks: (micro-batches, runner, description, notes).

    `runner` computes the losses by the trainer's own methods, `description` is text on what is audited, and `notes` are
    remarks for the user. Inside the block, the trainer seems to run on the simulated ranks. At its end, the trainer and
    its loader are as before.

    Raises:
        OptionError: the trainer runs on several processes, its data have too few batches for the step, or its batches
            have images and do not say which sequence an image is of.
        ModelFailedError: the trainer's data or collator raised an exception.
    """
    if trainer.accelerator.num_processes > 1 or torch.distributed.is_initialized():
        raise OptionError("the trainer runs on several processes; audit it in one, which simulates ranks")
    accumulation = int(trainer.args.gradient_accumulation_steps)
    kept = _kept(trainer)
    loaded: Any = getattr(trainer, "train_dataset", None)
    state = loaded.state_dict() if _is_loader(loaded) else None
    noting = _Noting(trainer.data_collator)
    ranked = _Ranked(trainer.accelerator, ranks)
    try:
        with inside_model("the trainer's data"):
            batches = _batches(trainer, noting, ranks * accumulation)
        if len(batches) < ranks * accumulation:
            raise OptionError(
                f"the training data give {len(batches)} batches, and a step of {ranks} ranks with {accumulation} "
                f"micro-batches takes {ranks * accumulation}; give more data, or ranks=1"
            )
        trainer.accelerator = ranked
        trainer.args.__class__ = type(type(trainer.args).__name__, (type(trainer.args),), _numbers(ranked, ranks))
        trainer.current_gradient_accumulation_steps = accumulation
        notes = _remarks(trainer)
        micros = _micros(batches, noting.given, accumulation)
        collator = noting.collate if noting.given else "its loader's batches"
        how = made_of([type(trainer), collator], ranks, accumulation)
        yield micros, _TrainerStep(trainer, batches, accumulation, ranked), how, notes
    finally:
        trainer.__dict__.clear()
        trainer.__dict__.update(kept)
        if state is not None:
            loaded.load_state_dict(state)


def _numbers(accelerator: _Ranked, ranks: int) -> dict[str, Any]:
    """Return the properties "world_size" and "process_index" that replace those of a trainer's arguments, by name.

    The first is `ranks`, the number of simulated ranks. The second is the number of the rank that runs now; 0 outside
    of a step.
    """

    def rank(_: Any) -> int:
        return 0 if accelerator._world is None else accelerator._world.rank

    return {"world_size": property(lambda _: ranks), "process_index": property(rank)}


def _batches(trainer: Any, noting: _Noting, count: int) -> list[Any]:
    """Return the first `count` batches of the trainer's data; fewer if the data end earlier.

    `noting` becomes the trainer's collator, and batches are made in this process from then on.
    """
    trainer.data_collator = noting
    trainer.args = copy.copy(trainer.args)
    workers = {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None, "multiprocessing_context": None}
    for name, value in workers.items():  # the collator is called in this process, where it can be watched
        setattr(trainer.args, f"dataloader_{name}", value)
    loaders = getattr(trainer.accelerator, "_dataloaders", None)
    before = list(loaders) if loaders is not None else None
    gradients = trainer.accelerator.gradient_state
    references = gradients.dataloader_references
    try:
        return list(itertools.islice(iter(trainer.get_train_dataloader()), count))
    finally:
        gradients.dataloader_references = references
        if loaders is not None and before is not None:
            loaders[:] = before


def _micros(batches: Sequence[Any], given: Sequence[Any], accumulation: int) -> list[Micro]:
    """Return the micro-batches; their sequences are those given to the collator, or else found in the batch itself.

    `given` has, for each batch, the dicts that the collator got. `accumulation` is the number of batches per rank.

    Raises:
        OptionError: sequences must be found in a batch that has images and does not say which sequence an image is of.
    """
    found, first = [], 0
    for at, batch in enumerate(batches):
        rank, number = divmod(at, accumulation)
        examples: list[Example] = []
        notes = []
        if at < len(given):
            try:
                examples = examples_of(given[at])
            except NopadError:
                examples = []
        if not examples and isinstance(batch, Mapping) and isinstance(batch.get("input_ids"), Tensor):
            examples = _told(batch)
            notes = [
                "sequences and labels are those that the batches tell, so whether some were dropped is not checked"
            ]
        found.append(Micro(rank, number, batch, examples, first, notes=notes))
        first += len(examples)
    return found


def _told(batch: Mapping[str, Any]) -> list[Example]:
    """Return the sequences of a batch, found by its layout or by columns such as ``cu_seq_lens_q``, ``position_ids``.

    Raises:
        OptionError: the batch has images and is not a `PackedBatch`, so it does not say which sequence an image is of.
    """
    shape = tuple(batch["input_ids"].shape)
    parts = told(batch)
    images: list[dict[str, Tensor]] = [{} for _ in parts]
    if isinstance(batch, PackedBatch):
        images = images_of(batch)
    elif any(isinstance(batch.get(name), Tensor) for name in COLUMNS):
        name = next(name for name in COLUMNS if isinstance(batch.get(name), Tensor))
        raise OptionError(
            f"the trainer's batches have {name}, and do not say which sequences they are of; give the trainer a "
            "dataset of dicts, one for each sequence, and a collator that makes batches of them"
        )
    apart = (*LAYOUT, *COLUMNS)
    tensors = {name: batch[name] for name in batch if name not in apart and isinstance(batch[name], Tensor)}
    per_token = {name: value for name, value in tensors.items() if tuple(value.shape[:2]) == shape}
    single = {
        name: value
        for name, value in tensors.items()
        if name not in per_token and value.dim() and len(value) == len(parts) and not name.startswith("cu_seq")
    }
    examples = []
    for number, part in enumerate(parts):
        at = torch.from_numpy(part)
        columns = {name: value.cpu().reshape(-1, *value.shape[2:])[at] for name, value in per_token.items()}
        columns |= {name: value[number].cpu() for name, value in single.items()} | images[number]
        examples.append(Example(columns, frozenset(per_token)))
    return examples


def _kept(trainer: Any) -> dict[str, Any]:
    """Return the trainer's attributes by name; its private dicts, such as TRL's metrics, are copied if they can be."""
    kept = dict(vars(trainer))
    for name, value in kept.items():
        if name.startswith("_") and isinstance(value, dict):
            try:
                kept[name] = copy.deepcopy(value)
            except Exception:  # whatever a subclass holds; it is then kept as it is
                continue
    return kept


def _remarks(trainer: Any) -> list[str]:
    notes = []
    if getattr(trainer, "label_smoother", None) is not None or getattr(trainer, "compute_loss_func", None) is not None:
        notes.append(
            "the trainer has a loss of its own; if it is another than the model's, say with alone= what is right"
        )
    if getattr(trainer, "aux_loss_enabled", False):
        trainer.aux_loss_enabled = False  # an attribute of TRL's trainers; `opened` restores it
        notes.append("the loss that balances experts is left out: it is of a whole batch, whatever shares it")
    if getattr(trainer.args, "packing", False) and getattr(trainer.args, "packing_strategy", "") == "wrapped":
        notes.append(
            'packing_strategy "wrapped" lays texts one after another and cuts them into rows: each row is audited as '
            "one sequence, and texts within it see each other"
        )
    if trainer.args.bf16 or trainer.args.fp16:
        notes.append("mixed precision is not audited: the step ran in float64 and in the model's own dtype")
    return notes


def _is_loader(value: Any) -> bool:
    from nopad.loading import PackedLoader

    return isinstance(value, PackedLoader)
