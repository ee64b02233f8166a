from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram, plan
from nopad.planning.mffd import mffd


def found(counts, capacity, depth=None):
    strategies = Counter()
    for count, lengths in mffd(Histogram.from_counts(counts), capacity, depth):
        strategies[lengths] += count
    return strategies


@pytest.mark.parametrize(
    ("counts", "depth", "expected"),
    [
        ({}, None, {}),
        ({31: 2, 30: 1}, None, {(31,): 2, (30,): 1}),  # 30 is half of 60: not large
        ({31: 2, 28: 1, 29: 1}, None, {(31, 29): 1, (31, 28): 1}),
        ({31: 1, 20: 1, 9: 1}, None, {(31, 20, 9): 1}),  # 20 is a third: small, and it comes alone
        ({36: 1, 11: 1, 13: 1, 12: 2}, None, {(36, 13, 11): 1, (12, 12): 1}),  # shortest with the longest that fits
        ({36: 1, 12: 3}, None, {(36, 12, 12): 1, (12,): 1}),
        ({36: 1, 12: 3}, 2, {(36, 12): 1, (12, 12): 1}),  # no pairs at depth 2
        ({40: 1, 38: 1, 11: 2}, None, {(38, 11, 11): 1, (40,): 1}),  # backward: most room first
        ({40: 2, 20: 1, 10: 1, 5: 3}, None, {(40, 20): 1, (40, 10, 5, 5): 1, (5,): 1}),
        ({45: 2**40, 5: 2**42}, None, {(45, 5, 5, 5): 2**40, (5,) * 12: 2**40 // 12, (5,) * 4: 1}),
        ({31: 3}, 1, {(31,): 3}),
    ],
)
def test_examples(counts, depth, expected):
    assert found(counts, 60, depth) == expected


@given(st.from_type(Histogram), st.integers(40, 130), st.none() | st.integers(1, 6))
def test_any_number_of_sequences_is_planned_in_classes(histogram, capacity, depth):
    many = Histogram.from_counts({n: c * 2**30 for n, c in histogram.to_dict().items()})
    made = plan(many, capacity, depth=depth, algorithm="mffd")
    assert made.histogram == many
    assert made.counts.size <= 40 * max(1, histogram.lengths.size)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(60, 80))
def test_keeps_its_bound(lengths, capacity):
    made = plan(lengths, capacity, algorithm="mffd")
    optimum = plan(lengths, capacity, algorithm="optimal").packs
    assert made.packs <= 71 / 60 * optimum + 1  # Yue and Zhang 1995


@pytest.mark.shared
@pytest.mark.parametrize(("depth", "packs"), [(2, 10_099_081), (3, 9_090_154), (8, 8_207_569), (None, 8_138_483)])
def test_wikipedia(wikipedia, depth, packs):
    assert plan(wikipedia, 512, depth=depth, algorithm="mffd").packs == packs
