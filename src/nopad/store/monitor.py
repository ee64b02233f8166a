"""`Monitor`: the interface by which a long job reports progress, for example to a progress bar."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

__all__ = ["Monitor", "Silent"]


@runtime_checkable
class Monitor(Protocol):
    """Receives the progress of a job.

    >>> import nopad, tempfile
    >>> class Printed:
    ...     def stage(self, name, total, unit):
    ...         print(name)
    ...     def advance(self, units, tokens=0):
    ...         pass
    >>> source = nopad.open_source([[7, 8, 9], [5]])
    >>> _ = nopad.pack_corpus(source, tempfile.mkdtemp(), nopad.CorpusOptions(capacity=4), monitor=Printed())
    tokenising
    planning
    writing
    """

    def stage(self, name: str, total: int | None, unit: str) -> None:
        """Begin a stage, which lasts until the next call of `stage`.

        `name` says what is done, such as "tokenising". `total` is the stage's amount of work in `unit` (such as "bytes"
        or "tokens"); None: not known in advance.
        """

    def advance(self, units: int, tokens: int = 0) -> None:
        """Report that `units` more units of the stage (such as bytes) are done, which held `tokens` tokens."""


class Silent:
    """A monitor that ignores all progress.

    >>> import nopad, tempfile
    >>> from nopad.store import Silent
    >>> source = nopad.open_source([[7, 8, 9], [5]])
    >>> nopad.pack_corpus(source, tempfile.mkdtemp(), nopad.CorpusOptions(capacity=4), monitor=Silent()).packs
    1
    """

    def stage(self, name: str, total: int | None, unit: str) -> None:
        """Do nothing."""

    def advance(self, units: int, tokens: int = 0) -> None:
        """Do nothing."""
