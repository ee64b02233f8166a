"""How a long job tells how it gets on: the seam between work and progress bars."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Monitor", "Silent"]


class Monitor(Protocol):
    """Is told how a job gets on."""

    def stage(self, name: str, total: int | None, unit: str) -> None:
        """A stage of `total` units begins; it ends when the next one begins."""

    def advance(self, units: int, tokens: int = 0) -> None:
        """Some units of the stage are done, and `tokens` tokens with them."""


class Silent:
    """A monitor that says nothing."""

    def stage(self, name: str, total: int | None, unit: str) -> None:
        """Say nothing."""

    def advance(self, units: int, tokens: int = 0) -> None:
        """Say nothing."""
