"""`Budget`: a limit on the operations of a search, and optionally on its time.

A limit on operations ends the search at the same place on every machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["NEAR", "Budget"]

NEAR = 64  # a plan at most this many packs above the bound is near it: some of its packs are packed again (`closing`)

_PER_SECOND = 10**9  # operations per second of effort: one takes an ordinary core about a nanosecond


class Budget:
    """Counts operations of about a nanosecond each; the budget is spent when none are left or the time is up.

    Each step of planning charges the operations that it takes, and most steps do not begin if the budget is spent.

    Attributes:
        left: number of operations left; below 0 if the last step took more than were left.
        programs: number of linear programs that were begun so far.
        out_of_time: whether the limit in seconds had passed at the last call of `spent`.
        trouble: why the solver ended the search; "" if it did not.
    """

    def __init__(self, effort: float, seconds: int | None = None) -> None:
        """Allow 10^9 operations for each second of `effort`; the time is up in `seconds` from now (None: never)."""
        self.programs = 0
        self.left = int(effort * _PER_SECOND)
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self.out_of_time = False
        self.trouble = ""
        self._of: Budget | None = None

    def spent(self) -> bool:
        """Return whether the budget is spent, so that no further step may begin.

        A child budget (`child`) is also spent when its parent has no operations left.
        """
        self.out_of_time = self._deadline is not None and time.monotonic() > self._deadline
        return self.most <= 0 or self.out_of_time

    @property
    def most(self) -> int:
        """Number of operations that the next step may take: the smaller of those left here and in the parent budget."""
        return self.left if self._of is None else min(self.left, self._of.most)

    def child(self, effort: float) -> Budget:
        """Return a child budget of `effort` seconds; operations charged to it are charged to this budget too.

        It is for a search that should run as if it were alone. What a search does depends on what is left of its
        budget. With a child budget, the search does the same as with a fresh budget of `effort` seconds, unless this
        parent budget has less left or its time is up.
        """
        child = Budget(effort)
        child._deadline, child._of = self._deadline, self
        return child

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Limit the budget to this share (0 to 1) of the operations left, for the length of a ``with`` block."""
        with self.at_most(self.left - int(self.left * (1 - share))):
            yield

    @contextmanager
    def at_most(self, operations: int) -> Iterator[None]:
        """Limit the budget to at most this many operations, for the length of a ``with`` block."""
        aside = max(0, self.left - operations)
        self.left -= aside
        try:
            yield
        finally:
            self.left += aside

    def begin_program(self) -> None:
        """Count a linear program, here and in the parent budget."""
        self.programs += 1
        if self._of is not None:
            self._of.begin_program()

    def charge(self, operations: int) -> None:
        """Subtract the operations of a step from those left, here and in the parent budget."""
        self.left -= operations
        if self._of is not None:
            self._of.charge(operations)
