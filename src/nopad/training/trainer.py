"""A `PackedLoader` as the training data of transformers' `Trainer`: its batches as they are, its epochs, its state.

The loader's batches are one rank's part already, in an order of their own. So nothing shuffles, batches, shards,
dispatches or skips them a second time, and an option of the Trainer that asks for that, or contradicts the loader's
step, is refused. Every checkpoint holds the loader's state (``nopad_loader.json``), and training goes on from there,
also on another number of ranks: then with exactly the sequences that the epoch has not seen.

`LoaderMixin` goes in front of any subclass of transformers' Trainer and overrides public methods only. With other
training data it changes nothing.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import transformers
from transformers.trainer_callback import TrainerCallback, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from nopad.errors import FormatError, OptionError
from nopad.files import write_atomic
from nopad.loading.loader import PackedLoader
from nopad.loading.summary import Summary
from nopad.loading.torch import TorchDataset, TorchLoader

__all__ = ["STATE_FILE", "LoaderMixin", "Trainer"]

STATE_FILE = "nopad_loader.json"
_TRAINER_STATE = "trainer_state.json"

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object


class _Ahead(NamedTuple):
    """What lies ahead of a loader, in optimiser steps.

    Attributes:
        epoch: number of the epoch under way.
        left: steps that it has left.
        whole: steps of a whole epoch.
    """

    epoch: int
    left: int
    whole: int

    def steps(self, epochs: float) -> int:
        """Return how many steps are left until `epochs` epochs (counted from epoch 0) are over."""
        return max(self.left + math.ceil((epochs - self.epoch - 1) * self.whole), 0)

    def epochs(self, steps: int) -> int:
        """Return how many epochs the next `steps` steps touch, the one under way included."""
        return 1 + max(-((self.left - steps) // self.whole), 0) if steps > 0 else 0


def _ahead(loader: PackedLoader) -> _Ahead | None:
    """Return what lies ahead of a loader that stands between two steps; None: its epochs have no known length.

    Raises:
        OptionError: it stands in the middle of a step.
    """
    state = loader.state_dict()
    if state.get("batches"):
        raise OptionError(
            f"the loader stands in the middle of a step, after {state['batches']} of {loader.accumulation} "
            "micro-steps; load a state that was saved between two steps"
        )
    try:
        steps = len(loader) // loader.accumulation
    except TypeError:
        return None
    left = steps - state["legs"][-1]["steps"]
    if len(state["legs"]) > 1:  # another number of ranks, or another accumulation, began this epoch
        loader.set_epoch(loader.epoch + 1)
        steps = len(loader) // loader.accumulation
        loader.load_state_dict(state)
    return _Ahead(loader.epoch, left, steps)


class _TrainerLoader(TorchLoader):
    """A loader's batches for the Trainer, which counts epochs from its own beginning, whatever the loader's number."""

    _first: tuple[int, int] | None = None

    @cached_property
    def summary(self) -> Summary:
        """Summary of the epoch in which training begins."""
        found = self.packed_loader.summary()
        assert isinstance(found, Summary)  # the Trainer asks only where there is a length, and a stream has none
        return found

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch; the first call, whatever its number, means the epoch in which the loader stands."""
        if self._first is None:
            self._first = epoch, self.packed_loader.epoch
        given, stood = self._first
        self.packed_loader.set_epoch(stood + epoch - given)


class _Progress(TrainerCallback):
    """Tells the Trainer's state how far the loader's epochs are; the Trainer itself counts from where it resumed."""

    def __init__(self, loader: PackedLoader, ahead: _Ahead, epochs: int) -> None:
        self.loader, self.ahead, self.last = loader, ahead, epochs
        self.epoch = ahead.epoch
        self.begun = loader.steps_seen - (ahead.whole - ahead.left)  # steps seen when this epoch began

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Set the number of epochs."""
        state.num_train_epochs = self.last

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Set how many epochs are over, with the fraction of the one under way."""
        if self.loader.epoch != self.epoch:
            self.epoch, self.begun = self.loader.epoch, self.loader.steps_seen - 1
        state.epoch = self.epoch + (self.loader.steps_seen - self.begun) / self.ahead.whole


class LoaderMixin(_Base):
    """Puts a `PackedLoader` into a transformers Trainer: ``class Mine(LoaderMixin, transformers.Trainer)``.

    Give the loader as `train_dataset`. ``gradient_accumulation_steps`` must be the loader's `accumulation`,
    ``per_device_train_batch_size`` its `rows` or `sequences` (1 with `tokens`). ``num_train_epochs`` counts the
    loader's epochs from its first; without a checkpoint, training goes on where the loader stands.

    Raises:
        OptionError: the Trainer's options contradict the loader's step, or would shuffle, batch or collate anew.
    """

    train_dataset: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of the Trainer behind this class; `train_dataset` may be a `PackedLoader`."""
        given = inspect.signature(super().__init__).bind_partial(*args, **kwargs)
        loader = given.arguments.get("train_dataset")
        self._progress: _Progress | None = None
        self._steps_done = 0
        self._begin: dict[str, Any] | None = None
        if isinstance(loader, TorchDataset | TorchLoader):
            raise OptionError("train_dataset is made of a PackedLoader; give the loader itself")
        if isinstance(loader, PackedLoader):
            evaluated = given.arguments.get("eval_dataset")
            if given.arguments.get("data_collator") is not None and evaluated is None:
                raise OptionError(
                    "data_collator would do nothing: the loader makes the training batches, by its own collate, and "
                    "there is no eval_dataset; leave it out"
                )
            for one in evaluated.values() if isinstance(evaluated, Mapping) else [evaluated]:
                _check_evaluated(one)
            given.arguments["train_dataset"] = self.placeholder(loader)
        super().__init__(*given.args, **given.kwargs)
        if isinstance(loader, PackedLoader):
            self.train_dataset = loader
            self._check_step(loader)

    def placeholder(self, loader: PackedLoader) -> Any:
        """Return what the constructor of the Trainer behind this class gets as `train_dataset` instead of a loader."""
        return loader

    def _check_step(self, loader: PackedLoader) -> None:
        """Refuse options that contradict the loader."""
        args = self.args
        if loader.is_stream and loader.ranks.world_size > 1:
            raise OptionError(
                "checkpoints of the Trainer hold one state, and on several ranks every rank of a stream has its own; "
                "pack the source first (`nopad pack`), or save each rank's loader.state_dict() in a loop of your own"
            )
        ranks = args.world_size // self.get_tp_size()
        same = {
            "gradient_accumulation_steps": (args.gradient_accumulation_steps, "accumulation", loader.accumulation),
            "per_device_train_batch_size": (
                args.per_device_train_batch_size,
                "number of rows or sequences per rank",
                loader.per_rank,
            ),
            "number of processes with different data": (ranks, "world_size", loader.ranks.world_size),
        }
        if ranks == args.world_size:
            same["process_index"] = (args.process_index, "rank", loader.ranks.rank)
        odd = [
            f"{name} is {theirs}, and the loader's {ours} is {value}"
            for name, (theirs, ours, value) in same.items()
            if theirs != value
        ]
        if odd:
            raise OptionError(f"the Trainer and the loader disagree about a step: {'; '.join(odd)}; give both the same")
        if args.n_gpu > 1:
            raise OptionError(
                f"DataParallel would cut each batch into {args.n_gpu} pieces; start one process per GPU with torchrun"
            )
        if self.get_cp_size() * self.get_sp_size() > 1:
            raise OptionError("context and sequence parallelism would cut packed batches; leave them out")
        for name, usual in (
            ("auto_find_batch_size", False),
            ("dataloader_drop_last", False),
            ("train_sampling_strategy", "random"),
        ):
            if getattr(args, name, usual) != usual:
                raise OptionError(f"{name} is the loader's business; leave it out")

    def get_train_dataloader(self) -> Any:
        """Return the loader's own `DataLoader`, which accelerate leaves as it is.

        Raises:
            OptionError: the Trainer's options contradict the loader.
        """
        loader = self.train_dataset
        if not isinstance(loader, PackedLoader):
            return super().get_train_dataloader()
        self._check_step(loader)
        args = self.args
        options = {
            name: getattr(args, f"dataloader_{name}")
            for name in ("in_order", "multiprocessing_context", "persistent_workers", "prefetch_factor")
            if hasattr(args, f"dataloader_{name}")
        }
        pinned = args.dataloader_pin_memory and args.device.type != "cpu"
        return _TrainerLoader(loader, num_workers=args.dataloader_num_workers, pin_memory=pinned, **options)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the Trainer's own DataLoader for an evaluation dataset.

        Raises:
            OptionError: the dataset is a `PackedLoader`.
        """
        _check_evaluated(self.eval_dataset if eval_dataset is None else eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of sequences in an epoch."""
        if isinstance(dataloader, _TrainerLoader):
            return dataloader.summary.sequences
        return int(super().num_examples(dataloader))

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Return the Trainer's numbers of epochs and steps, counted from where the loader stands.

        Raises:
            OptionError: the loader has seen all epochs already, or stands in the middle of a step.
        """
        values = super().set_initial_training_values(args, dataloader)
        if self._progress is not None:
            self.remove_callback(self._progress)
            self._progress = None
        ahead = _ahead(dataloader.packed_loader) if isinstance(dataloader, _TrainerLoader) else None
        if ahead is None:
            return values
        done, loader = self._steps_done, dataloader.packed_loader
        max_steps = args.max_steps if args.max_steps > 0 else done + ahead.steps(args.num_train_epochs)
        if max_steps <= done and not done:
            raise OptionError(
                f"the loader has seen {ahead.epoch} epochs, and num_train_epochs is {args.num_train_epochs:g}: "
                "nothing is left; give more epochs, or a new loader"
            )
        epochs = ahead.epochs(max_steps - done)
        self._progress = _Progress(loader, ahead, ahead.epoch + epochs)
        self.add_callback(self._progress)
        # The Trainer takes `done // most` epochs as over, and at most so many steps of each of the others.
        most = max(ahead.left, ahead.whole)
        _, _, examples, _, batch, _, _ = values
        samples = examples * max_steps // dataloader.summary.steps
        return done // most + epochs, most, examples, samples, batch, most * loader.accumulation, max_steps

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as transformers' Trainer does, with the loader where it stands, or where the checkpoint left it.

        Each trial of a search for hyperparameters begins where the first one began.

        Raises:
            FormatError: the checkpoint holds no state of a loader.
            PlanMismatchError: its state is of other data, another plan, cost model or seed.
        """
        loader = self.train_dataset
        if not isinstance(loader, PackedLoader):
            return super().train(resume_from_checkpoint, trial, *args, **kwargs)
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)  # type: ignore[no-untyped-call]
        if folder:
            loader.load_state_dict(_saved(Path(folder)))
        elif trial is not None:
            self._begin = self._begin or loader.state_dict()
            loader.load_state_dict(self._begin)
        loader.load_state_dict(
            loader.state_dict()
        )  # moves a loader from the end of an epoch to the beginning of the next
        self._steps_done = _steps_of(Path(folder)) if folder else 0
        skips, self.args.ignore_data_skip = self.args.ignore_data_skip, True  # the loader is there already
        try:
            return super().train(resume_from_checkpoint, trial, *args, **kwargs)
        finally:
            self.args.ignore_data_skip = skips

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save the model as transformers' Trainer does and, while training, the loader's state beside it."""
        super().save_model(output_dir, *args, **kwargs)
        loader = self.train_dataset
        if isinstance(loader, PackedLoader) and self.is_in_train and output_dir and self.args.should_save:
            Path(output_dir).mkdir(parents=True, exist_ok=True)
            write_atomic(Path(output_dir) / STATE_FILE, json.dumps(loader.state_dict(), indent=1).encode() + b"\n")


class Trainer(LoaderMixin, transformers.Trainer):
    """transformers' `Trainer`, whose `train_dataset` may be a `PackedLoader` (`LoaderMixin`)."""


def _check_evaluated(dataset: Any) -> None:
    if isinstance(dataset, PackedLoader):
        raise OptionError(
            "eval_dataset is a PackedLoader, and the Trainer averages losses over rows, whatever they hold; give a "
            "dataset and data_collator=nopad.PackedBatch.from_features, or evaluate in a loop with nopad.losses"
        )


def _steps_of(folder: Path) -> int:
    """Return how many steps the Trainer had taken that saved a checkpoint."""
    return int(TrainerState.load_from_json(str(folder / _TRAINER_STATE)).global_step)


def _saved(folder: Path) -> Any:
    """Return the loader's state in a checkpoint."""
    path = folder / STATE_FILE
    if not path.is_file():
        raise FormatError(
            f"{folder} has no {STATE_FILE}, so it was not saved in training with a PackedLoader, which could not go on "
            "where that stopped; give a checkpoint that has one, or begin anew"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path} is no JSON: {error}") from error
