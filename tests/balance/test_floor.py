from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.balance import floor, needs_context_parallelism, report
from nopad.errors import BalanceError, OptionError


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.integers(1, 3))
def test_no_deal_is_below_the_floor(costs, world):
    mean = sum(costs) / world
    best = min(
        max(sum(c for c, r in zip(costs, ranks, strict=True) if r == rank) for rank in range(world))
        for ranks in itertools.product(range(world), repeat=len(costs))
    )
    assert best / mean - 1 >= floor(costs, world) - 1e-12


def test_the_floor_of_one_long_unit():
    assert floor([30, 10, 10, 10], 4) == 1.0
    assert floor([10, 10, 10, 10], 4) == 0.0
    assert floor([1] * 5, 4) == pytest.approx(2 / 1.25 - 1)
    assert floor([0, 0], 2) == 0.0


def test_units_that_need_context_parallelism():
    costs = [10] * 30 + [100, 70, 56]  # 526 / 8 ranks = 65.75
    assert needs_context_parallelism(costs, 8).tolist() == [30]
    assert needs_context_parallelism(costs, 8, above=0.05).tolist() == [30, 31]
    assert needs_context_parallelism(costs, 1).tolist() == []
    assert bool(needs_context_parallelism(costs, 8).size) == (floor(costs, 8) > 0.10)


def test_a_report():
    result = report([[4, 2], [3, 3], [10, 0]], floors=[0.0, 0.0, 0.6])
    assert (result.steps, result.floor) == (3, pytest.approx(0.2))
    assert (result.least, result.most, result.mean) == (5 / 3, 17 / 3, 11 / 3)
    assert result.waste == pytest.approx((1 / 3 + 0 + 1) / 3)
    assert result.abr == pytest.approx((1 / 4 + 0 + 1 / 2) / 3)
    assert report([[1]]).floor is None


def test_micro_steps_add_up():
    result = report([[[4, 2], [1, 3]], [[2, 2], [2, 2]]])
    assert (result.least, result.most, result.mean) == ((3 + 4) / 2, (7 + 4) / 2, (5 + 4) / 2)
    assert result.waste == pytest.approx((7 / 5 + 1) / 2 - 1)
    assert report([[5, 5], [4, 4]]).waste == 0  # the same ranks, if they wait once a step


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: floor([], 2), BalanceError, "there are no units"),
        (lambda: floor([1], 0), OptionError, "world_size must be an integer"),
        (lambda: floor([-1], 1), BalanceError, "cost -1 at index 0"),
        (lambda: report([1, 2]), BalanceError, r"costs of ranks must be \[steps, ranks\]"),
        (lambda: report(np.zeros((0, 4))), BalanceError, r"costs of ranks must be \[steps, ranks\]"),
        (lambda: report([[1, 2], [0, 0]]), BalanceError, "step 1 has no cost on any rank"),
    ],
)
def test_wrong_use(call, error, message):
    with pytest.raises(error, match=message):
        call()
