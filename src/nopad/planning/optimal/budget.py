"""`Budget`: a limit on the operations of a search, which is the same on every machine, and optionally on seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Budget"]

_PER_SECOND = 10**9  # operations of an ordinary core; what a step costs was measured in nanoseconds


class Budget:
    """Counts operations; the budget is spent when none is left or the time is up.

    Attributes:
        programs: number of linear programs so far.
        out_of_time: whether the limit in seconds ended the search.
        trouble: why the solver ended the search; "" if it did not.
    """

    def __init__(self, effort: float, seconds: int | None = None) -> None:
        """Allow the operations of about `effort` seconds of one core, and no new step after `seconds` on the clock."""
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
        """Set all but a share of what is left aside; what is not used of the share comes back."""
        with self.at_most(self.left - int(self.left * (1 - share))):
            yield

    @contextmanager
    def at_most(self, operations: int) -> Iterator[None]:
        """Set aside what is left above so many operations; what is not used of them comes back."""
        aside = max(0, self.left - operations)
        self.left -= aside
        try:
            yield
        finally:
            self.left += aside

    def charge(self, operations: int) -> None:
        """Take the operations of a step from the budget."""
        self.left -= operations
