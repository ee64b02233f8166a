from __future__ import annotations

import time

import numpy as np
import pytest
from numba import njit
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock

from nopad.planning.stopwatch import Stopwatch


def test_time_under_the_compiler_lock_does_not_count():
    begin = time.perf_counter()
    with Stopwatch() as watch:
        with global_compiler_lock:
            held = time.perf_counter()
            with global_compiler_lock:  # numba nests it; it counts once
                time.sleep(0.3)
            held = time.perf_counter() - held
        time.sleep(0.01)
    whole = time.perf_counter() - begin
    assert watch.compiling >= held >= 0.3
    assert watch.compiling + watch.seconds <= whole
    assert watch.seconds >= 0.01


def test_a_first_call_is_compiled_outside_the_clock():
    @njit
    def total(values):
        found = 0
        for value in values:
            found += value
        return found

    begun = time.perf_counter()
    with event.install_listener("numba:compile", event.TimingListener()) as compiled, Stopwatch() as watch:
        assert total(np.arange(5)) == 10
    assert watch.compiling >= compiled.duration > 0
    assert watch.seconds <= time.perf_counter() - begun - compiled.duration
    with Stopwatch() as again:
        assert total(np.arange(5)) == 10
    assert again.compiling == 0


def test_an_error_passes_and_no_listener_stays():
    before = sum(map(len, event._registered.values()))
    with pytest.raises(ZeroDivisionError), Stopwatch():
        _ = 1 / 0
    assert sum(map(len, event._registered.values())) == before
