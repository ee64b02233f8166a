"""What goes wrong around a runner: each is a clear error for those concerned, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import pytest
import torch
from tests.serving.gate import WAIT, Gate
from transformers import BertConfig, BertModel

import nopad
from nopad.errors import QueueFullError, RequestError, RunnerClosedError, ServingError
from nopad.model.modes import evaluated
from nopad.serving import Batching

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
ONE = {"input_ids": [20, 21]}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nopad.packed(BertModel(BertConfig(**SIZES, vocab_size=120)).double().eval())


def caught(call, kind=ServingError):
    """Call in a callback, and return what becomes of it: the error's message, or the result."""
    try:
        return call()
    except kind as error:
        return str(error)


def test_a_model_in_training_mode_answers_nothing(model):
    with nopad.PackRunner(model) as runner:
        expected = runner(ONE)["last_hidden_state"]
        model.encoder.train()  # dropout somewhere inside is enough
        with pytest.raises(RequestError, match=r"put into training mode while it serves, .* call model.eval\(\)"):
            runner(ONE)
        model.eval()
        torch.testing.assert_close(runner(ONE)["last_hidden_state"], expected, rtol=0, atol=1e-12)
        hook = model.register_forward_hook(lambda *_: model.train() and None)
        with pytest.raises(RequestError, match="training mode"):
            runner(ONE)  # while its batch runs
        hook.remove()
        model.eval()
        assert runner(ONE)
        assert (runner.statistics.answered, runner.statistics.failed) == (3, 2)
        assert runner.healthy


def test_a_model_in_training_mode_that_another_thread_only_holds_in_evaluation_mode(model):
    # as an Embedder of the same model does while it encodes: when that ends amid a batch, dropout would be back
    with nopad.PackRunner(model) as runner:
        model.train()
        with evaluated(model):
            assert not model.training
            with pytest.raises(RequestError, match="training mode"):
                runner(ONE)
        model.eval()
        with evaluated(model):
            assert runner(ONE)


def test_a_callback_that_waits_for_its_own_runner(model):
    said = []
    with nopad.PackRunner(model) as runner:

        def callback(_):
            other = runner.submit(ONE)
            said.append(caught(lambda: other.result(WAIT)))
            said.append(caught(lambda: other.exception(WAIT)))
            said.append(caught(lambda: runner(ONE)))
            said.append(caught(lambda: runner.drain(WAIT)))
            other.add_done_callback(lambda done: said.append(sorted(done.result())))

        runner.submit(ONE).add_done_callback(callback)
        assert runner.drain(WAIT)
        while len(said) < 5:
            assert runner.drain(WAIT)
        assert runner.healthy
    assert all("this waits for a request which can run only after it: it is in a callback" in one for one in said[:3])
    assert "or a method of an answer, waits until the runner has nothing to do" in said[3]
    assert said[4] == ["last_hidden_state", "pooler_output"]


def test_a_callback_may_wait_for_another_runner(model):
    other_model = nopad.packed(BertModel(BertConfig(**SIZES)).eval())
    found = []
    with nopad.PackRunner(model) as runner, nopad.PackRunner(other_model) as other:
        runner.submit(ONE).add_done_callback(lambda _: found.append(other(ONE)))
        assert runner.drain(WAIT)
        runner(ONE)
    assert found[0]["pooler_output"].shape == (16,)


def test_a_callback_that_submits_to_a_full_queue(model):
    said, gate = [], Gate(model)
    with nopad.PackRunner(model, Batching(capacity=4, max_waiting_tokens=4), warm_up=False) as runner:
        first = runner.submit(ONE)
        first.add_done_callback(lambda _: said.append(caught(lambda: runner.submit({"input_ids": [20] * 4}))))
        assert gate.entered.wait(WAIT)
        full = [runner.submit(ONE), runner.submit(ONE)]
        gate.open.set()
        assert all(one.result(WAIT) for one in [first, *full])
        assert runner.drain(WAIT)
    assert "4 tokens wait already" in said[0]
    assert issubclass(QueueFullError, ServingError)


def test_a_callback_that_closes_its_runner(model):
    runner = nopad.PackRunner(model)
    closed = threading.Event()
    runner.submit(ONE).add_done_callback(lambda _: (runner.close(), closed.set()))
    assert closed.wait(WAIT)
    runner.close()
    assert not runner.healthy
    with pytest.raises(RunnerClosedError, match="the runner is closed"):
        runner(ONE)


async def awaited(future):
    return await asyncio.wait_for(future, WAIT)


@pytest.mark.parametrize("wait", [lambda future: future.result(WAIT), lambda future: asyncio.run(awaited(future))])
def test_a_forked_process_does_not_wait_for_its_parents_answers(model, wait):
    gate = Gate(model)
    with nopad.PackRunner(model, warm_up=False) as runner:
        future = runner.submit(ONE)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            said = caught(lambda: wait(future), RunnerClosedError)
            os.write(write, str(said).encode())
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read) as pipe:
            assert pipe.read().startswith("this runner was started in another process")
        gate.open.set()
        assert future.result(WAIT)


def test_a_worker_that_is_killed(model, caplog):
    runner = nopad.PackRunner(model)
    assert runner(ONE)
    killed = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(runner._worker.thread.ident), ctypes.py_object(SystemExit)
    )
    assert killed == 1
    with pytest.raises(RunnerClosedError, match="worker died: SystemExit"):
        [runner.submit(ONE).result(WAIT) for _ in range(100)]  # it wakes, at the latest, for the first of these
    assert not runner.healthy
    assert "the worker of a PackRunner died" in caplog.text
    runner.close()


def test_a_model_that_is_unpacked_while_it_serves(model):
    with nopad.PackRunner(model) as runner:
        assert runner(ONE)
        nopad.unpacked(model)
        held = [runner.submit({"input_ids": [20] * n}) for n in (3, 4)]
        errors = [one.exception(WAIT) for one in held]
        # Alone in a batch, a sequence needs no mask; in company, the model must not guess
        assert all(error is None or "NotPackSafeError" in str(error) for error in errors)
        assert runner.healthy
        nopad.packed(model)
        assert runner(ONE)


def test_a_warm_up_that_fails_is_logged_and_no_more(model, caplog):
    first = []

    def fails(*_):
        if not first:
            first.append(1)
            raise ValueError("not yet")

    model.register_forward_pre_hook(fails)
    with nopad.PackRunner(model) as runner:
        assert "a PackRunner could not warm up, so its first requests take longer: not yet" in caplog.text
        assert runner(ONE)


def test_a_worker_that_dies_while_it_warms_up(model, caplog):
    def dies(*_):
        raise SystemExit("gone")

    model.register_forward_pre_hook(dies)
    with pytest.raises(RunnerClosedError, match="the runner's worker died: SystemExit: gone"):
        nopad.PackRunner(model)


def test_what_was_answered_is_freed_at_once(model):
    """Without the garbage collector: a cycle would keep results, and with them memory, for a while."""
    with nopad.PackRunner(model) as runner:
        runner(ONE)
        gc.collect()
        gc.disable()
        try:
            futures = [runner.submit(ONE), runner.submit({"input_ids": [[20, 21], [22, 23]]})]
            seen = [weakref.ref(one) for one in futures]
            seen += [weakref.ref(one.result(WAIT)["last_hidden_state"]) for one in futures]
            assert runner.drain(WAIT)
            del futures
            runner(ONE)  # so that the worker has let go of the batch before
            assert runner.drain(WAIT)
            assert [one() for one in seen] == [None] * 4
        finally:
            gc.enable()


def test_a_clock_that_is_set_back(model):
    times = iter(range(10**12, 0, -(10**9)))
    with nopad.PackRunner(model, clock=lambda: next(times)) as runner:
        assert all(runner(ONE) for _ in range(20))
        assert runner.submit(ONE, deadline_s=1e6).result(WAIT)


def test_python_ends_while_a_runner_is_open_and_busy():
    code = f"""
import nopad, torch
from transformers import BertConfig, BertModel
runner = nopad.PackRunner(nopad.packed(BertModel(BertConfig(**{SIZES!r})).eval()))
runner({{"input_ids": [20, 21]}})
futures = [runner.submit({{"input_ids": [20] * 300}}) for _ in range(300)]
print("end", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert not any(word in done.stderr for word in ("Traceback", "Exception", "Fatal", "terminate"))


class Stop(BaseException):
    """What interrupts a caller, as Ctrl-C does."""


def test_a_caller_that_is_interrupted_anywhere_leaves_no_lock_taken(model):
    runner = nopad.PackRunner(model, warm_up=False)
    done = threading.Event()

    def asks():
        while not done.is_set():
            try:
                for _ in range(100):
                    runner.statistics  # noqa: B018 - takes the lock
            except Stop:
                continue

    def guarded():
        while not done.is_set():
            try:
                asks()
            except Stop:  # between two lines of `asks`
                continue

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    for _ in range(1000):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop))
        time.sleep(1e-4)
    done.set()
    thread.join(WAIT)
    lock = runner._queue.lock
    free = threading.Thread(target=lambda: lock.acquire() and lock.release(), daemon=True)
    free.start()
    free.join(WAIT / 6)
    assert not free.is_alive()
    assert runner(ONE)
    runner.close()
