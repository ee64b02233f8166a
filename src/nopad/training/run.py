"""A run of `nopad train`: everything that a configuration names, made and checked in the order of what it costs.

`prepare` reads data and shapes, plans, and says what training will be, without weights; `train` trains. Both are the
same for a dry run, for a run that begins, and for one that goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers

from nopad.errors import InputError, MissingExtraError, NopadError, OptionError
from nopad.loading import PackedLoader, causal
from nopad.loading.ranks import Ranks
from nopad.loading.sources.megatron import megatron_prefix
from nopad.loading.summary import Summary
from nopad.model.safety import unpacked
from nopad.store.manifest import MANIFEST, split_folders
from nopad.study.balance import cost_model
from nopad.tasks import Objective, OfTokens, Task, objective_of
from nopad.tasks.registry import task_class
from nopad.tasks.settings import write_task
from nopad.training.config import TrainConfig
from nopad.training.effects import effects
from nopad.training.encoding import Part, encoded
from nopad.training.folder import CACHE, METRICS_FILE, RunFolder, kept_lines, last_checkpoint
from nopad.training.memory import Estimate, estimate
from nopad.training.models import load_model, load_tokenizer, longest, outline, read_model_config
from nopad.training.progress import Logged, Metrics
from nopad.training.records import Records, open_records

__all__ = ["Prepared", "prepare", "train"]

_lib: Any = transformers
_USUAL = {"logging_steps": 10, "report_to": "none"}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run before its weights are loaded.

    Attributes:
        config: with what was left open filled in.
        args: transformers' arguments.
        task: None where the data are tokens.
        tokenizer: of the model; None: it has none.
        model_config: the model's configuration.
        objective: what is learned.
        auto: name of the Auto class with the head; None: the one that the model's configuration names.
        train, evaluation: the packs.
        memory: what training needs.
        notes: what became of the records.
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

    @property
    def slots(self) -> int | None:
        """Places for tokens in a step, on all ranks; None: batches have no padding."""
        packing, loader = self.config.packing, self.train
        if packing.rows is None or loader.capacity is None:
            return None
        return loader.capacity * loader.per_rank * loader.accumulation * loader.ranks.world_size

    def __str__(self) -> str:
        """Return what training will be, for people."""
        lines = [*self.notes]
        summary = self.train.summary()
        if isinstance(summary, Summary):
            lines.append(effects(summary, self.args))
            if summary.steps and self.args.max_steps <= 0:
                steps = round(summary.steps * self.args.num_train_epochs)
                lines.append(f"training {self.args.num_train_epochs:g} epochs, about {steps:,} steps")
        share = f", {self.memory.trained:,} of them trained" if self.memory.trained < self.memory.total else ""
        lines.append(f"model    {self.memory.total:,} parameters{share}, {self.config.model.dtype}")
        lines.append(f"memory   {self.memory}")
        return "\n".join(lines)


def prepare(config: TrainConfig, cache: Path) -> Prepared:
    """Read data and shapes, and make the loaders.

    Args:
        config: of the run.
        cache: folder of encoded data.

    Raises:
        NopadError: whatever is wrong with data, model or options; the message names the field.
    """
    _quiet()
    args = arguments(config)
    records = _records(config)
    kind = None if config.task.name is None else task_class(config.task.name)
    tokenizer = _tokenizer(config, needed=kind is not None)
    task = None if kind is None else _task(config, kind, tokenizer)
    auto = None if kind is None else kind.auto
    model_config = read_model_config(config.model, task)
    shape = outline(config.model, model_config, auto)
    if task is not None:
        config, task = _with_length(config, task, longest(shape))
    objective = objective_of(shape) if task is None else task.objective
    made = _Loaders(config, args, task, tokenizer, objective, cache)
    with _about("data.train"):
        train = made.loader(records["train"], "train")
    with _about("data.held_out" if config.data.held_out else "data.eval"):
        evaluation = made.loader(records["eval"], "eval") if records["eval"] is not None else None
    width = train.capacity or _widest(train)
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
    )


def arguments(config: TrainConfig) -> Any:
    """Return transformers' arguments of a run.

    Raises:
        OptionError: transformers refuses an option, or there is nothing to evaluate.
    """
    has_eval = bool(config.data.eval) or config.data.held_out > 0 or _has_split(config)
    given = {**_USUAL, **config.trainer}
    if has_eval and "eval_strategy" not in given:
        given["eval_strategy"] = "steps" if "eval_steps" in given else "epoch"
    wanted = given.get("eval_strategy", "no") != "no" or given.get("eval_on_start") or given.get("load_best_model_at_end")
    if wanted and not has_eval:
        raise OptionError("trainer wants evaluations, and there is nothing to evaluate; give data.eval or data.held_out")
    packing = config.packing
    own = {
        "output_dir": config.output.folder,
        "disable_tqdm": True,
        "per_device_train_batch_size": packing.rows or packing.sequences or 1,
        "gradient_accumulation_steps": packing.accumulation,
    }
    own.setdefault("per_device_eval_batch_size", given.pop("per_device_eval_batch_size", own["per_device_train_batch_size"]))
    try:
        return _lib.TrainingArguments(**given, **own)
    except ImportError as error:
        raise MissingExtraError(f"[trainer]: {_first(error)}") from error
    except (ValueError, TypeError, NotImplementedError) as error:
        raise OptionError(f"[trainer]: {_first(error)}") from error


def _records(config: TrainConfig) -> dict[str, Any]:
    """Return training and evaluation data: records, or the place where tokens are stored; None: no evaluation."""
    found: dict[str, Any] = {"eval": None}
    for name in ("train", "eval"):
        inputs = getattr(config.data, name)
        if not inputs:
            continue
        with _about(f"data.{name}"):
            found[name] = _opened(inputs, name, config)
    if config.data.held_out:
        if not isinstance(found["train"], Records):
            raise OptionError(
                "data.held_out chooses among records, and data.train holds tokens; hold some out when you pack them "
                "(nopad pack --validation), and give them as data.eval"
            )
        found["eval"] = found["train"]
    elif found["eval"] is None and _has_split(config):
        found["eval"] = str(split_folders(config.data.train[0])[1])
    return found


def _opened(inputs: tuple[str, ...], name: str, config: TrainConfig) -> Any:
    if len(inputs) == 1:
        path = Path(inputs[0])
        splits = split_folders(path)
        if splits:
            return str(splits[0 if name == "train" else 1])
        arrays = (path / MANIFEST).is_file() or (path / "offsets.npy").is_file() or megatron_prefix(path) is not None
        if arrays or config.task.name is None:
            return str(path)
    if config.task.name is None:
        raise OptionError("without a task, it is one place where tokens are stored; name a task for files of records")
    return open_records(inputs)


def _has_split(config: TrainConfig) -> bool:
    return len(config.data.train) == 1 and not config.data.eval and bool(split_folders(config.data.train[0]))


def _tokenizer(config: TrainConfig, *, needed: bool) -> Any:
    try:
        return load_tokenizer(config.model)
    except InputError:
        if needed:
            raise
        return None


def _task(config: TrainConfig, kind: type[Task], tokenizer: Any) -> Task:
    try:
        return kind(tokenizer, **config.task.options)
    except OptionError as error:
        raise OptionError(f"[task]: {error}") from error
    except TypeError as error:
        raise OptionError(f"[task]: {config.task.name} needs more, or other, options: {error}") from error


def _with_length(config: TrainConfig, task: Task, positions: int | None) -> tuple[TrainConfig, Task]:
    """Limit the length of sequences by the capacity and the model's positions, where nothing else does."""
    most = [one for one in (config.packing.capacity, config.packing.tokens, positions) if one is not None]
    if task.max_length is not None:
        if positions is not None and task.max_length > positions:
            raise OptionError(f"task.max_length is {task.max_length}, and the model has {positions} positions")
        return config, task
    if not most:
        return config, task
    options = {**config.task.options, "max_length": min(most)}
    config = replace(config, task=replace(config.task, options=options))
    return config, _task(config, type(task), task.tokenizer)


class _Loaders:
    """Makes the loaders of a run."""

    def __init__(
        self, config: TrainConfig, args: Any, task: Task | None, tokenizer: Any, objective: Objective, cache: Path
    ) -> None:
        self.config, self.args, self.task, self.objective, self.cache = config, args, task, objective, cache
        self.tokenizer = tokenizer
        self.seed = args.seed if args.data_seed is None else args.data_seed
        self.notes: list[str] = []

    def loader(self, data: Any, name: str) -> PackedLoader:
        """Return the loader of records, or of a place where tokens are stored."""
        options, capacity = self._options(training=name == "train"), self.config.packing.capacity
        if isinstance(data, Records):
            assert self.task is not None
            if capacity is None and self.config.packing.rows is not None:
                raise OptionError("packing.capacity is missing: most tokens of a pack")
            part = Part(share=self.config.data.held_out, seed=self.seed, held_out=name == "eval")
            if not self.config.data.held_out:
                part = Part()
            examples = encoded(self.task, data, self.cache, self._settings(), part=part)
            self.notes.append(f"{name:<8} {examples}")
            return self.task.loader(examples, capacity, **options)
        if self.task is not None:
            options["collate"] = self.task.collate
        elif isinstance(self.objective, OfTokens) and self.objective.causal:
            options["collate"] = causal
        self.notes.append(f"{name:<8} {data}")
        return PackedLoader(data, capacity, **options)

    def _options(self, *, training: bool) -> dict[str, Any]:
        packing = self.config.packing
        options: dict[str, Any] = {"seed": self.seed, "align": packing.align, "prefetch": packing.prefetch}
        for name in ("rows", "tokens", "sequences"):
            if getattr(packing, name) is not None:
                options[name] = getattr(packing, name)
        options |= {"last": packing.last, "accumulation": packing.accumulation} if training else {"last": "fill"}
        if training:
            options |= {"balance": packing.balance, "cost": cost_model(packing.cost), "together": packing.together}
        elif packing.rows is not None:
            options["rows"] = self.args.per_device_eval_batch_size
        return options | (packing.plan_options() if packing.capacity is not None or packing.tokens is not None else {})

    def _settings(self) -> Mapping[str, Any]:
        """Return what tells the encoding of these records from others."""
        said = {"task": self.config.task.name, "options": dict(self.config.task.options)}
        return {**said, "tokenizer": _fingerprint(self.tokenizer)}


def _fingerprint(tokenizer: Any) -> str:
    """Return the SHA-256 of all that a tokenizer's results depend on."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    facts = [type(tokenizer).__name__, getattr(tokenizer, "chat_template", None)]
    facts += [inner.to_str()] if inner is not None else [sorted(tokenizer.get_vocab().items())]
    facts += [{name: str(value) for name, value in tokenizer.special_tokens_map.items()}]
    facts += [tokenizer.model_input_names]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _widest(loader: PackedLoader) -> int:
    """Return about how many tokens a flat batch of sequences has."""
    summary = loader.summary()
    if not isinstance(summary, Summary) or not summary.steps:
        return 1
    shape = summary.shape
    return max(round(summary.tokens / summary.steps / shape.world_size / shape.accumulation), 1)


def train(
    prepared: Prepared,
    folder: RunFolder,
    *,
    resume: bool,
    say: Callable[[str], None],
    tell: Callable[[Logged], None],
    step: Callable[[int, int], None] = lambda step, steps: None,
) -> dict[str, float]:
    """Train, evaluate, and save; return the metrics of the last evaluation.

    Args:
        prepared: what `prepare` returned.
        folder: of the run, taken by the first rank.
        resume: go on from the last complete checkpoint, or from the beginning if the run was stopped before the first.
        say: called with lines for people, on the first rank.
        tell: called with each log, on the first rank.
        step: called after each step with its number and that of the last one, on the first rank.

    Raises:
        NopadError: whatever goes wrong in a step, or with what the run goes on from.
    """
    from nopad.training.trainer import PackedTrainer

    ranks, config, args = Ranks.found(), prepared.config, prepared.args
    first = ranks.rank == 0
    checkpoint = last_checkpoint(folder.path) if resume else None
    if first:
        folder.clear_incomplete()
        kept_lines(folder.path / METRICS_FILE, _steps_of(checkpoint))
        if config.task.name is not None:
            write_task(folder.path, config.task.name, config.task.options)
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
    learned: dict[str, Any] = {"task": prepared.task} if prepared.task else {"objective": prepared.objective}
    with _refused():
        trainer = PackedTrainer(
            model,
            args,
            train_dataset=prepared.train,
            eval_dataset=prepared.evaluation,
            processing_class=prepared.tokenizer,
            callbacks=[metrics],
            quiet=True,
            **learned,
        )
        trainer.remove_callback(_lib.PrinterCallback)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    found: dict[str, float] = {}
    if prepared.evaluation is not None:
        found = trainer.evaluate()
    trainer.save_model(str(folder.path))
    if first:
        folder.note(finished=trainer.state.global_step)
    return found


def _steps_of(checkpoint: Path | None) -> int:
    from nopad.training.feeding import steps_of

    return steps_of(checkpoint) if checkpoint else -1


def cache_of(folder: str | Path) -> Path:
    """Return the folder of encoded data of a run."""
    return Path(folder) / CACHE


class _about:  # noqa: N801 - a context manager
    """Put the field that data came from before what is said about them."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InputError) and not str(error).startswith("packing."):
            raise type(error)(f"{self.field}: {error}") from error


class _refused:  # noqa: N801 - a context manager
    """Say in one line that transformers refuses options."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ValueError) and not isinstance(error, NopadError):
            raise OptionError(f"[trainer]: {_first(error)}") from error


def _first(error: BaseException) -> str:
    return " ".join(str(error).strip().split()) or type(error).__name__


def _quiet() -> None:
    """Turn off the reports and bars of transformers: what matters is said by nopad."""
    _lib.logging.set_verbosity_error()
    _lib.logging.disable_progress_bar()
