"""`Budget`: a limit on the operations of a search, counted alike on every machine, and optionally one in seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Budget"]

_PER_SECOND = 10**9  # operations; one is about a nanosecond of an ordinary core, by which the steps were measured


class Budget:
    """Counts operations, each about a nanosecond of an ordinary core; spent when none is left or the time is up.

    The steps of planning charge what they take, and look whether the budget is spent before they begin.

    Attributes:
        left: operations that are left; below 0 if the last step took more than was left.
        programs: number of linear programs so far.
        out_of_time: whether the limit in seconds ended the search.
        trouble: why the solver ended the search; "" if it did not.
    """

    def __init__(self, effort: float, seconds: int | None = None) -> None:
        """Allow 10^9 operations per second of `effort`; with `seconds`, no step begins later than that from now on."""
        self.programs = 0
        self.left = int(effort * _PER_SECOND)
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self.out_of_time = False
        self.trouble = ""

    def spent(self) -> bool:
        """Whether no further step may begin."""
        self.out_of_time = self._deadline is not None and time.monotonic() > self._deadline
        return self.left <= 0 or self.out_of_time

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Leave only this share (0 to 1) of the operations to the body of a ``with``; the others come back after it."""
        with self.at_most(self.left - int(self.left * (1 - share))):
            yield

    @contextmanager
    def at_most(self, operations: int) -> Iterator[None]:
        """Leave at most so many operations to the body of a ``with``; the others come back after it."""
        aside = max(0, self.left - operations)
        self.left -= aside
        try:
            yield
        finally:
            self.left += aside

    def charge(self, operations: int) -> None:
        """Subtract the operations of a step from those left."""
        self.left -= operations
