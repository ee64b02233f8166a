from __future__ import annotations

from types import FunctionType

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from nopad import _sort_kernels as sorting
from nopad.serving import Batching
from nopad.serving import _packing_kernels as kernels
from nopad.serving import _placing_kernels as placing
from nopad.serving.batching import POLICIES

PLAIN = {**vars(sorting), **vars(placing), **vars(kernels)}
ALL = {name: value for name, value in PLAIN.items() if isinstance(value, Dispatcher)}
COMPILED = {name: value for name, value in ALL.items() if name not in vars(sorting)}
PLAIN.update({name: FunctionType(kernel.py_func.__code__, PLAIN) for name, kernel in ALL.items()})
NOW = 10_000


def a_limit(rng, **given):
    rows = rng.choice([None, 1, 3])
    options = {
        "capacity": 50,
        "rows": None if rows is None else int(rows),
        "policy": str(rng.choice(POLICIES)),
        "max_sequences": [None, 1, 6][rng.integers(3)],
        "separator": int(rng.integers(3)),
        "window": int(rng.choice([1, 8, 128])),
        "wait_s": [None, 1e-6, 1.0][rng.integers(3)],
        "keep_order": [None, True, False][rng.integers(3)],
        "age_step_s": 1e-6,
    }
    return Batching(**{**options, **given}).limits()


def some_requests(rng, n=None):
    n = int(rng.choice([1, 4, 30, 150])) if n is None else n
    made = np.zeros((n, 6), np.int64)
    made[:, kernels.NUMBER] = np.sort(rng.permutation(4 * n)[:n])
    made[:, kernels.LENGTH] = rng.integers(1, 51, n)
    made[:, kernels.ARRIVED] = np.sort(rng.integers(0, NOW + 1, n))
    made[:, kernels.DEADLINE] = np.where(rng.random(n) < 0.5, kernels.NEVER, rng.integers(0, 3 * NOW, n))
    made[:, kernels.DUE] = np.minimum(kernels.NEVER, made[:, kernels.DEADLINE] - 500 * rng.integers(0, 2))
    made[:, kernels.PRIORITY] = rng.choice([0, 0, 2, -2], n) * int(rng.integers(2))
    return made


def waiting(rng):
    requests = some_requests(rng)
    state = np.array([7, 7, 0, kernels.NEVER, kernels.NEVER, 0, 0, 0], np.int64)
    table = np.zeros((200, 6), np.int64, order="F")
    PLAIN["arrive"](state, table, requests)
    for at in range(8, state[1]):  # gaps, but not in the first row
        if rng.random() < 0.2:
            PLAIN["take"](state, table, at)
    return state, table


def places(n):
    return np.full(n, -1, np.int64), np.zeros(n, np.int64)


def lengths_of(rng):
    return rng.integers(1, 51, int(rng.choice([1, 5, 40])))


def case_after(rng):
    return int(rng.integers(3)), int(rng.integers(3))


def case_place_in_order(rng):
    lengths = lengths_of(rng)
    return lengths, a_limit(rng), int(rng.integers(2)), *places(lengths.size)


def case_is_crossing(rng):
    return (a_limit(rng),)


def case_row_for(rng):
    fill = np.array([[0], [40, 49, 0], [50, 30, 45]][rng.integers(3)])
    return fill, int(rng.integers(1, 30)), 50, a_limit(rng)


def case_top_up(rng):
    lengths, limits = lengths_of(rng), a_limit(rng)
    row, start = places(lengths.size)
    if rng.random() < 0.7:
        PLAIN["place_in_order"](lengths[:3], limits, 1, row[:3], start[:3])
    return lengths, limits, int(rng.integers(2)), row, start


def case_widest_of(rng):
    return rng.integers(0, 60, 4), a_limit(rng)


def case_filled(rng):
    lengths, limits = lengths_of(rng), a_limit(rng)
    row, start = places(lengths.size)
    PLAIN["place_in_order"](lengths, limits, 0, row, start)
    return lengths, limits, row, start


def case_put(rng):
    return np.array([25, 49, 0]), int(rng.integers(1, 26)), a_limit(rng, rows=3)


def case_stopped(rng):
    return int(rng.integers(1, 8)), 8, int(rng.integers(-1, 3)), a_limit(rng)


def case_room_of(rng):
    return (a_limit(rng),)


def case_best_fit_decreasing(rng):
    lengths = lengths_of(rng)
    zeros = [np.zeros(lengths.size, np.int64) for _ in range(3)]
    rows = int(rng.choice([2, lengths.size]))
    return lengths, rng.permutation(lengths.size), a_limit(rng, rows=3), rows, *places(lengths.size), *zeros


def case_look_ahead(rng):
    lengths = lengths_of(rng)
    return lengths, rng.integers(0, 4, lengths.size), a_limit(rng, policy="look_ahead"), *places(lengths.size)


def case_urgency(rng):
    n = int(rng.integers(5))
    return rng.integers(0, kernels.LEVELS, n), rng.integers(0, 50, n)


def case_look_ahead_in_order(rng):
    lengths = lengths_of(rng)
    return lengths, a_limit(rng, rows=3, policy="look_ahead"), *places(lengths.size)


def case_candidates(rng):
    return *waiting(rng), a_limit(rng), NOW


def case_levels_of(rng):
    state, table = waiting(rng)
    return table, np.arange(state[0], state[1]), a_limit(rng), NOW


def case_most_urgent(rng):
    levels = rng.integers(0, 4, int(rng.integers(1, 40)))
    return levels, int(rng.integers(1, levels.size + 1))


def case_keep_highest(rng):
    levels = rng.integers(0, 4, int(rng.integers(1, 40)))
    kept = np.flatnonzero(rng.random(levels.size) < 0.8) if levels.size > 1 else np.zeros(1, np.int64)
    kept = kept if kept.size else np.zeros(1, np.int64)
    return levels, kept, int(rng.integers(1, kept.size + 1))


def case_lengths_of(rng):
    state, table = waiting(rng)
    return table, rng.permutation(np.arange(state[0], state[1]))


def case_copy(rng):
    state, table = waiting(rng)
    return some_requests(rng, 4), 2, table, int(state[0])


def case_ahead(rng):
    state, table = waiting(rng)
    deadline, lengths = int(rng.integers(NOW, 2 * NOW)), rng.integers(1, 12, int(rng.integers(1, 4)))
    limits = a_limit(rng, policy="first_fit" if rng.random() < 0.2 else "look_ahead")
    return state, table, limits, deadline, lengths


def case_waiting_of(rng):
    return (waiting(rng)[0],)


def case_close(rng):
    state, table = waiting(rng)
    for at in range(state[0], state[1]):
        if table[at, kernels.LENGTH] < kernels.GONE and rng.random() < 0.3:
            PLAIN["take"](state, table, at)
    return state, table


def case_shortest(rng):
    state, table = waiting(rng)
    return table, int(state[0]), int(state[1])


def case_take(rng):
    state, table = waiting(rng)
    return state, table, int(state[0])


def case_is_urgent(rng):
    state, table = waiting(rng)
    return table, int(state[0])


def case_arrive(rng):
    return *waiting(rng), some_requests(rng, 9)


def case_cancel(rng):
    return *waiting(rng), int(rng.integers(-1, 60))


def case_look(rng):
    return waiting(rng)


def case_expire(rng):
    return *waiting(rng), int(rng.choice([0, NOW, 3 * NOW])), np.zeros(200, np.int64)


def case_top_up_later(rng):
    state, table = waiting(rng)
    limits = a_limit(rng, max_sequences=[None, 6][rng.integers(2)], policy="look_ahead")
    there = np.flatnonzero(table[:, kernels.LENGTH] < kernels.GONE)
    there = there[(there >= state[0]) & (there < state[1])]
    index = there[(rng.random(there.size) < 0.4) | (there == state[0])][:50]
    row, start = places(index.size)
    PLAIN["place_in_order"](table[index, kernels.LENGTH], limits, 0, row, start)
    return state, table, limits, index, row, start


def case_decide(rng):
    state, table = waiting(rng)
    if rng.random() < 0.1:
        state[0], state[6] = state[1], 0
    made = np.zeros((4, state[1] - state[0]), np.int64)
    return state, table, a_limit(rng), int(rng.choice([NOW, NOW + 2000])), *rng.integers(0, 2, 3).tolist(), made


CASES = {name.removeprefix("case_"): case for name, case in vars().items() if name.startswith("case_")}


def test_every_kernel_has_a_case():
    assert CASES.keys() == COMPILED.keys()


@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_plain(name, check_results):
    for seed in range(40):
        check_results(COMPILED[name], PLAIN[name], CASES[name](np.random.default_rng(seed)))


@pytest.fixture
def check_results(check_twins):
    """As `check_twins`, for loops that return arrays too."""

    def check(compiled, plain, arguments):
        check_twins(lambda *args: listed(compiled(*args)), lambda *args: listed(plain(*args)), arguments)

    def listed(value):
        return [listed(one) for one in value] if isinstance(value, tuple) else np.asarray(value).tolist()

    return check
