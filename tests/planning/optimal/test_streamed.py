from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram, StreamPacker, plan
from nopad.planning.optimal import units
from nopad.planning.optimal.streamed import streamed, streaming


def held(packs):
    """The number of sequences of each length in packs of `Listed`."""
    found = Counter()
    for begin, end, copies in zip(packs.indptr[:-1], packs.indptr[1:], packs.copies.tolist(), strict=True):
        for length in packs.lengths[begin:end].tolist():
            found[length] += copies
    return found


@pytest.mark.parametrize("most", [2**18, 20])
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=120), depth=st.none() | st.integers(1, 5))
def test_every_sequence_is_in_one_pack(most, lengths, depth):
    histogram = Histogram.from_lengths(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "_MOST_FILLED", most)
        packs, again = streamed(histogram, 40, depth), streamed(histogram, 40, depth)
    assert held(packs) == Counter(lengths)
    assert packs.tokens.max() <= 40
    assert packs.sizes.max() <= (depth or 120)
    assert packs.lengths.tobytes() == again.lengths.tobytes()
    assert np.array_equal(packs.indptr, again.indptr)


def test_a_large_histogram_costs_no_more_than_its_parts():
    few = Histogram(np.arange(1, 100), np.full(99, 1000))
    many = Histogram(np.arange(1, 100), np.full(99, 1000 * 2**20))
    assert streaming(few, 100) < streaming(many, 100) < 20 * streaming(few, 100)


def test_a_plan_with_a_depth_is_no_worse_than_a_stream():
    rng = np.random.default_rng(2)
    lengths = np.clip(np.round(rng.lognormal(np.log(205), 1.1, 10_000)), 1, 4096).astype(np.int64)
    packs = plan(lengths, 4096, depth=16).packs
    for _ in range(3):
        packer = StreamPacker(4096, depth=16)
        assert packs <= len(packer.push(rng.permutation(lengths))) + len(packer.finish())
