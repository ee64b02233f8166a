from __future__ import annotations

import numpy as np
import pytest

import nopad
from nopad.report import read_subject
from nopad.report.charts import (
    charts_of,
    efficiency_chart,
    packs_chart,
    slots_chart,
    source_chart,
)
from nopad.report.settings import Settings


def values(chart) -> list[dict]:
    return chart.to_dict()["data"]["values"]


def test_efficiency_never_exceeds_the_proven_limit(subject):
    rows = values(efficiency_chart(subject))
    limits = {row["depth"]: row["efficiency"] for row in rows if row["algorithm"] == "proven limit"}
    assert list(limits) == ["1", "2", "3", "4", "8", "16", "no limit"]
    for row in rows:
        assert row["efficiency"] <= limits[row["depth"]]
    assert {row["algorithm"] for row in rows} == {"auto", "lpfhp", "spfhp", "proven limit"}


def test_lines_that_lie_on_each_other_are_told_apart(subject):
    spec = efficiency_chart(subject).to_dict()
    [lines] = [layer for layer in spec["layer"] if layer["mark"]["type"] == "line"]
    dashes, widths = lines["encoding"]["strokeDash"]["scale"], lines["encoding"]["strokeWidth"]["scale"]
    assert dashes["domain"] == widths["domain"] == ["auto", "lpfhp", "spfhp", "proven limit"]
    assert len({tuple(dash) for dash in dashes["range"][:3]}) == 3
    assert widths["range"][:3] == sorted(set(widths["range"][:3]), reverse=True)  # the thinnest is drawn last


def test_slots_of_each_way(subject):
    spec = slots_chart(subject, Settings(batch_size=7)).to_dict()
    rows = spec["layer"][0]["data"]["values"]
    plan = subject.plan
    lengths = np.sort(np.repeat(plan.histogram.lengths, plan.histogram.counts))[::-1]
    by_length = sum(int(lengths[at]) * lengths[at : at + 7].size for at in range(0, lengths.size, 7))
    slots = {}
    for row in rows:
        slots[row["way"]] = slots.get(row["way"], 0) + row["slots"]
        assert row["part"] == "padding" or row["slots"] == lengths.sum()
    assert slots.pop(f"padded to {plan.capacity}") == lengths.size * plan.capacity
    assert slots.pop("sorted by length, batches of 7") == by_length
    assert slots.pop("packed") == plan.packs * plan.capacity
    [(name, dynamic)] = slots.items()
    assert name == "dynamic padding, batches of 7"
    assert by_length <= dynamic <= lengths.size * int(lengths[0])


def test_packs_are_bars_without_gaps(subject):
    rows = values(packs_chart(subject))
    for number, pack in enumerate(subject.packs):
        bars = [row for row in rows if row["pack"] == number]
        assert [row["from"] for row in bars] == [0, *(row["to"] for row in bars[:-1])]
        assert bars[-1]["to"] == subject.plan.capacity
        lengths = [row["to"] - row["from"] for row in bars if row["colour"] >= 0]
        assert lengths == [length for length, _ in pack]
        for (length, record), row in zip(pack, bars, strict=False):
            assert row["what"] == f"{length:,} tokens" + (f", {record}" if record else "")


def test_every_chart_can_be_drawn(subject):
    import vl_convert

    charts = charts_of(subject)
    assert ("sources" in charts) == bool(subject.sources)
    for chart in charts.values():
        assert vl_convert.vegalite_to_svg(chart.properties(width=300).to_json()).startswith("<svg")
        assert chart.to_dict()["description"].startswith(("Bars: ", "Lines: "))


@pytest.mark.parametrize(("split", "other"), [("train", "held out"), ("validation", "not held out")])
def test_tokens_of_each_source_add_up(mixture, split, other):
    subject = read_subject(mixture / split)
    rows = source_chart(subject).to_dict()["data"]["values"]
    assert [row["fate"] for row in rows[:3]] == ["packed", other, "cut off or dropped"]
    for part in subject.sources:
        mine = {row["fate"]: row["tokens"] for row in rows if row["source"] == part["name"]}
        assert sum(mine.values()) == {"long": 12 * 39, "short": 240}[part["name"]]
        assert mine["packed"] == part["tokens"]


def test_counts_beyond_64_bits(tmp_path):
    histogram = nopad.Histogram.from_counts(dict.fromkeys(range(5, 17), 2**62))
    nopad.plan(histogram, 16, algorithm="lpfhp").save(tmp_path / "huge.plan.json")
    huge = read_subject(tmp_path / "huge.plan.json")
    assert huge.plan.packs > 2**64
    held = {tuple(length for length, _ in pack) for pack in huge.packs}
    assert held <= {lengths for _, lengths in huge.plan.strategies}
    assert len(held) == len(huge.plan.strategies)  # equally common ones are all in an evenly spaced sample
