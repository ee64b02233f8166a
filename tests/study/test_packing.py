from __future__ import annotations

import dataclasses

import pytest

import nopad
from nopad import Histogram
from nopad.errors import LengthError
from nopad.planning.enumeration import full_strategies
from nopad.study import packing
from nopad.study.packing import as_printed, contrast, count_strategies, difference, redo, sorted_batches
from nopad.study.published import TABLE_1, TABLE_2, TABLE_5, tables_for, unpublished_table

SMALL = Histogram.from_counts({1: 9, 2: 4, 3: 8, 5: 6, 7: 2})


@pytest.mark.parametrize("row", TABLE_1.rows, ids=lambda row: f"{row.name} {row.depth}")
def test_every_row_of_no_sequences_and_of_too_long_ones(row):
    assert redo(TABLE_1, row, Histogram.from_counts({})).ours["packing factor"] in ("1.0", "1.00")
    with pytest.raises(LengthError, match="1 sequence is above the capacity of 512"):
        redo(TABLE_1, row, Histogram.from_counts({513: 1, 5: 2}))


@pytest.mark.shared
@pytest.mark.parametrize("row", TABLE_5.rows, ids=lambda row: row.depth)
def test_table_5_is_exact(wikipedia, row):
    assert set(redo(TABLE_5, row, wikipedia).difference.values()) == {"="}


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("row", TABLE_1.rows, ids=lambda row: f"{row.name} {row.depth}")
def test_table_1_to_its_digits(wikipedia, row):
    redone = redo(TABLE_1, row, wikipedia)
    off = {"efficiency %": "+0.1", "packing factor": "="} if row.name == "SORT" else dict.fromkeys(row.printed, "=")
    assert redone.difference == off
    if row.name == "GREEDY":
        assert redone.reached == 10  # "≈10"


@pytest.mark.slow
@pytest.mark.shared
def test_table_2(squad):
    assert tables_for(squad, 384) == [TABLE_2]
    redone = {row.depth: redo(TABLE_2, row, squad) for row in TABLE_2.rows}
    for depth in ("1", "2", "3/max"):
        assert set(redone[depth].difference.values()) == {"="}
    nnlshp = redone["3"]
    assert int(nnlshp.ours["packs"]) == pytest.approx(40_808, abs=3)
    assert int(nnlshp.ours["strategies"]) == pytest.approx(398, abs=8)
    assert int(nnlshp.ours["padding tokens"]) == pytest.approx(420_793, abs=3 * 384)
    assert "the exact cover needs 40,8" in nnlshp.note


@pytest.mark.shared
def test_what_optimal_reaches(squad):
    two, three, unlimited = contrast(TABLE_2, squad)
    assert (two.depth, three.depth, unlimited.depth) == ("2", "3", "max")
    assert (two.ours["packs"], three.ours["packs"], unlimited.ours["packs"]) == ("45335", "40195", "40195")
    assert {two.note, three.note, unlimited.note} == {"proven optimal"}
    assert three.published == three.difference == {}


def test_a_dataset_that_the_papers_do_not_have():
    table = unpublished_table(SMALL, 8, "mine")
    rows = [redo(table, row, SMALL) for row in table.rows]
    assert [row.published for row in rows] == [row.difference for row in rows] == [{}] * len(rows)
    alone = rows[0].ours
    assert alone == {
        "strategies": "5",
        "packs": "29",
        "tokens": "232",
        "padding tokens": "147",
        "efficiency %": "36.638",
        "packing factor": "1.000",
    }
    assert set(rows[1].ours) == {"efficiency %", "packing factor"}  # sorted batches have no packs
    assert rows[1].reached is None
    for row in rows[2:]:
        assert int(row.ours["tokens"]) - int(row.ours["padding tokens"]) == SMALL.tokens


def test_notes_of_plans_are_notes_of_rows(monkeypatch):
    def noted(*given, **options):
        return dataclasses.replace(nopad.plan(*given, **options), notes=("stopped early",))

    monkeypatch.setattr(packing, "plan", noted)
    table = unpublished_table(SMALL, 8, "mine")
    for row in contrast(table, SMALL):
        assert row.note == "proven optimal; stopped early"
    for row in table.rows:
        note = redo(table, row, SMALL).note
        assert note.endswith("stopped early") or row.algorithm in ("sorted_batches", "greedy")


def test_a_row_that_is_too_large_says_so():
    histogram = Histogram.from_counts({5000: 3})
    table = unpublished_table(histogram, 8192, "long")
    [row] = [redo(table, row, histogram) for row in table.rows if row.algorithm == "nnlshp"]
    assert row.ours == {}
    assert "nnlshp lists all strategies" in row.note


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_sorted_batches_one_by_one(rows):
    lengths = sorted(([n] * count for n, count in SMALL.to_dict().items()), reverse=True)
    flat = [length for group in lengths for length in group]
    batches = [flat[at : at + rows] for at in range(0, len(flat), rows)]
    slots = sum(max(batch) * len(batch) for batch in batches)
    found = sorted_batches(SMALL, 8, rows)
    assert found["efficiency %"] == pytest.approx(100 * sum(flat) / slots)
    assert found["packing factor"] == pytest.approx(len(flat) * 8 / slots)


def test_counts_of_strategies_are_counted():
    for counted in count_strategies():
        if counted.capacity <= 128 or (counted.capacity, counted.depth) == (2048, 2):
            assert counted.exact == len(full_strategies(counted.capacity, counted.depth))
    exact = {(c.capacity, c.depth): c for c in count_strategies()}
    assert exact[512, 3].published == str(exact[512, 3].exact) == "22102"
    assert exact[2048, 3].exact == 350_550  # printed: 350'540
    assert exact[512, 4].formula - exact[512, 3].formula == 940_266  # "around 940K"


def test_a_wrong_matrix_is_noticed(monkeypatch):
    assert packing.packing_matrix_of_table_4()[1]
    monkeypatch.setattr(packing, "MATRIX_OF_TABLE_4", ((1,),))
    assert not packing.packing_matrix_of_table_4()[1]


@pytest.mark.parametrize(
    ("value", "printed", "shown", "off"),
    [
        (99.746, "99.7", "99.7", "="),
        (99.75001, "99.7", "99.8", "+0.1"),
        (1.99625, "2.00", "2.00", "="),
        (40809, "40808", "40809", "+1"),
        (78.233, "78", "78", "="),
        (96.6, "97.310", "96.600", "-0.710"),
    ],
)
def test_differences_in_printed_digits(value, printed, shown, off):
    assert as_printed(value, printed) == shown
    assert difference(shown, printed) == off
