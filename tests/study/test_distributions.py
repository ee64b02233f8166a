from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopad import Histogram
from nopad.errors import LengthError, OptionError
from nopad.study.distributions import distribution


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "capacity", "theoretical", "spfhp", "factor", "padding", "full"),
    [("wikipedia", 512, 2.001, 1.993, 2.001, 0.500, 0.234), ("squad", 384, 2.232, 2.177, 2.205, 0.552, 0.012)],
)
def test_published(request, name, capacity, theoretical, spfhp, factor, padding, full):
    found = distribution(name, request.getfixturevalue(name), capacity)
    assert round(found.theoretical, 3) == theoretical
    assert (round(found.spfhp, 3), round(found.factor, 3)) == (spfhp, factor)
    assert (round(found.padding, 3), round(found.full, 3)) == (padding, full)


@settings(max_examples=settings.default.max_examples * 2 // 5)  # each takes long
@given(st.from_type(Histogram).filter(lambda histogram: histogram.sequences))
def test_measures_against_the_lengths_themselves(histogram):
    lengths = np.repeat(histogram.lengths, histogram.counts)
    found = distribution("any", histogram, 40)
    assert found.mean == pytest.approx(lengths.mean())
    assert found.median == np.sort(lengths)[(lengths.size - 1) // 2]
    assert found.padding == pytest.approx(1 - lengths.sum() / (40 * lengths.size))
    assert found.full == pytest.approx((lengths == 40).mean())
    assert 1 <= found.factor <= found.possible <= found.theoretical
    assert found.spfhp <= found.possible
    for bins in (1, 7, 40):
        edges = -(-np.arange(bins + 1) * 40 // bins)  # a bin holds the lengths above its first edge, up to its last
        assert found.bars(bins) == pytest.approx(np.histogram(lengths - 0.5, edges)[0] / lengths.size)
    assert np.allclose(found.bars(40)[histogram.lengths - 1] * lengths.size, histogram.counts)


def test_the_summary_is_plain():
    found = distribution("pairs", Histogram.from_counts({3: 2, 5: 2}), 8)
    assert found.summary() == {
        "name": "pairs",
        "capacity": 8,
        "sequences": 4,
        "tokens": 16,
        "mean": 4.0,
        "median": 3,
        "full": 0.0,
        "padding": 0.5,
        "theoretical": 2.0,
        "spfhp": 2.0,
        "factor": 2.0,
        "possible": 2.0,
    }


def test_a_length_above_the_capacity_is_refused():
    with pytest.raises(LengthError, match="above the capacity of 8"):
        distribution("long", Histogram.from_counts({9: 1}), 8)


def test_a_histogram_without_a_sequence_is_refused():
    with pytest.raises(OptionError, match="none holds no sequence"):
        distribution("none", Histogram.from_counts({}), 8)
