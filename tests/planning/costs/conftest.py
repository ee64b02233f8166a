from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def least_packs():
    """The fewest packs under both limits, by trying everything."""
    return _least_packs


def _least_packs(lengths, capacity, squares, depth=None, align=1):
    best = len(lengths)
    ordered = sorted(lengths, reverse=True)

    def place(i, packs):
        nonlocal best
        if len(packs) >= best:
            return
        if i == len(ordered):
            best = len(packs)
            return
        size, cost = -(-ordered[i] // align) * align, ordered[i] ** 2
        for p, (room, money, used) in enumerate(packs):
            fits = room >= size and money >= cost and (depth is None or used < depth)
            if fits and packs[p] not in packs[:p]:
                place(i + 1, [*packs[:p], (room - size, money - cost, used + 1), *packs[p + 1 :]])
        place(i + 1, [*packs, (capacity - size, squares - cost, 1)])

    place(0, [])
    return best


@pytest.fixture(scope="session")
def judge():
    """`judge(strategies, lengths, capacity, squares, depth, align)`: every sequence once, every limit kept."""
    return _judge


def _judge(strategies, lengths, capacity, squares, depth=None, align=1):
    held = sorted(length for count, pack in strategies for length in pack * count)
    assert held == sorted(lengths)
    for count, pack in strategies:
        assert count >= 1
        assert sum(-(-length // align) * align for length in pack) <= capacity
        assert sum(length * length for length in pack) <= squares
        assert depth is None or len(pack) <= depth
