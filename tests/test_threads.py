"""An iterator that is still open when Python ends, whatever holds it."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
