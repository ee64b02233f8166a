from __future__ import annotations

import builtins
import json
import re

import numpy as np
import pytest

from nopad import Histogram
from nopad.errors import MissingExtraError, OptionError
from nopad.report.drawing import CHART_KINDS, check_chart, save_chart
from nopad.study.charts import distributions_chart, residuals_chart
from nopad.study.distributions import distribution
from nopad.study.residuals import residuals

HISTOGRAM = Histogram.from_counts({n: (n * n * 4 + 7) % 1300 for n in range(1, 33)})


@pytest.fixture(scope="module")
def charts():
    plain, weighted = residuals(HISTOGRAM, 32), residuals(HISTOGRAM, 32, weight=0.09)
    found = [distribution("one <b>", HISTOGRAM, 32), distribution("two", Histogram.from_counts({3: 4}), 5)]
    return {
        "residuals": (residuals_chart(plain, weighted), plain, weighted),
        "distributions": (distributions_chart(found), *found),
    }


@pytest.mark.parametrize("name", ["residuals", "distributions"])
@pytest.mark.parametrize("suffix", CHART_KINDS)
def test_every_format(charts, tmp_path, name, suffix):
    path = tmp_path / f"chart{suffix}"
    check_chart(path)
    save_chart(charts[name][0], path)
    content = path.read_bytes()
    start = {".html": b"<!DOCTYPE html>", ".svg": b"<svg", ".png": b"\x89PNG", ".json": b"{"}[suffix]
    assert content.lstrip().startswith(start)
    if suffix == ".html":  # nothing is fetched from elsewhere
        assert not re.search(rb"<(script|link)\b[^>]*\b(src|href)=", content)
        assert len(content) < 1.5e6
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_residuals_are_drawn(charts, tmp_path):
    chart, plain, weighted = charts["residuals"]
    save_chart(chart, tmp_path / "chart.json")
    panels = json.loads((tmp_path / "chart.json").read_text())["vconcat"]
    for panel, found in zip(panels, (plain, weighted), strict=True):
        drawn = {row["length"]: row["residual"] for row in panel["data"]["values"]}
        assert drawn == {n + 1: r for n, r in enumerate(found.values.tolist()) if r}
        assert {row["kind"] for row in panel["data"]["values"] if row["residual"] > 0} <= {"no slot"}


def test_the_distributions_are_drawn(charts, tmp_path):
    chart, one, two = charts["distributions"]
    save_chart(chart, tmp_path / "chart.json")
    panels = json.loads((tmp_path / "chart.json").read_text())["concat"]
    assert [panel["title"]["text"] for panel in panels] == ["one <b>", "two"]
    for panel, found in zip(panels, (one, two), strict=True):
        rows = panel["data"]["values"]
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert (rows[0]["from"], rows[-1]["to"]) == (0, found.capacity)
        lengths = np.repeat(found.histogram.lengths, found.histogram.counts)
        for row in rows:
            assert row["share"] == pytest.approx(np.mean((row["from"] < lengths) & (lengths <= row["to"])))
        assert panel["title"]["subtitle"].startswith("theoretical speed-up ")


@pytest.mark.parametrize("name", ["chart", "chart.pdf", "chart.HTML"])
def test_an_unknown_format_is_refused(tmp_path, name):
    with pytest.raises(OptionError, match=r"a chart is saved as one of \.html, \.svg, \.png, \.json"):
        check_chart(tmp_path / name)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"there is no folder .*; make it, or choose another path"):
        check_chart(tmp_path / "no" / "chart.svg")


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "altair":
            raise ModuleNotFoundError("No module named 'altair'", name="altair")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"charts need altair; in a clone: pip install -e '\.\[report\]'"):
        check_chart(tmp_path / "chart.svg")
