from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram
from nopad.planning.spfhp import spfhp


@given(st.from_type(Histogram), st.integers(40, 80), st.none() | st.integers(1, 8))
def test_at_most_one_strategy_a_distinct_length(histogram, capacity, depth):
    assert len(spfhp(histogram, capacity, depth)) <= histogram.lengths.size <= capacity


@pytest.mark.parametrize(
    ("counts", "depth", "expected"),
    [
        ({3: 10}, None, {(3,): 10}),  # a length opens all its packs at once
        ({4: 3, 2: 4}, None, {(4, 2): 2, (4, 2, 2): 1}),
        ({4: 3, 2: 4}, 2, {(4, 2): 3, (2,): 1}),
        ({6: 2**40, 2: 2**39}, None, {(6, 2): 2**39, (6,): 2**39}),
        ({8: 2**40}, None, {(8,): 2**40}),
        ({5: 1, 4: 1, 3: 1}, 9, {(5,): 1, (4, 3): 1}),  # the emptiest, not the tightest
    ],
)
def test_examples(counts, depth, expected):
    assert {lengths: count for count, lengths in spfhp(Histogram.from_counts(counts), 8, depth)} == expected
