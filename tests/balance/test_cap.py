"""Units under a limit of tokens: steps that are cut, and what each rank gets of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.balance import (
    METHODS,
    Balance,
    Shape,
    cut_under_cap,
    deal,
    deal_step_under_cap,
    deal_under_cap,
    first_over_cap,
)
from nopad.errors import BalanceError, OptionError

units = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 60)), min_size=1, max_size=40)


@given(units, st.integers(1, 8), st.integers(0, 300))
def test_the_cap_is_kept(units, world, slack):
    costs, tokens = (np.array(column) for column in zip(*units, strict=True))
    if len(units) < world:
        with pytest.raises(BalanceError, match="units are too few"):
            deal_under_cap(costs, tokens, world, 100)
        return
    # Whoever is given a unit while he has the fewest tokens ends below the mean plus the longest
    cap = -(-int(tokens.sum()) // world) + int(tokens.max()) + slack
    rank_of = deal_under_cap(costs, tokens, world, cap)
    assert np.bincount(rank_of, tokens, world).max() <= cap
    assert np.bincount(rank_of, minlength=world).min() >= 1
    assert rank_of.dtype == np.int64


@given(units, st.integers(2, 8), st.integers(0, 20))
def test_a_tight_cap_is_kept_or_refused(units, world, slack):
    costs, tokens = (np.array(column) for column in zip(*units, strict=True))
    cap = max(int(tokens.max()), -(-int(tokens.sum()) // world) + slack)
    try:
        rank_of = deal_under_cap(costs, tokens, world, cap)
    except BalanceError:
        return
    assert np.bincount(rank_of, tokens, world).max() <= cap


def best_under_cap(costs, tokens, world, cap):
    """The smallest largest cost over all ways to deal; None: there is no way."""
    found = []
    for ranks in itertools.product(range(world), repeat=len(costs)):
        held = [
            [sum(c for c, r in zip(column, ranks, strict=True) if r == rank) for rank in range(world)]
            for column in (costs, tokens)
        ]
        if len(set(ranks)) == world and max(held[1]) <= cap:
            found.append(max(held[0]))
    return min(found, default=None)


def test_under_a_cap_it_is_near_the_best_of_all_deals():
    rng = np.random.default_rng(1)
    found, missed = [], 0
    for _ in range(60):
        tokens = rng.integers(1, 40, 7)
        costs = tokens * tokens + rng.integers(0, 50, 7)
        cap = int(max(tokens.max(), tokens.sum() / 3 + rng.integers(0, 12)))
        best = best_under_cap(costs.tolist(), tokens.tolist(), 3, cap)
        try:
            rank_of = deal_under_cap(costs, tokens, 3, cap)
        except BalanceError:
            missed += best is not None
            continue
        found.append(np.bincount(rank_of, costs, 3).max() / best - 1)
    assert min(found) == 0
    assert np.mean(found) < 0.03
    assert missed <= 6


def test_units_all_free_of_cost_still_go_to_every_rank():
    assert np.bincount(deal_under_cap([0] * 9, [5] * 9, 3, 20)).tolist() == [3, 3, 3]


def test_one_long_unit_and_a_tight_cap():
    rank_of = deal_under_cap([100, 1, 1, 1], [10, 10, 10, 10], world_size=2, cap=30)
    assert sorted(np.bincount(rank_of, [100, 1, 1, 1]).tolist()) == [3, 100]
    tight = deal_under_cap([100, 1, 1, 1], [10, 10, 10, 10], world_size=2, cap=20)
    assert np.bincount(tight).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1, 2], [1], 2, 5), BalanceError, "2 costs for 1 units; give one each"),
        (([1, 2], [1, 2], 3, 5), BalanceError, "2 units are too few for 3 ranks"),
        (([1, 2], [1, 6], 2, 5), BalanceError, "unit 1 has 6 tokens, the cap is 5; truncate or split it, or raise"),
        (([1] * 5, [3] * 5, 2, 5), BalanceError, "found no way to deal 5 units of 15 tokens to 2 ranks of at most 5"),
        (([1], [1], 0, 5), OptionError, "world_size must be an integer"),
        (([1], [1], 1, 0), OptionError, "cap must be an integer"),
    ],
)
def test_a_deal_under_a_cap_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        deal_under_cap(*arguments)


@given(
    st.data(),
    st.lists(st.integers(1, 60), max_size=60),
    st.builds(Shape, st.sampled_from([1, 2, 6]), st.just(1), st.integers(1, 3), st.integers(1, 6)),
    st.sampled_from([1, 1, 2, 3]),
)
def test_what_is_cut_can_be_dealt(data, sizes, shape, parts):
    sizes = np.array(sizes[: len(sizes) // parts * parts], dtype=np.int64)
    cap = data.draw(st.integers(60, 200)) if parts == 1 else 60 * parts
    balance = Balance(
        deal=data.draw(st.sampled_from(["none", "snake", "karmarkar_karp"])),
        wait=data.draw(st.sampled_from(["step", "micro"])),
    )
    bounds = cut_under_cap(sizes, shape, cap, parts)
    assert bounds[0] == 0
    assert bounds[-1] * parts == sizes.size
    for begin, end in itertools.pairwise(bounds.tolist()):
        assert 1 <= end - begin <= shape.per_step
        tokens = sizes[begin * parts : end * parts]
        dealt = deal_step_under_cap(tokens * tokens, tokens, shape, balance, cap)
        assert dealt.shape[:2] == (shape.world_size, shape.accumulation)
        assert sorted(dealt[dealt >= 0].tolist()) == list(range(tokens.size))
        assert np.where(dealt >= 0, tokens[dealt], 0).sum(axis=2).max() <= cap
        if tokens.size >= shape.world_size * shape.accumulation and parts == 1:
            assert (dealt >= 0).any(axis=2).all()  # nobody is left without a unit


@pytest.mark.parametrize("method", ["karmarkar_karp", "none"])
def test_a_cap_that_nothing_reaches_leaves_the_deal_as_it_is(method):
    costs, shape = np.random.default_rng(0).integers(1, 40, 48), Shape(4, 2, 2, 6)
    dealt = deal_step_under_cap(costs, costs, shape, METHODS[method], 10**6)
    np.testing.assert_array_equal(dealt, deal(costs, shape, METHODS[method]))


def test_under_a_cap_costs_are_as_equal_as_units_allow():
    rng = np.random.default_rng(0)
    tokens = np.clip(rng.lognormal(5, 1, 512), 1, 4000).astype(np.int64)
    cap = int(tokens.sum()) // 8 // 4 + 400
    dealt = deal_step_under_cap(tokens, tokens, Shape(8, 8, 4, 16), Balance(), max(cap, int(tokens.max())))
    of_ranks = np.where(dealt >= 0, tokens[dealt], 0).sum(axis=(1, 2))
    assert of_ranks.max() < 1.01 * of_ranks.mean()


def test_units_that_fit_nowhere_are_found_first():
    shape = Shape(2, 1, 1, 4)
    assert first_over_cap([3, 9, 2, 11], shape, 8) == 1
    assert first_over_cap([3, 9, 2, 11], shape, 11) is None
    assert first_over_cap([4, 4, 4, 3, 5, 5, 5, 1], shape, 10, parts=4) is None
    assert first_over_cap([4, 4, 4, 3, 5, 5, 5, 1], shape, 9, parts=4) == 1
    parts = [3, 2, 2, 3, 2]  # 3 + 3 and 2 + 2 + 2; largest first, it would be 3 + 2 and 3 + 2, and 2 nowhere
    assert cut_under_cap(parts, shape, 6, parts=5).tolist() == [0, 1]
    assert first_over_cap(parts, shape, 6, parts=5) is None
    with pytest.raises(BalanceError, match="unit 1 alone does not fit into a step of 2 times 8 tokens"):
        cut_under_cap([3, 9], shape, 8)
    assert cut_under_cap([], shape, 8).tolist() == [0]


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize(
    ("costs", "tokens", "message"),
    [
        ([1, 2], [1, 6], "unit 1 has 6 tokens, the cap is 5; truncate or split it, or raise"),  # an AssertionError
        ([1], [9], "unit 0 has 9 tokens, the cap is 5"),
        ([1] * 9, [1] * 8 + [6], "unit 8 has 6 tokens, the cap is 5"),
        ([1, 2], [1], "2 costs for 1 units; give one each"),
        ([], [], "there is no unit to deal"),
    ],
)
def test_a_step_under_a_cap_that_cannot_be(method, costs, tokens, message):
    with pytest.raises(BalanceError, match=message):
        deal_step_under_cap(costs, tokens, Shape(2, 2, 2, 1), METHODS[method], 5)
