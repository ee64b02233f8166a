from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram, plan


@given(st.from_type(Histogram), st.integers(40, 80), st.none() | st.integers(1, 5))
def test_is_lpfhp_by_another_name(histogram, capacity, depth):
    bfd = plan(histogram, capacity, depth=depth, algorithm="bfd")
    assert bfd.algorithm == "bfd"
    assert bfd.strategies == plan(histogram, capacity, depth=depth, algorithm="lpfhp").strategies


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(20, 50))
def test_needs_as_many_packs_as_the_textbook(lengths, capacity):
    packs = []  # among equally full packs the one opened first
    for length in sorted(lengths, reverse=True):
        fits = [pack for pack in packs if sum(pack) + length <= capacity]
        max(fits, key=sum).append(length) if fits else packs.append([length])
    assert plan(lengths, capacity, algorithm="bfd").packs == len(packs)
