"""Many callers at once: more than the queue holds, and callers that give up."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import torch
from tests.serving.gate import WAIT, Gate
from tests.serving.test_runner import a_model, alone, close, some_ids

import nopad
from nopad.errors import QueueFullError
from nopad.serving import Batching

ROOM = 200  # tokens that wait at most
FLOOD = Batching(capacity=64, max_waiting_tokens=ROOM)


def a_request(n):
    return {"input_ids": np.full(10, 20 + n % 90)}


def recovers(runner, gate):
    """Open the gate; return how many seconds a new request then takes, with all the queue before it."""
    begin = time.monotonic()
    gate.open.set()
    runner({"input_ids": [20]})
    return time.monotonic() - begin


def test_a_flood_is_refused_at_the_brim():
    """Ten times what the queue holds, at once: what is accepted is answered, and the rest leaves nothing behind."""
    plain, model = a_model(dtype=torch.float32), nopad.packed(a_model(dtype=torch.float32))
    gate = Gate(model)
    with nopad.PackRunner(model, FLOOD, when_full="raise", warm_up=False) as runner:
        first = runner.submit({"input_ids": [20]})
        assert gate.entered.wait(WAIT)
        accepted, refused, kept = {}, 0, []
        for n in range(10 * ROOM // 10):
            request = a_request(n)
            kept.append(weakref.ref(request["input_ids"]))
            try:
                accepted[n] = runner.submit(request)
            except QueueFullError:
                refused += 1
            del request
        assert (len(accepted), refused) == (ROOM // 10, 180)
        gc.collect()
        assert sum(one() is not None for one in kept) <= ROOM // 10
        assert runner.statistics.packer.waiting_tokens == ROOM
        gate.open.set()
        assert first.result(WAIT)
        for n, future in accepted.items():
            for name, value in alone(plain, a_request(n)["input_ids"].tolist()).items():
                assert torch.allclose(future.result(WAIT)[name], value, rtol=0, atol=1e-6)
        assert runner.drain(WAIT)
        assert (runner.statistics.answered, runner.statistics.failed) == (21, 0)
        gate.open.clear()
        assert runner.submit({"input_ids": [20] * 10})
        for n in range(ROOM // 10 - 2):
            runner.submit(a_request(n))
        assert recovers(runner, gate) < 1


def test_callers_of_a_flood_wait_in_line():
    """Forty callers with five requests each: those that do not fit wait, and only what fits is in the queue."""
    model = nopad.packed(a_model(dtype=torch.float32))
    gate, most, entered = Gate(model), [], threading.Semaphore(0)
    with nopad.PackRunner(model, FLOOD, warm_up=False) as runner, ThreadPoolExecutor(40) as pool:

        def caller(n):
            entered.release()
            return [runner.submit(a_request(n + at)) for at in range(5)]

        calls = [pool.submit(caller, n) for n in range(40)]
        assert gate.entered.wait(WAIT)
        for _ in calls:
            assert entered.acquire(timeout=WAIT)
        while (waiting := runner.statistics.packer.waiting_tokens) < ROOM:
            time.sleep(0.001)
        for _ in range(20):
            most.append(runner.statistics.packer.waiting_tokens)
            time.sleep(0.001)
        assert {waiting, *most} == {ROOM}
        assert not all(call.done() for call in calls)
        gate.open.set()
        answers = [future.result(WAIT) for call in calls for future in call.result(WAIT)]
        assert len(answers) == runner.statistics.answered == 200
        assert runner.statistics.packer.waiting_tokens == 0


@pytest.mark.parametrize("room", [64, 1 << 20], ids=["in line for room", "in the queue"])
def test_a_thousand_callers_that_cancel_at_random(room):
    """Half of them, from other threads than those that submit, and at moments of their own."""
    plain, model = a_model(), nopad.packed(a_model())
    sequences, left = some_ids(1000, longest=8), []
    with nopad.PackRunner(model, Batching(capacity=64, max_waiting_tokens=room)) as runner:

        def caller(n):
            draw = random.Random(n)
            future = runner.submit({"input_ids": sequences[n]})
            if draw.random() < 0.5:
                time.sleep(draw.choice([0, 0, 1e-4, 1e-3]))
                threading.Thread(target=future.cancel).start() if draw.random() < 0.1 else future.cancel()
            try:
                found = future.result(WAIT)
            except CancelledError:
                left.append(n)
                return
            if n % 20 == 0:
                close(found, alone(plain, sequences[n]))

        with ThreadPoolExecutor(32) as pool:
            for call in [pool.submit(caller, n) for n in range(1000)]:
                call.result(WAIT)
        assert runner.drain(WAIT)
        seen = runner.statistics
    assert 0 < len(left) < 600
    assert seen.answered + len(left) == 1000
    assert seen.packer.waiting == seen.packer.waiting_tokens == seen.failed == 0


def test_a_thousand_coroutines_of_which_half_are_cancelled():
    model, sequences = nopad.packed(a_model()), some_ids(1000, longest=8)

    async def one(runner, n):
        return await runner.submit({"input_ids": sequences[n]})

    async def all_of(runner):
        draw = random.Random(1)
        tasks = [asyncio.create_task(one(runner, n)) for n in range(1000)]
        await asyncio.sleep(0)  # each has submitted
        for task in draw.sample(tasks, 500):
            task.cancel()
            if draw.random() < 0.05:
                await asyncio.sleep(0.001)
        found = []
        for n, task in enumerate(tasks):
            with suppress(asyncio.CancelledError):
                found.append((n, await task))
        return found

    with nopad.PackRunner(model, Batching(capacity=64)) as runner:
        found = asyncio.run(all_of(runner))
        assert runner.drain(WAIT)
        seen = runner.statistics
    assert 500 <= len(found) < 1000
    assert all(len(result["last_hidden_state"]) == len(sequences[n]) for n, result in found)
    assert seen.answered >= len(found)  # a coroutine may be cancelled after its answer, before it is woken
    assert seen.packer.waiting == seen.packer.waiting_tokens == seen.failed == 0
