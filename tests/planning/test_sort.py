from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram, pack, plan
from nopad.planning.sort import sort


@pytest.mark.parametrize(
    ("counts", "depth", "expected"),
    [
        ({}, None, {}),
        ({5: 3, 3: 3}, None, {(5,): 2, (5, 3): 1, (3, 3): 1}),
        ({4: 4, 2: 1}, None, {(4, 4): 2, (2,): 1}),
        ({3: 4, 2: 1}, None, {(3, 3): 1, (3, 3, 2): 1}),  # the last full pack of a length stays open
        ({3: 4, 2: 1}, 2, {(3, 3): 2, (2,): 1}),
        ({1: 2**40}, 8, {(1,) * 8: 2**37}),
        ({5: 1, 3: 1}, 1, {(5,): 1, (3,): 1}),
    ],
)
def test_examples(counts, depth, expected):
    found = sort(Histogram.from_counts(counts), 8, depth)
    assert {lengths: sum(n for n, other in found if other == lengths) for _, lengths in found} == expected


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(20, 50), st.none() | st.integers(1, 5))
def test_is_next_fit_of_the_sorted_lengths(lengths, capacity, depth):
    ordered = sorted(lengths, reverse=True)
    packs = pack(ordered, capacity, depth=depth, algorithm="greedy")
    assert plan(lengths, capacity, depth=depth, algorithm="sort").packs == len(packs)
