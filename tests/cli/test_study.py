from __future__ import annotations

import json
import re

import numpy as np
import pytest

from nopad.study import StrategyCount

COUNTS = {n: (n * n * 4 + 7) % 130 for n in range(1, 17)}


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(json.dumps({"histogram": list(COUNTS.values())}))
    return path


def test_alone_it_lists_the_studies(call, run):
    ran = call("study")
    assert ran.code == 0
    for line in ("nopad study packing FILE ", "nopad study residuals FILE ", "nopad study distributions FILE..."):
        assert line in ran
    assert "github.com/graphcore/examples" in ran
    assert run("study") == ran


def test_help_lists_the_studies(call):
    ran = call("study", "--help")
    assert ran.code == 0
    for verb in ("packing", "residuals", "distributions"):
        assert re.search(rf"^ +{verb} ", ran, re.M)
        assert "Examples:" in call("study", verb, "--help")


@pytest.mark.slow
def test_packing_of_the_published_squad(call, shared):
    ran = call("study", "packing", shared("squad_1_1_bert_384.json"))
    lines = ran.splitlines()
    assert lines[0].strip() == "supplement, Table 2: SQuAD 1.1 for BERT, capacity 384"
    spfhp = next(at for at, line in enumerate(lines) if line.split()[:2] == ["3/max", "SPFHP"])
    assert lines[spfhp].split()[2:] == ["published", "344", "40,711", "15,633,024", "383,545", "97.547", "2.177"]
    assert lines[spfhp + 1].split() == ["ours", "344", "40,711", "15,633,024", "383,545", "97.547", "2.177"]
    assert lines[spfhp + 2].split() == ["difference", *"======"]
    reached = ["ours", "366", "40,195", "15,434,880", "185,401", "98.799", "2.205"]
    assert ["3", "nopad", "optimal", *reached] in [line.split() for line in lines]
    assert "  nopad optimal, depth 3: proven optimal" in ran
    assert "NNLSHP, depth 3: counted before the repair" in ran


def test_packing_of_another_histogram(call, small):
    ran = call("study", "packing", small)
    assert (ran.code, ran.err) == (0, "")
    assert "the papers' rows: small.json, capacity 16" in ran
    assert "published" not in ran.split("supplement, Table 4")[0]
    assert "packing matrix of capacity 8, depth 3 (as published)" in ran
    assert any(line.split() == ["512", "1", "1", "1", "="] for line in ran.splitlines())
    assert any(line.split() == ["4", "959,631", "962,368", "+2,737", "940,000"] for line in ran.splitlines())


def test_packing_as_json(call, small):
    document = json.loads(call("study", "packing", small, "--json"))
    [table] = document["tables"]
    assert table["what"] == "small.json"
    none = table["rows"][0]
    assert (none["name"], none["depth"], none["published"]) == ("NONE", "1", {})
    assert none["ours"]["packs"] == str(sum(COUNTS.values()))
    optimal = [row for row in table["rows"] if row["name"] == "nopad optimal"]
    assert [row["depth"] for row in optimal] == ["2", "3", "4", "8", "16", "max"]
    assert all("proven" in row["note"] for row in optimal)
    assert document["packing_matrix_of_table_4"]["as_published"] is True
    assert StrategyCount(**document["strategy_counts"][0]).exact == 1


def test_residuals_of_another_histogram(call, small, tmp_path):
    ran = call("study", "residuals", small, "--plot", tmp_path / "figure.svg")
    assert (ran.code, ran.err) == (0, "")
    assert "supplement, Figures 10 and 11: " in ran
    assert "within" not in ran
    assert f"saved {tmp_path / 'figure.svg'}" in ran
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")


def test_residuals_as_json(call, small):
    document = json.loads(call("study", "residuals", small, "--json"))
    assert len(document["residuals"]) == len(document["residuals_weighted"]) == 16
    named = {row["what"]: row["plain"] for row in document["compared"]}
    assert named["sequences left over"] == sum(r for r in document["residuals"] if r > 0)
    assert [named[f"length {n}"] for n in range(9, 17)] == document["residuals"][8:]


@pytest.mark.slow
def test_residuals_of_the_published_wikipedia(call, shared):
    ran = call("study", "residuals", shared("wikipedia_bert_512.json"))
    assert ran.count("within ±") == 20
    assert "OUTSIDE" not in ran
    assert "length 504: the text prints 8 values for the 9 lengths" in ran


def test_distributions_side_by_side(call, small, jsonl, words, tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([3, 5, 8, 16]))
    ran = call("study", "distributions", small, tmp_path / "lengths.npy", jsonl, "-c", 16, "-t", words)
    assert (ran.code, ran.err) == (0, "")
    rows = {line.split()[0]: line.split() for line in ran.splitlines() if line[:1] == " " and line.split()}
    assert rows["lengths"][1:7] == ["16", "4", "8.0", "5", "25.0%", "50.0%"]
    assert rows["lengths"][-4:] == ["2.000", "2.000", "2.000", "2.000"]
    assert rows["texts"][1:5] == ["16", "4", "5.0", "4"]  # 3 + 4 + 5 + 8 tokens
    assert rows["small"][1:3] == ["16", f"{sum(COUNTS.values()):,}"]


def test_distributions_as_json_and_chart(call, small, tmp_path):
    chart = tmp_path / "figure.html"
    [row] = json.loads(
        call("study", "distributions", small, small, "--json", "--plot", chart)
    )  # named twice, shown once
    assert (row["name"], row["capacity"], row["sequences"]) == ("small", 16, sum(COUNTS.values()))
    assert row["factor"] <= row["possible"] <= row["theoretical"]
    assert chart.stat().st_size > 100_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["packing"], "Missing argument 'FILE'; see `nopad study packing --help`"),
        (
            ["packing", "none.json"],
            "cannot read the histogram none.json: No such file or directory; docs/reference/papers.md",
        ),
        (["residuals", "{small}", "--plot", "a.pdf"], "a.pdf: a chart is saved as one of .html, .svg, .png, .json"),
        (["residuals", "{pairs}"], 'does not say for which capacity; add "max_sequence_length": N to it'),
        (["packing", "{empty}"], "holds no sequences"),
        (["distributions", "{pairs}"], "does not say for which capacity; give --capacity"),
        (["distributions", "{small}", "-c", "8"], "sequences are above the capacity of 8"),
        (["distributions", "none.txt", "-c", "8"], "none.txt: no such file or folder; check the path"),
        (["frob"], "No such command 'frob'; see `nopad study --help`"),
    ],
)
def test_wrong_use(call, small, tmp_path, arguments, message):
    files = {"small": small, "pairs": tmp_path / "pairs.json", "empty": tmp_path / "empty.json"}
    files["pairs"].write_text('{"histogram": {"3": 4}}')
    files["empty"].write_text('{"histogram": [0, 0]}')
    ran = call("study", *(text.format(**files) for text in arguments))
    assert (ran.code, ran) == (2, "")
    assert message in ran.error()


def test_a_histogram_too_large_for_least_squares_is_refused(call, tmp_path):
    path = tmp_path / "long.json"
    path.write_text('{"histogram": {"5000": 4}, "max_sequence_length": 8192}')
    ran = call("study", "residuals", path)
    assert (ran.code, ran) == (2, "")
    assert "the study of residuals lists all strategies" in ran.error()
