from __future__ import annotations

import pytest

from nopad import Histogram, plan
from nopad.planning.none import none


@pytest.mark.parametrize("depth", [None, 1, 7])
def test_every_sequence_travels_alone(depth):
    assert none(Histogram.from_counts({3: 2**40, 8: 2}), 8, depth) == [(2**40, (3,)), (2, (8,))]


def test_costs_what_padding_costs():
    made = plan([5, 3, 4], 8, algorithm="none")
    assert (made.packs, made.padding_tokens, made.packing_factor) == (3, 12, 1.0)
