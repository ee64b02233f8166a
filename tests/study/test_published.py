from __future__ import annotations

import pytest

from nopad import Histogram
from nopad.planning.registry import ALGORITHMS, complete_options
from nopad.study.published import COUNTS, MATRIX_OF_TABLE_4, RESIDUALS, TABLES, tables_for, unpublished_table


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_printed_counts_agree_with_each_other(table):
    for row in table.rows:
        if "packs" not in row.printed:
            continue
        packs, tokens, padding = (int(row.printed[column]) for column in COUNTS[1:4])
        assert tokens == packs * table.capacity
        alone = int(table.rows[0].printed["tokens"]) - int(table.rows[0].printed["padding tokens"])
        assert tokens - padding == alone  # the real tokens are the same in every row
        assert row.printed["packing factor"] == f"{table.sequences / packs:.3f}"
        wrong = (table.name, row.name) == ("supplement, Table 2", "NNLSHP")  # 97.310 printed for 97.315: an erratum
        assert (row.printed["efficiency %"] == f"{100 * alone / tokens:.3f}") is not wrong


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_rows_can_be_planned(table):
    for row in table.rows:
        assert set(row.printed) == set(table.columns)
        if row.algorithm != "sorted_batches":
            assert row.algorithm in ALGORITHMS
            complete_options(row.algorithm, row.options)
            assert row.depth in (str(row.limit), "≈10") or (row.limit is None and row.depth.endswith("max"))


def test_datasets_are_told_apart():
    named = {(table.capacity, table.sequences): table.what for table in TABLES}
    assert len(named) == 10  # Wikipedia twice
    for capacity, sequences in named:
        assert tables_for(Histogram.from_counts({3: sequences}), capacity)
        assert tables_for(Histogram.from_counts({3: sequences + 1}), capacity) == []
        assert tables_for(Histogram.from_counts({3: sequences}), capacity + 1) == []


def test_rows_for_another_dataset_have_no_published_figures():
    table = unpublished_table(Histogram.from_counts({3: 7}), 16, "mine")
    assert (table.capacity, table.sequences, table.what, table.columns) == (16, 7, "mine", COUNTS)
    assert [row.printed for row in table.rows] == [{}] * len(table.rows)
    assert {(row.algorithm, row.limit) for row in table.rows} >= {("spfhp", None), ("lpfhp", 16), ("nnlshp", 3)}
    assert all(row.depth == ("max" if row.limit is None else str(row.limit)) for row in table.rows)


def test_every_column_of_the_matrix_fills_its_pack():
    for column in zip(*MATRIX_OF_TABLE_4, strict=True):
        assert sum(length * count for length, count in enumerate(column, start=1)) == 8
        assert sum(column) <= 3


def test_stated_residuals():
    assert [RESIDUALS[f"length {n}"].value for n in (1, 8, 504, 505, 512)] == [-4620, -3970, None, 3628, 0]
