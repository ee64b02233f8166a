"""A signal handler or finaliser that uses a runner in the midst of another call of it, in the same thread.

Whatever it does, the interrupted call ends as it should, no request is lost, and nothing waits for itself.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from weakref import WeakKeyDictionary

import pytest
from tests.serving.gate import of_queue
from transformers import BertConfig, BertModel

import nopad
from nopad.errors import RunnerClosedError, ServingError
from nopad.serving import Batching, OnlinePacker, worker
from nopad.serving.answer import Answer
from nopad.serving.forward import Tensors
from nopad.serving.queue import RequestQueue
from nopad.serving.waiting import Waiting
from nopad.tasks.core import Prepared, of_length
from nopad.tasks.lanes import Lanes

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
ONE, TWO = {"input_ids": [3, 4, 5]}, {"input_ids": [1, 2]}
CALLER = [
    *(RequestQueue.add, RequestQueue._enter, RequestQueue._admit, RequestQueue.now, RequestQueue._call_next),
    *(OnlinePacker.add_all, OnlinePacker._checked, OnlinePacker._settle, OnlinePacker.cancel, RequestQueue._cancel),
]
WORKER = [RequestQueue.take, RequestQueue._taken, OnlinePacker.poll, OnlinePacker._settle, OnlinePacker._leave]
WAIT = 30


@pytest.fixture(scope="module")
def model():
    return nopad.packed(BertModel(BertConfig(**SIZES, vocab_size=50)))


class Within:
    """In a ``with`` block, calls `nested` at one line of functions, as a signal handler would be called there."""

    def __init__(self, parts, at, nested):
        self.codes, self.left, self.nested = {part.__code__ for part in parts}, at, nested

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def trace(self, frame, event, _):
        if frame.f_code in self.codes and event == "line":
            self.left -= 1
            if not self.left:
                sys.settrace(None)
                self.nested()
        return self.trace

    @property
    def reached(self):
        return self.left <= 0


def test_submitting_at_each_line(model):
    """Both requests are answered, or the inner one is refused at once."""
    accepted = refused = 0
    with nopad.PackRunner(model, Batching(capacity=64)) as runner:
        for at in range(1, 200):
            inner = []

            def nested(inner=inner):
                try:
                    inner.append(runner.submit(TWO))
                except ServingError as error:
                    inner.append(error)

            with Within(CALLER, at, nested) as within:
                outer = runner.submit(ONE)
            assert outer.result(WAIT)["last_hidden_state"].shape == (3, 8)
            if not within.reached:
                break
            if isinstance(inner[0], ServingError):
                refused += "in the same thread" in str(inner[0])
            else:
                accepted += 1
                assert inner[0].result(WAIT)["last_hidden_state"].shape == (2, 8)
        assert runner.drain(WAIT)
        assert runner.statistics.packer.waiting == 0
    assert refused >= 15
    assert accepted >= 1  # before the lock is taken


@pytest.mark.parametrize("call", ["drain", "result", "runner"])
def test_waiting_at_each_line_is_refused_where_it_would_last_for_ever(model, call):
    with nopad.PackRunner(model, Batching(capacity=64, accumulate=True, wait_s=0.02)) as runner:
        for at in range(1, 200):
            other, says = runner.submit(TWO), []

            def nested(other=other, says=says):
                calls = {"drain": runner.drain, "result": other.result, "runner": lambda: runner(TWO)}
                try:
                    calls[call]()
                except ServingError as error:
                    says.append(str(error))

            with Within(CALLER, at, nested) as within:
                outer = runner.submit(ONE)
            assert outer.result(WAIT)["last_hidden_state"].shape == (3, 8)
            assert other.result(WAIT)["last_hidden_state"].shape == (2, 8)
            assert not says or "in the same thread" in says[0]
            if not within.reached:
                break
        assert at > 15


@pytest.mark.parametrize("what", ["submit", "cancel"])
def test_cancelling_at_each_line(model, what):
    with nopad.PackRunner(model, Batching(capacity=64, accumulate=True, wait_s=0.02)) as runner:
        for at in range(1, 200):
            other, mine = runner.submit(TWO), runner.submit(TWO)
            kept = runner.submit(ONE)
            with Within(CALLER, at, mine.cancel) as within:
                outer = runner.submit(ONE) if what == "submit" else other.cancel()
            assert mine.cancelled() or not within.reached
            if what == "submit":
                assert outer.result(WAIT)["last_hidden_state"].shape == (3, 8)
                assert other.result(WAIT)["last_hidden_state"].shape == (2, 8)
            assert kept.result(WAIT)["last_hidden_state"].shape == (3, 8)
            assert runner.drain(WAIT)
            assert (runner.statistics.packer.waiting, runner.statistics.packer.waiting_tokens) == (0, 0)
            if not within.reached:
                break
        assert at > 3


@pytest.mark.parametrize("drain", [True, False])
def test_closing_at_each_line(model, drain):
    for at in range(1, 200, 3):
        runner = nopad.PackRunner(model, Batching(capacity=64), warm_up=False)
        with Within(CALLER, at, lambda runner=runner: runner.close(drain=drain)) as within:
            try:
                outer = runner.submit(ONE)
            except RunnerClosedError:
                outer = None
        if outer is not None and (drain or not within.reached):
            assert outer.result(WAIT)["last_hidden_state"].shape == (3, 8)
        elif outer is not None:
            outer.exception(WAIT)  # answered, or closed: but done
        runner.close()
        assert not runner._worker.thread.is_alive()
        if not within.reached:
            break
    assert at > 15


def test_what_interrupts_the_worker_at_each_line():
    """The garbage collector may call a finaliser there; what it cancels does not run, and closing is seen at once."""
    for act in ("cancel", "close", "submit"):
        for at in range(1, 200):
            queue = RequestQueue(Batching(capacity=64), "block", time.monotonic_ns, lambda: False)

            def waiting(length, queue=queue):
                return Waiting(Prepared(of_length([length])), of_queue(queue), queue.now())

            one, two, late = waiting(3), waiting(5), waiting(2)
            queue.add([one, two], None, 0)

            def nested(queue=queue, two=two, late=late, act=act):
                if act == "cancel":
                    two.future.cancel()
                    queue.cancel(two.numbers)
                elif act == "close":
                    queue.close(drain=True)
                else:
                    held = queue.lock._is_owned()
                    with pytest.raises(ServingError, match="in the same thread") if held else nullcontext():
                        queue.add([late], None, 0)

            with Within(WORKER, at, nested) as within:
                found = queue.take()
            if not within.reached:
                break
            lengths = [part.sequence.seq_lengths.item() for part in found]
            assert lengths in ([3, 5], [3], [3, 5, 2]) if act != "close" else lengths == [3, 5]
            assert act == "submit" or 2 not in lengths
            assert two.future.running() == (5 in lengths)
            queue.ran(found, [None] * len(found), 1, 0, lambda prepared, results: "answer")
            assert one.future.result(1) == "answer"
            queue.close(drain=True)
            while (rest := queue.take()) is not None:
                queue.ran(rest, [None] * len(rest), 1, 0, lambda prepared, results: "answer")
            assert late.future.done() == (act == "submit" and len(late.numbers) > 0)
            assert queue.statistics.packer.waiting == 0
        assert at > 20


def test_submitting_while_the_interrupted_call_waits_for_room(model):
    """The inner call would wait in the line behind the outer one, for ever."""
    gate, says = threading.Event(), []
    with nopad.PackRunner(model, Batching(capacity=8, max_waiting_tokens=8, max_sequences=1)) as runner:
        first = runner.submit(ONE)
        first.result(WAIT)
        busy = runner.submit(ONE)
        busy.add_done_callback(lambda _: gate.wait(WAIT))
        time.sleep(0.05)
        filling = [runner.submit({"input_ids": [1] * 4}) for _ in range(2)]

        def handler(*_):
            try:
                runner.submit({"input_ids": [1] * 4})
            except ServingError as error:
                says.append(str(error))
            gate.set()

        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            outer = runner.submit({"input_ids": [1] * 8})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert outer.result(WAIT)["last_hidden_state"].shape == (8, 8)
        assert all(one.result(WAIT) for one in filling)
    assert len(says) == 1
    assert "waits for room" in says[0]


def test_a_handler_that_closes_while_the_main_thread_submits(model):
    """The usual way to end a server: it hung once in six times."""
    for number in range(20):
        runner = nopad.PackRunner(model, Batching(capacity=64), warm_up=False)
        before = signal.signal(signal.SIGTERM, lambda *_, runner=runner: runner.close())
        killer = threading.Timer(0.001 * number, os.kill, (os.getpid(), signal.SIGTERM))
        futures = []
        try:
            killer.start()
            while runner.healthy:
                with suppress(RunnerClosedError):
                    futures.append(runner.submit(TWO))
        finally:
            killer.join()
            signal.signal(signal.SIGTERM, before)
        runner.close()
        assert not runner._worker.thread.is_alive()
        assert all(one.result(WAIT)["last_hidden_state"].shape == (2, 8) for one in futures)


def test_what_was_cancelled_within_a_call_wakes_those_who_wait():
    """`take` cancels it later, and `drain` in another thread, which waits for nothing else, then ends."""
    queue = RequestQueue(Batching(capacity=64), "block", time.monotonic_ns, lambda: False)
    one, drained = Waiting(Prepared(of_length([8])), of_queue(queue), queue.now()), threading.Event()
    queue.add([one], None, 0)
    threading.Thread(target=lambda: queue.drain(None) and drained.set(), daemon=True).start()
    while not queue._changed._waiters:
        time.sleep(0.001)
    with queue.lock:
        queue.cancel(one.numbers)
    taken = []
    worker = threading.Thread(target=lambda: taken.append(queue.take()), daemon=True)
    worker.start()
    assert drained.wait(WAIT)
    queue.close(drain=True)
    worker.join(WAIT)
    assert taken == [None]


def test_nothing_is_asked_of_a_future_while_the_queue_is_held(model, monkeypatch):
    """A caller may be interrupted in `result`, which holds the future, and need the queue: both waited for ever."""
    held, runners = [], []
    for name in ("set_running_or_notify_cancel", "set_result", "set_exception", "cancel", "done", "running"):
        real = getattr(Answer, name)

        def asked(one, *args, name=name, real=real):
            held.extend(name for runner in runners if runner._queue.lock._is_owned())
            return real(one, *args)

        monkeypatch.setattr(Answer, name, asked)
    for drain in (True, False):
        with nopad.PackRunner(model, Batching(capacity=8), warm_up=False) as runner:
            runners.append(runner)
            futures = [runner.submit(ONE, deadline_s=5 if number % 3 else None) for number in range(60)]
            for one in futures[::7]:
                one.cancel()
            for _ in range(3):
                with suppress(nopad.errors.DeadlineError):
                    futures.append(runner.submit(TWO, deadline_s=1e-4))
            runner.close(drain=drain)
        assert all(one.done() for one in futures)
    assert held == []


@pytest.mark.parametrize("part", [Future.result, Future.cancel, Future.add_done_callback])
def test_waiting_within_a_method_of_an_answer(model, part):
    """Where the interrupted call holds the answer, the worker could not go on, and waiting is refused."""
    calls = {Future.result: Answer.result, Future.cancel: Answer.cancel}
    refused = answered = 0
    with nopad.PackRunner(model, Batching(capacity=8, max_sequences=1)) as runner:
        for at in range(1, 60):
            gate, other = threading.Event(), []
            runner.submit(ONE).add_done_callback(lambda _, gate=gate: gate.wait(WAIT))
            first, second = runner.submit(ONE), runner.submit(TWO)

            def nested(gate=gate, second=second, other=other):
                gate.set()
                try:
                    other.append(second.result(WAIT))
                    assert runner.drain(WAIT)
                except ServingError as error:
                    other.append(str(error))

            opener = threading.Timer(0.3, gate.set)  # for the last time, when nothing is reached
            opener.start()
            with Within([part], at, nested) as within:
                if part is Future.add_done_callback:
                    first.add_done_callback(lambda _: None)
                else:
                    calls[part](first)
            gate.set()
            opener.join()
            assert second.result(WAIT)["last_hidden_state"].shape == (2, 8)
            if not within.reached:
                break
            refused += isinstance(other[0], str)
            answered += not isinstance(other[0], str)
            assert all("a method of an answer" in one for one in other if isinstance(one, str)), (at, other)
    assert refused > 0
    assert answered > 0


def test_closing_while_those_who_wait_are_woken():
    """Python's `notify_all` ends in an IndexError if a call within it has woken them already."""
    for at in range(1, 60):
        queue = RequestQueue(Batching(capacity=64), "block", time.monotonic_ns, lambda: False)
        queue.add([Waiting(Prepared(of_length([8])), of_queue(queue), queue.now())], None, 0)
        threads = [threading.Thread(target=queue.drain, args=(WAIT,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(queue._changed._waiters) < len(threads):
            time.sleep(0.001)
        with (
            Within([threading.Condition.notify], at, lambda queue=queue: queue.close(drain=False)) as within,
            queue.lock,
        ):
            queue._wake()
        queue.die(None)
        for thread in threads:
            thread.join()
        if not within.reached:
            break
    assert at > 5


def test_reading_the_clock_while_it_is_read():
    """The time that a handler takes is not taken for a clock that was set back."""
    at, handlers = [1_000], []

    def clock():
        found = at[0]
        if handlers:
            at[0] += 500
            handlers.pop()()
        return found

    queue = RequestQueue(Batching(capacity=64), "block", clock, lambda: False)
    said = []
    handlers.append(lambda: said.append(queue.now()))
    assert (queue.now(), said) == (1_000, [1_500])
    at[0] = 1_600
    assert queue.now() == 1_600
    at[0] = 1_550
    assert [queue.now(), queue.now()] == [1_600, 1_600]  # set back


@pytest.mark.parametrize(
    ("part", "call", "waits"),
    [
        (ThreadPoolExecutor._adjust_thread_count, lambda pool: pool.submit(int), False),
        (ThreadPoolExecutor.submit, lambda pool: pool.submit(int), False),
        (threading.Thread.start, lambda pool: threading.Thread(target=int).start(), False),
        (threading.enumerate, lambda pool: threading.enumerate(), False),
        (logging.Handler.handle, lambda pool: logging.getLogger("nopad").warning("one line"), False),
        (Future.__init__, lambda pool: Future(), True),
        (Future.set_result, lambda pool: Future().set_result(1), True),
        (threading.Event.wait, lambda pool: threading.Event().wait(0.01), False),  # a callback may set the event
        (threading.Event.is_set, lambda pool: threading.Event().is_set(), True),
        (threading.current_thread, lambda pool: threading.current_thread(), True),
        (ThreadPoolExecutor.shutdown, lambda pool: ThreadPoolExecutor(1).shutdown(), False),
        (threading.Semaphore.acquire, lambda pool: threading.Semaphore(0).acquire(timeout=0.01), False),
    ],
    ids=[
        *("adjust", "submit", "start", "enumerate", "log", "future", "result", "wait"),
        *("is_set", "current_thread", "shutdown", "semaphore"),
    ],
)
def test_closing_within_pythons_own_calls(model, part, call, waits):
    """It returns at once where the worker may need a lock of the interrupted call, and else when the worker has ended.

    While the main thread was in `threading.enumerate` or in `submit` of a pool of its own, it hung.
    """
    with ThreadPoolExecutor(3) as pool:
        for at in range(1, 40):
            runner = nopad.PackRunner(model, Batching(capacity=64), warm_up=False)
            futures, alive = [runner.submit(TWO) for _ in range(5)], []

            def nested(runner=runner, alive=alive):
                runner.close()
                alive.append(runner._worker.thread.is_alive())

            with Within([part], at, nested) as within:
                call(pool)
            runner.close()
            if not within.reached:
                break
            assert all(one.result(WAIT)["last_hidden_state"].shape == (2, 8) for one in futures)
            assert alive == [False] or not waits
        assert at > 1


@pytest.mark.parametrize("where", ["main", "pool", "event"])
def test_closing_elsewhere_waits(model, where):
    """Also in a thread of a pool, and in a handler while the main thread waits for something."""
    runner = nopad.PackRunner(model, Batching(capacity=64), warm_up=False)
    futures = [runner.submit(TWO) for _ in range(50)]
    alive = []

    def close(*_):
        runner.close()
        alive.append(runner._worker.thread.is_alive())

    if where == "main":
        close()
    elif where == "pool":
        with ThreadPoolExecutor(1) as pool:
            pool.submit(close).result(WAIT)
    else:
        before, done = signal.signal(signal.SIGALRM, close), threading.Event()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            done.wait(0.5)
        finally:
            signal.signal(signal.SIGALRM, before)
    assert alive == [False]
    assert all(one.done() for one in futures)


def in_a_pool(end):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(end.wait)


def in_a_semaphore(end):
    free = threading.Semaphore(0)
    threading.Thread(target=lambda: (end.wait(), free.release())).start()
    with free:
        pass


def at_a_barrier(end):
    barrier = threading.Barrier(2)
    threading.Thread(target=lambda: (end.wait(), barrier.wait())).start()
    barrier.wait()


@pytest.mark.parametrize("at", range(1, 26, 2))
@pytest.mark.parametrize("timeout", [None, 0.01], ids=["for ever", "for a moment"])
def test_closing_at_each_line_of_a_wait_for_what_a_callback_does(model, at, timeout):
    """The callback takes the semaphore's own lock, which the waiting thread holds before and after it waits."""
    gate, open_ = threading.Event(), threading.Semaphore(0)
    model_hook = model.register_forward_pre_hook(lambda *_: gate.wait(WAIT) and None)
    runner = nopad.PackRunner(model, warm_up=False)
    runner.submit(ONE).add_done_callback(lambda _: open_.release())

    def close():
        gate.set()
        runner.close()

    opener = threading.Timer(0.3, gate.set)  # where the line is reached after the wait only, or not at all
    opener.start()
    with Within([threading.Semaphore.acquire, threading.Condition.wait], at, close):
        got = open_.acquire(timeout=timeout)
    opener.join()
    assert got or open_.acquire(timeout=WAIT)
    runner.close()
    assert not runner._worker.thread.is_alive()
    model_hook.remove()


def test_closing_where_a_lock_is_given_back_while_another_one_is_held(model):
    """A pool holds its locks while it waits for a semaphore or a new thread; a callback that needs them hung."""
    for at in range(1, 40, 3):
        runner, free, gate = nopad.PackRunner(model, warm_up=False), [], threading.Event()
        with ThreadPoolExecutor(1) as pool:

            def callback(_, gate=gate, free=free, lock=pool._shutdown_lock):
                gate.wait(WAIT)
                free.append(lock.acquire(timeout=0.3))
                if free[0]:
                    lock.release()

            def close(runner=runner, gate=gate):
                gate.set()
                runner.close()

            runner.submit(ONE).add_done_callback(callback)
            with Within([threading.Condition.wait], at, close) as within:
                pool.submit(int)
        gate.set()
        runner.close()
        if not within.reached:
            break
        assert free == [True]
    assert at > 5


@pytest.mark.parametrize("wait", [in_a_pool, in_a_semaphore, at_a_barrier])
def test_a_handler_that_closes_while_the_main_thread_waits(model, wait):
    """`close` waits there; it returned at once, and the requests were lost with the end of the process."""
    runner = nopad.PackRunner(model, Batching(capacity=64, accumulate=True, wait_s=0.2), warm_up=False)
    futures, alive, end = [runner.submit(TWO) for _ in range(3)], [], threading.Event()

    def close(*_):
        runner.close()
        alive.append(runner._worker.thread.is_alive())
        end.set()

    before = signal.signal(signal.SIGALRM, close)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        wait(end)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert alive == [False]
    assert all(one.done() for one in futures)


def test_closing_in_the_hook_of_a_thread_that_failed(model, monkeypatch):
    runner, alive = nopad.PackRunner(model, warm_up=False), []
    monkeypatch.setattr(
        threading, "excepthook", lambda _: (runner.close(), alive.append(runner._worker.thread.is_alive()))
    )
    failing = threading.Thread(target=lambda: 1 / 0)
    failing.start()
    failing.join()
    assert alive == [False]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, ValueError])
@pytest.mark.parametrize("how", ["close", "answer", "deadline"])
def test_a_callback_that_raises_anything_harms_nobody(model, error, how, caplog):
    def raises(_):
        raise error("boo")

    gate, called = threading.Event(), []
    runner = nopad.PackRunner(model, Batching(capacity=8, max_sequences=1))
    first = runner.submit(ONE)
    first.add_done_callback(lambda _: gate.wait(WAIT))
    deadline = 0.3 if how == "deadline" else None
    futures = [runner.submit(TWO, deadline_s=deadline) for _ in range(6)]
    futures[2].add_done_callback(raises)
    futures[2].add_done_callback(called.append)
    if how == "close":
        closing = threading.Thread(target=runner.close, kwargs={"drain": False})
        closing.start()
        while runner.healthy:
            time.sleep(0.01)
    if how == "deadline":
        time.sleep(0.4)
    gate.set()
    errors = {type(one.exception(WAIT)) for one in futures}
    kind = {"close": RunnerClosedError, "deadline": nopad.errors.DeadlineError, "answer": type(None)}[how]
    assert errors <= {kind, type(None)}
    assert runner.drain(WAIT) if how != "close" else closing.join(WAIT) is None
    assert called == [futures[2]]
    assert "a callback of an answer failed" in caplog.text
    if how != "close":
        assert runner.healthy
        assert runner(ONE)
        runner.close()
    failed = [one.exception() for one in futures if one.exception() is not None]
    assert len({id(one) for one in failed}) == len(failed)  # each has a traceback of its own


def test_a_callback_that_raises_while_nothing_can_be_logged(model, request):
    class Broken(logging.Handler):
        def emit(self, record):
            raise ValueError("no log")

    log, broken, called = logging.getLogger("nopad"), Broken(), []
    log.addHandler(broken)
    request.addfinalizer(lambda: log.removeHandler(broken))
    gate = threading.Event()
    with nopad.PackRunner(model) as runner:
        runner.submit(ONE).add_done_callback(lambda _: gate.wait(WAIT))
        future = runner.submit(TWO)
        future.add_done_callback(lambda _: 1 / 0)
        future.add_done_callback(called.append)
        gate.set()
        assert future.result(WAIT)["last_hidden_state"].shape == (2, 8)
        assert runner.drain(WAIT)
        assert called == [future]
        assert runner(ONE)


def test_a_callback_that_interrupts_the_caller_who_cancels(model):
    called = []

    def raises(_):
        raise KeyboardInterrupt

    with nopad.PackRunner(model, Batching(capacity=64, accumulate=True, wait_s=5.0)) as runner:
        future = runner.submit(ONE)
        future.add_done_callback(raises)
        future.add_done_callback(called.append)
        with pytest.raises(KeyboardInterrupt):
            future.cancel()
        assert called == [future]
        assert runner.statistics.packer.waiting == 0


def test_a_hook_that_waits_for_a_request_of_its_own_model(model):
    """Of the same runner or of another one, in a batch of a runner or of an Embedder: nobody could answer."""
    hooked = nopad.packed(BertModel(BertConfig(**SIZES, vocab_size=50)))
    said = []
    with nopad.PackRunner(hooked, warm_up=False) as one, nopad.PackRunner(hooked, warm_up=False) as other:

        def hook(*_):
            if len(said) < 4:
                for runner in (one, other):
                    for wait in (lambda runner=runner: runner(TWO), lambda runner=runner: runner.drain()):
                        said.append(None)
                        with pytest.raises(ServingError) as caught:
                            wait()
                        said[-1] = str(caught.value)

        hooked.register_forward_pre_hook(hook)
        assert one(ONE)["last_hidden_state"].shape == (3, 8)
        assert len(said) == 4
        assert all("run of the same model" in text for text in said)
        said.clear()
        core = one._core
        core.lanes.run([3], lambda indices: [hook()])
        assert len(said) == 4
        assert one(TWO)["last_hidden_state"].shape == (2, 8)  # afterwards it may


def test_a_hook_that_waits_for_a_model_that_is_linked_with_its_own():
    """A third model with modules of both held one's turn while it waited for the other's: all three hung for ever."""
    hooked, middle, other = (nopad.packed(BertModel(BertConfig(**SIZES, vocab_size=50))) for _ in range(3))
    said = []
    with nopad.PackRunner(hooked) as one, nopad.PackRunner(other) as another:

        def hook(*_):
            try:
                said.append(another(TWO)["last_hidden_state"].shape)
            except ServingError as error:
                said.append(str(error))

        hooked.register_forward_pre_hook(hook)
        assert one(ONE)["last_hidden_state"].shape == (3, 8)
        links = [BertModel(hooked.config) for _ in range(2)]
        links[0].encoder, links[0].pooler = hooked.encoder, middle.pooler
        links[1].encoder, links[1].pooler = other.encoder, middle.pooler
        lanes = [Lanes(links[0])]
        assert one(ONE)["last_hidden_state"].shape == (3, 8)
        lanes.append(Lanes(links[1]))
        assert one(ONE)["last_hidden_state"].shape == (3, 8)
        del lanes
        assert one(ONE)["last_hidden_state"].shape == (3, 8)
    assert said[:2] == [said[3]] * 2 == [(2, 8)] * 2
    assert "linked with it by shared modules" in said[2]


@pytest.mark.parametrize("shares", [False, True])
def test_a_hook_that_makes_a_runner_of_its_own_model(shares):
    """Or of a model with its encoder: the warm-up waited for the turn of the run that waited for the warm-up."""
    hooked = nopad.packed(BertModel(BertConfig(**SIZES, vocab_size=50)))
    around = BertModel(hooked.config)
    around.encoder = hooked.encoder
    other = nopad.packed(around) if shares else hooked
    said = []

    def hook(*_):
        if not said:
            said.append(None)
            with pytest.raises(ServingError, match="would wait for the end of this run") as caught:
                nopad.PackRunner(other)
            said[0] = str(caught.value)
            nopad.PackRunner(other, warm_up=False).close()

    hooked.register_forward_pre_hook(hook)
    with nopad.PackRunner(hooked, warm_up=False) as runner:
        assert runner(ONE)["last_hidden_state"].shape == (3, 8)
    assert said[0]


@pytest.mark.parametrize("where", ["warm_up", "batch"])
def test_waiting_where_a_runner_holds_the_turn_of_its_model(model, monkeypatch, where):
    """A finaliser there waits for another runner of the model, which waits for the turn: both hung for ever."""
    said, real = [], {"warm_up": Tensors.try_batch, "batch": worker.all_modules}[where]
    first = nopad.PackRunner(model, warm_up=False)

    def nested(*args):
        if threading.current_thread() is not first._worker.thread and not said and armed:
            said.append(None)
            with suppress(TimeoutError), pytest.raises(ServingError) as caught:
                first.submit(TWO).result(3)
            said[-1] = str(caught.value)
        return real(*args)

    armed = where == "warm_up"
    if armed:
        monkeypatch.setattr(Tensors, "try_batch", nested)
    with first, nopad.PackRunner(model, warm_up=armed) as second:
        if not armed:
            monkeypatch.setattr(worker, "all_modules", nested)
            armed = True
        assert second(ONE)["last_hidden_state"].shape == (3, 8)
        assert "run of the same model" in said[0]
        assert first(ONE)["last_hidden_state"].shape == (3, 8)


def test_running_another_model_while_a_turn_is_taken(model):
    """In the same thread and in another one: a lock of all models was held meanwhile, and they hung."""
    mine = Lanes(model)
    others = [Lanes(nopad.packed(BertModel(BertConfig(**SIZES, vocab_size=50)))) for _ in range(2)]
    parts = [WeakKeyDictionary.setdefault, Lanes.alone, Lanes.in_turn]
    with ThreadPoolExecutor(1) as pool:
        for at in range(1, 60):
            found = []

            def nested(found=found):
                found.append(pool.submit(others[0].alone, list).result(3))
                found.append(others[1].alone(list))

            with Within(parts, at, nested) as within:
                assert mine.in_turn(lambda: mine.alone(lambda: 5)) == 5
            if not within.reached:
                break
            assert found == [[], []]
        assert at > 5


def test_tokenising_while_a_record_is_tokenised():
    """A tokenizer keeps the settings of a call in itself: a handler that encodes meanwhile gets an error."""
    from tests.tasks.tiny import tokenizer
    from transformers import BertForSequenceClassification

    task = nopad.tasks.Classification(tokenizer(), ["no", "yes"])
    sized = BertForSequenceClassification(BertConfig(**SIZES, vocab_size=len(task.tokenizer)))
    said = []

    def nested(runner):
        try:
            runner.submit("is it green ?")
        except ServingError as error:
            said.append(str(error))

    with nopad.PackRunner(nopad.tasks.Predictor(task, sized), warm_up=False) as runner:
        alone = runner("is it red ?")
        for at in range(1, 30):
            with Within([type(task).encode], at, lambda: nested(runner)) as within:
                assert runner("is it red ?") == alone
            if not within.reached:
                break
        assert at > 1
        assert len(said) == at - 1
        assert all("tokenises while it interrupts" in text for text in said)
