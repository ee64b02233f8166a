from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad.planning.ffd
from nopad import Histogram, plan
from nopad.planning.ffd import ffd


@given(st.from_type(Histogram), st.integers(40, 99), st.none() | st.integers(1, 5), st.integers(1, 4))
def test_the_size_of_blocks_changes_nothing(histogram, capacity, depth, block):
    expected = ffd(histogram, capacity, depth)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nopad.planning.ffd, "_BLOCK", block)
        assert Counter(ffd(histogram, capacity, depth)) == Counter(expected)


def test_many_classes_split_their_blocks(monkeypatch):
    counts = {n: n % 5 + 1 for n in range(2, 2500)}
    made = plan(Histogram.from_counts(counts), 2500, algorithm="ffd")
    assert made.histogram.to_dict() == counts
    assert made.counts.size > 1024  # more classes than two blocks hold
    assert made.packs == plan(Histogram.from_counts(counts), 2500, algorithm="lpfhp").packs == 3752
    monkeypatch.setattr(nopad.planning.ffd, "_BLOCK", 10**9)
    assert made == plan(Histogram.from_counts(counts), 2500, algorithm="ffd")


@pytest.mark.parametrize(
    ("counts", "depth", "expected"),
    [
        ({3: 10}, None, {(3, 3): 5}),
        ({2: 11}, 3, {(2, 2, 2): 3, (2, 2): 1}),
        ({1: 2**40}, 8, {(1,) * 8: 2**37}),
        ({8: 2**40}, None, {(8,): 2**40}),
        ({4: 2, 2: 3}, None, {(4, 4): 1, (2, 2, 2): 1}),
        ({5: 1, 4: 1, 3: 1, 2: 1}, 9, {(5, 3): 1, (4, 2): 1}),  # the earliest that fits
        ({6: 3, 1: 5}, 2, {(6, 1): 3, (1, 1): 1}),
        ({6: 3, 1: 5}, None, {(6, 1, 1): 2, (6, 1): 1}),  # a class is split twice
    ],
)
def test_examples(counts, depth, expected):
    assert {lengths: count for count, lengths in ffd(Histogram.from_counts(counts), 8, depth)} == expected
