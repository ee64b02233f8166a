"""An iterator that is still open when Python ends, whatever holds it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import nopad
from nopad.threads import new_lock

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


# These renew their locks themselves, or check the process.
OWN = {"threads.py", "serving/queue.py", "serving/worker.py", "tasks/lanes.py"}


def test_every_lock_is_free_after_a_fork():
    source = Path(nopad.__file__).parent
    files = [path for path in source.rglob("*.py") if re.search(r"\bR?Lock\(\)", path.read_text())]
    assert {str(path.relative_to(source)) for path in files} == OWN
