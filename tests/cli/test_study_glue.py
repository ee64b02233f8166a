from __future__ import annotations

import json

import pytest


@pytest.fixture
def sets(tmp_path):
    """WNLI with as many pairs as in the paper, and two sentences of CoLA."""
    folder = tmp_path / "glue"
    (folder / "wnli").mkdir(parents=True)
    pairs = ({"sentence1": "it is so " * (n % 9), "sentence2": "no", "label": 0} for n in range(635))
    (folder / "wnli" / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in pairs))
    (folder / "cola.tsv").write_text("sentence\tlabel\nyes\t1\n" + "so " * 200 + "\t0\n")
    return folder


def test_the_sets_of_a_folder(call, sets):
    ran = call("study", "glue", sets)
    assert (ran.code, ran.err) == (0, "")
    lines = [line.split() for line in ran.splitlines()]
    assert "supplement, Table 3 (wnli): GLUE wnli for BERT, capacity 128" in ran
    assert ["6/max", "SPFHP", "published", "63", "192", "24,576", "1,037", "95.780", "3.307"] in lines
    tokens = sum(4 + 3 * (n % 9) for n in range(635))
    ours = ["ours", "9", "635", "81,280", f"{635 * 128 - tokens:,}", f"{tokens / 812.8:.3f}", "1.000"]
    assert ours in lines
    assert "none, depth 1: 2 sequences, and the paper's set has 8,551: not compared; 1 of 2 sequences cut" in ran
    assert ran.count("published only: this set is not here") == 6
    assert "7 of 9 sets are not here, and not redone: mnli, mrpc, qnli, qqp, rte, sst2, stsb" in ran
    assert "hf download nyu-mll/glue" in ran


def test_as_json(call, sets):
    document = json.loads(call("study", "glue", sets, "--json"))
    found = {one["set"]: one for one in document["sets"]}
    assert [name for name, one in found.items() if one["redone"]] == ["cola", "wnli"]
    assert found["wnli"]["rows"][0]["difference"]["packs"] == "="
    assert found["cola"]["rows"][0]["difference"] == {}
    assert found["mnli"]["rows"][1]["ours"] == {}
    assert "is not in" in found["mnli"]["missing"]


def test_without_a_hub_all_is_published_only(call, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setattr("nopad.corpus.network.reachable", lambda url: False)
    monkeypatch.setenv("HF_ENDPOINT", "https://no.such.host.invalid")
    ran = call("study", "glue")
    assert (ran.code, ran.err) == (0, "")
    assert ran.count("published only: this set is not here") == 8
    assert "ours" not in ran
    assert "9 of 9 sets are not here, and not redone" in ran


def test_a_folder_without_any(call, tmp_path):
    ran = call("study", "glue", tmp_path)
    assert ran.code != 0
    assert "has none of GLUE's sets" in ran.error()
