from __future__ import annotations

import json


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


def test_it_is_listed(call):
    assert "nopad study serving " in call("study")
    assert "Examples:" in call("study", "serving", "--help")
    assert call("study", "serving", "--waiting", 0).code == 2
