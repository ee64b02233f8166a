from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.balance import METHODS, Balance, Shape, deal
from nopad.errors import BalanceError, LengthError

DEALS = ["none", "raster", "snake", "karmarkar_karp"]
shapes = st.builds(
    lambda node, nodes, accumulation, per_rank: Shape(node * nodes, node, accumulation, per_rank),
    *[st.integers(1, 5)] * 4,
)


@given(
    st.data(), shapes, st.sampled_from(DEALS), st.sampled_from(["node", "world"]), st.sampled_from(["step", "micro"])
)
def test_every_unit_is_dealt_once_and_within_its_node(data, shape, how, within, wait):
    seed = data.draw(st.integers(0, 2**32))
    costs = np.random.default_rng(seed).integers(0, data.draw(st.sampled_from([1, 4, 2**45])), shape.per_step)
    parts = deal(costs, shape, Balance(deal=how, within=within, wait=wait))
    assert parts.shape == (shape.world_size, shape.accumulation, shape.per_rank)
    assert parts.dtype == np.int64
    assert sorted(parts.ravel().tolist()) == list(range(shape.per_step))
    if within == "node" or how == "none":
        nodes = parts.reshape(shape.nodes, -1)
        assert (nodes // (shape.per_step // shape.nodes) == np.arange(shape.nodes)[:, None]).all()


@given(shapes, st.integers(0, 2**32), st.sampled_from(DEALS[1:]), st.sampled_from(["node", "world"]))
def test_micro_steps_are_cuts_of_the_sorted_units(shape, seed, how, within):
    costs = np.random.default_rng(seed).integers(0, 50, shape.per_step)
    parts = deal(costs, shape, Balance(deal=how, within=within, wait="micro"))
    for node in parts.reshape(-1 if within == "node" else 1, parts.size // (shape.nodes if within == "node" else 1)):
        micro_steps = costs[node].reshape(-1, shape.accumulation, shape.per_rank)
        for m in range(shape.accumulation - 1):
            assert micro_steps[:, m].max() <= micro_steps[:, m + 1].min()


def test_raster_and_snake_row_by_row():
    costs = np.array([3, 8, 1, 6, 5, 2, 7, 4])
    shape = Shape(2, 2, 1, 4)
    assert costs[deal(costs, shape, Balance(deal="raster"))[:, 0]].tolist() == [[8, 6, 4, 2], [7, 5, 3, 1]]
    assert costs[deal(costs, shape, Balance(deal="snake"))[:, 0]].tolist() == [[8, 5, 4, 1], [7, 6, 3, 2]]


def test_a_ranks_units_are_spread_over_its_micro_steps():
    costs = np.arange(1, 13)
    parts = costs[deal(costs, Shape(1, 1, 3, 4), Balance())]
    assert np.ptp(parts.sum(axis=2)) <= 2


def differencing(costs, ranks):
    """Equal-count Karmarkar-Karp as a reader of its description would write it; the ranks' sums, sorted."""
    costs = sorted(costs)
    rows = [costs[at : at + ranks] for at in range(0, len(costs), ranks)]
    while len(rows) > 1:
        rows.sort(key=lambda row: row[0] - row[-1])
        one, two = rows[:2]
        rows[:2] = [sorted(a + b for a, b in zip(one, reversed(two), strict=True))]
    return rows[0]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32), st.sampled_from([5, 1000, 2**50]))
def test_karmarkar_karp_is_as_even_as_its_description(ranks, per_rank, seed, largest):
    costs = np.random.default_rng(seed).integers(0, largest, ranks * per_rank)
    sums = np.sort(costs[deal(costs, Shape(ranks, 1, 1, per_rank), Balance())].sum(axis=(1, 2)))
    assert sums.sum() == costs.sum()
    if len(set(costs.tolist())) == costs.size and largest > 1000:  # no ties
        assert sums.tolist() == differencing(costs.tolist(), ranks)
    assert np.ptp(sums) <= np.ptp(costs)


def best_of_all(costs, per_rank):
    """The smallest largest sum over all ways to deal to two ranks."""
    total = sum(costs)
    return min(max(sum(chosen), total - sum(chosen)) for chosen in itertools.combinations(costs, per_rank))


def test_karmarkar_karp_is_near_the_best_of_all_deals():
    rng = np.random.default_rng(0)
    excess = []
    for _ in range(100):
        costs = rng.integers(1, 513, 10)
        sums = costs[deal(costs, Shape(2, 1, 1, 5), Balance())].sum(axis=(1, 2))
        excess.append(sums.max() / best_of_all(costs.tolist(), 5) - 1)
    assert min(excess) == 0
    assert np.mean(excess) < 0.006


def test_karmarkar_karp_beats_the_snake_and_the_raster():
    rng = np.random.default_rng(3)
    costs = np.minimum(rng.exponential(200, 64 * 16).astype(np.int64) + 1, 512)
    spreads = {
        how: np.ptp(costs[deal(costs, Shape(64, 8, 1, 16), Balance(deal=how))].sum(axis=(1, 2))) for how in DEALS
    }
    assert spreads["karmarkar_karp"] <= 4 < spreads["snake"] < spreads["raster"] < spreads["none"]


def test_costs_near_64_bits():
    costs = np.array([2**60, 2**60 - 1, 2**60 - 2, 2**60 - 3])
    sums = costs[deal(costs, Shape(2, 1, 1, 2), Balance())].sum(axis=(1, 2))
    assert sums.tolist() == [2**61 - 3, 2**61 - 3]


@pytest.mark.slow
def test_a_large_step_is_dealt_in_a_millisecond():
    costs = np.random.default_rng(0).integers(1, 513, 16_384)
    shape, seconds = Shape(1024, 8, 1, 16), []
    for _ in range(30):
        begin = time.perf_counter()
        deal(costs, shape, METHODS["karmarkar_karp"])
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 1e-3


@pytest.mark.parametrize(
    ("costs", "error", "message"),
    [
        ([1, 2, 3], BalanceError, r"a step of Shape\(.*\) has 4 units, got 3 costs"),
        ([1, 2, 3, -4], BalanceError, "cost -4 at index 3"),
        ([2**62] * 4, BalanceError, "the sum of all costs is 18446744073709551616, which does not fit into 64 bits"),
        ([1, 2, 3, 0.5], LengthError, "must be integers"),
    ],
)
@pytest.mark.parametrize("how", DEALS)
def test_costs_that_are_refused(costs, error, message, how):
    with pytest.raises(error, match=message):
        deal(costs, Shape(2, 2, 1, 2), Balance(deal=how))
