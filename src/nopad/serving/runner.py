"""`PackRunner`: answers requests from any thread in packed batches of one model, each as if it had run alone.

Requests are tokenised in the thread that submits them, so tokenising overlaps the forward pass. If the model is on a
CPU, tokenising uses only the core of this thread; the other cores are the model's. Whenever the model is free, one
worker thread (`nopad.serving.worker`) asks the packer (`nopad.serving.packer`) for the next batch, runs it, and sets
the results of the futures.

A request on which the model fails does not affect the others in its batch (`nopad.serving.forward`). If the worker ends
for any reason, every waiting request gets an error, and `submit` raises one: no caller waits for ever. The number of
tokens in the queue is limited; callers that wait for room enter in the order in which they came.

Even on an idle runner, a request is handed to a thread and back, which adds a little time. If one caller has many
requests at once and nobody else calls meanwhile, `nopad.tasks.Embedder` or `nopad.tasks.predict` is as fast without a
thread.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, islice, repeat
from types import FrameType, TracebackType
from typing import Any
from weakref import ref

from nopad.corpus.tokenizer import one_core
from nopad.errors import InputError, OptionError, ServingError
from nopad.model.admission import device_of
from nopad.model.modes import to_evaluation
from nopad.model.safety import bare
from nopad.options import BOOLEAN, MAX_LENGTH, Option, check_choice, shown
from nopad.serving.answer import Answer, Answerer, frames_from, holds_answer
from nopad.serving.batching import LONGEST_S, Batching, check_seconds, in_ns
from nopad.serving.compiling import Mode, compiled_rows
from nopad.serving.forward import Tensors, Widths, check_batching
from nopad.serving.queue import RequestQueue, WhenFull
from nopad.serving.statistics import RunnerStatistics
from nopad.serving.waiting import Waiting
from nopad.serving.worker import Worker
from nopad.tasks.core import Core
from nopad.tasks.lanes import runs_here
from nopad.threads import acting

__all__ = ["PackRunner"]

_FIXED = Option(default=None, high=MAX_LENGTH, help="places of every result per token")
_WARM = Option(default=True, choices=BOOLEAN, help="run some batches first")
_AT_ONCE = (64, 4096)  # requests of one call that are tokenised together: the first ones, all others
_LOCKING = ("nopad.serving.", "nopad.tasks.", "nopad.model.", "nopad.threads", "logging.")
# In Python's modules of threads and pools: the names of their locks; functions that name one, but hold none while they
# run other code or wait; and functions that wait for a thread, which are called while no lock is held
_PYTHONS = {"concurrent.futures.thread", "threading"}
_LOCKS = {"_active_limbo_lock", "_shutdown_locks_lock", "_shutdown_lock", "_global_shutdown_lock"}
_LOCKS |= {"_cond", "_lock", "_waiters"}  # of conditions, and of what is made of them
_OPEN = {"_bootstrap_inner", "_shutdown"}
_JOINS = {"join", "_wait_for_tstate_lock"}
_NUMBER = re.compile(r"\b(record|text|request) (\d+)\b")


class PackRunner:
    """Answers requests as they arrive, many in one packed batch, each as if it had run alone.

    What a request is depends on what runs:

    - A model that `nopad.packed` has made pack-safe: a dict with ``input_ids`` and, optionally, ``attention_mask``
      (padding is removed) and ``token_type_ids``. The values are lists, NumPy arrays or tensors; either one sequence
      ``[L]``, or padded rows ``[B, L]``. The answer is a dict of tensors, by the names of the model's outputs. The
      answer to padded rows is padded in the same way: ``[B, L, ...]`` per token, and ``[B, ...]`` per row.
    - A `nopad.tasks.Embedder`: a text. The answer is its vector, float32 ``[H]``.
    - A `nopad.tasks.Predictor`: a record, or the values of the task's text columns: a text, or a tuple of texts. The
      answer is the prediction; None: the task leaves the record out.

    ``runner(request)`` waits for one answer, ``runner(requests)`` for several. `submit` returns a future, which a
    coroutine can await. When the constructor returns, the runner is ready. Unless `warm_up` is False, it has then run
    some batches of different sizes, so that nothing is compiled or chosen while the first requests wait. Close a runner
    when it is no longer needed, or use it in a ``with`` statement: until then, its worker keeps the model alive.

    Args:
        model: the model, Embedder or Predictor; the model is put into evaluation mode. Its weights must not change
            while the runner is open.
        batching: which requests share a batch, and when it leaves. None: flat batches of about 4,096 tokens; for an
            Embedder, of about its `budget` of tokens; for a Predictor, batches of the Predictor's own form.
        when_full: what `submit` does when the queue is full (`Batching.max_waiting_tokens`): "block" waits until there
            is room, "raise" raises QueueFullError.
        widths: number of tokens that a model's outputs per token have. "own": the number of tokens without padding (L
            for rows ``[B, L]``). "given": the length of the input; where it had padding, values are 0 (minus infinity
            in logits of question answering). A number: this number, with the tokens first and padding after them,
            filled in the same way. Must be "own" for an Embedder or a Predictor.
        fast: on CPUs, run a model's float32 linear layers with a faster kernel (`nopad.model.fast_linear`), which takes
            as much memory again as their weights; None: measure, and use this kernel only if it is faster. Not allowed
            with an Embedder, which always measures, or a Predictor, which has its own `fast`. True is not allowed with
            a compiled model.
        compile: compile the model with torch.compile, so that every batch runs as rows of one shape, by one graph;
            needs `Batching.rows`. True, or torch.compile's mode: "default", "reduce-overhead" or "max-autotune" (both
            use CUDA graphs on a GPU), or "max-autotune-no-cudagraphs". False: the model runs as it is, whether or not
            you have compiled it yourself. Heads with a result per sequence need
            ``nopad.packed(model, max_sequences=...)``. If the policy of `Batching` is "end_to_end", rows become one row
            of all slots, whose attention takes longer.
        warm_up: run some batches before the constructor returns. Without this, `submit` refuses `out` until a batch has
            run.
        clock: function that returns the current time as an integer in nanoseconds. If it is set back, time goes on from
            the latest time.

    Raises:
        OptionError: the model is not pack-safe, takes no token ids, has both an encoder and a decoder, or is configured
            to return hidden states or attentions; it cannot run batches as `batching` describes them; an option is
            invalid; or the model is compiled, and its configuration asks for the logits of routers.
        UnsupportedModelError: the model cannot be compiled.
        RunnerClosedError: the worker died while it started.
        ServingError: a hook, signal handler or finaliser (``__del__``) makes the runner within a run of the same model,
            or of one that is linked with it by shared modules, and `warm_up` is True.

    A request of three tokens and one of padding gets the states of its three tokens:

    >>> import nopad
    >>> from transformers import BertConfig, BertModel
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> with nopad.PackRunner(nopad.packed(BertModel(BertConfig(**sizes)))) as runner:
    ...     result = runner({"input_ids": [101, 7, 102, 0], "attention_mask": [1, 1, 1, 0]})
    ...     futures = [runner.submit({"input_ids": [101] * n}) for n in (5, 2)]
    ...     states = [future.result()["last_hidden_state"] for future in futures]
    >>> result["last_hidden_state"].shape, [len(one) for one in states]
    (torch.Size([3, 16]), [5, 2])

    A text gets the same vector in a batch as alone, but for rounding:

    >>> embedder = nopad.tasks.Embedder(BertModel(BertConfig(**sizes)), tokenizer)
    >>> with nopad.PackRunner(embedder) as runner:
    ...     vectors = runner(["is it red ?", "yes"])
    ...     alone = runner.submit("yes").result()
    >>> vectors.shape, bool(abs(vectors[1] - alone).max() < 1e-6)
    ((2, 16), True)
    """

    def __init__(
        self,
        model: Any,
        batching: Batching | None = None,
        *,
        when_full: WhenFull = "block",
        widths: Widths | int = "own",
        fast: bool | None = None,
        compile: bool | Mode = False,
        warm_up: bool = True,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Start the worker, and wait until it is ready."""
        self.when_full: WhenFull = check_choice("when_full", when_full, WhenFull)
        self.widths: Widths | int = check_choice("widths", widths, Widths) if isinstance(widths, str) else widths
        if not isinstance(widths, str):
            self.widths = _FIXED.check("widths", widths)
        if isinstance(model, Core) and (fast is not None or widths != "own"):
            raise OptionError(f"fast and widths are for models, and a {type(model).__name__} is given; leave them out")
        self._core = (
            model if isinstance(model, Core) else Tensors(model, self.widths, fast if compile is False else False)
        )
        to_evaluation(self._core.model)
        self._on_cpu = device_of(self._core.model).type == "cpu"
        capacity, rows = self._core.shape
        self.batching = Batching(capacity=capacity, rows=rows) if batching is None else batching
        if not isinstance(self.batching, Batching):
            raise OptionError(f"batching is of type {type(batching).__name__}; expected nopad.serving.Batching")
        check_batching(self._core, self.batching)
        compiled = compiled_rows(self._core, self.batching, compile)
        if fast and compiled is not None:
            raise OptionError("fast is a kernel for models that are not compiled; leave fast or compile out")
        warm_up = _WARM.check("warm_up", warm_up)
        if warm_up and runs_here(bare(self._core.model)):
            raise ServingError(
                "a hook, signal handler or finaliser (__del__) makes a runner within a run of the same model, or of "
                "one that is linked with it by shared modules; its warm-up would wait for the end of this run; make "
                "the runner in another thread, or with warm_up=False"
            )
        self._queue = RequestQueue(self.batching, self.when_full, clock, lambda: self._answerer.needs_me)
        self._process = os.getpid()
        self._worker = Worker(self._core, self.batching, self._queue, compiled, warm_up)
        self._answerer = Answerer(worker=self._worker.thread, lock=self._queue.lock, model=ref(bare(self._core.model)))
        self._worker.start()
        try:
            self._worker.ready.wait()
        except BaseException:  # such as KeyboardInterrupt: nobody waits for the runner any more
            self._queue.close(drain=False)
            self._worker.thread.join()
            raise
        if self._worker.unfit is not None:
            raise self._worker.unfit
        self._queue.check_open()

    def __call__(self, inputs: Any, **how: Any) -> Any:
        """Wait for the answer to one request, and return it; or for the answers to several, and return them in order.

        `how` are the keyword arguments of `submit`, such as `deadline_s`; they apply to each request. Several answers
        are a list; for an Embedder, one array ``[n, H]``, as `Embedder.encode` returns it. The first requests run while
        the following ones are tokenised. If an error is raised, requests that still wait are cancelled.

        Raises:
            InputError: `inputs` is neither a request nor an iterable of requests; or a request or one of `how` is not
                valid. Messages number the requests from 0.
            ServingError: a request was not answered; other requests may have been. Or a callback of this runner calls
                this.
            QueueFullError: the queue is full, and `when_full` is "raise".
            DeadlineError: the deadline cannot be met, or has passed before a request ran.
            RunnerClosedError: the runner is closed, its worker has died, or the runner was started in another process.
        """
        if self._core.is_one(inputs):
            return self.submit(inputs, **how).result()
        several = isinstance(inputs, Iterable) and getattr(inputs, "ndim", 1) != 0  # an array may be a single number
        if not several or isinstance(inputs, str | bytes | Mapping | Set):
            raise OptionError(
                f"requests are of type {type(inputs).__name__}; expected one request ({self._core.request}), or a list "
                "of them"
            )
        futures: list[Answer] = []
        try:
            for part in _parts(iter(inputs)):
                futures.extend(self._submit(part, len(futures), **how))
            return self._core.gathered([future.result() for future in futures])
        finally:
            for future in futures:
                future.cancel()  # those that are done stay as they are

    def submit(self, inputs: Any, *, deadline_s: float | None = None, priority: int = 0, **how: Any) -> Answer:
        """Add a request to the queue; return a future of its answer. Cancelling the future removes a waiting request.

        Args:
            inputs: the request, as the class describes it. It is tokenised here, in the calling thread; if the model is
                on a CPU, only in this thread, so that the other cores are the model's.
            deadline_s: number of seconds from now after which the answer is of no use; if the request still waits then,
                its future raises DeadlineError. A deadline that cannot be met at the speed of recent batches is refused
                at once, unless no other request waits or runs. None: no deadline.
            priority: an integer from -1,000 to 1,000; requests of a higher priority leave first. It must be 0 unless
                the policy of `Batching` is "look_ahead", without `keep_order`.
            how: further keyword arguments, depending on what the runner runs. For a model: `out`, a dict of buffers by
                name of output. A buffer is a tensor or a NumPy array with the shape and dtype of the result. The
                outputs are written to the buffers, and the answer holds these buffers. For an Embedder: `prompt` (text
                to put before the request), `prompt_name` (name of one of the model's own prompts) and `over_long`
                ("error" or "truncate"), as in `Embedder.encode`.

        Raises:
            InputError: the request, `deadline_s`, `priority` or one of `how` is not valid.
            QueueFullError: the queue is full and `when_full` is "raise". Or a callback of this runner, which must not
                wait, submits while the queue is full or other callers wait for room.
            DeadlineError: the deadline cannot be met.
            RunnerClosedError: the runner is closed, its worker has died, or the runner was started in another process.
            ServingError: a signal handler or finaliser (``__del__``) calls this while it interrupts another call of the
                runner in the same thread.
        """
        [found] = self._submit([inputs], 0, deadline_s=deadline_s, priority=priority, **how)
        return found

    def _submit(
        self, inputs: list[Any], first: int, *, deadline_s: float | None = None, priority: int = 0, **how: Any
    ) -> list[Answer]:
        """Submit several requests, and return their futures; otherwise like `submit`, with the same errors.

        Error messages number the requests from `first`. If an error is raised, none of the requests stays in the queue.
        """
        self._queue.check_open()  # first: in a forked process, the queue's lock may be taken for ever
        now = self._queue.now()
        if deadline_s is not None and (type(deadline_s) not in (int, float) or not abs(deadline_s) <= LONGEST_S):
            raise OptionError(f"deadline_s must be a number of seconds, got {shown(deadline_s)}")
        with _numbered_from(first), one_core() if self._on_cpu else nullcontext():
            prepared, counts = self._core.prepare(inputs, **how)
        made = [Waiting(one, Answer(self._answerer), now) for one in prepared]
        deadline = None if deadline_s is None else now + in_ns(deadline_s)
        try:
            self._queue.add(self._in_line(made), deadline, priority)
            self._queue.count(counts)
            for one in made:
                if one.tokens:
                    # No reference to the request: the cycle would be freed by the garbage collector only
                    one.future.add_done_callback(partial(self._cancelled, one.numbers))
                else:  # the task leaves it out
                    one.future.set_result(self._core.finish(one.prepared, []))
            return [one.future for one in made]
        except BaseException:  # some requests were added already, and nobody has their futures
            for one in made:
                self._queue.cancel(one.numbers)
            raise

    def _in_line(self, made: list[Waiting]) -> list[Waiting]:
        """Return the requests that have at least one token, sorted as they are to join the queue.

        In flat batches without `Batching.keep_order`, the shortest go first: attention takes sequences of one length in
        one call, which is faster, and the caller waits for all of them anyway. Otherwise the order stays as it is: rows
        are fuller where long and short requests wait together.
        """
        found = [one for one in made if one.tokens]
        if self.batching.rows is None and not self.batching.keep_order:
            found.sort(key=lambda one: one.tokens)
        return found

    def _cancelled(self, numbers: range, future: Any) -> None:
        if future.cancelled():
            self._queue.cancel(numbers)

    @property
    def healthy(self) -> bool:
        """Whether the runner accepts requests: its worker is alive, and it is not closed."""
        return self._queue.accepts and self._worker.thread.is_alive()

    @property
    def statistics(self) -> RunnerStatistics:
        """The runner's totals so far, as a copy.

        Raises:
            RunnerClosedError: the runner was started in another process.
        """
        return self._queue.statistics

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until no request waits or runs; return False if that takes longer than `timeout_s` seconds.

        If `timeout_s` is None, there is no time limit. The runner goes on accepting requests.

        Raises:
            OptionError: `timeout_s` is neither None nor a number of seconds from 0 to 10^9.
            ServingError: this is called in a callback of the runner; or a signal handler or finaliser calls it while it
                interrupts another call of the runner in the same thread.
            RunnerClosedError: the runner was started in another process.
        """
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s, least=0.0, none=True)
        return self._queue.drain(timeout_s)

    def close(self, *, drain: bool = True) -> None:
        """Accept no more requests, and wait until the worker has ended.

        Requests that still wait are answered first; with ``drain=False``, their futures raise RunnerClosedError
        instead. In two cases, `close` returns at once without waiting. The first is on the worker's own thread, as in
        the callback of a future. The second is in a signal handler or a ``__del__`` that interrupts a call which may
        hold a lock that the worker needs: one of nopad's own, or one that starts a thread, gives work to a thread pool,
        or logs. A call that waits for a thread, a pool or a semaphore holds no such lock. In a process that was forked
        after the runner was started, `close` does nothing.
        """
        self._close(drain, sys._getframe(1))

    def _close(self, drain: bool, caller: FrameType | None) -> None:
        """Close the runner as `close` does; `caller` is the frame of the code that asked for it."""
        if os.getpid() != self._process:
            return
        self._queue.close(drain)
        if acting() is not self._worker.thread and not _interrupts(caller):
            self._worker.thread.join()

    def __enter__(self) -> PackRunner:
        """Return the runner."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Close the runner; after an exception, without answering what waits."""
        self._close(kind is None, sys._getframe(1))


def _interrupts(frame: FrameType | None) -> bool:
    """Return whether `frame` is in a call that may hold a lock which a worker needs to run a batch, or to end.

    These are all calls of the modules in `_LOCKING` (some of nopad's, and logging), those that hold an answer, and
    those of functions of Python's threads and pools that take a lock (`_LOCKS`), except where they wait. Each call is
    judged alone: what it calls may have given back its own lock, while it holds another (as `submit` of a pool does
    while it starts a thread).
    """
    waits: Any = None  # the condition whose lock the calls inside have given back, until they are woken
    joins = False  # whether the call just inside waits for a thread
    for one in frames_from(frame):
        name, code = str(one.f_globals.get("__name__", "")), one.f_code
        if f"{name}.".startswith(_LOCKING) or holds_answer(one):
            return True
        if name not in _PYTHONS:
            waits, joins = None, False
            continue
        mine: Any = one.f_locals.get("self")
        if code is threading.Condition.wait.__code__:  # which gives its lock back, and takes it again at the end
            waits = mine if "saved_state" in one.f_locals and not mine._is_owned() else None
        gave_back = waits is not None and (mine is waits or getattr(mine, "__dict__", {}).get("_cond") is waits)
        joins, opens = code.co_name in _JOINS, joins or gave_back or code.co_name in _OPEN
        if not (joins or opens or _LOCKS.isdisjoint(code.co_names)):
            return True
    return False


@contextmanager
def _numbered_from(first: int) -> Iterator[None]:
    """In a ``with`` block, let messages of `InputError` number the records, texts or requests from `first` on."""
    try:
        yield
    except InputError as error:
        if not first:
            raise
        said = _NUMBER.sub(lambda found: f"{found[1]} {int(found[2]) + first}", str(error), count=1)
        raise type(error)(said) from error


def _parts(requests: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield the requests of a call in lists: the first has 64, so that the model soon has work, all others 4,096.

    The last list may be shorter.
    """
    for size in chain(_AT_ONCE, repeat(_AT_ONCE[-1])):
        if not (part := list(islice(requests, size))):
            return
        yield part
