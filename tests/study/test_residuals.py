from __future__ import annotations

import numpy as np
import pytest

from nopad import Histogram
from nopad.errors import LengthError, OptionError
from nopad.planning.nnlshp import SHORT_WEIGHT
from nopad.study.residuals import Residuals, compare, residuals

SMALL = Histogram.from_counts({n: (n * n * 4 + 7) % 1300 for n in range(1, 33)})


@pytest.fixture(scope="module")
def found(wikipedia):
    return residuals(wikipedia, 512), residuals(wikipedia, 512, weight=SHORT_WEIGHT)


@pytest.mark.slow
@pytest.mark.shared
class TestWikipedia:
    def test_every_stated_figure_is_within_its_tolerance(self, found, wikipedia):
        rows = {row.what: row for row in compare(*found, wikipedia)}
        stated = {what: row for what, row in rows.items() if row.within is not None}
        assert len(stated) == 8 + 8 + 4
        assert all(row.within for row in stated.values())
        assert rows["length 504"].plain == pytest.approx(3970, abs=2)  # the value that the text lost
        assert rows["length 504"].published is None

    def test_totals(self, found):
        plain, weighted = found
        assert plain.left_over == pytest.approx(56_799, abs=60)
        assert plain.padding_tokens == pytest.approx(7.94e6, rel=0.015)
        assert weighted.strategies_with_leftovers == pytest.approx(634, abs=3)

    def test_weights_move_the_residual_to_the_short_lengths(self, found):
        plain, weighted = found
        assert weighted.left_over < plain.left_over / 5
        assert np.all(weighted.values[:8] < 2 * plain.values[:8])
        assert np.abs(weighted.values[8:]).max() < np.abs(plain.values[8:]).max() / 5


@pytest.mark.parametrize("weight", [1.0, 0.09])
def test_residuals_account_for_every_token(weight):
    made = residuals(SMALL, 32, weight=weight)
    lengths = np.arange(1, 33)
    # packs x capacity = tokens in slots = all tokens - those left over + those invented
    assert made.packs * 32 == SMALL.tokens - made.values @ lengths
    assert made.left_over - made.invented == made.values.sum()
    assert made.padding_tokens == sum(-r * n for n, r in zip(lengths, made.values, strict=True) if r < 0)
    assert made.padding_tokens_of_leftovers == sum(
        r * (32 - n) for n, r in zip(lengths, made.values, strict=True) if r > 0
    )
    assert 0 < made.strategies <= made.strategies_with_leftovers


def test_another_dataset_has_no_published_figures():
    made = residuals(SMALL, 32)
    rows = compare(made, made, SMALL)
    assert {(row.published, row.difference, row.tolerance, row.within, row.note) for row in rows} == {
        (None, None, None, None, "")
    }
    assert [row.what for row in rows][:17] == [f"length {n}" for n in (*range(1, 9), *range(24, 33))]


def test_a_difference_outside_its_tolerance_is_said():
    histogram = Histogram.from_counts({100: 16_279_552})
    values = np.zeros(512, dtype=np.int64)
    values[0], values[511] = -4622, 3
    made = Residuals(values=values, weight=1.0, packs=1, strategies=2, strategies_with_leftovers=634)
    rows = {row.what: row for row in compare(made, made, histogram)}
    assert (rows["length 1"].difference, rows["length 1"].within) == (-2, True)
    assert (rows["length 512"].difference, rows["length 512"].within) == (3, False)
    assert rows["strategies with leftovers"].within is True
    assert rows["sequences left over"].within is False


def test_a_tiny_capacity():
    made = residuals(Histogram.from_counts({1: 3}), 1)
    assert (made.values.tolist(), made.packs) == ([0], 3)
    assert next(row.what for row in compare(made, made, Histogram.from_counts({1: 3}))) == "length 1"


def test_a_length_above_the_capacity_is_refused():
    with pytest.raises(LengthError, match=r"2 sequences are above the capacity of 8 \(the longest has 9 tokens\)"):
        residuals(Histogram.from_counts({3: 9, 9: 2}), 8)
    with pytest.raises(OptionError, match="capacity must be an integer from 1"):
        residuals(Histogram.from_counts({3: 9}), 0)


def test_too_large_a_capacity_is_refused():
    with pytest.raises(
        OptionError, match=r"the study of residuals lists all strategies .* at capacity 8192 and depth 3"
    ):
        residuals(Histogram.from_counts({5: 1}), 8192)
