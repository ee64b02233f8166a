from __future__ import annotations

import numpy as np
import pytest

from nopad.study.serving import GRIDS, best_reduction, pack_workload, serving_rows, workload

BERT, DEBERTA = GRIDS


def test_the_requests_are_the_published_ones():
    np.random.seed(2023)  # noqa: NPY002  as PopRT's examples do
    drawn = [int(value) for value in np.random.normal(128, 128, 1600)]  # noqa: NPY002
    assert workload(BERT).tolist() == [min(max(value, 1), 256) for value in drawn]
    assert [round(best_reduction(grid), 3) for grid in GRIDS] == [2.003, 2.012]


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        (BERT, [100, 52, 56, 65, 56, 54, 51, 51]),
        (DEBERTA, [100, 56, 59, 66, 59, 52, 53, 54]),
    ],
)
def test_batches(grid, expected):
    rows = serving_rows(grid)
    assert [row.batches for row in rows] == expected
    for row in rows:
        assert row.reduction == pytest.approx(100 / row.batches)
        assert row.efficiency == pytest.approx(row.reduction / best_reduction(grid))


def test_published_beside_counted():
    rows = {row.way: row for row in serving_rows(BERT, [64])}
    assert {way: round(row.speed_up, 3) for way, row in rows.items() if row.speed_up} == {
        "end_to_end": 1.536,
        "first_fit": 1.746,
        "next_fit": 1.526,
    }
    assert [round(rows[way].realised, 2) for way in ("end_to_end", "first_fit", "next_fit")] == [0.80, 0.98, 0.99]
    assert (rows["best_fit"].published, rows["best_fit"].realised) == (None, None)
    assert all(row.realised > 1 for row in serving_rows(DEBERTA, [64]) if row.realised)


def test_every_request_is_packed_once():
    counted = pack_workload(BERT, "look_ahead", 64)
    assert (counted.arrived, counted.packed, counted.waiting) == (1600, 1600, 0)
    assert counted.tokens == workload(BERT).sum()
    assert counted.slots == counted.batches * 16 * 256
