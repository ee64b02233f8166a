from __future__ import annotations

import dataclasses
import json

from nopad.study.serving_runs import RealRow


def test_as_tables(call):
    ran = call("study", "serving")
    assert (ran.code, ran.err) == (0, "")
    lines = [line.split() for line in ran.splitlines()]
    assert ["first_fit", "3,248.6", "x1.746", "56", "x1.786", "89.2%", "0.98"] in lines
    assert ["look_ahead,", "64", "waiting", "51", "x1.961", "97.9%"] in lines
    assert ["first_fit", "3,479.3", "x1.782", "59", "x1.695", "84.2%", "1.05"] in lines
    assert "16 rows of 256, at most 40 requests; without padding x2.003" in ran


def test_as_json(call):
    bert, deberta = json.loads(call("study", "serving", "--waiting", 100, "--json"))
    assert (bert["name"], deberta["name"], deberta["separator"]) == ("BERT-base", "DeBERTa", 1)
    [ahead] = [row for row in bert["rows_of_table"] if row["way"] == "look_ahead"]
    assert (ahead["waiting"], ahead["batches"]) == (100, 51)


def test_real_runs(call, monkeypatch):
    made = RealRow(
        way="first_fit", requests=96, batches=4, per_s=33.25, speed_up=1.75, difference=2e-6, offered_per_s=11.4,
        p50_ms=1234.5, p99_ms=2000.0,
    )  # fmt: skip
    monkeypatch.setattr("nopad.study.serving_runs.model_for", lambda grid: None)
    monkeypatch.setattr("nopad.study.serving_runs.real_rows", lambda grid, model, say: [made])
    ran = call("study", "serving", "--real")
    assert ran.code == 0
    lines = [line.split() for line in ran.splitlines()]
    assert lines.count(["first_fit", "33.2", "x1.75", "4", "2e-06", "1,234", "ms", "2,000", "ms"]) == 2
    assert "Run here, BERT-base's setting: 96 requests, 11.4 arrive per second" in ran
    bert, _ = json.loads(call("study", "serving", "--real", "--json"))
    assert bert["real"] == [dataclasses.asdict(made)]
    assert "real" not in json.loads(call("study", "serving", "--json"))[0]


def test_it_is_listed(call):
    assert "nopad study serving " in call("study")
    assert "Examples:" in call("study", "serving", "--help")
    assert call("study", "serving", "--waiting", 0).code == 2
