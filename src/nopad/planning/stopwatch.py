"""`Stopwatch`: measure the wall time of a ``with`` block, without the time in which Numba compiles or loads loops.

When a loop is first called with arguments of certain types, Numba compiles it, or loads it from its cache. In both
cases Numba holds its compiler lock, and reports for how long. Compiling takes seconds, but is done only once after an
installation, and says nothing about the speed of an algorithm.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import TracebackType

__all__ = ["Stopwatch"]


class Stopwatch:
    """A context manager that measures the wall time of its block.

    After the block, the attribute `compiling` is the time in which loops were compiled or loaded, and `seconds` is all
    other time. Both are in seconds.

    >>> with Stopwatch() as watch:
    ...     total = sum(range(10))
    >>> 0 <= watch.seconds < 5, watch.compiling
    (True, 0.0)
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.compiling = 0.0
        self._stack = ExitStack()
        self._started = 0.0

    def _compiled(self, seconds: float) -> None:
        self.compiling += seconds

    def __enter__(self) -> Stopwatch:
        from numba.core import event

        self._stack.enter_context(event.install_timer("numba:compiler_lock", self._compiled))
        self._started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = time.perf_counter()
        self._stack.close()
        self.seconds = max(0.0, ended - self._started - self.compiling)
