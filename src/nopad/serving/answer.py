"""`Answer`: the future of a request, which a coroutine can await; waiting raises an error if no answer can come."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

from nopad.errors import RunnerClosedError, ServingError

__all__ = ["Answer", "check_process", "check_whole"]

_log = logging.getLogger("nopad")


class _Condition(type(threading.RLock())):  # type: ignore[misc]
    """A `threading.Condition` that is its own lock, and that ``with`` enters in C.

    Python's own condition takes its lock in a line of Python; Ctrl-C right after this line would leave the lock taken
    for ever.
    """

    # The methods of Python's own, which only need a lock's methods and `_waiters`. An own condition of this lock would
    # be a cycle, which only the garbage collector frees.
    wait, notify, notify_all = threading.Condition.wait, threading.Condition.notify, threading.Condition.notify_all

    def __init__(self) -> None:
        self._waiters: deque[Any] = deque()


class Answer(Future[Any]):
    """A `concurrent.futures.Future` of a request's answer; in a coroutine, ``await`` it.

    The callbacks of a future are called in the runner's worker, between two batches, so they should be short. They are
    called when the request has run, when its deadline has passed, or when the runner was closed before it ran. If the
    request is cancelled, they are called in the thread that cancels it. A callback that is added after the answer is
    called at once. A callback may submit requests.

    `result`, `exception` and ``await`` raise an error at once in three cases in which no answer could come:

    * a callback waits for another answer of its own runner, which would come only after the callback
    * a signal handler or a finaliser (``__del__``) waits while the call that it interrupts holds the runner's queue
    * this process was forked while the request had no answer yet

    Whatever exception a callback raises, the other callbacks are called.
    """

    def __init__(self, worker: threading.Thread, lock: Any) -> None:
        """Create the future of a request of the runner with this worker; `lock` is that of its queue, an RLock."""
        self._worker, self._lock, self._process = worker, lock, os.getpid()
        self._made = self._process, _Condition()
        super().__init__()

    def _invoke_callbacks(self) -> None:
        """Call all callbacks, whatever they raise; `set_result`, `set_exception` and `cancel` of `Future` call this.

        Exceptions are logged. One that is no `Exception`, such as KeyboardInterrupt, is raised after the last callback,
        but not in the worker, where it would end the runner for all callers.
        """
        raised: BaseException | None = None
        for callback in self._done_callbacks:  # type: ignore[attr-defined]
            try:
                callback(self)
            except BaseException as error:
                if isinstance(error, Exception) or threading.current_thread() is self._worker:
                    _log.exception("a callback of an answer failed")
                else:
                    raised = error
        if raised is not None:
            raise raised

    @property
    def _condition(self) -> Any:
        """The condition that methods of `Future` enter; a new one in a forked process, where the old may be locked."""
        process, condition = self._made
        if process != os.getpid():
            condition = _Condition()
            self._made = os.getpid(), condition
        return condition

    @_condition.setter
    def _condition(self, one: Any) -> None:
        """Ignore the condition that `Future` makes."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer, at most `timeout` seconds (None: without a limit), and return it.

        Raises:
            TimeoutError: the answer is not there in time.
            ServingError: the request was not answered (`DeadlineError`, `RequestError`, `RunnerClosedError`); or no
                answer could come, since a callback, signal handler or finaliser calls this (see the class).
            RunnerClosedError: this process was forked while the request had no answer yet.
            CancelledError: the request was cancelled.
        """
        self._check()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the answer, at most `timeout` seconds (None: without a limit); return the request's error.

        The result is None if the request was answered.

        Raises:
            TimeoutError: the answer is not there in time.
            ServingError: no answer could come, since a callback, signal handler or finaliser calls this (see the
                class).
            RunnerClosedError: this process was forked while the request had no answer yet.
            CancelledError: the request was cancelled.
        """
        self._check()
        return super().exception(timeout)

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the answer in a coroutine, and return it. Cancelling the coroutine cancels the request.

        Raises:
            ServingError: the request was not answered (`DeadlineError`, `RequestError`, `RunnerClosedError`); or no
                answer could come, since a callback, signal handler or finaliser calls this (see the class).
            RunnerClosedError: this process was forked while the request had no answer yet.
            CancelledError: the request was cancelled.
        """
        self._check()
        return asyncio.wrap_future(self).__await__()

    def _check(self) -> None:
        if self.done():
            return
        check_process(self._process)
        check_whole(self._lock)
        if threading.current_thread() is self._worker:
            raise ServingError(
                "a callback waits for a request of the same runner, which runs only after the callback has ended; give "
                "that request a callback of its own, or wait in another thread"
            )


def check_whole(lock: Any) -> None:
    """Check that this thread is not within another call that holds `lock`, the lock of a runner's queue (an RLock).

    It is so in a signal handler, or in a finaliser (``__del__``) that the garbage collector calls, if it interrupts
    such a call in its own thread. Waiting would then never end, and the queue may be half changed.

    Raises:
        ServingError: the thread holds the lock.
    """
    if lock._is_owned():
        raise ServingError(
            "a signal handler or a finaliser (__del__) uses the runner while it interrupts another call of it in the "
            "same thread; cancel or close there, and do all else in another thread"
        )


def check_process(process: int) -> None:
    """Check that the current process has the process id `process`.

    Raises:
        RunnerClosedError: it has another id, because it was forked after the runner was started.
    """
    if os.getpid() != process:
        raise RunnerClosedError("this runner was started in another process; start one in each, after the fork")
