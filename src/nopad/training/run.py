"""A run of `nopad train`: make and check everything that a configuration names, the cheapest checks first.

`prepare` reads the data and the model's shape, plans, and describes the training, without loading weights; `train`
trains. A dry run, a new run and a resumed run go through the same `prepare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from nopad.errors import InputError, MissingExtraError, NopadError, OptionError
from nopad.loading import PackedLoader
from nopad.loading.ranks import Ranks
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
from nopad.training.folder import CACHE, METRICS_FILE, RunFolder, kept_lines, last_checkpoint
from nopad.training.lamb import Lamb
from nopad.training.loaders import Loaders, about, find_data, has_evaluation, widest
from nopad.training.longer import Longer
from nopad.training.memory import Estimate, estimate
from nopad.training.models import (
    check_positions,
    classes_of_weights,
    load_model,
    load_tokenizer,
    longest,
    outline,
    read_model_config,
)
from nopad.training.progress import Logged, Metrics
from nopad.training.saving import save_each_epoch, saves, steps_of_run
from nopad.training.scaling import Scaled
from nopad.training.tables import Optimizer, TrainConfig
from nopad.training.trouble import enough_room

__all__ = ["Prepared", "prepare", "train"]

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
        objective: computes the loss and its metrics.
        auto: name of the Auto class with the head; None: the head that the model's configuration names.
        train, evaluation: the loaders of training and evaluation data; None: there is no evaluation.
        scaled: the correction of hyper-parameters for packing; None: no correction was asked for.
        total: length of training in the unit that the schedule counts; None: there is no schedule.
        memory: estimate of the memory that training needs.
        notes: lines of text on how many sequences the records gave, and how many were cut or left out.
        chosen: lines of text on what was chosen because the configuration leaves it out; "" if there is nothing.
        usual: the number of sequences per rank and micro-step from which the number of rows was computed; None: it was
            not computed so.
    """

    config: TrainConfig
    args: Any
    task: Task | None
    tokenizer: Any
    model_config: Any
    objective: Objective
    auto: str | None
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
        """Fingerprints of the sequences, "data.train" and (if there is an evaluation) "data.eval"."""
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
        """About how many steps the training takes; None: not known (a stream without ``max_steps``)."""
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
                lines.append(f"training {epochs}, about {steps:,} step{'s' * (steps != 1)}")
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
    _optimizer(config, args)
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
        train=train,
        evaluation=evaluation,
        memory=memory,
        notes=tuple(made.notes),
        chosen=str(chosen),
        usual=chosen.usual_sequences,
        scaled=scaled,
        total=None if config.schedule is None else length_of(config.schedule, train, args),
    )


def _optimizer(config: TrainConfig, args: Any) -> tuple[type[Lamb], dict[str, Any]] | None:
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
    try:
        return _lib.TrainingArguments(**given, **own)
    except ImportError as error:
        raise MissingExtraError(f"[trainer]: {_first(error)}") from error
    except (ValueError, TypeError, NotImplementedError) as error:
        raise OptionError(f"[trainer]: {_first(error)}") from error


def _tokenizer(config: TrainConfig, *, needed: bool) -> Any:
    try:
        return load_tokenizer(config.model)
    except InputError:
        if needed:
            raise
        return None


def _task(config: TrainConfig, kind: type[Task], tokenizer: Any, *, given: bool = True) -> Task:
    """Return a task of the class `kind` with the options of the configuration.

    With `given` False, the option `over_long` is left out, since it needs a `max_length`, which is not known yet.

    Raises:
        OptionError: the task refuses an option, lacks one that it needs, or has no choice about ``data.empty``.
    """
    options = {name: one for name, one in config.task.options.items() if given or name != "over_long"}
    empty = config.data.empty
    if empty is not None and "empty" in options_of(kind):
        options["empty"] = empty
    elif empty == "error":
        raise OptionError(f'data.empty is "error", and the task {kind.name} has no choice about it; leave it out')
    try:
        return kind(tokenizer, **options)
    except OptionError as error:
        raise OptionError(f"[task]: {error}") from error
    except TypeError as error:
        raise OptionError(f"[task]: {config.task.name} needs more, or other, options: {error}") from error


def _has_length(config: TrainConfig, kind: type[Task]) -> bool:
    """Return whether the task has a `max_length`: in the configuration, or as the default of the class `kind`."""
    return config.task.options.get("max_length", options_of(kind)["max_length"].default) is not None


def train(
    prepared: Prepared,
    folder: RunFolder,
    *,
    resume: bool,
    begin: Callable[[], None] | None = None,
    say: Callable[[str], None],
    tell: Callable[[Logged], None],
    step: Callable[[int, int], None] = lambda step, steps: None,
) -> dict[str, float]:
    """Train, evaluate, and save; return the metrics of the last evaluation, or {} without evaluation data.

    Args:
        prepared: what `prepare` returned.
        folder: the run's folder, which the first rank has taken.
        resume: resume from the last complete checkpoint, or from the beginning if the run was stopped before the first.
        begin: called on the first rank right before the first step, when all checks have passed; in resumed runs too.
        say: called with lines of text for the user, on the first rank.
        tell: called with each log, on the first rank.
        step: called after each step with its number and the total number of steps, on the first rank.

    Raises:
        NopadError: a step fails, or the run cannot resume from its checkpoint.
    """
    from nopad.training.trainer import PackedTrainer

    ranks, config, args = Ranks.found(), prepared.config, prepared.args
    first = ranks.rank == 0
    checkpoint = last_checkpoint(folder.path) if resume else None
    _lib.set_seed(args.seed)
    model, new = load_model(config.model, prepared.model_config, prepared.auto)
    if new and first:
        say(f"new      weights that the checkpoint does not have: {', '.join(new[:8])}{', ...' if new[8:] else ''}")
    if resume and first:
        say(f"resume   from {checkpoint}" if checkpoint else "resume   from the beginning: there was no checkpoint yet")
    metrics = Metrics(
        prepared.train,
        slots=prepared.slots,
        path=folder.path / METRICS_FILE if first else None,
        tell=tell,
        step=step,
    )
    callbacks = [metrics, *([Longer(checkpoint, say if first else _silent)] if checkpoint else [])]
    learned: dict[str, Any] = {"task": prepared.task} if prepared.task else {"objective": prepared.objective}
    if config.optimizer is not None:
        learned["optimizer_cls_and_kwargs"] = _optimizer(config, args)
    with _refused():
        trainer = PackedTrainer(
            model,
            args,
            train_dataset=prepared.train,
            eval_dataset=prepared.evaluation,
            processing_class=prepared.tokenizer,
            callbacks=callbacks,
            schedule=config.schedule,
            quiet=True,
            **learned,
        )
        trainer.remove_callback(_lib.PrinterCallback)
    if first:
        _begin(folder, checkpoint, begin)
    done = max(_steps_of(checkpoint), 0)
    try:
        with enough_room(folder.path), _refused(lambda: trainer.state.global_step > done):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except BaseException:
        if first and not resume and not trainer.state.global_step:
            folder.undo()
        raise
    found = _evaluated(trainer) if prepared.evaluation is not None else {}
    with enough_room(folder.path):
        trainer.save_model(str(folder.path))
    if first:
        folder.note(finished=trainer.state.global_step)
    return found


def _silent(line: str) -> None:
    """Ignore a line of text, on ranks that print nothing."""


def _begin(folder: RunFolder, checkpoint: Path | None, begin: Callable[[], None] | None) -> None:
    """Remove what the folder holds beyond the checkpoint (newer checkpoints and metrics), then call `begin`."""
    folder.clear_incomplete()
    kept_lines(folder.path / METRICS_FILE, _steps_of(checkpoint))
    if begin is not None:
        begin()


def _evaluated(trainer: Any) -> dict[str, float]:
    """Return the metrics of the last step's evaluation; without one, or with `load_best_model_at_end`, evaluate now."""
    last: dict[str, float] = next((one for one in reversed(trainer.state.log_history) if "eval_loss" in one), {})
    if last.get("step") == trainer.state.global_step and not trainer.args.load_best_model_at_end:
        return {name: value for name, value in last.items() if name != "step"}
    return dict(trainer.evaluate())


def _steps_of(checkpoint: Path | None) -> int:
    from nopad.training.feeding import steps_of

    return steps_of(checkpoint) if checkpoint else -1


def cache_of(folder: str | Path) -> Path:
    """Return the folder for a run's encoded data, inside the run's folder."""
    return Path(folder) / CACHE


@contextmanager
def _refused(begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """In a ``with`` block, turn errors about options or packages into errors of nopad, until ``begun()`` is true.

    Raises:
        MissingExtraError: a package is not installed.
        OptionError: a `ValueError` was raised, which is taken to be about an option.
    """
    try:
        yield
    except NopadError:
        raise
    except (ImportError, RuntimeError, ValueError) as error:
        missing = isinstance(error, ImportError) or "to be installed" in str(error)
        if begun() or not (missing or isinstance(error, ValueError)):
            raise
        raise (MissingExtraError if missing else OptionError)(f"[trainer]: {_first(error)}") from error


def _first(error: BaseException) -> str:
    return " ".join(str(error).strip().split()) or type(error).__name__


def _quiet() -> None:
    """Turn off the reports and progress bars of transformers, since nopad has its own."""
    _lib.logging.set_verbosity_error()
    _lib.logging.disable_progress_bar()
