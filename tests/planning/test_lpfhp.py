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
    assert plan(lengths, capacity, algorithm="lpfhp").packs == len(packs)


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


class TestWithoutDistributing:
    @given(st.from_type(Histogram), st.integers(40, 80), st.none() | st.integers(1, 6))
    def test_covers_exactly(self, histogram, capacity, depth):
        made = plan(histogram, capacity, depth=depth, algorithm="lpfhp", distribute=False)
        assert made.histogram == histogram
        assert made.problems() == []
        assert made.counts.size <= histogram.lengths.size  # as for spfhp: only the last length can split a class

    @pytest.mark.parametrize(
        ("counts", "depth", "expected"),
        [
            ({3: 10}, None, {(3,): 10}),
            ({2: 3, 4: 2}, None, {(4, 2, 2): 1, (4, 2): 1}),  # one each, then again the tightest
            ({2: 3, 4: 2}, 2, {(4, 2): 2, (2,): 1}),
            ({1: 2**40}, 8, {(1,): 2**40}),
            ({5: 3, 3: 1, 2: 1, 1: 2}, None, {(5, 3): 1, (5, 2, 1): 1, (5, 1): 1}),
        ],
    )
    def test_examples(self, counts, depth, expected):
        made = lpfhp(Histogram.from_counts(counts), 8, depth, distribute=False)
        assert {lengths: count for count, lengths in made} == expected

    @pytest.mark.shared
    @pytest.mark.parametrize(("depth", "packs", "reached"), [(3, 9_094_695, 3), (None, 8_147_988, 22)])
    def test_wikipedia(self, wikipedia, depth, packs, reached):
        """From running the published code with distribute=False."""
        made = plan(wikipedia, 512, depth=depth, algorithm="lpfhp", distribute=False)
        assert (made.packs, made.max_depth_used, made.counts.size) == (packs, reached, 508)
        assert made.histogram == wikipedia


def test_the_compiled_loop_has_one_signature():
    """Each further one would be compiled for a third of a second at the first plan after an installation."""
    from nopad.planning import _class_kernels

    for counts in ({5: 3}, {5: 3, 4: 2}, {n: n for n in range(1, 40)}):
        histogram = Histogram.from_counts(counts)
        lpfhp(histogram, 64, None)
        lpfhp(Histogram(histogram.lengths.copy(), histogram.counts.copy()), 64, 3)
    assert len(_class_kernels.place_classes.signatures) == 1
