"""The progress bar of `nopad train` on stderr: steps and time left; not drawn if stderr is not a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from nopad.cli.monitor import Drawn

__all__ = ["Bar"]


class Bar(Drawn):
    """A progress bar of optimiser steps; use it in a ``with`` statement."""

    def __init__(self, *, shown: bool) -> None:
        """Prepare the bar; if `shown` is False, it is never drawn."""
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not (shown and console.is_terminal),
            transient=True,
        )
        self._task: TaskID | None = None

    def step(self, done: int, total: int) -> None:
        """Show that `done` of `total` steps are taken."""
        if self._task is None:
            self._task = self._progress.add_task("training", total=total)
        self._progress.update(self._task, completed=done, total=total)
