from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nopad.report.ranges import MOST, SEVERAL, in_ranges, name_of


@given(st.dictionaries(st.integers(1, 3000), st.integers(1, 50), min_size=1, max_size=200))
def test_each_number_is_in_one_range_and_none_is_empty(counts):
    found = in_ranges(counts)
    assert len(found) <= max(MOST, SEVERAL)
    assert all(first <= last for first, last in found)
    assert all(a[1] < b[0] for a, b in pairwise(found))
    held = [sum(first <= number <= last for number in counts) for first, last in found]
    assert min(held) >= 1
    assert sum(held) == len(counts)


def test_without_numbers_there_are_no_ranges():
    assert in_ranges({}) == []


def test_few_numbers_stand_alone_however_far_apart():
    assert in_ranges({1: 1, 10**9: 1}) == [(1, 1), (10**9, 10**9)]


def test_even_ranges_have_round_ends():
    found = in_ranges(dict.fromkeys(range(1003, 1980), 1))
    assert found[:2] == [(1003, 1050), (1051, 1100)]
    assert found[-1] == (1951, 1979)


def test_long_tails_get_growing_ranges():
    counts = {number: max(1, 4000 // number**2) for number in range(1, 4097)}
    found = in_ranges(counts)
    assert found[:4] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert found[-2:] == [(2049, 3072), (3073, 4096)]


def test_names():
    assert [name_of(7, 7), name_of(1000, 1001)] == ["7", "1,000–1,001"]
