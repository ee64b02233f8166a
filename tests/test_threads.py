"""An iterator that is still open when Python ends, whatever holds it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import nopad
from nopad.properties import cached_property
from nopad.threads import Blocks, new_lock

OPEN = """
import nopad
held = iter(nopad.PackedLoader([[1] * (n % 50 + 1) for n in range(2000)], capacity=128, rows=4))
next(held)
import {module} as module
module.kept = held
"""
HELD = ["queue", "threading", "concurrent.futures.thread", "numpy.linalg"]


@pytest.mark.parametrize("module", HELD)
def test_an_iterator_left_open_says_nothing_when_python_ends(module):
    ended = subprocess.run(
        [sys.executable, "-c", OPEN.format(module=module)], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_lock_that_another_thread_holds_is_free_in_a_forked_process():
    lock, held, done = new_lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(timeout=10) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not lock.acquire(blocking=False)  # here it is still held
    done.set()
    thread.join()


class Slow:
    begun, done = threading.Event(), threading.Event()

    @cached_property
    def own(self):
        """Wait in other threads than the main one."""
        if threading.current_thread() is not threading.main_thread():
            self.begun.set()
            self.done.wait(60)
        return [id(self)]


def test_a_property_that_another_thread_computes_is_free_in_a_forked_process():
    thread = threading.Thread(target=lambda: Slow().own)
    thread.start()
    assert Slow.begun.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(20)  # instead of a hang
        other = Slow()
        os._exit(0 if other.own is other.own else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    Slow.done.set()
    thread.join()


def test_no_property_has_a_lock():
    source = Path(nopad.__file__).parent
    files = [str(path.relative_to(source)) for path in source.rglob("*.py") if "cached_property" in path.read_text()]
    wrong = [name for name in files if re.search(r"functools import.*cached_property", (source / name).read_text())]
    assert (len(files) > 15, wrong) == (True, ["properties.py"])


class Thing:
    held = False


def test_blocks_of_other_threads_end_in_a_forked_process():
    ours, theirs, both = Thing(), Thing(), Thing()
    blocks = Blocks(lambda one: setattr(one, "held", True), lambda one: setattr(one, "held", False))
    held, done = threading.Event(), threading.Event()

    def hold():
        with blocks.open(lambda: [theirs, both]):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    with blocks.open(lambda: [ours, both]):
        child = os.fork()
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0b11
            done.set()
            thread.join()
            assert (ours.held, theirs.held, both.held, theirs in blocks) == (True, False, True, False)
        else:
            amid = (ours.held, theirs.held, both.held, theirs in blocks) == (True, False, True, False)
    after = not (ours.held or theirs.held or both.held or both in blocks)
    if not child:
        os._exit(amid + 2 * after)
    assert after


INTERRUPTED = """
import random, signal, sys
from nopad.threads import Blocks

class Thing:
    held = False

class TooLong(Exception):
    pass

kind = {"KeyboardInterrupt": KeyboardInterrupt, "TooLong": TooLong}[sys.argv[1]]

def interrupt(*_):
    raise kind

things, draw, hits = [Thing() for _ in range(50)], random.Random(0), 0
blocks = Blocks(lambda one: setattr(one, "held", True), lambda one: setattr(one, "held", False))
signal.signal(signal.SIGALRM, interrupt)
with blocks.open(lambda: things[:1]):
    while hits < 3000:
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 2e-4))
            while True:
                with blocks.open(lambda: things):
                    pass
        except kind:
            hits += 1
        found = [one.held for one in things], [one in blocks for one in things], blocks.lock._is_owned()
        assert found == ([True] + [False] * 49, [True] + [False] * 49, False), (hits, found)
assert not any(one.held or one in blocks for one in things)
print(hits)
"""


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "TooLong"])
def test_a_signal_at_any_moment_leaves_no_block_open(kind):
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, kind], capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr) == ("3000\n", "")


# These renew their locks themselves, or check the process.
OWN = {"threads.py", "serving/answer.py", "serving/queue.py", "tasks/lanes.py"}


def test_every_lock_is_free_after_a_fork():
    source = Path(nopad.__file__).parent
    files = [path for path in source.rglob("*.py") if re.search(r"\bR?Lock\(\)", path.read_text())]
    assert {str(path.relative_to(source)) for path in files} == OWN


class Held:
    on = False


def begin(one):
    one.on = True


def end(one):
    one.on = False


def test_a_block_that_ends_at_any_line_of_another_one_that_opens():
    """As the garbage collector ends one that nobody holds any more."""
    reached = 0
    for at in range(1, 60):
        one, blocks, left = Held(), Blocks(begin, end), at
        other = blocks.open(lambda one=one: [one])
        other.__enter__()

        def trace(frame, event, _, other=other):
            nonlocal left, reached
            if frame.f_code.co_name == "open" and event == "line":
                left -= 1
                if not left:
                    sys.settrace(None)
                    reached += 1
                    other.__exit__(None, None, None)
            return trace

        block, before = blocks.open(lambda one=one: [one]), sys.gettrace()
        sys.settrace(trace)
        try:
            block.__enter__()
        finally:
            sys.settrace(before)
        assert one.on
        assert one in blocks
        block.__exit__(None, None, None)
        if left > 0:
            other.__exit__(None, None, None)
        assert not one.on
        assert one not in blocks
    assert reached > 5
