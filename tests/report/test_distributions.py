"""Charts of shares: they count everything, and no bin is empty."""

from __future__ import annotations

from collections import Counter

import pytest

import nopad
from nopad.report import read_subject
from nopad.report.distributions import alike_chart, depth_chart, fill_chart, length_chart


def values(chart) -> list[dict]:
    spec = chart.to_dict()
    return spec.get("data", spec.get("layer", [{}])[0].get("data"))["values"]


def subject_of(lengths, folder, **how):
    nopad.plan(lengths, **how).save(folder / "some.plan.json")
    return read_subject(folder / "some.plan.json")


def test_lengths(subject):
    rows = values(length_chart(subject))
    histogram = subject.histogram
    counts = dict(zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True))
    for kind, total, weigh in (
        ("of the sequences", histogram.sequences, lambda length: 1),
        ("of the tokens", histogram.tokens, int),
    ):
        mine = [row for row in rows if row["kind"] == kind]
        assert sum(row["share"] for row in mine) == pytest.approx(1)
        assert (mine[0]["first"], mine[-1]["last"]) == (min(counts), max(counts))
        for row in mine:
            inside = sum(n * weigh(length) for length, n in counts.items() if row["first"] <= length <= row["last"])
            assert row["share"] == pytest.approx(inside / total)
            assert inside > 0


def test_depth_counts_every_pack(subject):
    rows = values(depth_chart(subject))
    found = Counter()
    for count, lengths in subject.plan.strategies:
        found[str(len(lengths))] += count
    assert {row["depth"]: row["packs"] for row in rows} == found  # few enough for a bar each
    assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_fill_counts_every_pack(tmp_path):
    lengths = [100, 60, 40, 97, 92, 80, 55, 51, 10]
    rows = values(fill_chart(subject_of(lengths, tmp_path, capacity=100, depth=1)))
    assert [(row["fill"], row["packs"]) for row in rows] == [
        ("full", 1),
        ("95% or more, not full", 1),
        ("90 to 95%", 1),
        ("75 to 90%", 1),
        ("50 to 75%", 3),
        ("under 50%", 2),
    ]
    assert rows[0]["label"] == "11.1%"


def test_bins_that_are_not_empty(tmp_path):
    lengths = [*range(1, 40), *range(400, 500, 3), 9000]
    found = subject_of(lengths, tmp_path, capacity=10_000)
    assert all(row["share"] > 0 for row in values(length_chart(found)))
    assert len(values(length_chart(found))) <= 2 * 24
    fill = fill_chart(subject_of([5, 4, 1], tmp_path, capacity=8, depth=1))
    assert [row["fill"] for row in values(fill)] == ["50 to 75%", "under 50%"]


def test_nothing_to_draw(tmp_path):
    found = subject_of([4] * 8, tmp_path, capacity=8)
    assert [make(found) for make in (length_chart, depth_chart, fill_chart, alike_chart)] == [None] * 4


def test_pairs_of_a_pack_beside_pairs_at_random(tmp_path):
    found = subject_of([6, 2, 6, 2, 5, 3], tmp_path, capacity=8)
    chart = alike_chart(found)
    shares = {(row["difference"], row["kind"]): row["share"] for row in values(chart)}
    assert shares["2", "of one pack"] == pytest.approx(1 / 3)  # 5 and 3
    assert shares["4", "of one pack"] == 1
    assert shares["0", "of one pack"] == 0
    assert shares["0", "drawn at random"] == pytest.approx(2 / 15)
    dashes = chart.to_dict()["encoding"]["strokeDash"]["scale"]["range"]
    assert dashes[0] != dashes[1]


def test_counts_beyond_64_bits(tmp_path):
    histogram = nopad.Histogram.from_counts(dict.fromkeys(range(5, 17), 2**62))
    huge = subject_of(histogram, tmp_path, capacity=16, algorithm="lpfhp")
    assert huge.plan.packs > 2**64
    for chart in (fill_chart(huge), depth_chart(huge)):
        assert sum(row["packs"] for row in values(chart)) == huge.plan.packs
    rows = [row for row in values(length_chart(huge)) if row["kind"] == "of the sequences"]
    assert [row["share"] for row in rows] == [pytest.approx(1 / 12)] * 12
