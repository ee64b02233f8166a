from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from functools import cache

import pytest

import nopad


def cheapest(sizes, capacities, prices, depth=None):
    """The least price of packing all, by trying every pack that holds the first sequence that is left."""
    sizes = [size if isinstance(size, tuple) else (size,) for size in sizes]
    limits = [limit if isinstance(limit, tuple) else (limit,) for limit in capacities]
    exact = [Fraction(repr(price)) for price in prices]

    @cache
    def price(total, held):
        fits = [p for c, p in zip(limits, exact, strict=True) if all(a <= b for a, b in zip(total, c, strict=True))]
        return min(fits, default=None) if held <= (depth or held) else None

    @cache
    def best(left):
        if not left:
            return Fraction(0)
        first, rest = left[0], left[1:]
        found = None
        for mask in range(2 ** len(rest)):
            inside = [rest[i] for i in range(len(rest)) if mask >> i & 1]
            total = tuple(map(sum, zip(first, *inside, strict=True)))
            own = price(total, 1 + len(inside))
            if own is not None:
                whole = own + best(tuple(rest[i] for i in range(len(rest)) if not mask >> i & 1))
                found = whole if found is None else min(found, whole)
        return found

    return best(tuple(sorted(sizes, reverse=True)))


def drawn(seed, kinds):
    """A small random instance; every sequence fits somewhere."""
    rng = random.Random(seed)
    tops = [rng.randint(4, 24), rng.randint(1, 12)][:kinds]
    wanted = rng.randint(1, 4)
    found = {tuple(rng.randint(1 - kind, top) for kind, top in enumerate(tops)) for _ in range(wanted)} | {tuple(tops)}
    if kinds == 2 and not any(one[1] for one in found):
        found.add((tops[0], 1))
    capacities = sorted(one for one in found if one[0] >= 1)
    prices = [rng.choice([rng.randint(1, 9), round(rng.uniform(0.5, 9), rng.randint(1, 3))]) for _ in capacities]
    sizes = []
    for _ in range(rng.randint(1, 9)):
        limit = rng.choice(capacities)
        sizes.append(tuple(rng.randint(1 - kind, max(1 - kind, most)) for kind, most in enumerate(limit)))
    if kinds == 1:
        return [one[0] for one in sizes], [one[0] for one in capacities], prices
    return sizes, capacities, prices


def judge(plan, sizes, capacities, prices, depth=None):
    """Hold a plan against what it was asked for, without any code of nopad's."""
    held: Counter = Counter()
    price = Fraction(0)
    for count, capacity, own in plan.strategies:
        assert capacity in capacities
        rows = [one if isinstance(one, tuple) else (one,) for one in own]
        limit = capacity if isinstance(capacity, tuple) else (capacity,)
        assert all(sum(row[kind] for row in rows) <= most for kind, most in enumerate(limit))
        assert depth is None or len(own) <= depth
        price += count * Fraction(repr(prices[capacities.index(capacity)]))
        for one in own:
            held[one] += count
    assert held == Counter(sizes)
    assert float(price) == plan.price
    assert plan.verify() == []
    return price


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.parametrize("block", range(4))
def test_against_every_way_of_packing(kinds, block):
    """The bound is never above the least price, the plan never below; small plans are optimal nearly always."""
    far = 0
    for seed in range(60 * block, 60 * block + 60):
        sizes, capacities, prices = drawn(seed, kinds)
        plan = nopad.plan_several(sizes, capacities, prices)
        least = cheapest(sizes, capacities, prices)
        price = judge(plan, sizes, capacities, prices)
        assert plan.bound.price * plan.unit <= least <= price
        far += price > least and len(capacities) > 1
    assert far == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_depth_against_every_way(depth):
    for seed in range(500, 540):
        sizes, capacities, prices = drawn(seed, 1)
        plan = nopad.plan_several(sizes, capacities, prices, depth=depth)
        least = cheapest(sizes, capacities, prices, depth)
        assert plan.bound.price * plan.unit <= least <= judge(plan, sizes, capacities, prices, depth)
