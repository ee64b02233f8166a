from __future__ import annotations

import pytest


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
