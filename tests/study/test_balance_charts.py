from __future__ import annotations

import json

import pytest

from nopad import Histogram
from nopad.balance import Attention
from nopad.report.drawing import save_chart
from nopad.study.balance import balance_rows
from nopad.study.balance_charts import latency_chart, long_context_chart, ranges_chart, scaling_chart
from nopad.study.latency import latency_rows
from nopad.study.long_context import Workload, long_context_rows
from nopad.study.scaling import scaling

HISTOGRAM = Histogram.from_counts(dict.fromkeys(range(1, 65), 100))


def drawn(chart, folder):
    """The chart's document, and all rows of data in it."""
    save_chart(chart, folder / "chart.json")
    save_chart(chart, folder / "chart.svg")
    assert (folder / "chart.svg").read_text().startswith("<svg")
    document, found = json.loads((folder / "chart.json").read_text()), []

    def walk(node):
        if isinstance(node, dict):
            values = node.get("data", {}).get("values") if isinstance(node.get("data"), dict) else None
            found.extend(values or ())
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(document)
    return found


def test_the_ranges_are_drawn(tmp_path):
    rows = list(balance_rows(HISTOGRAM, [2, 8], node=2, steps=5))
    values = drawn(ranges_chart(rows), tmp_path)
    ours = {row.gpus: row for row in rows if row.method == "karmarkar_karp"}
    shown = {value["gpus"]: value for value in values if value["method"] == "Karmarkar-Karp"}
    assert {gpus: (value["least"], value["most"]) for gpus, value in shown.items()} == {
        gpus: (row.min_tokens, row.max_tokens) for gpus, row in ours.items()
    }
    assert len({value["method"] for value in values}) == 7


def test_long_context_is_drawn(tmp_path):
    workload = Workload("small <1 K>", 1024, ((1.0, 100, 1.0),))
    rows = list(long_context_rows(workload, cost=Attention(hidden_size=8), ranks=4, steps=8))
    values = drawn(long_context_chart(rows), tmp_path)
    assert sorted(value["waste"] for value in values) == pytest.approx(sorted(row.waste for row in rows))
    assert {value["wait"] for value in values} == {"optimiser step", "micro-step"}


def test_scaling_is_drawn(tmp_path):
    rows = scaling(HISTOGRAM, [1, 8, 4096])
    values = drawn(scaling_chart(rows), tmp_path)
    assert len({value["curve"] for value in values}) == 7
    assert [value["devices"] for value in values if value["curve"] == "un-padding, simulated"] == [1, 8]


def test_latency_is_drawn(tmp_path):
    rows = list(latency_rows(HISTOGRAM, gpus=[8], batches=[16]))
    values = drawn(latency_chart(rows), tmp_path)
    assert sum(value["ms"] for value in values) == pytest.approx(1e3 * sum(row.seconds for row in rows))
