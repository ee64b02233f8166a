"""`PackedMixin`: training on packs in any subclass of transformers' Trainer.

The Trainer does all the rest: optimiser, schedule, mixed precision, DDP and FSDP, logging, checkpoints. The mix-in adds
support for packs, and overrides public methods only:

* **data**: a `PackedLoader`, which the user gives, or which the mix-in makes of the user's data, such as records and a
  task. The loader gives each rank its own batches, in the right order, so the Trainer does not shuffle, batch, shard,
  dispatch or skip them again. An option that asks for one of these, or contradicts the loader's step, is refused;
* **loss**: computed by an objective, over one denominator for all micro-batches of a step, on all ranks
  (`get_batch_samples`);
* **evaluation and prediction**: over packs too, with the same loss and metrics as without packs, and predictions in
  input order;
* **checkpoints**: each holds the loader's state (``nopad_loader.json``), from which training resumes. Training may
  resume on another number of ranks, and then takes exactly the sequences that the epoch has not seen;
* **trouble**: a loss that is NaN or infinite stops all ranks before the optimiser steps, and its batch is saved.

On data that are not packed, a model trains as without the mix-in. It is made pack-safe only if the Trainer evaluates or
predicts in packs.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import get_last_checkpoint

from nopad.batch import PackedBatch
from nopad.errors import OptionError
from nopad.files import write_atomic
from nopad.loading import PackedLoader
from nopad.loading.summary import Summary
from nopad.losses import over_ranks
from nopad.model.safety import bare, state_of
from nopad.store import PackedDataset
from nopad.tasks import Objective, Task
from nopad.tasks.routing import learned_share
from nopad.tasks.settings import write_task
from nopad.training.checkpoint import STATE_FILE, check_same_model, saved_state, steps_of
from nopad.training.checks import check_ranks, check_schedule, check_step, forget_evaluation, is_split_stream
from nopad.training.effects import effects, length_of
from nopad.training.evaluating import EvaluatingMixin, each_dataset
from nopad.training.feeding import Ahead, FedLoader, Progress
from nopad.training.schedules import Schedule
from nopad.training.trouble import Watch, check_unscaled, enough_memory

__all__ = ["PackedMixin"]


class PackedMixin(EvaluatingMixin):
    """Makes any subclass of transformers' Trainer train on packs: ``class Mine(PackedMixin, transformers.Trainer)``.

    It takes the arguments of that Trainer, and these:

    Args:
        task: what turns records into sequences and says what is learned (`nopad.tasks`); then `train_dataset` and
            `eval_dataset` are records (lists of dicts, a `datasets.Dataset`), `Examples`, or a packed dataset.
        objective: computes the loss, if there is no task; None: the objective that fits the model's head.
        capacity: most tokens per pack. None: the rows of a packed dataset are used as stored, and other data are packed
            with the capacity of `train_dataset`, if that is a loader or a packed dataset. If there is no capacity at
            all, records of a task and `Examples` are refused, and other data are not packed, unless they are loaders or
            packed datasets. The number of rows per rank and micro-step is ``per_device_train_batch_size``.
        loading: further options of `nopad.PackedLoader`: balance, cost, depth, ...
        schedule: the learning rate by sequences, tokens or steps seen (`nopad.training.Schedule`), in place of the
            Trainer's own schedule.
        quiet: print less before training begins: nothing about what packing changes, and a warning about records only
            if the task truncated some or left some out.

    If you give a loader, ``gradient_accumulation_steps`` must equal its `accumulation`, and
    ``per_device_train_batch_size`` its `rows` or `sequences` (1 with `tokens`). ``num_train_epochs`` counts the epochs
    of the loader from its first; without a checkpoint, training begins where the loader stands. A model that is not
    pack-safe is made so (`nopad.packed`).

    Raises:
        OptionError: the Trainer's options contradict the loader's step, would have no effect on packs, or would
            shuffle, batch or collate a second time; there are two schedules, or two losses, such as a task and an
            objective; a `capacity` is missing; `metric_for_best_model` is no metric of an evaluation; or the model does
            not fit the task or the objective.
        UnsupportedModelError: the model cannot keep sequences apart, or has no head by which to choose an objective.
        InputError: the training data cannot be read, encoded or packed.

    >>> import transformers
    >>> from nopad.training import PackedMixin
    >>> class Mine(PackedMixin, transformers.Trainer):
    ...     pass
    >>> issubclass(Mine, transformers.Trainer)
    True
    """

    def __init__(
        self,
        *args: Any,
        task: Task | None = None,
        objective: Objective | None = None,
        capacity: int | None = None,
        loading: Mapping[str, Any] | None = None,
        schedule: Schedule | None = None,
        quiet: bool = False,
        **kwargs: Any,
    ) -> None:
        given = inspect.signature(super().__init__).bind_partial(*args, **kwargs).arguments
        more = given.pop("kwargs", {})
        if task is not None and objective is not None:
            raise OptionError("give a task or an objective, not both: a task has its objective")
        self.task, self.quiet, self.schedule, self._loading = task, quiet, schedule, dict(loading or {})
        self.objective = objective if task is None else task.objective
        self._progress: Progress | None = None
        self._evaluation = None
        self._evaluated = []
        self._watch, self._steps_done = Watch(), 0
        self._returned: list[Tensor] = []  # the loss from `compute_loss`, until `training_step` has checked one
        self._looked = self._ready = False
        self._begin: dict[str, Any] | None = None
        self._before: tuple[int, PackedLoader] | None = None  # steps taken, and where the loader stood then
        data, evaluated = given.get("train_dataset"), given.get("eval_dataset")
        self._as_stored = capacity is None
        packed_already = isinstance(data, PackedLoader | PackedDataset)
        self.capacity: int | None = getattr(data, "capacity", None) if packed_already and capacity is None else capacity
        self._collates = given.get("data_collator") is not None
        packs, held_out = self._packs(data), [self._packs(one) for one in each_dataset(evaluated)]
        if packs:
            self._check_collator(held_out)
            self._look_at(given)
            given["train_dataset"] = self.placeholder()
        if any(held_out):
            given["eval_dataset"] = _map(evaluated, lambda one: self.placeholder() if self._packs(one) else one)
        with _without_bars() if packs and all(held_out) else nullcontext():
            super().__init__(**given, **more)
        if packs or any(held_out):
            self.eval_dataset = evaluated
            self._get_ready()
            self._check_metric()
        if packs:
            self.train_dataset = self._loader(data)
            check_step(self, self.train_dataset)
        if schedule is not None:
            check_schedule(self, packs=packs)

    def _look_at(self, given: dict[str, Any]) -> None:
        """Check or complete `given`, the arguments of the Trainer's constructor, in place.

        Here, this does nothing; subclasses override it.
        """

    def get_train_dataloader(self) -> Any:
        """Return a `DataLoader` of the loader's batches, which accelerate leaves unchanged.

        If the data are not packed, return the Trainer's own `DataLoader`.

        Raises:
            OptionError: the Trainer's options contradict the loader.
        """
        loader = self.train_dataset
        if not isinstance(loader, PackedLoader):
            return super().get_train_dataloader()
        check_step(self, loader)
        return self._fed(loader)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Return a step's micro-batches, and its denominator: the sum of their `Objective.count` over all ranks.

        Ranks of tensor parallelism get the same batches, and count as one. Without an objective, or if the data are not
        packed, the micro-batches and the denominator are the Trainer's own.
        """
        if self.objective is None:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        if isinstance(self.train_dataset, PackedLoader):
            self._before = self.state.global_step, copy(self.train_dataset)
        batches = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        if not all(isinstance(batch, PackedBatch) for batch in batches):
            return super().get_batch_samples(iter(batches), num_batches, device)
        counts = [self.objective.count(batch) for batch in batches]
        total = torch.stack(counts).sum(0) if counts else torch.zeros((), dtype=torch.double)
        total = total.to(device, torch.float if torch.device(device).type == "mps" else torch.double)
        return batches, over_ranks(total) / self.get_tp_size()

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None, **more: Any
    ) -> Any:
        """Return the objective's loss: the batch's sum of losses, divided by the step's denominator.

        With `return_outputs`, return ``(loss, outputs of the model)``.

        In training, the result is multiplied by the number of ranks, since gradients are averaged over them; ranks of
        tensor parallelism count as one. Without packs or an objective, or if TRL's own code computes the loss, this is
        the Trainer's own loss.
        """
        ours = self.objective is not None and isinstance(inputs, PackedBatch) and not self._loss_is_theirs
        if not ours:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch, **more)
        assert self.objective is not None
        loss, outputs = self.objective.step(model, inputs, num_items_in_batch)
        if num_items_in_batch is not None:
            loss = loss * (self.accelerator.num_processes // self.get_tp_size())
        if not self._looked:
            self._returned = [loss.detach()]
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Run a micro-step forward and backward, and return its loss.

        After the last micro-step of a step, all ranks stop if a loss was not finite.

        Raises:
            LossError: a loss is NaN or infinite; its batch is saved in the output folder.
            DeviceMemoryError: there is not enough memory; the message lists options that need less.
            OptionError: there are several ranks, and nothing averages the gradients of this model; or the Trainer
                changes the loss after `compute_loss`.
        """
        if isinstance(inputs, PackedBatch):
            check_ranks(self, model)
        with enough_memory(inputs):
            loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        if self._returned:
            check_unscaled(self, self._returned.pop(), loss)
            self._looked = True
        if isinstance(inputs, PackedBatch):
            self._watch.add(loss, inputs)
            if self.accelerator.sync_gradients:
                where = f"step {self.state.global_step + 1}"
                self._watch.end_step(Path(self.args.output_dir or "."), where, self.args.process_index)
        return loss

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Return the seven numbers with which the Trainer begins, in the order of transformers' method of this name.

        These are the numbers of epochs, steps per epoch, sequences per epoch, sequences in all, rows (or sequences) per
        step, micro-steps per epoch, and steps in all. Steps and micro-steps per epoch are those of the longest epoch,
        from the current one on. Steps in all are counted from where the loader stands; if training resumes, the steps
        done before count too.

        The numbers are the Trainer's own if the data are not from a `PackedLoader`, or if the loader's epochs have no
        known length. Otherwise, the callback `nopad.training.feeding.Progress` is added to the Trainer.

        Raises:
            OptionError: training does not resume, and the loader has seen all epochs already; or the loader stands in
                the middle of a step.
        """
        values = super().set_initial_training_values(args, dataloader)
        if self._progress is not None:
            self.remove_callback(self._progress)
            self._progress = None
        ahead = Ahead.of(dataloader.packed_loader) if isinstance(dataloader, FedLoader) else None
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
        self._progress = Progress(loader, ahead, ahead.epoch + len(epochs))
        self.add_callback(self._progress)
        # The Trainer assumes that `done // most` epochs are over, and does up to `most` steps in each later one.
        most = max([*epochs, ahead.whole(ahead.epoch)])
        _, _, examples, _, batch, _, _ = values
        samples = examples * max_steps // dataloader.summary.steps
        return done // most + len(epochs), most, examples, samples, batch, most * loader.accumulation, max_steps

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as transformers' Trainer does, beginning where the loader stands; return what the Trainer returns.

        If training resumes, it begins where the loader stood when the checkpoint was saved. Before training begins, the
        first rank prints what packing changes, unless `quiet` is set or the data are a stream. Each trial of a
        hyper-parameter search begins where the first trial began. If an exception interrupts a step, the loader is
        moved back to where the step began, so calling `train` again loses no sequence.

        Raises:
            FormatError: the checkpoint holds no loader state, or a file of it is damaged.
            PlanMismatchError, BalanceError: the loader refuses the checkpoint's state, for example since it belongs to
                other data (`PackedLoader.load_state_dict`).
            OptionError: the checkpoint's model has another configuration; the length of the `schedule` is not known, or
                shorter than its warm-up; the Trainer's options contradict the loader; or nothing is left to train on.
            TrainingError: a loss is NaN or infinite (LossError), or memory runs out (DeviceMemoryError).
        """
        if not isinstance(self.train_dataset, PackedLoader) and self._packs(self.train_dataset):
            self._get_ready()
            self.train_dataset = self._loader(self.train_dataset)  # set after this Trainer was made
        loader = self.train_dataset
        if not isinstance(loader, PackedLoader):
            return super().train(resume_from_checkpoint, trial, *args, **kwargs)
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)  # type: ignore[no-untyped-call]
        if folder:
            check_same_model(Path(folder), self.model)
            loader.load_state_dict(saved_state(Path(folder)))
        elif trial is not None:
            self._begin = self._begin or loader.state_dict()
            loader.load_state_dict(self._begin)
        # Moves a loader from the end of an epoch to the beginning of the next
        loader.load_state_dict(loader.state_dict())
        self._steps_done, self._watch = steps_of(Path(folder)) if folder else 0, Watch()
        self._tell(loader)
        forget_evaluation(self)
        skips, self.args.ignore_data_skip = self.args.ignore_data_skip, True  # the loader is at the next batch already
        self._before = None
        try:
            return super().train(resume_from_checkpoint, trial, *args, **kwargs)
        except BaseException:
            self._undo_step(loader)
            raise
        finally:
            self.args.ignore_data_skip = skips

    def _undo_step(self, loader: PackedLoader) -> None:
        """If a step was interrupted before it changed the weights, move the loader back to where the step began."""
        if self._before is not None and self._before[0] == self.state.global_step:
            loader.load_state_dict(self._before[1].state_dict())

    def _tell(self, loader: PackedLoader) -> None:
        """Print what packing changes, on the first rank, unless `quiet` is set or the data are a stream."""
        summary = None if self.quiet or not self.is_world_process_zero() else loader.summary()
        if isinstance(summary, Summary):
            total = None if self.schedule is None else length_of(self.schedule, loader, self.args)
            ours = self.objective is not None and not self._loss_is_theirs
            balances = ours and state_of(self.model).head.name == "causal"
            routers = learned_share(bare(self.model).config) if balances else None
            print(effects(summary, self.args, self.schedule, total, routers=routers), flush=True)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as the Trainer does.

        If the training data are packed, logs of a training loss also get ``sequences_seen`` and ``tokens_seen``: how
        many there were, on all ranks, since the loader's first epoch began. For a stream on several ranks, these
        numbers are not known, and left out.
        """
        loader = self.train_dataset
        if isinstance(loader, PackedLoader) and "loss" in logs and not is_split_stream(loader):
            logs = {**logs, "sequences_seen": loader.sequences_seen, "tokens_seen": loader.tokens_seen}
        super().log(logs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save the model as transformers' Trainer does.

        For ``nopad predict``, the task's name and options are saved as well, and the task's tokenizer if the Trainer
        has none. During training, the loader's state is saved too, if `output_dir` is given.

        Raises:
            StorageError: the task or the loader's state cannot be written.
        """
        super().save_model(output_dir, *args, **kwargs)
        if self.task is not None and self.args.should_save:
            folder = Path(output_dir or str(self.args.output_dir))
            write_task(folder, self.task)
            if self.processing_class is None and isinstance(self.task.tokenizer, PreTrainedTokenizerBase):
                self.task.tokenizer.save_pretrained(folder)
        loader = self.train_dataset
        if isinstance(loader, PackedLoader) and self.is_in_train and output_dir and self.args.should_save:
            Path(output_dir).mkdir(parents=True, exist_ok=True)
            write_atomic(Path(output_dir) / STATE_FILE, json.dumps(loader.state_dict(), indent=1).encode() + b"\n")


@contextmanager
def _without_bars() -> Iterator[None]:
    """In a ``with`` block, hide the progress bars of `datasets`, which TRL would show for the placeholder dataset."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _map(datasets: Any, function: Callable[[Any], Any]) -> Any:
    """Return ``function(datasets)`` for one evaluation dataset; for a dict of them, a dict with the result for each."""
    if isinstance(datasets, Mapping):
        return {name: function(one) for name, one in datasets.items()}
    return function(datasets)
