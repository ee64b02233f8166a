from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nopad import random
from nopad.balance import METHODS, Balance, Shape, draw, whole_steps
from nopad.errors import BalanceError

shapes = st.builds(
    lambda node, nodes, accumulation, per_rank: Shape(node * nodes, node, accumulation, per_rank),
    *[st.integers(1, 4)] * 4,
)
balances = st.sampled_from(
    [
        *METHODS.values(),
        Balance(draw="sorted", window=2),
        Balance(draw="sorted", wait="micro"),
        Balance(draw="sorted", window=3, wait="micro", within="node"),
        Balance(draw="quantile", within="world"),
    ]
)


@given(st.data(), shapes, balances, st.integers(0, 2**64 - 1))
def test_every_unit_is_drawn_once(data, shape, balance, key):
    n = data.draw(st.integers(shape.world_size, 4 * shape.per_step + 7))
    costs = np.random.default_rng(key).integers(0, data.draw(st.sampled_from([1, 3, 2**40])), n)
    try:
        order = draw(costs, shape, balance, key)
    except BalanceError:
        assume(balance.draw != "stratified")  # too few units for the quotas
        raise
    assert order.dtype == np.int32
    assert sorted(order.tolist()) == list(range(n))
    np.testing.assert_array_equal(order, draw(costs, shape, balance, key))


def steps_of(order, shape):
    whole = order.size // shape.per_step * shape.per_step
    return order[:whole].reshape(-1, shape.per_step)


def test_a_random_draw_is_the_shuffle_of_the_specification():
    expected = list(range(50))
    random.shuffle(expected, random.key(9, 0))
    assert draw(np.ones(50, int), Shape(2, 1, 1, 4), Balance(), 9).tolist() == expected


@pytest.mark.parametrize("name", METHODS)
def test_another_key_gives_another_order(name):
    costs = np.arange(1, 401)
    shape = Shape(4, 2, 1, 5)
    one, other = (draw(costs, shape, Balance.named(name), key) for key in (1, 2))
    assert (one != other).mean() > 0.5


@pytest.mark.parametrize("draws", ["sorted", "quantile"])
def test_what_is_left_at_the_end_is_random_too(draws):
    costs, shape = np.arange(43), Shape(2, 1, 1, 5)
    balance = Balance(draw=draws)
    seen = Counter(unit for key in range(400) for unit in draw(costs, shape, balance, key)[40:].tolist())
    assert set(seen) == set(range(43))
    assert max(seen.values()) < 60  # 28 are expected


@pytest.mark.parametrize(("within", "parts"), [("rank", 6), ("node", 3), ("world", 1)])
def test_quantile_strata_have_one_unit_each(within, parts):
    shape = Shape(6, 2, 2, 4)
    n = 5 * shape.per_step
    costs = np.random.default_rng(0).permutation(n)
    deals = "none" if within == "rank" else "karmarkar_karp"
    order = draw(costs, shape, Balance(draw="quantile", within=within, deal=deals), 3)
    strata = shape.per_step // parts
    for step in steps_of(order, shape):
        for group in step.reshape(parts, -1):
            assert sorted((costs[group] * strata // n).tolist()) == list(range(strata))


@pytest.mark.parametrize("wait", ["step", "micro"])
@pytest.mark.parametrize("window", [None, 1, 4])
def test_sorted_units_that_are_waited_for_together_are_neighbours(wait, window):
    shape = Shape(4, 2, 3, 2)
    steps = 10
    n = steps * shape.per_step
    costs = np.random.default_rng(1).permutation(n)
    order = draw(costs, shape, Balance(draw="sorted", deal="none", wait=wait, window=window), 5)
    together = shape.per_step if wait == "step" else shape.world_size * shape.per_rank
    for begin in range(0, steps, window or steps):
        units = steps_of(order, shape)[begin : begin + (window or steps)]
        ranks_of_costs = np.argsort(np.argsort(costs[units], axis=None)).reshape(units.shape)
        for step in ranks_of_costs:
            pieces = step[None] if wait == "step" else step.reshape(4, 3, 2).transpose(1, 0, 2).reshape(3, -1)
            assert all(np.ptp(np.sort(piece)) == together - 1 for piece in pieces)
            if wait == "micro":  # one from each third of the window
                thirds = sorted(int(piece.min()) * 3 // ranks_of_costs.size for piece in pieces)
                assert thirds == [0, 1, 2]


def test_sorted_steps_come_in_random_order():
    shape = Shape(4, 2, 1, 2)
    costs = np.arange(20_000 * shape.per_step)
    order = draw(costs, shape, Balance.named("sorted"), 11)
    means = costs[steps_of(order, shape)].mean(axis=1)
    assert abs(np.corrcoef(means, np.arange(means.size))[0, 1]) <= 0.02
    assert (np.diff(np.sort(means)) == shape.per_step).all()


def test_quotas_are_kept_by_every_rank():
    shape = Shape(4, 2, 2, 8)
    costs = np.random.default_rng(2).integers(1, 401, 3000)
    balance = Balance.named("stratified", edges=(100, 200, 300), quotas=(3, 1, 1, 3))
    order = draw(costs, shape, balance, 1)
    strata = (costs[order] - 1) // 100
    kept = min(
        int(count // (quota * shape.world_size * shape.accumulation))
        for count, quota in zip(np.bincount(strata), (3, 1, 1, 3), strict=True)
    )
    assert kept > 5
    assert whole_steps(costs, shape, balance) == kept < whole_steps(costs, shape, Balance()) == 3000 // 64
    for micro_step in strata[: kept * shape.per_step].reshape(-1, shape.per_rank):
        assert np.bincount(micro_step, minlength=4).tolist() == [3, 1, 1, 3]


def test_quotas_that_are_not_given_are_the_shares():
    costs = np.repeat([100, 200, 300, 400], [369, 197, 117, 316])
    order = draw(costs, Shape(2, 1, 1, 16), Balance.named("stratified"), 1)
    assert np.bincount(costs[order[:16]] // 100).tolist() == [0, 6, 3, 2, 5]


@pytest.mark.parametrize(
    ("costs", "balance", "message"),
    [
        ([1, 2, 3], {}, "3 units are too few for 4 ranks; each rank needs at least one"),
        ([1, 2, 3, -4], {}, "cost -4 at index 3"),
        ([2**62] * 4, {}, "the sum of all costs is"),
        (
            [1] * 20 + [9] * 20,
            {"edges": (3, 6), "quotas": (1, 1, 1)},
            r"stratum 2 \(costs above 3, up to 6\) has a quota of 1 but holds no unit; move the edges or set",
        ),
        ([9] * 40, {"edges": (3,), "quotas": (2, 1)}, r"stratum 1 \(costs above none, up to 3\) has a quota of 2"),
        ([1] * 40, {"edges": (3,), "quotas": (2, 1)}, r"stratum 2 \(costs above 3, up to the largest\)"),
        (
            [1] * 39 + [9],
            {"edges": (3,)},
            r"3 units per rank are too few for strata of \[39, 1\] units: the quotas would be \(3, 0\); give edges",
        ),
        (
            [1] * 20 + [9] * 20,
            {"edges": (3,), "quotas": (2, 2)},
            r"quotas \(2, 2\) add up to 4, but each rank takes 3 units; change one of them",
        ),
    ],
)
def test_what_cannot_be_drawn(costs, balance, message):
    drawn = "stratified" if balance else "karmarkar_karp"
    with pytest.raises(BalanceError, match=message):
        draw(costs, Shape(4, 2, 1, 3), Balance.named(drawn, **balance), 0)


def test_too_few_for_a_step_are_still_drawn():
    for name, accumulation in itertools.product(METHODS, (1, 3)):
        assert whole_steps([3, 1, 2, 4], Shape(4, 2, accumulation, 4), Balance.named(name)) == 0
        order = draw([3, 1, 2, 4], Shape(4, 2, accumulation, 4), Balance.named(name), 0)
        assert sorted(order.tolist()) == [0, 1, 2, 3]


def test_more_strata_than_a_byte_counts_lose_no_unit():
    costs = np.arange(1, 1001) % 220 + 1
    balance = Balance(draw="stratified", deal="none", edges=tuple(range(1, 150)), quotas=(1,) + (0,) * 149)
    order = draw(costs, Shape(1, 1, 1, 1), balance, 5)
    assert sorted(order.tolist()) == list(range(1000))


@pytest.mark.parametrize("edges", [None, (5,)])
@pytest.mark.parametrize("costs", [[], [3]])
def test_too_few_units_for_the_ranks_make_no_step(costs, edges):
    balance = Balance.named("stratified", edges=edges) if edges else Balance.named("stratified")
    assert whole_steps(costs, Shape(2, 1, 1, 4), balance) == 0
