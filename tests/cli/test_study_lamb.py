from __future__ import annotations

import json


def test_as_tables(call):
    ran = call("study", "lamb")
    assert (ran.code, ran.err) == (0, "")
    lines = [line.split() for line in ran.splitlines()]
    assert ["2", "0.6561", "0.66", "-0.0039", "0.9025"] in lines
    assert ["1.913", "0.6682", "0.9065"] in lines
    [noisy] = [line for line in lines if line[:1] == ["1"] and line[5:6] == ["1.333"]]
    assert 1.3 < float(noisy[3]) < 1.37
    assert "as the theorem says" in ran


def test_as_json(call):
    document = json.loads(call("study", "lamb", "--json"))
    assert document.keys() == {"powers", "moments"}
    assert {"factor", "noise", "second", "expected", "first_apart", "cosine", "largest"} <= document["moments"][
        0
    ].keys()
    assert max(row["largest"] for row in document["moments"] if not row["noise"]) < 1e-12


def test_it_is_listed(call):
    assert "nopad study lamb " in call("study")
    assert "Examples:" in call("study", "lamb", "--help")
