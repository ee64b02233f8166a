from __future__ import annotations

import json

import pytest

from nopad.cli.options import parse_options
from nopad.errors import OptionError
from nopad.report.command import _pairs


def test_values_are_json_or_text():
    given = ["k=3", "distribute=false", "rounding=floor", "window=null", "weighting=a=b"]
    assert parse_options(given) == {
        "k": 3,
        "distribute": False,
        "rounding": "floor",
        "window": None,
        "weighting": "a=b",
    }
    assert parse_options(None) == {}


@pytest.mark.parametrize("value", ["[" * 60_000, "1" * 5000], ids=["nested too deeply", "too many digits"])
def test_what_json_cannot_hold_is_text(value):
    assert parse_options([f"k={value}"]) == {"k": value}
    assert f"k={value}" in _pairs({"k": value})  # as the report's command says it


@pytest.mark.parametrize("text", ["k", "=3", ""])
def test_a_pair_without_a_half(refuses, text):
    with refuses(OptionError, f"--option must be NAME=VALUE, such as pack_multiple=8, got {text!r}"):
        parse_options([text])


def test_a_name_twice(refuses):
    with refuses(OptionError, "--option k is given twice"):
        parse_options(["k=1", "k=2"])


@pytest.fixture
def histogram(tmp_path):
    path = tmp_path / "h.json"
    path.write_text(json.dumps({"max_sequence_length": 8, "histogram": {"5": 2, "3": 3, "2": 2, "8": 1}}))
    return path


def test_options_reach_the_plan(call, histogram):
    [free] = json.loads(call("plan", histogram, "-a", "lpfhp", "-d", "none", "--json"))["plans"]
    how = ("-a", "lpfhp", "-d", "none", "-O", "pack_multiple=3", "--option", "distribute=false", "--json")
    [row] = json.loads(call("plan", histogram, *how))["plans"]
    assert row["packs"] % 3 == 0
    assert row["packs"] >= free["packs"]
    assert row["lower_bound"] % 3 == 0


def test_an_option_that_one_of_the_algorithms_lacks(call, histogram):
    ran = call("plan", histogram, "-a", "lpfhp", "-a", "spfhp", "-O", "distribute=false")
    assert ran.code == 2
    assert "algorithm 'spfhp' has no option 'distribute' (it has none of its own; every algorithm has: " in ran.err


def test_options_reach_the_dataset(call, tmp_path):
    ids = tmp_path / "ids.jsonl"
    ids.write_text("".join(json.dumps({"input_ids": [1] * n}) + "\n" for n in (5, 3, 4, 2, 8, 3, 1, 6)))
    out = tmp_path / "out"
    ran = call("pack", ids, "-o", out, "-c", 8, "-O", "pack_multiple=2")
    assert ran.code == 0, ran.err
    stated = json.loads((out / "nopad.json").read_text())
    assert stated["packs"] % 2 == 0
    assert stated["options"]["pack_multiple"] == 2
    assert call("verify", out, "--source", ids).code == 0
    refused = call("pack", ids, "-o", out, "-c", 8, "-O", "pack_multiple=3")
    assert refused.code == 2
    assert "pack_multiple was 2, now 3" in refused.err
