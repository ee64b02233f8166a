from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopad.planning.optimal import gathering
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.gathering import gather
from nopad.planning.optimal.listed import Listed

CAPACITY = 40
PACK = st.lists(st.integers(1, CAPACITY), min_size=1, max_size=8).map(
    lambda lengths: tuple(lengths[: max(1, int(np.searchsorted(np.cumsum(lengths), CAPACITY, side="right")))])
)
STRATEGIES = st.lists(st.tuples(st.integers(1, 30), PACK), min_size=1, max_size=40)


def sequences(strategies):
    """How many sequences there are of each length."""
    held = Counter()
    for count, lengths in strategies:
        for length in lengths:
            held[length] += count
    return held


@given(STRATEGIES)
def test_a_list_holds_what_it_was_made_of(strategies):
    packs = Listed.of(strategies)
    assert packs.packs == sum(count for count, _ in strategies)
    assert packs.tokens.tolist() == [sum(lengths) for _, lengths in strategies]
    merged = Counter()
    for count, lengths in strategies:
        merged[tuple(sorted(lengths, reverse=True))] += count
    assert Counter({lengths: count for count, lengths in packs.strategies()}) == merged
    assert Listed.joined([packs, packs]).packs == 2 * packs.packs


@pytest.mark.parametrize("most", [2**21, 64])
@settings(max_examples=settings.default.max_examples * 2 // 5)  # each takes long
@given(strategies=STRATEGIES, limited=st.booleans(), goal=st.integers(0, 40))
def test_no_sequence_is_lost_and_no_pack_is_too_full(most, strategies, limited, goal):
    depth = max(len(lengths) for _, lengths in strategies) if limited else None
    before = Listed.of(strategies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "_MOST", most)
        packs = gather(before, CAPACITY, depth, goal, Budget(1))
    found = packs.strategies()
    assert sequences(found) == sequences(strategies)
    assert all(sum(lengths) <= CAPACITY and len(lengths) <= (depth or CAPACITY) for _, lengths in found)
    assert packs.packs <= before.packs
    assert packs.packs >= min(goal, before.packs) or most == 64  # a part does not know the goal of the whole


def nearly_full(seed, packs, capacity, free):
    """Packs of four that lack up to `free` tokens, shuffled."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(capacity // 8, capacity - capacity // 8, (packs, 3)), axis=1)
    lengths = np.diff(np.column_stack([np.zeros(packs, int), cuts, capacity - rng.integers(1, free + 1, packs)]))
    lengths = lengths[(lengths > 0).all(axis=1)]
    return [(1, tuple(row)) for row in lengths.tolist()]


@pytest.mark.parametrize("depth", [None, 5])
def test_the_free_space_of_a_thousand_packs_becomes_whole_packs(depth):
    strategies = nearly_full(0, 20_000, 2048, 20)
    tokens = sum(sum(lengths) for _, lengths in strategies)
    least = -(-tokens // 2048)
    assert len(strategies) - least > 50
    assert gather(Listed.of(strategies), 2048, depth, least, Budget(5)).packs - least <= 2


def test_copies_stand_for_each_other(monkeypatch):
    strategies = [(50, lengths) for _, lengths in nearly_full(1, 4_000, 1024, 20)]
    least = -(-sum(count * sum(lengths) for count, lengths in strategies) // 1024)
    monkeypatch.setattr(gathering, "_MOST", 20_000)
    packs = gather(Listed.of(strategies), 1024, None, least, Budget(20))
    assert sequences(packs.strategies()) == sequences(strategies)
    above = sum(count for count, _ in strategies) - least
    assert packs.packs - least < above / 10


def test_odd_lengths_alone_do_not_block_the_way():
    """Every pack with free space holds odd lengths only, so that exchanges among these change nothing."""
    rng = np.random.default_rng(0)
    odd = 2 * rng.integers(100, 240, (6_000, 2)) + 1
    odd = [(1, (a, b, 1023 - a - b)) for a, b in odd.tolist()]  # one token short of 1,024
    even = [(1, (a, b, 1024 - a - b)) for a, b in rng.integers(200, 480, (6_000, 2)).tolist()]
    assert all(min(lengths) > 0 for _, lengths in odd + even)
    least = -(-sum(sum(lengths) for _, lengths in odd + even) // 1024)
    assert len(odd + even) - least == 5
    assert gather(Listed.of(odd + even), 1024, None, least, Budget(5)).packs - least <= 2


def test_without_a_budget_nothing_changes():
    packs = Listed.of([(1, (3,)), (1, (4,))])
    assert gather(packs, 10, None, 0, Budget(0)) is packs
    assert gather(packs, 10, None, 0, Budget(1)).strategies() == [(1, (4, 3))]
