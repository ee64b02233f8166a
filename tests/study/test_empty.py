"""A histogram without a sequence: each study of one gives its rows, or says why there are none."""

from __future__ import annotations

import math

import pytest

from nopad import Histogram
from nopad.errors import BalanceError, OptionError
from nopad.study.balance import balance_rows, order_effect
from nopad.study.distributions import distribution
from nopad.study.glue import redo_glue
from nopad.study.latency import latency_rows
from nopad.study.packing import contrast, redo, sorted_batches
from nopad.study.published import TABLES
from nopad.study.residuals import compare, residuals
from nopad.study.scaling import scaling

EMPTY = Histogram.from_counts({})


def test_residuals():
    found = residuals(EMPTY, 8)
    rows = compare(found, found, EMPTY)
    assert {row.what for row in rows} >= {"length 8", "left over, % of all", "strategies"}
    assert {row.plain for row in rows} == {row.weighted for row in rows} == {0}


@pytest.mark.parametrize(
    ("study", "error", "message"),
    [
        (lambda: balance_rows(EMPTY, [8]), BalanceError, "0 units are too few"),
        (lambda: [order_effect(EMPTY)], OptionError, "0 sequences are too few"),
        (lambda: [distribution("none", EMPTY, 8)], OptionError, "none holds no sequence"),
        (lambda: latency_rows(EMPTY), OptionError, "the histogram holds no sequence"),
        (lambda: scaling(EMPTY), OptionError, "the histogram holds no sequence"),
    ],
)
def test_a_study_that_draws_says_why_not(study, error, message):
    with pytest.raises(error, match=message):
        list(study())


def test_tables_are_compared():
    rows = [*redo_glue("cola", EMPTY)[1], *contrast(TABLES[0], EMPTY), redo(TABLES[0], TABLES[0].rows[0], EMPTY)]
    assert {math.ceil(float(row.ours["efficiency %"])) for row in rows if "efficiency %" in row.ours} == {100}
    assert sorted_batches(EMPTY, 8, 2) == {"efficiency %": 100.0, "packing factor": 1.0}
