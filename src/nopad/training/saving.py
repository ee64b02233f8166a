"""Decide when a run of `nopad train` saves checkpoints, and say it in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.trainer_utils import SaveStrategy

from nopad.errors import ResumeError
from nopad.loading import PackedLoader
from nopad.loading.summary import Summary
from nopad.training.folder import last_checkpoint
from nopad.training.tables import TrainConfig

__all__ = ["save_each_epoch", "saves", "steps_of_run", "way_on"]

_KEPT = 2  # checkpoints that are kept where nopad chose to save one at the end of each epoch


def steps_of_run(loader: PackedLoader, args: Any) -> int | None:
    """Return about how many steps a training takes; None: not known, as for a stream without ``max_steps``."""
    if args.max_steps > 0:
        return int(args.max_steps)
    summary = loader.summary()
    if not isinstance(summary, Summary) or not summary.steps:
        return None
    return round(summary.steps * float(args.num_train_epochs))


def save_each_epoch(config: TrainConfig, args: Any, loader: PackedLoader) -> None:
    """Let a short run of several epochs save at the end of each, if the configuration does not say when to save.

    A run is short if it has at most ``save_steps`` steps. Nothing changes if the configuration has ``max_steps``,
    ``save_strategy``, ``save_steps`` or ``load_best_model_at_end``. The last two checkpoints are kept, unless the
    configuration has ``save_total_limit``. `args` (`transformers.TrainingArguments`) are changed.
    """
    given = config.trainer
    if any(name in given for name in ("save_strategy", "save_steps", "load_best_model_at_end")):
        return
    steps = steps_of_run(loader, args)
    if steps is None or steps > _every(args, steps) or args.max_steps > 0 or args.num_train_epochs <= 1:
        return
    args.save_strategy = SaveStrategy.EPOCH
    if "save_total_limit" not in given:
        args.save_total_limit = _KEPT


def saves(args: Any, steps: int | None) -> str:
    """Return, in words, when a run of about `steps` steps saves checkpoints; `steps` None: the number is not known."""
    kept = "" if args.save_total_limit is None else f"; the last {args.save_total_limit} are kept"
    if args.save_strategy == SaveStrategy.EPOCH and (args.num_train_epochs > 1 or args.max_steps > 0):
        return f"a checkpoint at the end of each epoch{kept} (trainer.save_strategy, trainer.save_total_limit)"
    every = _every(args, steps)
    if args.save_strategy == SaveStrategy.STEPS and (steps is None or every < steps):
        return f"a checkpoint every {every:,} steps{kept} (trainer.save_steps)"
    if args.save_strategy == SaveStrategy.BEST:
        return f"a checkpoint after each evaluation that is the best so far{kept}"
    return "no checkpoint before the end, so a run that is stopped begins again (trainer.save_steps)"


def way_on(folder: Path) -> str:
    """Return, in words, from where `--resume` continues a stopped run in this folder, or why it cannot."""
    try:
        checkpoint = last_checkpoint(folder)
    except ResumeError as error:
        return str(error)
    if checkpoint is None:
        return "there is no checkpoint yet: --resume begins again (trainer.save_steps says how often one is saved)"
    return f"--resume goes on from {checkpoint}"


def _every(args: Any, steps: int | None) -> int:
    """Return the number of steps between two checkpoints; a ``save_steps`` below 1 is a share of all `steps`."""
    return int(args.save_steps) if args.save_steps >= 1 else max(round(args.save_steps * (steps or 0)), 1)
