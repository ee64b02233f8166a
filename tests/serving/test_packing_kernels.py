from __future__ import annotations

from types import FunctionType

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from nopad.serving import Batching
from nopad.serving import _packing_kernels as kernels
from nopad.serving import _placing_kernels as placing
from nopad.serving.batching import POLICIES

PLAIN = {**vars(placing), **vars(kernels)}
COMPILED = {name: value for name, value in PLAIN.items() if isinstance(value, Dispatcher)}
PLAIN.update({name: FunctionType(kernel.py_func.__code__, PLAIN) for name, kernel in COMPILED.items()})
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
    n = int(rng.choice([1, 4, 30])) if n is None else n
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
    state, table = np.array([7, 7, 0, kernels.NEVER, kernels.NEVER, 0], np.int64), np.zeros((60, 6), np.int64)
    PLAIN["arrive"](state, table, requests)
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
    return rng.integers(0, 60, 4), 50, a_limit(rng)


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


def case_remove(rng):
    state, table = waiting(rng)
    gone = np.flatnonzero(rng.random(table.shape[0]) < 0.4)
    gone = gone[(gone >= state[0]) & (gone < state[1])]
    table[gone, kernels.LENGTH] = 0
    return state, table, int(gone[-1]) if gone.size else int(state[0])


def case_take(rng):
    state, table = waiting(rng)
    return state, table, int(rng.integers(state[0], state[1]))


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
    return *waiting(rng), int(rng.choice([0, NOW, 3 * NOW])), np.zeros(40, np.int64)


def case_among_all(rng):
    index = np.flatnonzero(rng.random(12) < 0.4) + 5
    return index, 5, 12, *places(index.size)


def case_decide(rng):
    state, table = waiting(rng)
    if rng.random() < 0.1:
        state[0] = state[1]
    made = np.zeros((4, state[1] - state[0]), np.int64)
    return state, table, a_limit(rng), int(rng.choice([NOW, NOW + 2000])), *rng.integers(0, 2, 2).tolist(), made


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
        check_twins(lambda *args: np.asarray(compiled(*args)).tolist(), lambda *args: listed(plain(*args)), arguments)

    def listed(value):
        return np.asarray(value).tolist()

    return check
