"""`RequestQueue`: requests that wait for a runner's worker, the batches that leave, and the results of each request.

A request is one or several sequences, which wait separately: windows of a long text, or rows of a padded array, may
run in different batches. The request is answered when all of them have run, and fails when one fails.

A signal handler, or a finaliser (``__del__``) that the garbage collector calls, may interrupt a method and call another
one in the same thread, which holds the lock already. Closing then works, and cancelling is done in the next
call of `take`. Whatever else would change the queue, or wait, raises ServingError.

Callers that find the queue full wait in a line, and enter in the order in which they came. So a long request is not
kept out by later, short ones that would fit into less room.

Methods may be called from any thread, except `take` and `ran`, which only the worker calls. No method of a future is
called while the queue's lock is held. Otherwise a thread that waits for the future could be interrupted while it holds
the future's own lock. If the interrupting code then needed the queue's lock, both threads would wait for ever.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from nopad.errors import DeadlineError, QueueFullError, RequestError, RunnerClosedError, ServingError
from nopad.serving.answer import check_process, check_whole
from nopad.serving.batching import Batching
from nopad.serving.pace import Pace
from nopad.serving.packer import OnlineBatch, OnlinePacker
from nopad.serving.statistics import RunnerStatistics
from nopad.serving.waiting import Part, Place, Waiting, error_of, fail
from nopad.tasks.core import Prepared

__all__ = ["RequestQueue", "WhenFull"]

WhenFull = Literal["block", "raise"]

_TIMES = 1000  # requests whose time to the answer is remembered
_LOOK_S = 1.0  # whoever waits looks again after so many seconds, even if nobody wakes it


class RequestQueue:
    """The requests of one runner: those that wait, and those that run.

    Args:
        batching: which sequences share a batch, and when it leaves.
        when_full: what `add` does when the queue is full: "block" or "raise".
        clock: function that returns the time in nanoseconds; it may be set back (`now`).
        needs_me: function that returns whether the answers need the calling thread (`Answerer.needs_me`). If so, this
            thread must not wait for them.
    """

    def __init__(
        self, batching: Batching, when_full: WhenFull, clock: Callable[[], int], needs_me: Callable[[], bool]
    ) -> None:
        self._clock, self._batching, self._when_full, self._needs_me = clock, batching, when_full, needs_me
        self._latest = self._set_back = 0  # what the clock said last, and how far it was set back, in all
        self._packer = OnlinePacker(batching)
        _load(batching)
        # Re-entrant: a signal handler may close the runner while it is held. It is entered itself, never through a
        # condition, whose `__enter__` is Python: an interrupt between its lines would leave the lock taken for ever.
        self.lock: Any = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._line = deque[Place]()  # callers that wait for room, in order
        self._cancelled = deque[range]()  # numbers of requests to cancel, by calls that came while the lock was held
        self._refused = 0  # since others wait in the line
        self._waiting: dict[int, tuple[Waiting, int]] = {}
        self._running: list[Part] = []
        self._late_ones: list[Waiting] = []  # which have expired, and have no error yet
        self._began = 0  # time at which they left the queue
        self._closing = self._abandoned = False  # abandoned: what waits is not run any more
        self._died: str | None = None
        self._answered = self._failed = self._late = self._padded = self._filler = 0
        self._counts: dict[str, int] = {}
        self._times: deque[int] = deque(maxlen=_TIMES)
        self._pace = Pace()
        self._process = os.getpid()

    def now(self) -> int:
        """Return the time in nanoseconds; if the clock is set back, time goes on from the latest time so far."""
        with self.lock:
            latest = self._latest  # first, since a signal handler may call this while the clock is read
            found = self._clock()
            if found < latest:
                self._set_back += latest - found
            self._latest = found
            return found + self._set_back

    def warmed(self, tokens: int, spent_ns: int) -> None:
        """Note the tokens of a warm-up batch, and the time that it took, so that the first deadlines can be judged."""
        with self.lock:
            self._pace.add(tokens, spent_ns)

    def add(self, requests: Iterable[Waiting], deadline: int | None, priority: int) -> None:
        """Add requests, each with all its sequences or not at all.

        `deadline` is a time in nanoseconds, by the clock of `now`; None: there is none. If the queue is full and
        `when_full` is "block", wait for room. Callers that wait enter in the order in which they came, whatever their
        priorities. If a request is refused, those before it stay in the queue; `cancel` removes them.

        Raises:
            LengthError: a sequence is too long for a batch, or a request for the queue.
            OptionError: the priority is not valid.
            QueueFullError: the queue is full, and `when_full` is "raise"; or the answers need this thread, and the
                queue is full or other callers wait for room.
            DeadlineError: the deadline has passed; or it cannot be met at the speed of recent batches, and other
                requests wait or run.
            RunnerClosedError: the runner is closed, its worker has died, or the runner was started in another process.
            ServingError: a signal handler or finaliser calls this within another call of the same thread.
        """
        check_whole(self.lock)
        with self.lock:
            for request in requests:
                lengths = request.prepared.lengths
                self._enter(lengths, deadline)
                how = {"deadline_ns": deadline, "lead_ns": self._lead(lengths, deadline), "priority": priority}
                try:
                    self._admit(request, how)
                except BaseException:
                    tries = 100
                    while tries:  # here, since Ctrl-C could interrupt a function before its first line
                        try:
                            self._withdraw(request)
                            break
                        except BaseException:  # of a signal's handler
                            tries -= 1
                    raise
            self._wake()  # others than the worker wait for this too

    def _admit(self, request: Waiting, how: Mapping[str, Any]) -> None:
        """Add a request to those that wait, and then to the packer; `how` are further arguments of `add_all`."""
        lengths, first = request.prepared.lengths, self._packer.arrived
        request.results, request.missing = [None] * len(lengths), len(lengths)
        request.numbers = range(first, first + len(lengths))
        self._waiting.update({number: (request, at) for at, number in enumerate(request.numbers)})
        self._packer.add_all(lengths, self.now(), **how)

    def _withdraw(self, request: Waiting) -> None:
        """Undo `_admit`, even if it was interrupted at any point; a repeated call does no harm."""
        request.over = True
        if self._packer.arrived == request.numbers.stop:  # the packer has it
            self._remove(request)
            return
        for number in request.numbers:
            self._waiting.pop(number, None)
        request.numbers = range(0)  # another request gets these

    def _enter(self, lengths: list[int], deadline: int | None) -> None:
        """Wait until a request with sequences of these `lengths` may be added; callers that wait already come first.

        This returns at once in four cases:

        * there is room, and no other caller waits
        * `when_full` is "raise"
        * the request is longer than the queue may ever hold
        * the answers need this thread, as in a callback, and no other caller waits

        In the last three cases there may be no room; `OnlinePacker.add_all` then refuses the request.

        Raises:
            QueueFullError: the answers need this thread, and other callers wait.
            ServingError: this thread waits for room already.
            DeadlineError: the deadline has passed, or cannot be met any more.
            RunnerClosedError: the runner is closed, its worker has died, or the runner was started in another process.
        """
        self.check_open()
        tokens = sum(lengths)
        never = tokens > self._batching.max_waiting_tokens
        if never or self._when_full == "raise" or (not self._line and (self._packer.room(tokens) or self._needs_me())):
            return  # `OnlinePacker.add_all` refuses what has no room
        if self._needs_me():
            self._refused += 1
            raise QueueFullError(
                f"other callers wait for room already ({len(self._line)}), and a callback, or code within a run of the "
                "same model, cannot wait behind them; "
                "submit in another thread, or raise max_waiting_tokens"
            )
        mine = Place(threading.Condition(self.lock), tokens, threading.get_ident())
        if any(place.thread == mine.thread for place in self._line):
            raise ServingError(
                "a signal handler or a finaliser (__del__) submits while the call that it interrupts waits for room, "
                "behind which it would wait for ever; submit in another thread"
            )
        try:
            self._line.append(mine)
            self._wake()  # earlier requests of the same call can run meanwhile
            while self._line[0] is not mine or not self._packer.room(tokens):
                self._lead(lengths, deadline)
                # Every second, since Ctrl-C may interrupt the thread that would wake this one.
                mine.turn.wait(_LOOK_S if deadline is None else min(max(deadline - self.now(), 0) / 1e9, _LOOK_S))
                self.check_open()
        finally:
            if mine in self._line:
                self._line.remove(mine)
            self._call_next()

    def _wake(self) -> None:
        """Wake the worker, and those who wait in `drain`."""
        _notify(self._changed)

    def _call_next(self) -> None:
        """Wake the first of the callers that wait for room (the line), since there may be room now."""
        if self._line:
            _notify(self._line[0].turn)

    def count(self, counts: Mapping[str, int]) -> None:
        """Add `counts` to the totals: how many requests were cut or left out, by reason, such as "truncated"."""
        with self.lock:
            for name, number in counts.items():
                self._counts[name] = self._counts.get(name, 0) + number

    def _lead(self, lengths: list[int], deadline: int | None) -> int:
        """Return how many ns before its deadline a request must leave the queue; 0: no deadline.

        Raises:
            DeadlineError: the deadline has passed; or it cannot be met at the speed of recent batches, and other
                requests wait or run.
        """
        if deadline is None:
            return 0
        left = deadline - self.now()
        if left <= 0:
            self._late += 1
            raise DeadlineError("the deadline has passed already; deadline_s counts from now, in seconds")
        work, full = self._work(lengths, deadline), self._pace.estimate(self._batching.slots)
        needed = self._until_idle() + work
        idle = not self._running and not self._waiting
        if needed > left and not idle:  # if idle, the request is tried, whatever was slow before
            self._late += 1
            raise DeadlineError(
                f"{left / 1e6:,.1f} ms are left until the deadline, and at the speed of recent batches an answer takes "
                f"about {needed / 1e6:,.1f} ms; give it more time, or send fewer requests at once"
            )
        return min(round(full + max(work, full)), left)  # a full batch may have begun when it must leave

    def _work(self, lengths: list[int], deadline: int) -> float:
        """Estimate how many ns it takes to run a request with sequences of these lengths, and what leaves before it.

        The batch that runs now is not included (`_until_idle`).
        """
        batches, tokens = self._packer.ahead(lengths, deadline)
        return batches * self._pace.estimate(tokens / batches)

    def _until_idle(self) -> float:
        """Estimate how many ns the running batch still takes; 0: no batch runs, or its estimated time is over."""
        if not self._running:
            return 0.0
        tokens = sum(part.request.prepared.lengths[part.at] for part in self._running)
        return max(self._pace.estimate(tokens) - (self.now() - self._began), 0.0)

    def cancel(self, numbers: range) -> None:
        """Remove those sequences of a request that still wait; `numbers` are the numbers of all its sequences.

        In a forked process, this does nothing. Within another call of the same thread, `take` does it later.
        """
        if os.getpid() != self._process:
            return
        if self.lock._is_owned():
            self._cancelled.append(numbers)
            return
        with self.lock:
            self._cancel(numbers)
            self._call_next()
            self._wake()

    def _cancel(self, numbers: range) -> None:
        for number in numbers:
            if number in self._waiting:
                self._waiting[number][0].over = True
                self._remove(self._waiting[number][0])

    def _remove(self, request: Waiting) -> None:
        """Remove a request that is `over` from those that wait; `take` ignores what Ctrl-C leaves in the packer."""
        for number in request.numbers:
            if self._waiting.pop(number, None) is not None:
                self._packer.cancel(number)

    def check_open(self) -> None:
        """Check that requests are accepted.

        Raises:
            RunnerClosedError: the runner is closed, its worker has died, or the runner was started in another process.
        """
        check_process(self._process)
        if self._died is not None:
            raise RunnerClosedError(f"the runner's worker died: {self._died}")
        if self._closing:
            raise RunnerClosedError("the runner is closed")

    @property
    def accepts(self) -> bool:
        """Whether requests are accepted."""
        return os.getpid() == self._process and not self._closing and self._died is None

    @property
    def statistics(self) -> RunnerStatistics:
        """The totals so far, as a copy.

        Raises:
            RunnerClosedError: the runner was started in another process.
        """
        check_process(self._process)
        with self.lock:
            seen = self._packer.statistics
            times = np.fromiter(self._times, np.int64) / 1e6
            half, most = np.percentile(times, (50, 99), method="higher").tolist() if times.size else (None, None)
            return RunnerStatistics(
                packer=replace(seen, refused=seen.refused + self._refused),
                answered=self._answered,
                failed=self._failed,
                late=self._late,
                filler_tokens=self._filler,
                padded_tokens=self._padded,
                counts=dict(self._counts),
                us_per_token=None if (pace := self._pace.ns_per_token) is None else pace / 1e3,
                p50_ms=half,
                p99_ms=most,
            )

    def drain(self, timeout_s: float | None) -> bool:
        """Wait until no request waits or runs; return False if that takes longer than `timeout_s` (None: no limit).

        Raises:
            ServingError: the answers need this thread, as in a callback; or a signal handler or finaliser calls this
                within another call of the same thread.
            RunnerClosedError: the runner was started in another process.
        """
        check_process(self._process)
        check_whole(self.lock)
        if self._needs_me():
            raise ServingError(
                "a callback, or code within a run of the same model or a method of an answer, waits until the runner "
                "has nothing to do, which is so only afterwards"
            )
        with self.lock:
            return self._changed.wait_for(
                lambda: not self._waiting and not self._running and not self._late_ones, timeout_s
            )

    def close(self, drain: bool) -> None:
        """Accept no more requests; without `drain`, the worker then ends, and fails those that wait (`die`)."""
        with self.lock:
            self._abandoned |= not drain
            self._closing = True
            self._wake()
            self._send_away()

    def die(self, died: str | None) -> None:
        """Fail all requests that run or wait, since the worker ends; `died` is its error (None: a normal end)."""
        with self.lock:
            self._died = died
            self._closing = True
            left = [*dict.fromkeys(part.request for part in self._running), *self._late_ones, *self._drop()]
            self._running, self._late_ones = [], []
            self._wake()
            self._send_away()
        why = "the runner was closed before the request ran" if died is None else f"the runner's worker died: {died}"
        fail(left, partial(RunnerClosedError, why))

    def _send_away(self) -> None:
        """Wake all callers that wait for room (the line); they then find that the runner is closed."""
        for place in self._line:
            _notify(place.turn)

    def _drop(self) -> list[Waiting]:
        """Remove all waiting requests from the queue, and return them."""
        dropped = list(dict.fromkeys(request for request, _ in self._waiting.values()))
        for request in dropped:
            request.over = True
            self._remove(request)
        return dropped

    # What follows is called by the worker.

    def take(self) -> list[Part] | None:
        """Wait for a batch, and return its sequences, sorted by row; None: no batch will follow.

        Sequences of requests that were cancelled or have failed are left out. Requests whose deadline has passed are
        removed from the queue, and get a DeadlineError.
        """
        while True:
            with self.lock:
                if self._abandoned:
                    return None
                if self._cancelled:
                    while self._cancelled:
                        self._cancel(self._cancelled.popleft())
                    self._call_next()
                    self._wake()
                # The first of the line keeps all others out too.
                stuck = bool(self._line) and not self._packer.room(self._line[0].tokens)
                decision = self._packer.poll(self.now(), draining=self._closing, stuck=stuck)
                known = [self._waiting.pop(number) for number in decision.expired.tolist() if number in self._waiting]
                late = list(dict.fromkeys(request for request, _ in known))
                self._late_ones = late
                for request in late:
                    request.over = True
                    self._remove(request)
                found = self._taken(decision.batch) if decision.batch is not None else []
                self._running, self._began = found, self.now()
                if found or late or decision.batch is not None:
                    self._call_next()
                    self._wake()
                elif self._closing and not len(self._packer):
                    return None
                else:
                    wake = decision.wake_ns
                    self._changed.wait(_LOOK_S if wake is None else min(max(wake - self.now(), 0) / 1e9, _LOOK_S))
            fail(late, partial(DeadlineError, "the deadline passed before the request ran"))
            begun = [part for part in found if _begins(part.request)]
            if late or len(begun) < len(found):
                with self.lock:
                    self._late_ones, self._running = [], begun
                    self._wake()
            if begun:
                return begun

    def _taken(self, batch: OnlineBatch) -> list[Part]:
        found = self._running = []  # at once, so that `die` fails them if the worker dies amid this
        for row, number in zip(batch.rows.tolist(), batch.numbers.tolist(), strict=True):
            request, at = self._waiting.pop(number, (None, 0))
            if request is not None and not request.over:  # None: Ctrl-C came while it was cancelled
                found.append(Part(row, request, at))
        self._padded += len(batch) * int(batch.lengths.max())
        return sorted(found, key=lambda part: part.row)

    def ran(
        self,
        batch: list[Part],
        results: list[Any],
        spent_ns: int,
        filler: int,
        finish: Callable[[Prepared, list[Any]], Any],
    ) -> None:
        """Store the results of a batch, and resolve the requests that are finished.

        `results` has one result per sequence of `batch`: a RequestError if the sequence failed. `spent_ns` is the time
        that the batch took. `filler` is the number of slots that a flat batch had beyond its tokens, else 0. `finish`
        makes the answer to a request from the request and its results.
        """
        done: list[Waiting] = []
        with self.lock:
            self._filler += filler
            if not any(isinstance(result, RequestError) for result in results):  # a failed batch ran in parts: slower
                self._pace.add(sum(part.request.prepared.lengths[part.at] for part in batch), spent_ns)
            for (_, request, at), result in zip(batch, results, strict=True):
                request.results[at] = result
                request.missing -= 1
                if request.over:
                    continue
                if isinstance(result, RequestError):
                    request.over = True
                    self._remove(request)
                if request.over or not request.missing:
                    done.append(request)
        for request in done:
            self._resolve(request, finish)
        with self.lock:
            self._running = []
            self._call_next()
            self._wake()

    def _resolve(self, request: Waiting, finish: Callable[[Prepared, list[Any]], Any]) -> None:
        """Set the answer of a request, or its error, in its future."""
        try:
            answer = error_of(request) or finish(request.prepared, request.results)
        except Exception as error:
            answer = RequestError(f"no answer can be made for this request: {type(error).__name__}: {error}")
            answer.__cause__ = error
        failed = isinstance(answer, RequestError)
        with self.lock:
            self._failed += failed
            self._answered += not failed
            if not failed:
                self._times.append(self.now() - request.asked_ns)
        if failed:
            request.future.set_exception(answer)
        else:
            request.future.set_result(answer)


def _begins(request: Waiting) -> bool:
    """Mark a request as running, unless it is over or was cancelled; return whether it runs.

    From then on, its future cannot be cancelled any more.
    """
    if not request.over and not request.started:
        request.started = request.future.set_running_or_notify_cancel()
        request.over = not request.started
    return not request.over


def _notify(condition: threading.Condition) -> None:
    """Wake all who wait for `condition`."""
    with suppress(IndexError):  # of Python's `notify_all`, if a call within this one has woken them already
        condition.notify_all()


def _load(batching: Batching) -> None:
    """Let Numba load or compile all loops that requests need, before the first request.

    Ctrl-C while Numba does this may leave Numba's own lock taken for ever.
    """
    scratch = OnlinePacker(replace(batching, max_waiting_tokens=max(batching.max_waiting_tokens, 3)))
    for deadline in (1, None, None):
        number = scratch.add(1, 0, deadline_ns=deadline)
    scratch.ahead([1], 1)
    scratch.cancel(number)
    scratch.poll(2, draining=True)
