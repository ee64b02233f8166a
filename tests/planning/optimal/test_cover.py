from __future__ import annotations

import copy
from collections import Counter
from itertools import combinations, product
from types import FunctionType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numba.core.dispatcher import Dispatcher

from nopad import _kernels
from nopad.planning.optimal import _cover_kernels, _message_kernels, _pattern_kernels
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.cover import _empty, _listed, cover

SPACE = {**vars(_kernels), **vars(_pattern_kernels), **vars(_message_kernels), **vars(_cover_kernels)}
KERNELS = {name: value for name, value in SPACE.items() if isinstance(value, Dispatcher)}
PLAIN = dict(SPACE)
PLAIN.update({name: FunctionType(kernel.py_func.__code__, PLAIN) for name, kernel in KERNELS.items()})
KEY = np.uint64(7)

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # words wrap in plain loops


@st.composite
def tasks(draw):
    """(patterns, losses, demand, most loss): a few patterns of at most four items, none more often than its demand."""
    demand = np.array(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)), dtype=np.int64)
    pattern = st.lists(st.integers(0, demand.size - 1), min_size=1, max_size=4).map(
        lambda items: tuple(sorted(items, reverse=True))
    )
    drawn = draw(st.lists(pattern, min_size=1, max_size=9, unique=True))
    patterns = [p for p in drawn if all(p.count(i) <= demand[i] for i in p)] or [(0,)]
    losses = np.array(draw(st.lists(st.integers(0, 5), min_size=len(patterns), max_size=len(patterns))), dtype=np.int64)
    return patterns, losses, demand, draw(st.integers(0, 12))


def least_loss(patterns, losses, demand):
    """The least loss of all covers, by trying all; None if there is no cover."""
    if not demand.any():
        return 0
    i = int(np.flatnonzero(demand)[0])
    found = []
    for pattern, loss in zip(patterns, losses, strict=True):
        held = np.bincount(pattern, minlength=demand.size)
        if held[i] and (held <= demand).all():
            rest = least_loss(patterns, losses, demand - held)
            if rest is not None:
                found.append(rest + int(loss))
    return min(found, default=None)


def held_by(packing, k):
    held = np.zeros(k, dtype=np.int64)
    for pattern, count in packing.items():
        np.add.at(held, list(pattern), count)
    return held


@given(tasks(), st.integers(0, 3))
def test_a_cover_of_few_patterns_is_found_where_there_is_one(task, turn):
    patterns, losses, demand, most = task
    least = least_loss(patterns, losses, demand)
    packing = cover(patterns, losses, demand, most, 3, Budget(1), turn=turn)
    assert (packing is not None) == (least is not None and least <= most)
    if packing is not None:
        assert np.array_equal(held_by(packing, demand.size), demand)
        loss_of = dict(zip(patterns, losses.tolist(), strict=True))
        assert sum(loss_of[pattern] * count for pattern, count in packing.items()) <= most


@pytest.mark.parametrize(("n", "others"), [(150, 50), (150, 1500), (300, 500)])
def test_planted_triples_are_found(n, others):
    """Few other triples leave few covers besides the planted one, many leave a vast number."""
    rng = np.random.default_rng([n, others])
    planted = rng.permutation(n).reshape(-1, 3)
    drawn = np.array([rng.choice(n, 3, replace=False) for _ in range(others)])
    triples = np.unique(np.sort(np.concatenate([planted, drawn]), axis=1)[:, ::-1], axis=0)
    packing = cover(
        list(map(tuple, triples.tolist())), np.zeros(len(triples), np.int64), np.ones(n, np.int64), 0, n // 3, Budget(5)
    )
    assert packing is not None
    assert np.array_equal(held_by(packing, n), np.ones(n))


def test_a_search_without_end_keeps_to_the_budget():
    """Pairs cannot cover an odd number of items, but to prove this takes longer than anyone can wait."""
    pairs = [pair[::-1] for pair in combinations(range(41), 2)]
    budget = Budget(0.2)
    assert cover(pairs, np.zeros(len(pairs), np.int64), np.ones(41, np.int64), 0, 21, budget) is None
    assert -(10**8) < budget.left <= 0


def test_each_turn_makes_other_choices():
    pairs = [pair[::-1] for pair in combinations(range(12), 2)]
    task = pairs, np.zeros(len(pairs), np.int64), np.ones(12, np.int64), 0, 6
    first, second, again = (sorted(cover(*task, Budget(1), turn=turn).items()) for turn in (0, 1, 0))
    assert first == again != second


def state_of(patterns, losses, demand, most):
    order = np.argsort(-losses, kind="stable")
    listed = _listed([patterns[p] for p in order], losses[order], demand.size)
    state = _empty(listed, demand)
    PLAIN["begin"](listed, state, demand, most, KEY)
    return listed, state


@given(tasks(), st.data())
def test_a_choice_taken_back_leaves_only_its_pattern_dead(task, data):
    patterns, state = state_of(*task)
    alive = np.flatnonzero(~state.dead)
    if alive.size:
        p = int(data.draw(st.sampled_from(alive.tolist())))
        before = copy.deepcopy(state)
        PLAIN["use"](patterns, state, p, 0)
        left = before.left - np.bincount(
            patterns.items[patterns.pattern == p],
            patterns.amounts[patterns.pattern == p],
            minlength=state.left.size,
        ).astype(np.int64)
        assert np.array_equal(state.left, left)
        short = patterns.amounts > left[patterns.items]
        dead = before.dead | (patterns.loss > before.at[1] - patterns.loss[p])
        dead[patterns.pattern[short]] = True
        assert np.array_equal(state.dead, dead)
        PLAIN["undo"](patterns, state, 0)
        assert np.array_equal(state.left, before.left)
        assert np.array_equal(np.flatnonzero(state.dead != before.dead), [p])
        assert state.at[1:3].tolist() == before.at[1:3].tolist()
    living = ~state.dead[patterns.pattern]
    assert np.array_equal(state.degree, np.bincount(patterns.items[living], minlength=state.degree.size))


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 3), st.booleans()), min_size=2, max_size=5),
    st.integers(1, 6),
)
def test_a_message_is_the_odds_that_the_others_leave_just_enough(drawn, left):
    """Here the only item of a pattern, so that all ways to use the others can be listed."""
    drawn = [(odds, min(amount, left), once) for odds, amount, once in drawn]
    listed, state = state_of(
        [(0,) * amount for _, amount, _ in drawn], np.zeros(len(drawn), np.int64), np.array([left], np.int64), 0
    )
    state.odds[:] = [-odds if once else odds for odds, _, once in drawn]
    state.message[:] = 1
    PLAIN["send"](listed, state, 0)
    for entry, (_, amount, _) in enumerate(drawn):
        others = [one for at, one in enumerate(drawn) if at != entry]
        weights = np.zeros(left + 1)
        for used in product(*(range(2 if once else left // a + 1) for _, a, once in others)):
            copies = sum(n * a for n, (_, a, _) in zip(used, others, strict=True))
            if copies <= left:
                weights[copies] += np.prod([odds**n for n, (odds, _, _) in zip(used, others, strict=True)])
        if weights[left] == weights[left - amount] == 0:
            continue  # whether this pattern is used or not, the others cannot make up the rest: no odds
        expected = weights[left - amount] / weights[left] if weights[left] else np.inf
        assert state.message[entry] == pytest.approx(np.sqrt(np.clip(expected, 1e-12, 1e12)), rel=1e-6)


def some_task(rng):
    """Arguments of the kernels: patterns, state after one choice, demand, prior."""
    demand = rng.integers(1, 4, 9)
    drawn = [tuple(sorted(rng.choice(9, 3).tolist(), reverse=True)) for _ in range(40)]
    patterns = [p for p in dict.fromkeys(drawn) if all(p.count(i) <= demand[i] for i in p)]
    listed, state = state_of(patterns, rng.integers(0, 3, len(patterns)), demand, 9)
    PLAIN["use"](listed, state, int(rng.integers(0, len(patterns) // 2)), 0)
    return listed, state, demand, 0.5 + rng.random(len(patterns))


@njit
def descend(*given):
    """A caller in compiled code, as only such a caller can call this loop."""
    return _cover_kernels.descend(*given)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["unguided", "guided", "cover"])
def test_compiled_equals_plain(name, seed):
    rng = np.random.default_rng(seed)
    patterns, state, demand, prior = some_task(rng)
    if name == "cover":
        loop, given_ = name, (patterns, state, demand, int(rng.integers(2, 9)), prior, KEY, 20_000)
    else:
        loop, given_ = "descend", (patterns, state, prior, name == "guided", 0.5, 20, KEY, 10**6)
    twins = copy.deepcopy(given_)
    compiled = descend if loop == "descend" else _cover_kernels.cover
    assert compiled(*given_) == PLAIN[loop](*twins)
    for ours, theirs in zip(given_, twins, strict=True):
        if isinstance(ours, tuple):
            for field, one, other in zip(ours._fields, ours, theirs, strict=True):
                np.testing.assert_array_equal(one, other, err_msg=field)


def test_a_result_is_a_counter_of_the_patterns_given():
    packing = cover([(1, 0), (0,), (1,)], np.array([0, 1, 1]), np.array([3, 3]), 0, 3, Budget(1))
    assert packing == Counter({(1, 0): 3})
