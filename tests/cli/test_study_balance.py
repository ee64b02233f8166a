from __future__ import annotations

import json

import pytest

COUNTS = {n: 50 + (n * n * 4 + 7) % 130 for n in range(1, 65)}
KEYS = ["gpus", "node", "batch", "method", "unit", "communication"]
KEYS += ["min_tokens", "max_tokens", "mean_tokens", "waste", "floor", "seconds_per_step"]


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(json.dumps({"histogram": list(COUNTS.values())}))
    return path


def test_balance_as_json(call, small):
    rows = json.loads(call("study", "balance", small, "--gpus", "2,8", "--node", 2, "--steps", 5, "--json"))
    assert {key for row in rows for key in row} >= set(KEYS)
    assert {(row["gpus"], row["node"], row["batch"]) for row in rows} == {(2, 2, 16), (8, 2, 16)}
    ours = {row["gpus"]: row["waste"] for row in rows if row["method"] == "karmarkar_karp"}
    assert max(ours.values()) < 0.02
    assert len(rows) == 2 * len({row["method"] for row in rows})


def test_balance_as_tables(call, small, tmp_path):
    plot = tmp_path / "figure6.svg"
    ran = call("study", "balance", small, "--gpus", 2, "--gpus", 8, "--node", 2, "--steps", 5, "--plot", plot)
    assert (ran.code, ran.err) == (0, "")
    assert "8 GPUs, nodes of 2, 16 sequences per GPU, 5 steps" in ran
    assert "published" not in ran
    assert "waste by number of GPUs" in ran
    lines = [line.split() for line in ran.splitlines()]
    assert sum(line[:1] == ["karmarkar_karp"] for line in lines) == 2
    assert "correlation of a step's cost with its number, over " in ran
    assert plot.read_text().startswith("<svg")


def test_numbers_of_gpus_may_follow_the_option(call, small):
    ran = call("study", "balance", "--gpus", 2, 4, small, "--node", 2, "--steps", 2, "--batch", 8, "--json")
    assert {row["gpus"] for row in json.loads(ran)} == {2, 4}


def test_a_number_of_gpus_counts_once_however_it_is_written(call, small):
    many = "2,02," + "0" * 5000 + "2"
    found, once = (
        json.loads(call("study", "balance", small, "--gpus", gpus, "--node", 2, "--steps", 2, "--json"))
        for gpus in (many, "2")
    )
    assert [row["method"] for row in found] == [row["method"] for row in once]


def test_another_cost(call, small):
    by_tokens, by_cost = (
        json.loads(call("study", "balance", small, "--gpus", 4, "--steps", 9, "--json", "--cost", cost))
        for cost in ("tokens", "attention:1")
    )
    assert [row["min_tokens"] for row in by_tokens] != [row["min_tokens"] for row in by_cost]
    assert by_tokens[0]["waste"] < by_cost[0]["waste"]


def test_long_context_without_a_histogram(call, tmp_path):
    arguments = ("study", "balance", "--gpus", 4, "--steps", 8, "--node", 4)
    ran = call(*arguments, "--plot", tmp_path / "long.svg")
    assert (ran.code, ran.err) == (0, "")
    assert ran.count("ranks wait at each") == 4
    assert "Llama-3-like SFT, 32 K: 4 ranks, 4 packs per rank and step" in ran
    rows = json.loads(call(*arguments, "--json"))
    assert {key for row in rows for key in row} >= {*KEYS, "workload", "wait", "abr"}
    assert {row["wait"] for row in rows} == {"step", "micro"}


@pytest.mark.slow
def test_table_5_on_the_terminal(call, shared):
    """Its rows are held against the published ones in `tests/study/test_balance.py`, of as many steps as there."""
    ran = call("study", "balance", shared("wikipedia_bert_512.json"), "--gpus", 1024, "--steps", 50)
    lines = {line.split()[0]: line.split() for line in ran.splitlines() if line[:1] == " " and line.split()}
    assert lines["local_presort"][-5:-2] == ["3,900", "..", "4,246"]
    assert "MLPerf Table 5" in ran
    for line in ("sorted:", "random:"):
        assert abs(float(lines[line][1])) <= 0.02


def test_scaling(call, small, tmp_path):
    plots = [tmp_path / "scaling.svg", tmp_path / "latency.svg"]
    ran = call("study", "scaling", small, "--plot", plots[0], "--plot-latency", plots[1])
    assert (ran.code, ran.err) == (0, "")
    assert "One device by equations 19 and 20: location 1.941, scale 0.318 (printed: 1.94, 0.108)." in ran
    assert "overtakes un-padding from 2.45 devices (as printed)" in ran
    assert "simulation: ms per step" in ran
    assert all(plot.read_text().startswith("<svg") for plot in plots)


def test_scaling_as_json(call, small):
    document = json.loads(call("study", "scaling", small, "--json"))
    assert [row["devices"] for row in document["scaling"]][:3] == [1, 2, 4]
    assert document["scaling"][0]["corrected"] == pytest.approx(2.124, abs=2e-3)
    assert {row["method"] for row in document["latency"]} >= {"padding", "Samsung", "Karmarkar-Karp on indices"}
    assert max(row["gpus"] for row in document["latency"]) == 256  # there are 7,000 sequences


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["balance", "none.json"],
            "cannot read the histogram none.json: No such file or directory; docs/reference/papers.md",
        ),
        (["balance", "{small}", "{small}"], "one histogram at a time"),
        (["balance", "{small}", "8"], "8 is no histogram; numbers of GPUs are given as --gpus 8"),
        (["balance", "{small}", "--gpus", "x"], "--gpus takes numbers from 1 to 1048576, such as 8,64,1024, got 'x'"),
        (["balance", "{small}", "--gpus", "1" * 5000], "--gpus takes numbers from 1 to 1048576"),
        (["balance", "{small}", "--gpus", "0"], "--gpus takes numbers from 1 to 1048576"),
        (["balance", "{small}", "--gpus", "12", "--node", "8"], "world_size 12 is not divisible by node_size 8"),
        (["balance", "{small}", "--gpus", "8", "--steps", "0"], "steps must be at least 1, got 0"),
        (["balance", "{small}", "--gpus", "8", "--node", "0"], "node must be at least 1, got 0"),
        (["balance", "{small}", "--gpus", "8", "--batch", "1"], "batch must be an integer from 2 to"),
        (["balance", "{small}", "--gpus", "8192"], "are too few for one step of a draw 'random' on 8,192 GPUs"),
        (["balance", "{small}", "--cost", "flops"], "cost must be tokens or attention:HIDDEN_SIZE"),
        (["balance", "--gpus", "4,8"], "the study of long context takes one number of GPUs, got 4, 8"),
        (["balance", "{empty}"], "holds no sequences"),
        (["scaling", "{empty}"], "holds no sequences"),
        (["scaling"], "Missing argument 'FILE'; see `nopad study scaling --help`"),
        (["scaling", "{small}", "--plot-latency", "a.pdf"], "a.pdf: a chart is saved as one of"),
    ],
)
def test_wrong_use(call, small, tmp_path, arguments, message):
    files = {"small": small, "empty": tmp_path / "empty.json"}
    files["empty"].write_text('{"histogram": [0, 0]}')
    ran = call("study", *(text.format(**files) for text in arguments))
    assert (ran.code, ran) == (2, "")
    assert message in ran.error()
