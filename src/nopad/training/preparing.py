"""Prepare a Trainer for packs: a pack-safe model that fits the task, an objective, and loaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nopad.admitting import packed
from nopad.errors import OptionError
from nopad.loading import PackedLoader
from nopad.model.safety import is_packed
from nopad.store import PackedDataset
from nopad.tasks import Objective, Task, objective_of
from nopad.tasks.fit import check_head, fit
from nopad.training.checks import check_options
from nopad.training.counted import CountedLR
from nopad.training.data import loader_of, packable
from nopad.training.feeding import FedLoader
from nopad.training.schedules import Schedule

__all__ = ["PreparingMixin"]

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object


class PreparingMixin(_Base):
    """The part of `PackedMixin` that prepares a Trainer: model, objective, loaders and scheduler."""

    train_dataset: Any
    eval_dataset: Any
    task: Task | None
    objective: Objective | None
    capacity: int | None
    quiet: bool
    _as_stored: bool  # whether packed datasets are read row by row, and not packed anew
    _collates: bool
    _ready: bool
    _steps_done: int  # before training resumed
    _loading: dict[str, Any]
    schedule: Schedule | None

    def placeholder(self) -> Any:
        """Return a small dataset for the constructor of transformers' or TRL's Trainer, in place of packed data."""
        import datasets

        return datasets.Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})

    def _packs(self, data: Any) -> bool:
        """Return whether the trainer trains or evaluates in packs on these data.

        Raises:
            OptionError: the data are a torch dataset or DataLoader made of a `PackedLoader`; or they are examples or
                records of a task, and there is no capacity.
        """
        return packable(data, self.task, self.capacity, collated=self._collates)

    def _check_collator(self, held_out: list[bool]) -> None:
        if self._collates and all(held_out):
            raise OptionError(
                "data_collator would do nothing: the loader makes the batches, by its own collate; leave it out, and "
                "say how long packs are with capacity="
            )

    def _get_ready(self) -> None:
        """Check the options and make the model pack-safe, at the first call; later calls do nothing."""
        if not self._ready:
            check_options(self)
            self._make_safe()
            self._ready = True

    def _make_safe(self) -> None:
        """Make the model pack-safe, and choose the objective that fits its head.

        No objective is chosen if one is given, or if there is a `compute_loss_func`.

        Raises:
            UnsupportedModelError: the model cannot keep sequences apart, or no objective is known for its head.
            OptionError: the model does not fit the task or the objective, or an option of the Trainer contradicts the
                objective.
        """
        self._fitted(self.model)
        if self.compute_loss_func is not None:
            if self.task is not None or self.objective is not None:
                raise OptionError("compute_loss_func and an objective are two losses; give one of them")
            return
        if self.objective is None:
            self.objective = objective_of(self.model)
        check_head(self.objective, self.model)
        if self.args.label_smoothing_factor and not self._loss_is_theirs:
            raise OptionError("label_smoothing_factor would do nothing: the objective is the loss; leave it out")
        if not self._loss_is_theirs:
            # The loss is divided by the step's denominator already: the Trainer must not divide it by the micro-steps.
            self.model_accepts_loss_kwargs = True
            self.loss_is_scaled_for_ga = True

    @property
    def _loss_is_theirs(self) -> bool:
        """Whether TRL's own code computes the loss of a training step, and not the objective; here, False."""
        return False

    def _check_metric(self) -> None:
        """Refuse a `metric_for_best_model` that evaluations do not give.

        Nothing is checked if there is a `compute_metrics`, which may give any metric, or if there is no objective.

        Raises:
            OptionError: there is no such metric; the message names those that there are.
        """
        wanted = self.args.metric_for_best_model
        if not wanted or self.compute_metrics is not None or self.objective is None:
            return
        known = {"loss", "runtime", "samples_per_second", *self.objective.meter().values(), *self._scores()}
        names = [f"{name}_" for name in self.eval_dataset] if isinstance(self.eval_dataset, Mapping) else [""]
        if wanted.removeprefix("eval_") not in {f"{name}{one}" for name in names for one in known}:
            raise OptionError(
                f"metric_for_best_model is {wanted!r}, and an evaluation gives {', '.join(sorted(known))}; choose one, "
                "or give compute_metrics"
            )

    def _scores(self) -> list[str]:
        return []

    def _loader(self, data: Any, *, training: bool = True) -> PackedLoader:
        """Return a loader of `data`, with the options of training or of evaluation."""
        args = self.args
        options: dict[str, Any] = {
            "last": self._last(),
            "seed": args.seed if args.data_seed is None else args.data_seed,
        }
        options["rows"] = args.per_device_train_batch_size if training else args.per_device_eval_batch_size
        options["accumulation"] = args.gradient_accumulation_steps
        options |= self._loading
        if not training:
            options |= {"last": self._last(), "accumulation": 1}
        capacity = None if self._as_stored and isinstance(data, PackedDataset) else self.capacity
        given: dict[str, Any] = {"name": "training data" if training else "evaluation data", "quiet": self.quiet}
        return loader_of(data, capacity, task=self.task, objective=self.objective, **given, **options)

    def _last(self) -> str:
        """Return the option `last` of the loaders: "fill" if a layer of the model is compiled, else "short".

        A shorter last step would make a compiled layer compile again.
        """
        compiled = self.model is not None and any(one._compiled_call_impl is not None for one in self.model.modules())
        return "fill" if compiled else "short"

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return a scheduler that follows `schedule`; without a `schedule`, the Trainer's own scheduler.

        The Trainer's attribute `lr_scheduler` is set too.

        Raises:
            OptionError: the length of the schedule is not known, or shorter than its warm-up.
        """
        if self.schedule is None:
            return super().create_scheduler(num_training_steps, optimizer)
        args, schedule = self.args, self.schedule
        if schedule.counts == "steps":
            length: dict[str, Any] = {"steps": num_training_steps}
        else:
            length = {"steps": args.max_steps} if args.max_steps > 0 else {"epochs": args.num_train_epochs}
        chosen: Any = optimizer or self.optimizer
        made: Any = CountedLR(chosen, schedule, self.train_dataset, **length)
        self.lr_scheduler = made
        return made

    def call_model_init(self, trial: Any = None) -> Any:
        """Return a new model from ``model_init``, made pack-safe if this trainer trains or evaluates in packs.

        In the Trainer's constructor this is not known yet; `_get_ready` then makes the model pack-safe.
        """
        model = super().call_model_init(trial)
        return self._fitted(model) if self._ready else model

    def _fitted(self, model: Any) -> Any:
        """Make a model pack-safe, check that it fits the task, write the task's class names into it, and return it."""
        if not is_packed(model):
            packed(model)
        if self.task is not None:
            fit(self.task, model)
        return model

    def _fed(self, loader: PackedLoader) -> FedLoader:
        args = self.args
        options = {
            name: getattr(args, f"dataloader_{name}")
            for name in ("in_order", "multiprocessing_context", "persistent_workers", "prefetch_factor")
            if hasattr(args, f"dataloader_{name}")
        }
        pinned = args.dataloader_pin_memory and args.device.type != "cpu"
        return FedLoader(loader, num_workers=args.dataloader_num_workers, pin_memory=pinned, **options)
