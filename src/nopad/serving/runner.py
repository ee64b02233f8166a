"""`PackRunner`: answers requests from any thread in packed batches of one model, each as if it had run alone.

Whenever the model is free, one worker thread asks the packer (`nopad.serving.packer`) for the next batch, runs it, and
sets the results of the futures. No other thread runs the model, and runners that share a model take turns.

A request on which the model fails does not affect the others in its batch (`nopad.serving.forward`). If the worker ends
for any reason, every waiting request gets an error, and `submit` raises one: no caller waits for ever. The number of
tokens in the queue is limited.

Even on an idle runner, a request is handed to a thread and back, which adds a little time. If one caller has many
requests at once and nobody else calls meanwhile, `nopad.tasks.Embedder` or `nopad.tasks.predict` is as fast without a
thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from nopad.errors import DeadlineError, LengthError, OptionError, QueueFullError, RequestError, RunnerClosedError
from nopad.model.safety import bare
from nopad.options import MAX_LENGTH, Option, check_choice
from nopad.serving.batching import LONGEST_S, Batching, in_ns
from nopad.serving.forward import Model, Placed, Request, Result, answers
from nopad.serving.packer import OnlineBatch, OnlinePacker, PackerStatistics

__all__ = ["PackRunner", "RunnerStatistics"]

WhenFull = Literal["block", "raise"]
Widths = Literal["own", "given"]
Answer = Future[dict[str, Tensor]]

_log = logging.getLogger("nopad")
_FIXED = Option(default=None, high=MAX_LENGTH, help="places of every result per token")
_RECENT = 0.2  # weight of the last batch in the estimate of the time per token
_turns: WeakKeyDictionary[Any, threading.Lock] = WeakKeyDictionary()
_turns_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class RunnerStatistics:
    """Totals of a runner since it was made.

    Attributes:
        packer: totals of its packer: requests that arrived, wait, left, expired, were cancelled or refused.
        answered, failed: number of requests that ran and got a result, and that ran and got an error.
        us_per_token: running average of the time per token in recent batches, in microseconds; None: no batch has run.
    """

    packer: PackerStatistics
    answered: int
    failed: int
    us_per_token: float | None


@dataclass(eq=False)
class _Waiting:
    """A request that was submitted, and its future."""

    request: Request
    future: Answer


class PackRunner:
    """Runs a pack-safe model on requests as they arrive, many in one batch.

    A request is a dict with ``input_ids`` and, optionally, ``attention_mask`` (padding is removed) and
    ``token_type_ids``. The values are lists, NumPy arrays or tensors with one dimension. The result is a dict of
    tensors, by the names of the model's outputs, the same as if the request had run alone. ``runner(request)`` waits
    for the result, ``runner(requests)`` for a list of them; `submit` returns a future. Close a runner when it is no
    longer needed, or use it in a ``with`` statement: until then, its worker keeps the model alive.

    Args:
        model: a model that `nopad.packed` has made pack-safe; it is put into evaluation mode. Its weights must not
            change while the runner is open.
        batching: which requests share a batch, and when it leaves; None: ``Batching(capacity=4096)``, flat batches of
            about 4,096 tokens.
        when_full: what `submit` does when the queue is full (`Batching.max_waiting_tokens`): "block" waits until there
            is room, "raise" raises QueueFullError.
        widths: first dimension of outputs per token. "own": the number of tokens without padding. "given": the length
            of the input; where it had padding, values are 0 (minus infinity in logits of question answering). A number:
            this number, with the tokens first and padding after them, filled in the same way.
        clock: function that returns the current time as an integer in nanoseconds, and never goes back.

    Raises:
        OptionError: the model is not pack-safe or cannot run batches as `batching` describes them, or an option is
            invalid.

    >>> import nopad
    >>> from transformers import BertConfig, BertModel
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> with nopad.PackRunner(nopad.packed(BertModel(BertConfig(**sizes)))) as runner:
    ...     result = runner({"input_ids": [101, 7, 102, 0], "attention_mask": [1, 1, 1, 0]})
    ...     futures = [runner.submit({"input_ids": [101] * n}) for n in (5, 2)]
    ...     states = [future.result()["last_hidden_state"] for future in futures]
    >>> result["last_hidden_state"].shape, [len(one) for one in states]
    (torch.Size([3, 16]), [5, 2])
    """

    def __init__(
        self,
        model: Any,
        batching: Batching | None = None,
        *,
        when_full: WhenFull = "block",
        widths: Widths | int = "own",
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Start the worker."""
        self.batching = Batching(capacity=4096) if batching is None else batching
        if not isinstance(self.batching, Batching):
            raise OptionError(f"batching is of type {type(batching).__name__}; expected nopad.serving.Batching")
        self.when_full: WhenFull = check_choice("when_full", when_full, WhenFull)
        self.widths: Widths | int = check_choice("widths", widths, Widths) if isinstance(widths, str) else widths
        if not isinstance(widths, str):
            self.widths = _FIXED.check("widths", widths)
        self._model = Model(model, self.batching)
        self._turn = _turn_of(model)
        self._packer = OnlinePacker(self.batching)
        self._clock = clock
        lock = threading.RLock()  # futures may be cancelled, and so come back here, while it is held
        self._changed, self._room = threading.Condition(lock), threading.Condition(lock)
        self._waiting: dict[int, _Waiting] = {}
        self._running: list[_Waiting] = []
        self._closing = False
        self._died: str | None = None
        self._answered = self._failed = 0
        self._ns_per_token: float | None = None
        self._process = os.getpid()
        self._worker = threading.Thread(target=self._work, name="nopad-runner", daemon=True)
        self._worker.start()

    def __call__(self, inputs: Mapping[str, Any] | Iterable[Mapping[str, Any]], **how: Any) -> Any:
        """Return the result of one request, or a list of those of several, in order; `how` as in `submit`.

        Raises:
            ServingError: a request was not answered; the others may have been.
            InputError: as for `submit`.
        """
        if isinstance(inputs, Mapping):
            return self.submit(inputs, **how).result()
        futures: list[Answer] = []
        try:
            futures.extend(self.submit(one, **how) for one in inputs)
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()  # those that are done stay as they are

    def submit(self, inputs: Mapping[str, Any], *, deadline_s: float | None = None, priority: int = 0) -> Answer:
        """Add a request to the queue; return a future of its result. Cancelling the future removes a waiting request.

        Args:
            inputs: the request, a dict as the class describes it.
            deadline_s: number of seconds from now after which the result is of no use; if the request still waits then,
                its future raises DeadlineError. A deadline that cannot be met at the speed of recent batches is refused
                at once. None: no deadline.
            priority: requests of a higher priority leave first; see `OnlinePacker.add`.

        Raises:
            BatchError, LengthError, OptionError: the request, `deadline_s` or `priority` is not valid.
            QueueFullError: the queue is full, and `when_full` is "raise".
            DeadlineError: the deadline cannot be met.
            RunnerClosedError: the runner is closed, its worker has died, or the runner was started in another process.
        """
        self._check_open()
        request = Request.of(inputs, self._model)
        if isinstance(self.widths, int) and len(request) > self.widths:
            raise LengthError(f"a request has {len(request)} tokens, and results are {self.widths} wide")
        if deadline_s is not None and (type(deadline_s) not in (int, float) or not abs(deadline_s) <= LONGEST_S):
            raise OptionError(f"deadline_s must be a number of seconds, got {deadline_s!r}")
        deadline = None if deadline_s is None else self._clock() + in_ns(deadline_s)
        waiting = _Waiting(request, Future())
        with self._changed:
            while True:
                self._check_open()
                lead = self._lead(len(request), deadline)
                try:
                    number = self._add(len(request), deadline, lead, priority)
                    break
                except QueueFullError:
                    if self.when_full == "raise":
                        raise
                self._room.wait(None if deadline is None else max(deadline - self._clock(), 0) / 1e9)
            self._waiting[number] = waiting
            self._changed.notify_all()  # others than the worker wait for this too
        waiting.future.add_done_callback(lambda future: self._cancel(number) if future.cancelled() else None)
        return waiting.future

    def _add(self, length: int, deadline: int | None, lead: int, priority: int) -> int:
        now = self._clock()
        return self._packer.add(length, now, deadline_ns=deadline, lead_ns=lead, priority=priority)

    def _lead(self, length: int, deadline: int | None) -> int:
        """Return how long before its deadline a request must leave; refuse a deadline that is too near for that."""
        if deadline is None:
            return 0
        per_token = self._ns_per_token or 0.0
        before = sum(len(one.request) for one in self._running)
        if self.batching.keep_order:
            before += self._packer.waiting_tokens
        left = deadline - self._clock()
        if left <= 0 or per_token * (before + length) > left:
            needed = per_token * (before + length) / 1e6
            raise DeadlineError(f"{left / 1e6:.1f} ms are left until the deadline, and it takes about {needed:.1f} ms")
        return min(round(per_token * max(length, self.batching.slots)), left)

    def _cancel(self, number: int) -> None:
        with self._changed:
            if self._waiting.pop(number, None) is not None:
                self._packer.cancel(number)
                self._room.notify_all()
                self._changed.notify_all()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RunnerClosedError("this runner was started in another process; start one in each, after the fork")

    def _check_open(self) -> None:
        self._check_process()
        if self._died is not None:
            raise RunnerClosedError(f"the runner's worker died: {self._died}")
        if self._closing:
            raise RunnerClosedError("the runner is closed")

    @property
    def healthy(self) -> bool:
        """Whether the runner accepts requests: its worker is alive, and it is not closed."""
        return os.getpid() == self._process and self._worker.is_alive() and not self._closing and self._died is None

    @property
    def statistics(self) -> RunnerStatistics:
        """The runner's totals so far, as a copy."""
        self._check_process()
        with self._changed:
            per_token = self._ns_per_token
            return RunnerStatistics(
                packer=self._packer.statistics,
                answered=self._answered,
                failed=self._failed,
                us_per_token=None if per_token is None else per_token / 1e3,
            )

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until no request waits or runs; return False if that takes longer than `timeout_s` seconds.

        None: wait without a time limit. The runner goes on accepting requests.
        """
        self._check_process()
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._running, timeout_s)

    def close(self, *, drain: bool = True) -> None:
        """Accept no more requests, and wait until the worker ends.

        Requests that still wait are answered first; with ``drain=False``, their futures raise RunnerClosedError
        instead.
        """
        if os.getpid() != self._process:
            return
        with self._changed:
            self._closing = True
            dropped = [] if drain else self._drop()
            self._changed.notify_all()
            self._room.notify_all()
        self._fail(dropped, RunnerClosedError("the runner was closed before the request ran"))
        if threading.current_thread() is not self._worker:
            self._worker.join()

    def __enter__(self) -> PackRunner:
        """Return the runner."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Close the runner; after an exception, without answering what waits."""
        self.close(drain=kind is None)

    def _drop(self) -> list[_Waiting]:
        """Take all that waits out of the queue."""
        dropped = list(self._waiting.values())
        for number in self._waiting:
            self._packer.cancel(number)
        self._waiting.clear()
        return dropped

    # What follows runs in the worker.

    def _work(self) -> None:
        died = None
        try:
            while (batch := self._next()) is not None:
                self._run(batch)
        except BaseException as error:  # whatever it is, nobody may wait for ever
            died = f"{type(error).__name__}: {error}"
            _log.exception("the worker of a PackRunner died")
        finally:
            with self._changed:
                self._died = died
                self._closing = True
                left, self._running = [*self._running, *self._drop()], []
                self._changed.notify_all()
                self._room.notify_all()
            self._fail(left, RunnerClosedError(f"the runner's worker died: {died}"))

    def _next(self) -> list[tuple[int, _Waiting]] | None:
        """Wait for a batch; return the rows and requests of it that nobody cancelled. None: there will be no more."""
        while True:
            late: list[_Waiting] = []
            with self._changed:
                decision = self._packer.poll(self._clock(), draining=self._closing)
                late = [self._waiting.pop(number) for number in decision.expired.tolist()]
                found = self._taken(decision.batch) if decision.batch is not None else []
                self._running = [one for _, one in found]
                if found or late or decision.batch is not None:
                    self._room.notify_all()
                    self._changed.notify_all()
                elif self._closing and not len(self._packer):
                    return None
                else:
                    wake = decision.wake_ns
                    self._changed.wait(None if wake is None else max(wake - self._clock(), 0) / 1e9)
            self._fail(late, DeadlineError("the deadline passed before the request ran"))
            if found:
                return found

    def _taken(self, batch: OnlineBatch) -> list[tuple[int, _Waiting]]:
        taken = [
            (row, self._waiting.pop(number))
            for row, number in zip(batch.rows.tolist(), batch.numbers.tolist(), strict=True)
        ]
        return [(row, one) for row, one in taken if one.future.set_running_or_notify_cancel()]

    def _run(self, batch: list[tuple[int, _Waiting]]) -> None:
        placed: list[Placed] = [(row, one.request) for row, one in batch]
        with self._turn:
            begin = time.perf_counter_ns()
            results = answers(placed, self._model.run)
            spent = time.perf_counter_ns() - begin
        failed = sum(isinstance(result, RequestError) for result in results)
        with self._changed:
            if not failed:  # a batch that fails is run in parts, which takes longer
                per_token = spent / sum(len(request) for _, request in placed)
                before = per_token if self._ns_per_token is None else self._ns_per_token
                self._ns_per_token = before + _RECENT * (per_token - before)
            self._answered += len(results) - failed
            self._failed += failed
        for (_, one), result in zip(batch, results, strict=True):
            if isinstance(result, RequestError):
                one.future.set_exception(result)
            else:
                one.future.set_result(self._widened(result, one.request))
        with self._changed:
            self._running = []
            self._changed.notify_all()

    def _widened(self, result: Result, request: Request) -> Result:
        """Return a result as wide as `widths` says."""
        if self.widths == "own":
            return result
        begin, width = (request.begin, request.width) if self.widths == "given" else (0, int(self.widths))
        for name, value in result.items():
            if self._model.per_token(name):
                empty = float("-inf") if self._model.by_place(name) else 0
                wide = torch.full((width, *value.shape[1:]), empty, dtype=value.dtype, device=value.device)
                wide[begin : begin + len(request)] = value
                result[name] = wide
        return result

    @staticmethod
    def _fail(left: Iterable[_Waiting], error: Exception) -> None:
        for one in left:
            if not one.future.done() and (one.future.running() or one.future.set_running_or_notify_cancel()):
                one.future.set_exception(error)


def _turn_of(model: Any) -> threading.Lock:
    """Return the lock of a model, which its runners share."""
    with _turns_lock:
        return _turns.setdefault(bare(model), threading.Lock())


def _forget() -> None:
    """Make new locks in a process that was forked, where nobody is left to release the old ones."""
    global _turns_lock
    _turns_lock = threading.Lock()
    _turns.clear()


os.register_at_fork(after_in_child=_forget)
