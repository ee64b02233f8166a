"""`Lanes`: run the sequences of a batch as several smaller batches at the same time, where that is faster.

PyTorch divides each operation of a model on a CPU among its threads. Between operations, and in those that are too
small to be divided (such as the attention of short sequences), all threads but one wait. So a batch of many sequences
is often done sooner as several batches with a thread of their own each: MiniLM on two cores takes 0.87 times as long.
Which way is faster depends on model and machine. So of the first large batches, some are run as one batch, and others
are divided into 2, 4, ... smaller ones; later batches are run in the way that was fastest, and now and then in another
way. No batch is run twice for this.
"""

from __future__ import annotations

import heapq
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import partial
from itertools import count
from operator import attrgetter, is_
from statistics import median
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, getweakrefcount, ref

import torch

from nopad.model.admission import device_of
from nopad.model.linear import active, shared
from nopad.model.safety import bare
from nopad.model.sharing import Sharing, all_modules
from nopad.threads import acting, acting_for

__all__ = ["Lanes", "runs_here"]

log = logging.getLogger("nopad")

FEWEST_TOKENS = 256  # of a lane; smaller matrices are multiplied more slowly
TURNS = 5  # comparisons of two numbers of lanes, of which the median decides
AGAIN = 50  # batches after which another number is tried again
BETTER = 0.97  # quotient of two times from which on the other number is taken
T = TypeVar("T")
Work = Callable[[list[int]], Sequence[Any]]


class _Calls:
    """A group of calls that are running, each of which can ask whether it is the only one.

    A call counts from `enter` until the object that `enter` returns is freed. Calls enter before they ask. So of two
    calls that begin at the same time, at most one is told that it is the only one. Calls are counted in C, without a
    lock: if one line of Python took a lock and another released it, Ctrl-C between the two would leave it taken.
    """

    def enter(self) -> object:
        return _Call(self)

    def is_only_one(self) -> bool:
        return getweakrefcount(self) == 1


class _Call(ref[_Calls]):
    """A weak reference that is always counted; of plain weak references to an object, Python makes only one."""


class _Turns:
    """What the threads share that run one model, or several models with a module in common.

    Attributes:
        number: a thread that takes the turns of several takes those with the lowest number first.
        inside: the calls of `Lanes.alone`.
        lock: held by a call of `Lanes.alone`, unless it finds other calls inside and threads may share the model.
        divided: the calls of `Lanes.run` that divide a batch: two at once would get half of the cores each.
        runners: held by a runner's worker while it runs a batch.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.inside, self.lock = _Calls(), threading.RLock()
        self.divided, self.runners = _Calls(), threading.Lock()

    def alone(self, allowed: Callable[[], bool], work: Callable[[], T]) -> T:
        """Return ``work()``, as `Lanes.alone` does; `allowed` returns whether threads may share the model."""
        mine = self.inside.enter()
        try:
            with self.lock if self.inside.is_only_one() or not allowed() else nullcontext():
                return work()
        finally:
            del mine  # an exception would keep it, with this frame

    def in_turn(self, work: Callable[[], T]) -> T:
        """Return ``work()``, as `Lanes.in_turn` does."""
        with self.runners:
            return work()


_numbers = count()
_all: WeakKeyDictionary[Any, None] = WeakKeyDictionary()  # the `Lanes` that are in use
# By module. No lock guards it: `setdefault` stores in C. A signal handler or finaliser in the thread that holds a lock
# of all models, if it ran a model, would wait for itself.
_turns: WeakKeyDictionary[Any, _Turns] = WeakKeyDictionary()


def _turns_of(modules: Sequence[Any]) -> list[_Turns]:
    """Return the turns of a model with these modules, in the order in which a thread must take them.

    Each module keeps the turns that it gets first, so models with a module in common have turns in common. Modules
    without turns get those of the model's other modules; so most models have one.
    """
    mine = next((known for one in modules if (known := _turns.get(one)) is not None), None) or _Turns()
    return sorted({_turns.setdefault(one, mine) for one in modules}, key=attrgetter("number"))


class Lanes:
    """Runs the sequences of a batch in one thread or in several at once, whichever proved faster for this model.

    Each thread (a lane) runs some of the sequences as one batch. In these cases, the whole batch runs in one lane:

    * the model is not on a CPU, PyTorch has one thread, or `most` is 1
    * the batch is small
    * another thread is already in `run` with a batch that could be divided
    * autocast, or a `TorchFunctionMode` or `TorchDispatchMode` of the user, is active
    * threads must not share the model (`nopad.model.sharing`), for example because it has the user's own modules or
      hooks; calls of `run` from several threads then run one after the other

    >>> from transformers import BertConfig, BertModel
    >>> from nopad.tasks.lanes import Lanes
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> lanes = Lanes(BertModel(BertConfig(**sizes)))
    >>> lanes.run([300, 2, 400], lambda indices: [f"result of {index}" for index in indices])
    ['result of 0', 'result of 1', 'result of 2']
    """

    def __init__(self, model: Any, most: int | None = None) -> None:
        """Store the arguments; threads are started by `run`.

        `model` is a pack-safe model, and `most` the largest number of lanes; None: as many as PyTorch has threads.
        """
        self._model = bare(model)
        self._sharing = Sharing(self._model)
        self.most = 1 if device_of(self._model).type != "cpu" else most
        self._square = 1 / (6 * max(int(getattr(self._model.config, "hidden_size", 0) or 0), 64))
        self._trial: _Trial | None = None
        self._pools: dict[tuple[int, int, int], _Pool] = {}
        self._known: tuple[int, list[Any], list[_Turns]] = 0, [], []  # process, modules, their turns
        _all[self] = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what `copy` and `pickle` need: a copy is a new `Lanes` for the model, or its copy, with own threads.

        Locks and threads cannot be copied, and what was measured is not copied.
        """
        return Lanes, (self._model, self.most)

    @property
    def _turns(self) -> list[_Turns]:
        """The turns of the model with the modules that it has now."""
        modules = all_modules(self._model)
        process, before, turns = self._known  # replaced as a whole: threads may ask at once
        # A forked process has turns of its own
        if process != os.getpid() or len(modules) != len(before) or not all(map(is_, modules, before)):
            turns = _turns_of(modules)
            self._known = os.getpid(), modules, turns
        return turns

    def alone(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which runs the model: one thread at a time, unless threads may share the model.

        Models with a module in common count as one. Within `work`, a thread may call this again. The check whether
        threads may share the model takes as long as some layers of a small model. So it is made only if another call is
        inside.
        """
        for turns in reversed(self._turns):
            work = partial(turns.alone, self._sharing.allowed, work)
        return work()

    def in_turn(self, work: Callable[[], T]) -> T:
        """Return ``work()``, a runner's batch: the runners of a model take turns, also if threads may share it.

        Models with a module in common count as one.
        """
        for turns in reversed(self._turns):
            work = partial(turns.in_turn, work)
        return work()

    def run(self, lengths: Sequence[int], work: Work) -> list[Any]:
        """Return a result for each sequence, in the order of `lengths`, the numbers of tokens of the sequences.

        `work` gets a list of indices into `lengths`, runs these sequences without gradients, and returns a result for
        each. It is called once with all indices, or in several threads at the same time, each with some of them.
        Shorter sequences come first in the list, since attention takes neighbours of one length in one call
        (`nopad.model.backends.segments`).

        Raises:
            Exception: whatever `work` raises; by then, its calls in other threads have ended too.
        """
        every = sorted(range(len(lengths)), key=lengths.__getitem__)
        most = min(self._limits()[1], len(lengths) // 2, sum(lengths) // FEWEST_TOKENS)
        several = most >= 2 and _is_plain() and self._sharing.allowed()
        if several and (found := self._in_lanes(lengths, every, work, most)) is not None:
            return found
        return self.alone(lambda: _in_order([every], [work(every)]))

    def _limits(self) -> tuple[int, int]:
        """Return the number of PyTorch's threads, and the largest number of lanes that is allowed."""
        threads = torch.get_num_threads()
        return threads, min(self.most or threads, threads)

    def _in_lanes(self, lengths: Sequence[int], every: list[int], work: Work, most: int) -> list[Any] | None:
        """Run a batch in the number of lanes that is to be tried next, at most `most`; return what `run` returns.

        The result is None if another thread is dividing a batch now. `every` are all indices into `lengths`, in the
        order for `work`.
        """
        divided = self._turns[0].divided
        mine = divided.enter()
        try:
            if not divided.is_only_one():
                return None
            threads, allowed = self._limits()
            if self._trial is None or (self._trial.threads, self._trial.most) != (threads, allowed):
                self._trial = _Trial(threads, allowed)
            lanes, begin = self._trial.lanes(most), time.perf_counter()
            pool = None if lanes == 1 else self._pool(lanes, threads)
            found = _in_order([every], [work(every)]) if pool is None else self._divided(lengths, work, lanes, pool)
            if lanes == 1 or pool is not None:  # else it is not timed: these are no lanes
                self._trial.note(lanes, most, (time.perf_counter() - begin) / sum(lengths))
            return found
        finally:
            del mine  # an exception would keep it, with this frame

    def _pool(self, lanes: int, threads: int) -> _Pool | None:
        """Return a pool of `lanes` threads, which share PyTorch's `threads` threads.

        If the threads cannot be started, since a limit of the system forbids it, the result is None, and from then on
        every batch runs in one lane.
        """
        made_for = (lanes, threads, os.getpid())  # a forked process has none of its parent's threads
        try:
            pool = self._pools.get(made_for) or self._pools.setdefault(made_for, _Pool(lanes, threads))
        except (RuntimeError, threading.BrokenBarrierError) as error:
            log.info(f"batches in several threads: not here, since no thread can be started: {error}")
            self.most = 1
            return None
        return pool

    def _divided(self, lengths: Sequence[int], work: Work, lanes: int, pool: _Pool) -> list[Any]:
        parts = divided([length * (1 + length * self._square) for length in lengths], lanes)
        for part in parts:
            part.sort(key=lengths.__getitem__)
        mode, caller = active(), acting()
        futures: list[Future[Sequence[Any]]] = []
        try:
            for part in parts:
                futures.append(pool.submit(self._in_lane, work, part, mode, caller))
        except RuntimeError:
            pass  # Python ends, and lanes take nothing more
        finally:
            _ended(futures)  # also after Ctrl-C: the caller may change the model as soon as this returns
        done = [future.result() for future in futures]
        return _in_order(parts, done + [work(part) for part in parts[len(done) :]])

    def _in_lane(self, work: Work, part: list[int], mode: Any, caller: threading.Thread) -> Sequence[Any]:
        """Return ``work(part)``, called in `mode`, the `fast_linear` mode of the caller of `Lanes.run` (None: no mode).

        Each lane must enter the mode itself, since a mode of PyTorch holds only in the thread that entered it. `caller`
        is the thread that waits for the lane.
        """
        with acting_for(caller), shared(mode):
            return work(part)


_RUNS = frozenset(one.__code__ for one in (Lanes.run, Lanes.alone, Lanes.in_turn, Lanes._in_lane))


def _ended(futures: Sequence[Future[Any]]) -> None:
    """Wait until all futures are done, even if the wait is interrupted (Ctrl-C); then raise the interrupt.

    After an interrupt, what has not begun is cancelled.
    """
    interrupt: BaseException | None = None
    while not all(future.done() for future in futures):
        try:
            wait(futures)
        except BaseException as error:
            interrupt = error
            for future in futures:
                future.cancel()
    if interrupt is not None:
        raise interrupt


def _in_order(parts: Sequence[Sequence[int]], results: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the results of all sequences in one list, in which the result of sequence i is at index i.

    ``parts[p]`` are the indices of the sequences of part p, and ``results[p]`` their results, in the same order.
    """
    found: list[Any] = [None] * sum(map(len, parts))
    for part, mine in zip(parts, results, strict=True):
        for index, result in zip(part, mine, strict=True):
            found[index] = result
    return found


def divided(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Divide the indices of `costs` into `parts` lists of about equal total cost; return the lists, each ascending.

    Indices are taken from the highest cost to the lowest; each goes to the list whose total is lowest so far. No list
    is empty if all costs are above 0 and `parts` is at most their number.
    """
    loads = [(0.0, part) for part in range(parts)]
    found: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        load, part = loads[0]
        found[part].append(index)
        heapq.heapreplace(loads, (load + costs[index], part))
    return [sorted(part) for part in found]


class _Trial:
    """Finds the fastest number of lanes for `threads` threads of PyTorch, while batches run.

    The numbers tried are 1, 2, 4, ... and `most` itself, the largest number allowed (None: `threads`). One of them is
    the fastest so far: 1 at first. Now and then a batch runs with another number. Its time per token is divided by that
    of the latest batch with the fastest number. Only batches close in time are compared, since the time per token
    changes with the lengths of the sequences, and with what else the machine does. A number becomes the fastest if its
    latest `TURNS` (5) quotients have a median below `BETTER` (0.97). At first, every other batch tries another number;
    afterwards about one in `AGAIN` (50), so that a wrong or outdated choice does not stay.
    """

    def __init__(self, threads: int, most: int | None = None) -> None:
        self.threads = threads
        self.most = threads if most is None else most
        self._best = 1
        self._all = [*(1 << power for power in range(self.most.bit_length()) if 1 << power < self.most), self.most]
        self._begin()

    def _begin(self) -> None:
        """Forget all quotients: they compare with a number of lanes that is no longer the fastest."""
        self._quotients = {lanes: deque[float](maxlen=TURNS) for lanes in self._all if lanes != self._best}
        self._new = set(self._quotients)  # their first batch is not timed: it starts threads
        self._last: float | None = None  # time per token of the last batch that ran with the fastest number
        self._since = 0  # batches since another number was tried

    def lanes(self, most: int) -> int:
        """Return the number of lanes for the next batch; `most` is the largest number that is possible for it."""
        if most < self.most:
            return self._best if self._best <= most else 1
        tried = all(len(known) == TURNS for known in self._quotients.values())
        if self._last is None or self._since < (AGAIN if tried else 1):
            return self._best
        return next(iter(self._quotients))

    def note(self, lanes: int, most: int, spent: float) -> None:
        """Record that a batch with this number of `lanes` took `spent` seconds per token.

        `most` is the largest number of lanes that was possible for the batch. If it is below the number that is
        allowed, the batch was small, and its time is ignored.
        """
        if most < self.most:
            return
        if lanes == self._best:
            self._last, self._since = spent, self._since + 1
            return
        known = self._quotients.pop(lanes)
        self._quotients[lanes] = known  # the next one to be tried is the one that was tried longest ago
        self._since = 0
        if lanes in self._new or self._last is None:
            self._new.discard(lanes)
            return
        known.append(spent / self._last)
        if len(known) == TURNS and (quotient := median(known)) < BETTER:
            log.info(f"batches in several threads: {lanes} at a time, {1 / quotient:.2f} times as fast as {self._best}")
            self._best = lanes
            self._begin()


class _Pool:
    """Threads that run one lane each; every lane may use an equal share of PyTorch's threads."""

    def __init__(self, lanes: int, threads: int) -> None:
        self._executor = ThreadPoolExecutor(lanes, "nopad-lane", _take, (threads // lanes,))
        # Each thread starts now: the number of threads set last, in any thread, is what new threads of the user get.
        barrier = threading.Barrier(lanes, timeout=10)
        try:
            for future in [self._executor.submit(barrier.wait) for _ in range(lanes)]:
                future.result()
        except BaseException:
            barrier.abort()
            self._executor.shutdown()
            raise
        finally:
            torch.set_num_threads(threads)

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        return self._executor.submit(function, *args)


def _take(threads: int) -> None:
    """Let PyTorch use `threads` threads for operations that are called from the current thread."""
    torch.get_num_threads()  # PyTorch sets the default when it is first asked in a thread: before, not after
    torch.set_num_threads(threads)


def runs_here(model: Any) -> bool:
    """Return whether the calling code was called from within a run of `model`, a bare model, in any lane.

    A run of another model that has a module in common with it counts too, since such models take turns. So does a run
    of a model that is linked with it by other models with lanes, each of which has a module in common with the next:
    one of these may hold the turn of `model` while it waits for that of the running model.

    A run begins where a thread takes its turn, before the model is called. A hook of the model is called from within a
    run. So is a signal handler that interrupts a run in its own thread, or a finaliser that the garbage collector calls
    there.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _RUNS and _linked(frame.f_locals["self"]._model, model):
            return True
        frame = frame.f_back
    return False


def _linked(one: Any, other: Any) -> bool:
    """Return whether two bare models are the same, have a module in common, or are linked by models that do."""
    if one is other:
        return True
    known = [lanes._model for found in _all.keyrefs() if (lanes := found()) is not None]
    parts = [frozenset(map(id, all_modules(model))) for model in (*known, other)]
    reached = {*map(id, all_modules(one))}
    while more := [part for part in parts if not part.isdisjoint(reached) and not part <= reached]:
        reached.update(*more)
    return parts[-1] <= reached


def _forget() -> None:
    """In a forked process, forget the locks of all models: the threads that held them do not exist there."""
    _turns.clear()


os.register_at_fork(after_in_child=_forget)


def _is_plain() -> bool:
    """Return whether this thread has no CPU autocast, no `TorchFunctionMode` and no `TorchDispatchMode`.

    The mode of `fast_linear` does not count, since lanes enter it too.
    """
    functions, dispatched = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    return not torch.is_autocast_enabled("cpu") and functions == (active() is not None) and not dispatched
