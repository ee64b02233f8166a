from __future__ import annotations

import pytest

import nopad
from nopad.report import read_subject
from nopad.report.charts import (
    charts_of,
    depth_chart,
    efficiency_chart,
    fill_chart,
    length_chart,
    packs_chart,
    source_chart,
)


def values(chart) -> list[dict]:
    return chart.to_dict()["data"]["values"]


def test_lengths(subject):
    rows = values(length_chart(subject))
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["tokens"] for row in rows) == pytest.approx(1)
    assert (rows[0]["from"], rows[-1]["to"]) == (0, subject.plan.capacity)
    histogram = subject.histogram
    for row in rows:
        inside = (histogram.lengths > row["from"]) & (histogram.lengths <= row["to"])
        assert row["share"] == pytest.approx(histogram.counts[inside].sum() / histogram.sequences)


def test_efficiency_never_exceeds_the_proven_limit(subject):
    rows = values(efficiency_chart(subject))
    limits = {row["depth"]: row["efficiency"] for row in rows if row["algorithm"] == "proven limit"}
    assert list(limits) == ["1", "2", "3", "4", "8", "16", "no limit"]
    for row in rows:
        assert row["efficiency"] <= limits[row["depth"]]
    assert {row["algorithm"] for row in rows} == {"auto", "lpfhp", "spfhp", "proven limit"}


def test_fill_and_depth_count_every_pack(subject):
    for chart in (fill_chart(subject), depth_chart(subject)):
        rows = values(chart)
        assert sum(row["packs"] for row in rows) == subject.plan.packs
        assert sum(row["share"] for row in rows) == pytest.approx(1)
    full = sum(count for count, lengths in subject.plan.strategies if sum(lengths) == subject.plan.capacity)
    assert values(fill_chart(subject))[-1]["packs"] == full
    assert len(values(depth_chart(subject))) <= 24


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
    for chart in (fill_chart(huge), depth_chart(huge)):
        assert sum(row["packs"] for row in values(chart)) == huge.plan.packs
    shares = [row["share"] for row in values(length_chart(huge)) if row["share"]]
    assert shares == [pytest.approx(1 / 12)] * 12
    held = {tuple(length for length, _ in pack) for pack in huge.packs}
    assert held <= {lengths for _, lengths in huge.plan.strategies}
    assert len(held) == len(huge.plan.strategies)  # equally common ones are all in an evenly spaced sample
