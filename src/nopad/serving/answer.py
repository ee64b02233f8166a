"""`Answer`: the future of a request, which a coroutine can await; waiting raises an error if no answer can come."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from nopad.errors import RunnerClosedError, ServingError
from nopad.tasks.lanes import runs_here
from nopad.threads import acting, check_free

__all__ = ["Answer", "Answerer", "check_process", "check_whole", "frames_from", "holds_answer"]

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


@dataclass(frozen=True, kw_only=True)
class Answerer:
    """Who gives a runner's answers: what a caller must know before it waits for one.

    Attributes:
        worker: the thread of the runner's worker.
        lock: the lock of the runner's queue, an RLock.
        model: returns the bare model, or None if nobody holds it any more, as a `weakref.ref` does.
        process: the id of the process in which the runner was started.
    """

    worker: threading.Thread
    lock: Any
    model: Callable[[], Any]
    process: int = field(default_factory=os.getpid)

    @property
    def needs_me(self) -> bool:
        """Whether the answers need the current thread, which therefore must not wait for one.

        It is so in a callback, which the worker calls; within a run of the model, or of one that shares modules with it
        or is linked with it by models that do (`nopad.tasks.lanes.runs_here`); and within a method of an `Answer` that
        holds the answer's lock, which the worker needs.
        """
        if acting() is self.worker:
            return True
        model, frame = self.model(), sys._getframe(1)
        return (model is not None and runs_here(model)) or any(map(holds_answer, frames_from(frame)))

    def check_wait(self) -> None:
        """Check that the current thread may wait for an answer.

        Raises:
            RunnerClosedError: the runner was started in another process.
            ServingError: the answer needs this thread; or this call interrupts another one that holds the queue's lock.
        """
        check_process(self.process)
        check_whole(self.lock)
        if self.needs_me:
            raise ServingError(
                "this waits for a request which can run only after it: it is in a callback of the same runner, or in a "
                "hook, signal handler or finaliser (__del__) within a run of the same model, or of one that is linked "
                "with it by shared modules, or a method of an answer; "
                "give that request a callback of its own, or wait in another thread"
            )


class Answer(Future[Any]):
    """A `concurrent.futures.Future` of a request's answer; in a coroutine, ``await`` it.

    The callbacks of a future are called in the runner's worker, between two batches, so they should be short. They are
    called when the request has run, when its deadline has passed, or when the runner was closed before it ran. If the
    request is cancelled, they are called in the thread that cancels it. A callback that is added when the answer is
    there already is called at once. A callback may submit requests.

    `result`, `exception` and ``await`` raise an error at once in four cases in which no answer could come:

    * a callback waits for another answer of its own runner, which would come only after the callback
    * a hook, signal handler or finaliser (``__del__``) waits within a run of the same model, which would have to end; a
      run of a model that shares modules with it counts too, and so does one of a model that is linked with it by others
      (each shares modules with the next), since these may hold its turn while they wait for the run to end
    * a signal handler or a finaliser waits, and the call that it interrupts holds the lock of the runner's queue, or of
      an answer
    * this process was forked while the request had no answer yet

    Whatever exception a callback raises, the other callbacks are called.
    """

    def __init__(self, answerer: Answerer) -> None:
        """Create the future of a request of the runner whose answers `answerer` gives."""
        self._answerer = answerer
        self._made = answerer.process, _Condition()
        super().__init__()

    def _invoke_callbacks(self) -> None:
        """Call all callbacks, whatever they raise; `set_result`, `set_exception` and `cancel` of `Future` call this.

        An `Exception` is logged. Any other error, such as KeyboardInterrupt, is raised after the last callback. In the
        worker, it is logged instead, since it would end the runner for all callers.
        """
        raised: BaseException | None = None
        for callback in self._done_callbacks:  # type: ignore[attr-defined]
            try:
                callback(self)
            except BaseException as error:
                if isinstance(error, Exception) or acting() is self._answerer.worker:
                    with suppress(Exception):  # what a handler of logging raises
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
                answer could come, since a callback, hook, signal handler or finaliser calls this (see the class).
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
            ServingError: no answer could come, since a callback, hook, signal handler or finaliser calls this (see the
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
                answer could come, since a callback, hook, signal handler or finaliser calls this (see the class).
            RunnerClosedError: this process was forked while the request had no answer yet.
            CancelledError: the request was cancelled.
        """
        self._check()
        return asyncio.wrap_future(self).__await__()

    def _check(self) -> None:
        if not self.done():
            self._answerer.check_wait()


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that it was called from, up to the thread's first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def holds_answer(frame: FrameType) -> bool:
    """Return whether `frame` is in a function of `concurrent.futures` on an `Answer` whose lock this thread holds."""
    if frame.f_globals.get("__name__") != Future.__module__:
        return False
    of, several = frame.f_locals.get("self"), frame.f_locals.get("fs")
    held = several if isinstance(several, set | list) else [of, *getattr(of, "futures", ())]
    return any(isinstance(one, Answer) and one._condition._is_owned() for one in held)


def check_whole(lock: Any) -> None:
    """Check that this thread is not within another call that holds `lock`, the lock of a runner's queue (an RLock).

    A signal handler is within such a call if it interrupts one in its own thread; so is a finaliser (``__del__``) that
    the garbage collector calls. Waiting would then never end, and the queue may be half changed.

    Raises:
        ServingError: the thread holds the lock.
    """
    check_free(lock, "uses the runner", "cancel or close there, and do all else in another thread")


def check_process(process: int) -> None:
    """Check that the current process has the process id `process`.

    Raises:
        RunnerClosedError: it has another id, because it was forked after the runner was started.
    """
    if os.getpid() != process:
        raise RunnerClosedError("this runner was started in another process; start one in each, after the fork")
