"""`Worker`: the thread of a runner, which takes batches from its queue and runs them, one at a time.

Only this thread starts runs of the model (`nopad.tasks.lanes` may divide a run among more threads). The workers of
runners that share a model take turns. If the thread ends for any reason, every waiting request gets an error
(`RequestQueue.die`).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

from nopad.batch import PackedBatch
from nopad.errors import RequestError, UnsupportedModelError
from nopad.model.modes import in_training
from nopad.model.sharing import all_modules
from nopad.serving.batching import Batching
from nopad.serving.compiling import WARM_RUNS, unfit
from nopad.serving.forward import Placed, answers, batch_of, form_of
from nopad.serving.packer import OnlineBatch, OnlinePacker
from nopad.serving.queue import RequestQueue
from nopad.serving.waiting import Part
from nopad.tasks.core import Core, of_length

__all__ = ["Worker"]

_log = logging.getLogger("nopad")
_WARM_TOKENS = (8, 64, 512)  # tokens of the batches that run before a runner is ready, besides a full one
_WARM_LENGTH = 128
_TRAINING = "the model was put into training mode while it serves, where results depend on chance; call model.eval()"
_EXCHANGED = (
    "the model has other layers ({what}) than when the runner was started, and fails for this request: {error}; close "
    "the runner, load weights into the old layers or make the new ones with the model's own config, and start a new one"
)
_END_S = 10  # seconds that the exit of Python waits for a worker

_open: WeakSet[Worker] = WeakSet()


class Worker:
    """Runs the batches of one runner's queue through its core, in a thread of its own.

    Args:
        core: turns requests into sequences, runs them, and makes answers from the results.
        batching: which requests share a batch.
        queue: the runner's queue.
        compiled: the compiled model; None: the model runs as it is.
        warm_up: whether to run some batches before the first request.

    Attributes:
        thread: the thread; after it has ended, it no longer holds the model.
        ready: event that is set when the worker takes requests, or has ended.
        unfit: the error with which the compiled model failed in the warm-up; None: there was none.
    """

    def __init__(self, core: Core, batching: Batching, queue: RequestQueue, compiled: Any, warm_up: bool) -> None:
        self._core, self._batching, self._queue, self._compiled = core, batching, queue, compiled
        self._form = form_of(batching, compiled is not None)
        self._modules = all_modules(core.model)
        self.ready = threading.Event()
        self.unfit: UnsupportedModelError | None = None
        # In the caller's context, which has the settings of torch.compile (torch._inductor.config) that it made
        work = partial(copy_context().run, self._work, warm_up)
        self.thread = threading.Thread(target=work, name="nopad-runner", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()
        _open.add(self)

    def _work(self, warm_up: bool) -> None:
        """Run batches until the queue says that no more will come; this is what the thread does.

        However it ends, the queue accepts no further requests afterwards.
        """
        died = None
        try:
            with self._core.kernels() if self._compiled is None else nullcontext():
                if warm_up:
                    self._warm_up()
                self.ready.set()
                while (batch := self._queue.take()) is not None:
                    self._run(batch)
        except BaseException as error:  # whatever it is, nobody may wait for ever
            if isinstance(error, UnsupportedModelError) and not self.ready.is_set():
                self.unfit = error  # the constructor raises it
            else:
                died = f"{type(error).__name__}: {error}"
                _log.exception("the worker of a PackRunner died")
        finally:
            self._queue.die(died)
            self.ready.set()

    def _warm_up(self) -> None:
        """Run batches of different sizes; a compiled model runs full ones only. All tokens have the id 1.

        An error of a model that is not compiled is only logged: requests may still run, the first ones more slowly.

        Raises:
            UnsupportedModelError: the compiled model does not run.
        """
        longest = min(_WARM_LENGTH, self._core.longest or _WARM_LENGTH, self._batching.longest)
        slots = self._batching.slots
        sizes = sorted({min(tokens, slots) for tokens in (*_WARM_TOKENS, slots)})
        runs = [*sizes, *sizes[:-1]] if self._compiled is None else [slots] * WARM_RUNS  # what runs again is timed
        packer = OnlinePacker(replace(self._batching, max_waiting_tokens=2 * slots + _WARM_LENGTH))
        try:
            for number, tokens in enumerate(runs):
                lengths = [longest] * (tokens // longest) or [tokens]
                packer.add_all(lengths, 0)
                run = partial(self._run_warming, packer, number >= len(runs) // 2)
                self._core.lanes.in_turn(partial(self._core.lanes.alone, run))
        except Exception as error:
            if self._compiled is not None:
                raise unfit(self._core, error) from error
            _log.warning(f"a PackRunner could not warm up, so its first requests take longer: {error}")

    def _run_warming(self, packer: OnlinePacker, timed: bool) -> None:
        while (batch := packer.poll(0, draining=True).batch) is not None:
            begin = time.perf_counter_ns()
            self._core.try_batch(self._warming(batch), self._compiled)
            if timed:
                self._queue.warmed(batch.tokens, time.perf_counter_ns() - begin)

    def _warming(self, batch: OnlineBatch) -> PackedBatch:
        """Return a `PackedBatch` with sequences of the lengths in `batch`, in the same rows; every id is 1."""
        placed = sorted(zip(batch.rows.tolist(), batch.lengths.tolist(), strict=True))
        return batch_of([(row, of_length([length])) for row, length in placed], self._core, self._form)

    def _run(self, batch: list[Part]) -> None:
        """Run a batch and hand its results to the queue; a model in training mode gives every sequence an error."""
        placed: list[Placed] = [(part.row, part.sequence) for part in batch]
        filler: list[int] = []

        def work() -> tuple[list[Any], list[Any], int]:
            modules = all_modules(self._core.model)
            begin = time.perf_counter_ns()
            results = [] if in_training(modules) else answers(placed, partial(self._run_placed, filler))
            spent = time.perf_counter_ns() - begin
            if not results or in_training(modules):
                results = [RequestError(_TRAINING) for _ in batch]
            return results, modules, spent

        results, modules, spent = self._core.lanes.in_turn(work)
        if any(isinstance(one, RequestError) for one in results):
            results = self._explained(results, modules)
        self._queue.ran(batch, results, spent, sum(filler), self._core.finish)

    def _explained(self, results: list[Any], modules: list[Any]) -> list[Any]:
        """Return the results of a batch; if layers of the model were replaced, errors that the model raised say so.

        `modules` are the modules that the model has now. If each of them was there when the worker was made, `results`
        itself is returned.
        """
        known = set(map(id, self._modules))
        new = [module for module in modules if id(module) not in known]
        if not new:
            return results
        return [_because(one, type(new[0]).__name__) for one in results]

    def _run_placed(self, filler: list[int], placed: Any) -> list[Any]:
        """Run sequences, given as (row, sequence), in one batch, and return their results.

        A flat batch may run as several batches at the same time (`nopad.tasks.lanes`). For each of them, the number of
        its slots beyond its tokens is added to the list `filler`.
        """

        def work(indices: list[int]) -> list[Any]:
            batch = batch_of([placed[index] for index in indices], self._core, self._form)
            if self._batching.rows is None:
                filler.append(batch.layout.slots - batch.layout.tokens)
            return self._core.run_batch(batch, self._compiled)

        if self._batching.rows is not None:
            return self._core.lanes.alone(lambda: work(list(range(len(placed)))))
        return self._core.lanes.run([one.seq_lengths.item() for _, one in placed], work)


def _because(result: Any, what: str) -> Any:
    """Return a new RequestError if `result` is an error that the model raised; otherwise return `result` itself.

    The message of the new error says that layers of the model were replaced; `what` is the class name of a new layer.
    """
    cause = result.__cause__ if isinstance(result, RequestError) else None
    if cause is None:
        return result
    made = RequestError(_EXCHANGED.format(what=what, error=f"{type(cause).__name__}: {cause}"))
    made.__cause__ = cause
    return made


def _forget() -> None:
    """Forget all runners in a process that was forked, which has none of their threads."""
    _open.clear()


@atexit.register
def _close_all() -> None:
    """Close the runners that are still open: a thread that runs a model while Python ends may crash it."""
    for worker in list(_open):
        worker._queue.close(drain=False)
        worker.thread.join(_END_S)


os.register_at_fork(after_in_child=_forget)
