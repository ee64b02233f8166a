"""Report the progress of a run: rates, padding and remaining time, and one line of JSON per log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState

from nopad.loading import PackedLoader
from nopad.training.checks import is_split_stream
from nopad.training.folder import append_line

__all__ = ["Logged", "Metrics", "is_metric"]


def is_metric(name: str) -> bool:
    """Return whether the logged value called `name` measures the model, unlike epochs, run times, speeds and FLOPs."""
    return name != "epoch" and not name.endswith(("_runtime", "_per_second", "_flos"))


@dataclass(frozen=True, kw_only=True)
class Logged:
    """The values of one log of a run, with rates.

    Attributes:
        step, steps: number of optimiser steps taken, and of the whole run.
        values: the values that the Trainer logged, by name.
        sequences, tokens: sequences and tokens per second, on all ranks, since the previous log of a training loss.
        padding: what share of the slots was padding since the previous log of a training loss.
        left: estimate of the seconds until the last step ends.

    The last four are None if they are not known, or if this log has no training loss. If batches have no padding,
    `padding` is None, too.
    """

    step: int
    steps: int
    values: dict[str, Any] = field(default_factory=dict)
    sequences: float | None = None
    tokens: float | None = None
    padding: float | None = None
    left: float | None = None

    def __str__(self) -> str:
        """Return the log as one line of text."""
        said = [f"step {self.step:,}/{self.steps:,}"]
        values = {name: value for name, value in self.values.items() if isinstance(value, int | float)}
        if "epoch" in values:
            said.append(f"epoch {values['epoch']:.2f}")
        if "loss" in values:
            said.append(f"loss {values['loss']:.4f}")
            said.append(f"rate {values.get('learning_rate', 0):.2e}")
        else:
            said += [f"{name} {_number(value)}" for name, value in values.items() if is_metric(name)]
        if self.sequences is not None and self.tokens is not None:
            said.append(f"{_rate(self.sequences)} sequences/s  {_rate(self.tokens)} tokens/s")
        if self.padding is not None:
            said.append(f"{self.padding:.1%} padding")
        if self.left is not None:
            said.append(f"{_clock(self.left)} left")
        return "  ".join(said)


class Metrics(TrainerCallback):
    """Writes each log as one line of JSON, and passes it to `tell`; logs of a training loss also have rates.

    The Trainer's last log of training is left out, since its times are those of this process only. This callback also
    makes the Trainer log before each checkpoint, so that later logs are the same whether or not a run was stopped
    there.

    Args:
        loader: the loader of the training data.
        slots: number of slots in a step, on all ranks; None: batches have no padding.
        path: file for the lines; None on ranks other than the first, which write no file.
        tell: called with each log, on the first rank.
        step: called after each step with its number and the total number of steps, on the first rank.
    """

    def __init__(
        self,
        loader: PackedLoader,
        *,
        slots: int | None,
        path: Path | None,
        tell: Callable[[Logged], None],
        step: Callable[[int, int], None] = lambda step, steps: None,
    ) -> None:
        self.loader, self.slots, self.path, self.tell, self.step = loader, slots, path, tell, step
        self._busy = self._all_busy = self._mark = 0.0
        self._begun = self._steps = self._sequences = self._tokens = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Begin to count steps, sequences, tokens and time, for the rates of later logs."""
        self._begun = state.global_step
        self._restart(state)
        self._all_busy, self._mark = 0.0, time.perf_counter()

    def _restart(self, state: TrainerState) -> None:
        self._busy, self._steps = 0.0, state.global_step
        if self._counts:
            self._sequences, self._tokens = self.loader.sequences_seen, self.loader.tokens_seen

    @property
    def _counts(self) -> bool:
        return not is_split_stream(self.loader)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Count the time of a step, and, on the first rank, call `step`.

        If a checkpoint is about to be saved, the Trainer is made to log before it.
        """
        now = time.perf_counter()
        self._busy, self._all_busy, self._mark = (
            self._busy + now - self._mark,
            self._all_busy + now - self._mark,
            now,
        )
        if control.should_save:
            control.should_log = True
        if self.path is not None:
            self.step(state.global_step, state.max_steps)

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Make the Trainer log at the end of an epoch, if a checkpoint is about to be saved."""
        if control.should_save:
            control.should_log = True

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Exclude the time of the evaluation from the rates."""
        self._mark = time.perf_counter()

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Exclude the time of saving a checkpoint from the rates."""
        self._mark = time.perf_counter()

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """On the first rank, write a log and pass it to `tell`; do nothing for the last log of training."""
        if not logs or self.path is None or "train_runtime" in logs:  # this log has times of this process only
            return
        found = Logged(step=state.global_step, steps=state.max_steps, values=dict(logs))
        if "loss" in logs:
            found = self._with_rates(found)
            self._restart(state)
        more = {"sequences_per_second": found.sequences, "tokens_per_second": found.tokens, "padding": found.padding}
        line = {"step": found.step, **logs, **{name: value for name, value in more.items() if value is not None}}
        append_line(self.path, {name: _plain(value) for name, value in line.items()})
        self.tell(found)

    def _with_rates(self, found: Logged) -> Logged:
        steps, done = found.step - self._steps, found.step - self._begun
        if not self._counts or steps <= 0 or self._busy <= 0:
            return found
        tokens = self.loader.tokens_seen - self._tokens
        return Logged(
            step=found.step,
            steps=found.steps,
            values=found.values,
            sequences=(self.loader.sequences_seen - self._sequences) / self._busy,
            tokens=tokens / self._busy,
            padding=None if self.slots is None else 1 - tokens / (steps * self.slots),
            left=(found.steps - found.step) * self._all_busy / max(done, 1),
        )


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: a number that is not finite becomes None, an unknown type becomes text."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _rate(value: float) -> str:
    """Return a rate with at least three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".removesuffix(".")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
