"""`Pool`, threads for a generator that may still be open when Python ends; `new_lock`, a lock that survives a fork."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakSet

__all__ = ["Pool", "new_lock"]

_locks: WeakSet[Any] = WeakSet()


def new_lock() -> Any:
    """Return a new `threading.Lock`, which is free in each process that is forked later.

    If another thread holds an ordinary lock when the process is forked, nobody releases it in the child.
    """
    lock: Any = threading.Lock()
    _locks.add(lock)
    return lock


def _free() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as Python's own modules free theirs


os.register_at_fork(after_in_child=_free)


class Pool(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` whose shutdown does nothing while Python ends.

    A generator that is still open at the end of Python is closed by the garbage collector. By then, the modules that a
    shutdown uses may be gone. The pool's threads have ended before, since Python joins them.
    """

    _is_ending = staticmethod(sys.is_finalizing)  # an attribute: globals of this module may be gone, too

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down as `ThreadPoolExecutor.shutdown` does; do nothing while Python ends."""
        if not self._is_ending():
            ThreadPoolExecutor.shutdown(self, wait, cancel_futures=cancel_futures)
