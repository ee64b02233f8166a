"""Train a run that `nopad.training.ready` has prepared, from its beginning or from its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers

from nopad.errors import MissingExtraError, NopadError, OptionError
from nopad.loading.ranks import Ranks
from nopad.training.folder import METRICS_FILE, RunFolder, kept_lines, last_checkpoint
from nopad.training.longer import Longer
from nopad.training.models import load_model
from nopad.training.progress import Logged, Metrics
from nopad.training.ready import Prepared, in_one_line, optimizer_of
from nopad.training.reference import referenced
from nopad.training.trouble import enough_room

__all__ = ["train"]

_lib: Any = transformers


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
        folder: the run's folder, which the first rank has locked (`RunFolder.take`).
        resume: resume from the last complete checkpoint, or from the beginning if the run was stopped before the first.
        begin: called on the first rank right before the first step, when all checks have passed; in resumed runs too.
        say: called with lines of text for the user, on the first rank.
        tell: called with each log, on the first rank.
        step: called after each step with its number and the total number of steps, on the first rank.

    Raises:
        NopadError: the weights cannot be loaded, an option is refused, a step or a write fails, or the run cannot
            resume from its checkpoint.
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
    prepared = referenced(prepared, model, folder.cache, resume=resume, say=say if first else _silent)
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
        learned["optimizer_cls_and_kwargs"] = optimizer_of(config, args)
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
    """Remove checkpoints and metrics that are newer than `checkpoint` (None: all of them), then call `begin`."""
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
    from nopad.training.checkpoint import steps_of

    return steps_of(checkpoint) if checkpoint else -1


@contextmanager
def _refused(begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """In a ``with`` block, turn errors about options or packages into errors of nopad.

    An error that is raised while ``begun()`` is True stays as it is.

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
        raise (MissingExtraError if missing else OptionError)(f"[trainer]: {in_one_line(error)}") from error
