from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram, plan
from nopad.planning.lpfhp import lpfhp


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(20, 50))
def test_ties_do_not_change_the_number_of_packs(lengths, capacity):
    packs = []  # textbook best-fit decreasing: among equals, the pack opened first
    for length in sorted(lengths, reverse=True):
        fits = [pack for pack in packs if sum(pack) + length <= capacity]
        max(fits, key=sum).append(length) if fits else packs.append([length])
    assert plan(lengths, capacity).packs == len(packs)


@given(st.from_type(Histogram), st.integers(40, 80))
def test_is_optimal_at_depth_two(histogram, capacity):
    made = plan(histogram, capacity, depth=2)
    assert made.packs == made.lower_bound


@pytest.mark.parametrize(
    ("counts", "depth", "expected"),
    [
        ({3: 10}, None, {(3, 3): 5}),
        ({2: 11}, 3, {(2, 2, 2): 3, (2, 2): 1}),
        ({1: 2**40}, 8, {(1,) * 8: 2**37}),
        ({8: 2**40}, None, {(8,): 2**40}),
        ({5: 3, 3: 1, 2: 1, 1: 2}, None, {(5, 3): 1, (5, 2, 1): 1, (5, 1): 1}),
        ({5: 1, 4: 1, 3: 1}, 9, {(5, 3): 1, (4,): 1}),  # the tightest, not the emptiest
    ],
)
def test_examples(counts, depth, expected):
    assert {lengths: count for count, lengths in lpfhp(Histogram.from_counts(counts), 8, depth)} == expected
