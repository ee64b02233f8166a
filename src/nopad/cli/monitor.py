"""Progress on stderr: on a terminal, a bar per stage with tokens per second and time left; elsewhere, a few lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["Bars", "Drawn"]


_FIRST = 10.0  # seconds until the first line where no bar can be drawn; each further one takes twice as long


class _Rate(ProgressColumn):
    """The column of a progress bar that shows tokens per second, in stages that count tokens."""

    def render(self, task: Task) -> Text:
        """Return millions or thousands of tokens per second as text.

        The text is empty if no tokens are counted, or no time has passed.
        """
        tokens, elapsed = task.fields.get("tokens", 0), task.elapsed or 0.0
        if not tokens or elapsed <= 0:
            return Text("")
        rate = tokens / elapsed
        return Text(f"{rate / 1e6:.1f} M tokens/s" if rate >= 1e6 else f"{rate / 1e3:.0f} k tokens/s", style="cyan")


class _Share(ProgressColumn):
    """The column of a progress bar that shows the percentage done, if the total is known."""

    def render(self, task: Task) -> Text:
        """Return the percentage as text; empty if the total is not known or 0."""
        return Text(f"{task.percentage:3.0f} %" if task.total else "")


class Drawn:
    """Base class of progress bars that are drawn inside a ``with`` block and removed at its end."""

    _progress: Progress

    def __enter__(self) -> Self:
        """Start drawing, and return this object."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing, and clear the bars from the terminal."""
        self._progress.stop()


class Bars(Drawn):
    """A `nopad.store.Monitor` that draws progress bars on stderr; use it in a ``with`` statement.

    If stderr is not a terminal, it prints a line after about 10, 20, 40, ... seconds instead.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare the bars; nothing is drawn until the ``with`` block begins. `clock` returns a time in seconds."""
        console = self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._clock, self._begun, self._wait = clock, clock(), _FIRST
        self._stage, self._done, self._tokens = "", 0, 0
        self._total: int | None = None
        self._progress = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(bar_width=30),
            _Share(),
            _Rate(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task: TaskID | None = None

    def stage(self, name: str, total: int | None, unit: str) -> None:
        """Replace the bar of the previous stage by one for the stage `name`, which has `total` units (None: not known).

        A stage is a part of a command's work, such as tokenising. The name of the `unit` is not shown.
        """
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(name, total=total, tokens=0)
        self._stage, self._total, self._done, self._tokens = name, total, 0, 0

    def advance(self, units: int, tokens: int = 0) -> None:
        """Count `units` of the current stage and `tokens` as done, and move its bar on.

        If stderr is not a terminal, print a line instead, once one is due.
        """
        if self._task is not None:
            task = self._progress.tasks[-1]
            self._progress.update(self._task, advance=units, tokens=task.fields["tokens"] + tokens)
        self._done, self._tokens = self._done + units, self._tokens + tokens
        seconds = self._clock() - self._begun
        if self._console.is_terminal or seconds < self._wait:
            return
        while self._wait <= seconds:
            self._wait *= 2
        share = f" {self._done / self._total:.0%}" if self._total else ""
        tokens_so_far = f", {self._tokens:,} tokens" if self._tokens else ""
        self._console.print(f"nopad: {self._stage}{share}{tokens_so_far} after {seconds:,.0f} s", markup=False)
