"""Callers that find the queue full: they enter in order, and none is kept out by others."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.serving.gate import WAIT, Gate
from transformers import LlamaConfig, LlamaModel

import nopad
from nopad.errors import DeadlineError, LengthError, QueueFullError, RunnerClosedError
from nopad.serving import Batching

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
FULL = Batching(capacity=10, max_waiting_tokens=20)


def of(tokens):
    return {"input_ids": [20] * tokens}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nopad.packed(LlamaModel(LlamaConfig(**SIZES, vocab_size=30, max_position_embeddings=8000)).eval())


class Callers:
    """Threads that submit one after another: each is in the line before the next one comes."""

    def __init__(self, runner, pool):
        self.runner, self.pool, self.line = runner, pool, runner._queue._line
        self.entered, self.first = [], None

    def submit(self, tokens, **how):
        def call():
            future = self.runner.submit(of(tokens), **how)
            self.entered.append(tokens)
            return future

        before = len(self.line)
        made = self.pool.submit(call)
        end = time.monotonic() + WAIT
        while len(self.line) == before and not made.done():
            assert time.monotonic() < end
            time.sleep(0.001)
        return made


@pytest.fixture
def full(model):
    """A runner whose model is held, with a full queue; and callers that come to it."""
    gate = Gate(model)
    with nopad.PackRunner(model, FULL, warm_up=False) as runner, ThreadPoolExecutor(8) as pool:
        first = runner.submit(of(2))
        assert gate.entered.wait(WAIT)
        held = [first, runner.submit(of(10)), runner.submit(of(8))]  # 2 tokens of room are left
        callers = Callers(runner, pool)
        callers.first = first
        yield runner, gate, callers
        gate.open.set()
        assert all(one.result(WAIT) for one in held)


def test_nobody_overtakes_a_long_request(full):
    runner, gate, callers = full
    made = [callers.submit(tokens) for tokens in (20, 1, 5, 1)]
    assert [len(callers.line), callers.entered] == [4, []]  # though one token more would fit
    gate.open.set()
    assert all(one.result(WAIT).result(WAIT) for one in made)
    assert sorted(callers.entered) == [1, 1, 5, 20]
    seen = runner.statistics.packer
    assert (seen.refused, seen.packed, seen.waiting) == (0, 7, 0)


def test_a_request_of_8000_tokens_is_not_kept_out_by_a_steady_stream(model):
    """Callers that submit one short request after another, so that there is never room for 8,000 tokens by itself."""
    gate, before, enough = Gate(model), [], threading.Event()
    batching = Batching(capacity=1000, max_waiting_tokens=8000)
    with nopad.PackRunner(model, batching, warm_up=False) as runner, ThreadPoolExecutor(9) as pool:
        callers = Callers(runner, pool)

        def stream():
            sent = 0
            while sent < 1000 or (sent < 20_000 and not enough.is_set()):
                runner.submit(of(10))
                sent += 1

        streams = [pool.submit(stream) for _ in range(8)]
        end = time.monotonic() + WAIT
        while len(callers.line) < 8:  # 900 requests fit
            assert time.monotonic() < end
            time.sleep(0.001)
        made = callers.submit(8000)
        assert list(callers.line)[8:]
        gate.open.set()
        future = made.result(WAIT)
        enough.set()
        before.append(runner.statistics.answered)
        assert future.result(WAIT)["last_hidden_state"].shape == (8000, 8)
        for one in streams:
            one.result(WAIT)
        assert runner.drain(WAIT)
    assert before[0] <= 900 + 8


def test_who_waits_too_long_makes_way(full):
    _, gate, callers = full
    late, short, long = callers.submit(20, deadline_s=0.05), callers.submit(2), callers.submit(20)
    with pytest.raises(DeadlineError):
        late.result(WAIT)
    assert short.result(WAIT)  # there was room for it
    assert callers.entered == [2]
    gate.open.set()
    assert long.result(WAIT).result(WAIT)


def test_what_never_fits_does_not_wait(full):
    runner, _, callers = full
    callers.submit(20)
    for tokens in (21, 9000):
        with pytest.raises(LengthError):
            runner.submit(of(tokens))
    assert len(callers.line) == 1


def test_a_callback_does_not_overtake(full):
    runner, gate, callers = full
    said, done = [], threading.Event()

    def callback(_):
        try:
            runner.submit(of(1))
        except QueueFullError as error:
            said.append(str(error))
        done.set()

    callers.first.add_done_callback(callback)
    long = callers.submit(20)
    gate.open.set()
    assert done.wait(WAIT)
    assert said == [
        "other callers wait for room already (1), and a callback, or code within a run of the same model, cannot wait "
        "behind them; submit in another thread, or raise max_waiting_tokens"
    ]
    assert long.result(WAIT).result(WAIT)
    assert runner.statistics.packer.refused == 1


def test_all_who_wait_are_told_when_the_runner_closes(full):
    runner, gate, callers = full
    made = [callers.submit(tokens) for tokens in (20, 5, 20)]
    closing = callers.pool.submit(runner.close)
    for one in made:
        with pytest.raises(RunnerClosedError, match="the runner is closed"):
            one.result(WAIT)
    gate.open.set()
    closing.result(WAIT)


def test_who_accumulates_does_not_wait_while_nobody_can_enter(model):
    """The queue is full, so its batch is as full as it gets."""
    batching = Batching(capacity=64, max_waiting_tokens=8, wait_s=60.0, accumulate=True)
    with nopad.PackRunner(model, batching) as runner:
        futures = [runner.submit({"input_ids": [1] * 5}) for _ in range(4)]  # each after the first waits for room
        assert all(len(future.result(30)["last_hidden_state"]) == 5 for future in futures[:-1])
        assert runner.statistics.packer.flushes["full"] == 3
        runner.close()
        assert len(futures[-1].result(30)["last_hidden_state"]) == 5
