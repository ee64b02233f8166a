from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

import nopad
from nopad.cli.render import _BAR, bars, outcome, plan_table, seconds
from nopad.corpus import Counts
from nopad.store import Manifest

ROW = {
    "algorithm": "lpfhp",
    "depth": 3,
    "max_depth_used": 3,
    "strategies": 648,
    "packs": 9_090_154,
    "lower_bound": 8_135_727,
    "padding_tokens": 489_362_675,
    "efficiency": 0.89485,
    "packing_factor": 1.791,
    "seconds": 0.0036,
}


def drawn(renderable, width):
    file = io.StringIO()
    Console(file=file, width=width).print(renderable)
    return file.getvalue()


def manifest(**changes):
    return Manifest(
        **{
            "kind": "packed",
            "capacity": 8,
            "depth": None,
            "algorithm": "lpfhp",
            "seed": 0,
            "order": "random",
            "packs": 3,
            "sequences": 5,
            "tokens": 22,
            "source": {"ignored": 0, "left_out": []},
            "tokenizer": None,
            "options": {},
            "counts": Counts(records=5).to_dict(),
            "sources": [],
            "plan_sha256": "",
            "sequence_checksum": "",
            "columns": {},
            "carried": {},
            "rows_per_group": 1,
            "shards": (),
        }
        | changes
    )


def test_table_in_full():
    lines = drawn(plan_table([ROW, ROW | {"depth": None, "efficiency": 1.0}]), 160).splitlines()
    assert " ".join(lines[1].split()) == (
        "algorithm depth reached strategies packs above bound padding tokens efficiency factor time"
    )
    assert " ".join(lines[3].split()) == "lpfhp 3 3 648 9,090,154 954,427 489,362,675 89.485% 1.791 3.6 ms"
    assert lines[4].split()[:2] == ["lpfhp", "max"]


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(120, ""), (100, "strategies, reached"), (80, "strategies, reached, padding tokens")],
)
def test_narrow_table_leaves_out_whole_columns_and_says_so(width, left_out):
    shown = drawn(plan_table([ROW], width), width)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert ("narrow terminal: without " + left_out in " ".join(shown.split())) == bool(left_out)
    assert "954,427" in shown


def test_an_empty_table():
    assert "algorithm" in drawn(plan_table([]), 160)


def test_bars_fit_80_columns():
    lines = bars(manifest(packs=8_138_483, sequences=16_279_552)).plain.splitlines()
    assert [line.split()[0] for line in lines] == ["before", "after"]
    assert all(len(line) <= 80 for line in lines)
    assert all(line.count("█") + line.count("░") == _BAR for line in lines)


def test_outcome():
    plan = nopad.plan([5, 3, 4, 2, 8], capacity=8)
    text = outcome(manifest(), plan).plain
    assert "packs: 3 for 5 sequences (1.67 per pack), exactly the proven minimum of 3" in text
    assert text.endswith("records: 5 records\n")
    counts = manifest().counts | {"split": 2, "truncated": 3, "dropped": 4, "empty_skipped": 5, "bad_skipped": 6}
    counts |= {"stripped": 8, "stripped_tokens": 9000}
    source = {"ignored": 7, "left_out": ["url", "when"]}
    text = outcome(manifest(counts=counts, source=source, carried={"labels": "token", "id": "sequence"}), plan).plain
    assert text.endswith(
        "5 records, 2 split, 3 truncated, 4 dropped as over-long, 5 skipped as empty, 6 skipped as bad, "
        "8 came with padding (9,000 tokens, removed)\n"
        "  columns that are carried: labels, id\n  columns that are left out: url, when\n"
    )


def test_outcome_above_the_bound():
    loose = nopad.plan([5, 3, 4, 2, 8], capacity=8, depth=1)
    assert "exactly the proven minimum of 5" in outcome(manifest(), loose).plain
    greedy = nopad.plan([5, 4, 3, 4], capacity=8, algorithm="greedy")
    assert "1 above the proven minimum of 2" in outcome(manifest(), greedy).plain


def test_outcome_with_notes():
    plan = dataclasses.replace(nopad.plan([5, 3], capacity=8), notes=("stopped [early]", "rounded"))
    lines = outcome(manifest(), plan).plain.splitlines()
    assert [line for line in lines if "note" in line] == ["  note: stopped [early]", "  note: rounded"]


@pytest.mark.parametrize(("value", "shown"), [(0.0004, "0.4 ms"), (0.9994, "999.4 ms"), (1.0, "1.0 s"), (83, "83.0 s")])
def test_seconds(value, shown):
    assert seconds(value) == shown
