"""Threads and forks: a pool, locks and blocks that survive the end of Python, or a fork."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from nopad.errors import ServingError

__all__ = ["Blocks", "Pool", "acting", "acting_for", "check_free", "new_lock"]

_locks: WeakSet[Any] = WeakSet()
_here = threading.local()


def acting() -> threading.Thread:
    """Return the thread for which the current thread works: that of `acting_for`, or else the current thread itself."""
    found: threading.Thread = getattr(_here, "works_for", None) or threading.current_thread()
    return found


@contextmanager
def acting_for(thread: threading.Thread) -> Iterator[None]:
    """In a ``with`` block, the current thread does a part of the work of `thread`, which waits until it is done."""
    _here.works_for = thread
    try:
        yield
    finally:
        _here.works_for = None


def new_lock() -> Any:
    """Return a new `threading.RLock`, which is free in each process that is forked later.

    If another thread holds an ordinary lock when the process is forked, nobody releases it in the child.

    The lock is re-entrant. A signal handler, or a finaliser (``__del__``) that the garbage collector calls, may
    interrupt the thread that holds the lock, and take the lock again in this thread. With a lock that is not
    re-entrant, the thread would then wait for itself. Code that must not be interrupted in this way calls `check_free`.
    """
    lock: Any = threading.RLock()
    _locks.add(lock)
    return lock


def check_free(lock: Any, what: str, way: str = "do that in another thread") -> None:
    """Check that this thread does not hold `lock`, a re-entrant lock.

    For the message, `what` says what the thread is about to do, and `way` what to do instead.

    Raises:
        ServingError: the thread holds the lock: a signal handler or a finaliser interrupts a call that does the same.
    """
    if lock._is_owned():
        raise ServingError(
            f"a signal handler or a finaliser (__del__) {what} while it interrupts a call that does the same in the "
            f"same thread; {way}"
        )


def _free() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as Python's own modules free theirs
    for blocks in list(_all_blocks):
        blocks.lock = threading.RLock()
        blocks._forget_other_threads()


os.register_at_fork(after_in_child=_free)


class Blocks:
    """Calls a function when the first ``with`` block opens for an object, and another when the last such block ends.

    The blocks of all threads count. A block that Ctrl-C interrupts while it opens or ends is closed for all its
    objects, at the latest when Python frees the exception. In a forked process, only the blocks of the thread that
    forked stay open: the other threads are not there to end theirs.

    >>> states = {}
    >>> class Thing: pass
    >>> thing, blocks = Thing(), Blocks(lambda one: states.update(held=True), lambda one: states.update(held=False))
    >>> with blocks.open(lambda: [thing]), blocks.open(lambda: [thing]):
    ...     print(states, thing in blocks)
    {'held': True} True
    >>> states, thing in blocks
    ({'held': False}, False)
    """

    def __init__(self, begin: Callable[[Any], object], end: Callable[[Any], object]) -> None:
        """Store two functions: `begin(object)` for an object's first block that opens, `end(object)` for its last.

        After an interrupt, or if the garbage collector ends a block meanwhile, either function may be called again for
        an object, or `end` before `begin`. They must not raise an exception.
        """
        self._begin, self._end = begin, end
        self._open: WeakKeyDictionary[Any, list[_Block]] = WeakKeyDictionary()
        # Held while blocks open and end. Re-entrant: the garbage collector may end a block anywhere.
        self.lock = threading.RLock()
        _all_blocks.add(self)

    def __contains__(self, one: object) -> bool:
        """Return whether a block is open for this object."""
        return bool(self._open) and one in self._open

    @contextmanager
    def open(self, choose: Callable[[], Iterable[Any]]) -> Iterator[None]:
        """Open a block for the objects that `choose` returns.

        While `choose` runs, no other thread opens or ends a block.
        """
        block, mine, interrupt = _Block(threading.get_ident()), list[Any](), None
        ending = sys.is_finalizing  # when Python ends, globals may be gone, and objects need no release
        try:
            with self.lock:
                for one in list(choose()):
                    mine.append(one)  # before anything changes, so that an interrupt or a fork right now ends it
                    while block not in self._open.get(one, ()):  # a block that ends meanwhile makes a new list
                        self._open.setdefault(one, []).append(block)
                    if len(self._open[one]) == 1:  # new, or it was interrupted amid its beginning or end
                        self._begin(one)
            yield
        finally:  # not in a function of its own, which Ctrl-C could interrupt before its first line
            tries = 100
            while tries:
                try:
                    if not ending():
                        with self.lock:
                            for one in mine:
                                self._keep(one, lambda other: other is not block)
                    break
                except BaseException as error:  # of a signal's handler
                    interrupt, tries = error, tries - 1
            if interrupt is not None:
                raise interrupt

    def _keep(self, one: Any, keeps: Callable[[_Block], bool]) -> None:
        """Forget an object's blocks for which `keeps` returns False; if no block is left, call `end` for the object."""
        if one not in self._open:
            return
        self._open[one] = left = [block for block in self._open[one] if keeps(block)]
        if not left:  # if this is interrupted now, the next block begins anew
            self._end(one)
            del self._open[one]

    def _forget_other_threads(self) -> None:
        here = threading.get_ident()
        for one in list(self._open):
            self._keep(one, lambda block: block.thread == here)


@dataclass(frozen=True, eq=False)
class _Block:
    """An open block.

    Attributes:
        thread: the thread that opened it (`threading.get_ident`).
    """

    thread: int


_all_blocks: WeakSet[Blocks] = WeakSet()


class Pool(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` whose shutdown does nothing while Python ends.

    If a generator that uses a pool is still open when Python ends, the garbage collector closes it, and this shuts the
    pool down. By then, the modules that a shutdown uses may be gone. The pool's threads have ended before, since Python
    joins them.
    """

    _is_ending = staticmethod(sys.is_finalizing)  # an attribute: globals of this module may be gone, too

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down as `ThreadPoolExecutor.shutdown` does; do nothing while Python ends."""
        if not self._is_ending():
            ThreadPoolExecutor.shutdown(self, wait, cancel_futures=cancel_futures)
