from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nopad.planning.exact_cover import fill, fit_remainder, over_cover, pad_remainder

CAPACITY = 12
PACKS = st.lists(st.integers(1, CAPACITY), min_size=1, max_size=5).filter(lambda lengths: sum(lengths) <= CAPACITY)
SOLUTION = st.lists(st.tuples(st.integers(1, 9), PACKS.map(lambda lengths: tuple(sorted(lengths, reverse=True)))))
DEMAND = st.dictionaries(st.integers(1, CAPACITY), st.integers(1, 20)).map(Counter)


def supply(packs):
    total = Counter()
    for count, lengths in packs:
        for length in lengths:
            total[length] += count
    return total


def number(packs):
    return sum(count for count, _ in packs)


def well_made(packs, depth):
    assert all(count > 0 and sum(lengths) <= CAPACITY and 0 < len(lengths) <= depth for count, lengths in packs)
    assert all(list(lengths) == sorted(lengths, reverse=True) for _, lengths in packs)


@given(SOLUTION, DEMAND)
def test_fill_uses_each_slot_there_is_a_sequence_for(solution, demand):
    left = demand.copy()
    packs = fill(solution, left)
    assert supply(packs) == demand & supply(solution)
    assert +left == demand - supply(solution)
    assert number(packs) <= number(solution)
    well_made(packs, 5)


@given(DEMAND, st.integers(1, 4))
def test_pad_shares_a_pack_with_the_exact_complement_only(demand, depth):
    packs = pad_remainder(demand.copy(), CAPACITY, depth)
    assert supply(packs) == demand
    well_made(packs, depth)
    assert all(len(lengths) == 1 or sum(lengths) == CAPACITY for _, lengths in packs)
    alone = supply([pack for pack in packs if len(pack[1]) == 1])
    if depth > 1:
        assert all(alone[CAPACITY - n] <= (n * 2 == CAPACITY) for n in alone if n < CAPACITY)


@given(SOLUTION, DEMAND)
def test_fit_adds_the_remainder_and_no_pack_that_is_not_needed(solution, demand):
    packs = fit_remainder(solution, demand, CAPACITY, 5)
    assert supply(packs) == supply(solution) + demand
    well_made(packs, 5)
    new = number(packs) - number(solution)
    assert 0 <= new <= demand.total()
    assert number(packs) == number(fit_remainder(packs, Counter(), CAPACITY, 5))


@given(SOLUTION, DEMAND, st.integers(1, 4))
def test_counting_as_the_papers_do(solution, demand, depth):
    missing, over, packs, strategies = over_cover(solution, demand, CAPACITY, depth)
    short = demand - supply(solution)
    slots = supply(solution) + short
    if depth > 1:
        slots += Counter({CAPACITY - n: short[n] for n in short if n < CAPACITY})
    assert missing == short.total()
    assert over == slots.total() - demand.total()
    assert packs == number(solution) + missing
    padded = {tuple(sorted((n, CAPACITY - n) if depth > 1 and n < CAPACITY else (n,))) for n in short}
    assert strategies == len(padded | {tuple(sorted(lengths)) for _, lengths in solution})


def test_packs_that_nobody_needs_vanish():
    solution = [(4, (6, 6)), (5, (9, 3))]
    left = Counter({6: 8, 9: 5, 3: 2})
    assert fill(solution, left) == [(4, (6, 6)), (2, (9, 3)), (3, (9,))]
    left = Counter({6: 2, 9: 5, 3: 5})
    assert fill(solution, left) == [(5, (9, 3)), (1, (6, 6))]


def test_the_papers_count_a_pack_for_each_of_two_complements():
    solution, demand = [], Counter({7: 2, 5: 2, 6: 3, 12: 1})
    assert over_cover(solution, demand, 12, 2) == (8, 7, 8, 3)
    assert number(pad_remainder(demand, 12, 2)) == 5
