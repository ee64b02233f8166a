"""`Monitor`: the interface by which a long job reports progress, for example to a progress bar."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Monitor", "Silent"]


class Monitor(Protocol):
    """Receives the progress of a job."""

    def stage(self, name: str, total: int | None, unit: str) -> None:
        """A stage with `total` units of work (None: not known) begins; the next call of `stage` ends it."""

    def advance(self, units: int, tokens: int = 0) -> None:
        """`units` more units of the stage are done, and `tokens` tokens with them."""


class Silent:
    """A monitor that ignores all progress."""

    def stage(self, name: str, total: int | None, unit: str) -> None:
        """Do nothing."""

    def advance(self, units: int, tokens: int = 0) -> None:
        """Do nothing."""
