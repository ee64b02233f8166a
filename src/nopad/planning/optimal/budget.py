"""`Budget`: a limit on linear programs, which is the same on every machine, and optionally on seconds."""

from __future__ import annotations

import time

__all__ = ["Budget"]


class Budget:
    """Counts linear programs; the budget is spent when none is left or the time is up.

    Attributes:
        used: number of linear programs so far.
        out_of_time: whether the limit in seconds ended the search.
        trouble: why the solver ended the search; "" if it did not.
    """

    def __init__(self, programs: int, seconds: int | None = None) -> None:
        """Allow `programs` linear programs, and optionally no new one after `seconds`."""
        self.used = 0
        self._programs = programs
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self.out_of_time = False
        self.trouble = ""

    def spent(self) -> bool:
        """Whether no further linear program may be solved."""
        self.out_of_time = self._deadline is not None and time.monotonic() > self._deadline
        return self.used >= self._programs or self.out_of_time

    @property
    def left(self) -> int:
        """Number of linear programs that may still be solved."""
        return 0 if self.spent() else self._programs - self.used

    def spend(self) -> bool:
        """Use one linear program of the budget; return False if none is left."""
        if self.spent():
            return False
        self.used += 1
        return True
