"""Ctrl-C at any moment, and forks while a lock is held: only the call that was interrupted fails, and nobody hangs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest
from tests.serving.gate import of_queue
from transformers import BertConfig, BertModel

import nopad
from nopad.errors import RunnerClosedError
from nopad.serving import Batching, OnlinePacker
from nopad.serving.queue import RequestQueue

INTERRUPTED = """
import faulthandler, random, signal, sys, threading
faulthandler.dump_traceback_later(800, exit=True)
import torch
from transformers import BertConfig, BertModel
import nopad
from nopad.serving import Batching

from tests.serving.gate import of_queue

class Stop(BaseException):
    pass

def interrupt(*_):
    raise Stop

torch.set_num_threads(1)
sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
model = nopad.packed(BertModel(BertConfig(**sizes, vocab_size=50)))
draw, hits, way, most = random.Random(0), 0, sys.argv[1], int(sys.argv[2])
requests = [{"input_ids": [1] * draw.randint(1, 5)} for _ in range(300)]
signal.signal(signal.SIGALRM, interrupt)
with nopad.PackRunner(model, Batching(capacity=256, max_waiting_tokens=512 if way == "block" else 1 << 20)) as runner:
    expected = runner({"input_ids": [1, 2, 3]})["last_hidden_state"]
    while hits < most:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, 0.02), 0.5)  # again: callbacks swallow it
                while True:
                    if way == "submit":
                        runner.submit(requests[draw.randrange(300)])
                    else:
                        runner(requests)
            except (Stop, RuntimeError):  # of a Python condition that was interrupted between two lines
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Stop:
            signal.setitimer(signal.ITIMER_REAL, 0)
        hits += 1
        found = []
        other = threading.Thread(target=lambda: found.append(runner({"input_ids": [1, 2, 3]})["last_hidden_state"]))
        other.start()
        other.join(30)
        assert found and torch.allclose(found[0], expected, rtol=0, atol=1e-6), (hits, found, runner.statistics)
        assert runner.drain(30), (hits, runner.statistics)
        assert runner.statistics.packer.waiting == runner.statistics.packer.waiting_tokens == 0
        assert runner.healthy
print("answered")
"""


@pytest.mark.parametrize("times", [20, pytest.param(400, marks=pytest.mark.soak)])
@pytest.mark.parametrize("way", ["submit", "call", "block"])
def test_an_interrupt_at_any_moment_harms_nobody_else(way, times, warm_python):
    warm_python.load("transformers.models.bert.modeling_bert", "nopad.admitting", "nopad.serving.runner")
    said, errors = warm_python("-c", INTERRUPTED, way, times).communicate(timeout=900)
    assert said == "answered\n", errors


PARTS = [
    *(RequestQueue._enter, RequestQueue._admit, RequestQueue._withdraw, RequestQueue._remove),
    *(OnlinePacker.add_all, OnlinePacker._checked, OnlinePacker._settle, OnlinePacker.cancel),
]


@pytest.mark.parametrize("what", ["submit", "cancel"])
def test_an_interrupt_at_each_line_that_adds_or_removes_a_request(what):
    """In turn; the requests of others, in the same batch, are answered, and nothing stays behind."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = nopad.packed(BertModel(BertConfig(**sizes, vocab_size=50)))
    codes = {part.__code__ for part in PARTS}
    reached = 0
    with nopad.PackRunner(model, Batching(capacity=64, accumulate=True, wait_s=0.05)) as runner:
        for at in range(1, 80):
            seen = 0

            def trace(frame, event, _, at=at):
                nonlocal seen
                if frame.f_code in codes:
                    seen += event == "line"
                    if seen == at:
                        sys.settrace(None)
                        raise KeyboardInterrupt
                return trace

            other, before = runner.submit({"input_ids": [1, 2]}), sys.gettrace()
            mine = runner.submit({"input_ids": [3, 4, 5]}) if what == "cancel" else None
            sys.settrace(trace)
            try:
                mine.cancel() if mine else runner.submit({"input_ids": [3, 4, 5]})
            except KeyboardInterrupt:
                reached += 1
            finally:
                sys.settrace(before)
            assert other.result(30)["last_hidden_state"].shape == (2, 8)
            assert runner.drain(30)
            assert (runner.statistics.packer.waiting, runner.statistics.packer.waiting_tokens) == (0, 0)
        assert runner.healthy
    assert reached >= (15 if what == "submit" else 1)  # callbacks of futures log what they raise


def test_a_process_that_is_forked_while_locks_are_held_hangs_nowhere():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    with nopad.PackRunner(nopad.packed(BertModel(BertConfig(**sizes, vocab_size=50)))) as runner:
        future = runner.submit({"input_ids": [1, 2]})
        future.result(60)
        waiting = of_queue(RequestQueue(Batching(capacity=64), "block", time.monotonic_ns, lambda: False))
        held, done = threading.Event(), threading.Event()

        def hold():
            with runner._queue.lock, waiting._condition:
                held.set()
                done.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(60)
        child = os.fork()
        if not child:
            signal.alarm(30)  # instead of a hang
            refused = 0
            for call in (
                lambda: runner.submit({"input_ids": [1]}),
                lambda: runner({"input_ids": [1]}),
                lambda: runner.statistics,
                lambda: runner.drain(1),
                lambda: waiting.result(1),
            ):
                try:
                    call()
                except RunnerClosedError:
                    refused += 1
            waiting.cancel()
            future.cancel()
            runner.close()
            os._exit(refused)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        done.set()
        thread.join()
        assert status == 5
        assert runner({"input_ids": [1, 2]})
