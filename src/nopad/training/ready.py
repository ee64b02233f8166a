"""A run of `nopad train` that is ready to train: everything that its configuration names, made and checked.

The cheapest checks come first. `prepare` reads the data and the model's shape, plans, and describes the training,
without loading weights. A dry run, a new run and a resumed run go through the same `prepare`; `nopad.training.run`
trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from nopad.corpus.record_stream import RecordStream
from nopad.errors import InputError, MissingExtraError, OptionError, check_extra
from nopad.loading import PackedLoader
from nopad.loading.summary import Summary
from nopad.model.safety import unpacked
from nopad.tasks import Objective, Task, objective_of
from nopad.tasks.fit import check_rows
from nopad.tasks.registry import options_of, task_class
from nopad.tasks.routing import learned_share
from nopad.training.checks import check_arguments
from nopad.training.choosing import Chosen
from nopad.training.correcting import corrected
from nopad.training.effects import effects, length_of
from nopad.training.lamb import Lamb
from nopad.training.loaders import Loaders, about, find_data, has_evaluation, widest
from nopad.training.memory import Estimate, estimate
from nopad.training.models import (
    check_positions,
    classes_of_weights,
    load_tokenizer,
    longest,
    of_hub,
    outline,
    read_model_config,
)
from nopad.training.saving import save_each_epoch, saves, steps_of_run
from nopad.training.scaling import Scaled
from nopad.training.tables import Optimizer, TrainConfig
from nopad.wording import counted

__all__ = ["Prepared", "arguments", "in_one_line", "optimizer_of", "prepare"]

_lib: Any = transformers
_USUAL = {"logging_steps": 10, "report_to": "none", "log_level": "error", "log_level_replica": "error"}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that is ready to train, except that the weights are not loaded yet.

    Attributes:
        config: the configuration, with defaults filled in and corrected for packing.
        args: `transformers.TrainingArguments`.
        task: the task; None: the data are tokens.
        tokenizer: the model's tokenizer; None: it has none.
        model_config: the model's configuration.
        objective: computes the loss and the metrics.
        auto: name of the Auto class with the head; None: the head that the model's configuration names.
        loaders: makes the loaders of the run, from encoded data.
        records: the training and evaluation data, by the names "train" and "eval", as `find_data` returns them.
        train, evaluation: the loaders of training and evaluation data; `evaluation` is None if there is no evaluation.
        scaled: the correction of hyper-parameters for packing; None: no correction was asked for.
        total: length of training in the unit that the schedule counts; None: there is no schedule.
        memory: estimate of the memory that training needs.
        notes: a line of text about the data of each loader, such as how many sequences the records gave, and how many
            records were cut or left out.
        chosen: lines of text on what was chosen because the configuration leaves it out; "" if there is nothing.
        usual: the number of sequences per rank and micro-step from which the number of rows was computed; None: the
            number of rows was not computed in this way.
    """

    config: TrainConfig
    args: Any
    task: Task | None
    tokenizer: Any
    model_config: Any
    objective: Objective
    auto: str | None
    loaders: Loaders
    records: Mapping[str, Any]
    train: PackedLoader
    evaluation: PackedLoader | None
    memory: Estimate
    notes: tuple[str, ...]
    chosen: str = ""
    usual: int | None = None
    scaled: Scaled | None = None
    total: int | None = None

    @property
    def data(self) -> dict[str, str]:
        """Fingerprints of the data, by the keys "data.train" and (if there is an evaluation) "data.eval"."""
        loaders = {"data.train": self.train, "data.eval": self.evaluation}
        return {name: str(one.facts()["data"]) for name, one in loaders.items() if one is not None}

    @property
    def slots(self) -> int | None:
        """Number of slots in a step, on all ranks; None: batches have no padding."""
        packing, loader = self.config.packing, self.train
        if packing.rows is None or loader.capacity is None:
            return None
        return loader.capacity * loader.per_rank * loader.accumulation * loader.ranks.world_size

    @property
    def steps(self) -> int | None:
        """About how many steps the training takes; None: not known, as for a stream without ``max_steps``."""
        return steps_of_run(self.train, self.args)

    def __str__(self) -> str:
        """Return a description of the training, as a few lines of text."""
        lines = [*self.notes, *([self.chosen] if self.chosen else [])]
        summary = self.train.summary()
        if isinstance(summary, Summary):
            routers = learned_share(self.model_config) if "causal" in self.objective.heads else None
            told = (self.config.schedule, self.total, self.scaled, routers, self.usual)
            lines.append(effects(summary, self.args, *told))
            if (steps := self.steps) is not None and self.args.max_steps <= 0:
                epochs = f"{self.args.num_train_epochs:g} epoch{'s' * (self.args.num_train_epochs != 1)}"
                lines.append(f"training {epochs}, about {counted(steps, 'step')}")
        if self.config.optimizer is not None:
            lines.append(f"optimise {_optimiser_line(self.config.optimizer, self.args)}")
        share = f", {self.memory.trained:,} of them trained" if self.memory.trained < self.memory.total else ""
        lines.append(f"model    {self.memory.total:,} parameters{share}, {self.config.model.dtype}")
        lines.append(f"memory   {self.memory}")
        lines.append(f"saves    {saves(self.args, self.steps)}")
        return "\n".join(lines)


def prepare(config: TrainConfig, cache: Path) -> Prepared:
    """Read the data and the model's shape, make the loaders, and return the run that is ready to train.

    Args:
        config: configuration of the run.
        cache: folder for encoded data.

    Raises:
        NopadError: data, model or options cannot be used; the message names the wrong field, if there is one.
    """
    _quiet()
    with of_hub(config.model):
        return _prepared(config, cache)


def _prepared(config: TrainConfig, cache: Path) -> Prepared:
    """Return what `prepare` returns; the arguments and errors are the same."""
    args = arguments(config)
    with about("[trainer]"):
        check_arguments(args)
    records = find_data(config)
    kind = None if config.task.name is None else task_class(config.task.name)
    tokenizer, chosen = _tokenizer(config, needed=kind is not None), Chosen(config)
    task = None
    if kind is not None:
        known = classes_of_weights(config.model)
        with about("data.train"):
            chosen.labels(kind, records["train"], known)
        _check_empty(config, kind, records)
        task = _task(chosen.config, kind, tokenizer, given=_has_length(config, kind))
        chosen.head(task, known)
    auto = None if kind is None else kind.auto
    model_config = read_model_config(config.model, task)
    shape = outline(config.model, model_config, auto)
    check_positions(config.model, shape)
    chosen.capacity(records["train"], longest(shape))
    why = ""
    if task is not None:
        if task.max_length is None:
            why = " (max_length is not given, so it is the capacity, or the model's positions if these are fewer)"
        if chosen.length(task, longest(shape)) or not _has_length(config, type(task)):
            task = _task(chosen.config, type(task), tokenizer)
    objective = objective_of(shape) if task is None else task.objective
    made = Loaders(chosen.config, args, task, tokenizer, objective, cache)
    with about("data.train", why):
        chosen.rows(made.examples(records["train"], "train"))
        args = arguments(chosen.config)
        made, scaled = corrected(made.of(chosen.config, args), records["train"])
        train = made.loader(records["train"], "train")
        _check_longest(train, longest(shape))
    chosen.usual(task, made.args)
    config, args = made.config, made.args
    optimizer_of(config, args)
    save_each_epoch(config, args, train)
    with about("data.held_out" if config.data.held_out else "data.eval", why):
        evaluation = made.loader(records["eval"], "eval") if records["eval"] is not None else None
        _check_longest(evaluation, longest(shape))
    for field, loader in (("packing.rows", train), ("trainer.per_device_eval_batch_size", evaluation)):
        with about(field):
            check_rows(shape, 1 if loader is None else loader.rows, tokenizer)
    width = train.capacity or config.packing.token_cap or widest(train)
    rows = train.per_rank if config.packing.rows is not None else 1
    memory = estimate(unpacked(shape), slots=(rows, width), args=args)
    return Prepared(
        config=made.config,
        args=args,
        task=task,
        tokenizer=tokenizer,
        model_config=model_config,
        objective=objective,
        auto=auto,
        loaders=made,
        records=records,
        train=train,
        evaluation=evaluation,
        memory=memory,
        notes=tuple(made.notes),
        chosen=str(chosen),
        usual=chosen.usual_sequences,
        scaled=scaled,
        total=None if config.schedule is None else length_of(config.schedule, train, args),
    )


def optimizer_of(config: TrainConfig, args: Any) -> tuple[type[Lamb], dict[str, Any]] | None:
    """Return the class of the optimiser and its checked options; None: the Trainer's own optimiser is used.

    Raises:
        OptionError: the optimiser refuses the options.
    """
    if config.optimizer is None:
        return None
    kind, options = Lamb.of(args, **config.optimizer.switches())
    kind([torch.nn.Parameter(torch.zeros(1))], **options)
    return kind, options


def _optimiser_line(optimizer: Optimizer, args: Any) -> str:
    """Return a line of text that describes the optimiser."""
    usual = Optimizer(name=optimizer.name).switches()
    switches = [f", {name}={value}" for name, value in optimizer.switches().items() if value != usual[name]]
    return (
        f"{optimizer.name}: rate {args.learning_rate:g}, betas ({args.adam_beta1:.6g}, {args.adam_beta2:.6g}), eps "
        f"{args.adam_epsilon:g}, decay {args.weight_decay:g} (biases and normalisation: none){''.join(switches)}"
    )


def _check_longest(loader: PackedLoader | None, positions: int | None) -> None:
    """Refuse data with a sequence longer than the model's number of `positions` (None: unlimited).

    Raises:
        OptionError: there is such a sequence.
    """
    summary = None if loader is None else loader.summary()
    if positions is not None and isinstance(summary, Summary) and summary.longest > positions:
        raise OptionError(
            f"it has a sequence of {summary.longest:,} tokens, and the model has {positions:,} positions; pack shorter "
            "ones, or take a model with more positions"
        )


def arguments(config: TrainConfig) -> Any:
    """Return the `transformers.TrainingArguments` of a run.

    Raises:
        OptionError: transformers refuses an option, or an option requires an evaluation and there are no data for it.
        MissingExtraError: an option needs a package that is not installed.
    """
    has_eval = has_evaluation(config)
    given = {**_USUAL, **config.trainer}
    if has_eval and "eval_strategy" not in given:
        given["eval_strategy"] = "steps" if "eval_steps" in given else "epoch"
    wanted = (
        given.get("eval_strategy", "no") != "no" or given.get("eval_on_start") or given.get("load_best_model_at_end")
    )
    if wanted and not has_eval:
        raise OptionError(
            "trainer wants evaluations, and there is nothing to evaluate; give data.eval or data.held_out"
        )
    if config.optimizer is not None:
        given = {"weight_decay": 0.01, "adam_epsilon": 1e-6} | given  # MLPerf's
    packing = config.packing
    per_rank = packing.rows or packing.sequences or 1
    given.setdefault("per_device_eval_batch_size", per_rank)
    own = {
        "output_dir": config.output.folder,
        "disable_tqdm": True,
        "per_device_train_batch_size": per_rank,
        "gradient_accumulation_steps": packing.accumulation,
    }
    check_extra("training", "train")
    try:
        return _lib.TrainingArguments(**given, **own)
    except ImportError as error:
        raise MissingExtraError(f"[trainer]: {in_one_line(error)}") from error
    except (ValueError, TypeError, NotImplementedError) as error:
        raise OptionError(f"[trainer]: {in_one_line(error)}") from error


def _tokenizer(config: TrainConfig, *, needed: bool) -> Any:
    try:
        return load_tokenizer(config.model)
    except InputError:
        if needed:
            raise
        return None


def _task(config: TrainConfig, kind: type[Task], tokenizer: Any, *, given: bool = True) -> Task:
    """Return a task of the class `kind` with the options of the configuration.

    `given` says whether the `max_length` is known. If not, the option `over_long` is left out, since it needs a
    `max_length`.

    Raises:
        OptionError: the task refuses an option, or lacks one that it needs.
    """
    options = {name: one for name, one in config.task.options.items() if given or name != "over_long"}
    if config.data.empty is not None and "empty" in options_of(kind):
        options["empty"] = config.data.empty
    try:
        return kind(tokenizer, **options)
    except OptionError as error:
        raise OptionError(f"[task]: {error}") from error
    except TypeError as error:
        raise OptionError(f"[task]: {config.task.name} needs more, or other, options: {error}") from error


def _check_empty(config: TrainConfig, kind: type[Task], records: Mapping[str, Any]) -> None:
    """Refuse ``data.empty`` for a task of the class `kind` that reads records and has no such option.

    `records` are the training and evaluation data. Stored tokens need no option of the task.

    Raises:
        OptionError: ``data.empty`` is given, and would be ignored.
    """
    empty, reads = config.data.empty, any(isinstance(one, RecordStream) for one in records.values())
    if empty is not None and reads and "empty" not in options_of(kind):
        raise OptionError(f'data.empty is "{empty}", and the task {kind.name} has no choice about it; leave it out')


def _has_length(config: TrainConfig, kind: type[Task]) -> bool:
    """Return whether the task has a `max_length`: in the configuration, or as the default of the class `kind`."""
    return config.task.options.get("max_length", options_of(kind)["max_length"].default) is not None


def in_one_line(error: BaseException) -> str:
    """Return the message of an error in one line; of an error without a message, the name of its class."""
    return " ".join(str(error).strip().split()) or type(error).__name__


def _quiet() -> None:
    """Turn off the reports and progress bars of transformers, since nopad has its own."""
    _lib.logging.set_verbosity_error()
    _lib.logging.disable_progress_bar()
