"""Named sources and a held-out share on the command line."""

from __future__ import annotations

import json

import pytest

from nopad.cli.options import parse_share
from nopad.errors import OptionError


@pytest.fixture
def again(mixed):
    """The arguments that made it."""
    inputs = [f"{name}={mixed.parent / name}.jsonl" for name in "ab"]
    return ["pack", *inputs, "-o", mixed, "-c", 16, "--validation", "10%"]


def test_what_is_told_of_both(call, mixed, again):
    ran = call(*again)
    train, validation = ran.split("validation\n", 1)
    assert train.startswith("train\n  before ")
    assert "  source a: " in train
    assert " of 60 records" in train
    assert " held out\n" in train
    assert "not held out" not in train
    assert " not held out\n" in validation
    assert "  source a: " in validation
    assert f"{mixed}/validation: packed dataset" in ran
    assert "already packed" in ran
    assert f"Next: nopad verify {mixed}\n" in ran


def test_a_plan_tells_the_sources(call, mixed):
    """As `nopad pack` tells them of the training split."""
    inputs = [f"{name}={mixed.parent / name}.jsonl" for name in "ab"]
    manifest = json.loads((mixed / "train" / "nopad.json").read_text())
    told = [{name: one[name] for name in ("name", "sequences", "tokens")} for one in manifest["sources"]]
    how = ["--validation", "10%", "--json"]
    assert json.loads(call("plan", *inputs, "-c", 16, *how))["sources"] == told
    ran = call("plan", *inputs, "-c", 16, "--validation", "10%")
    [first] = [line for line in ran.splitlines() if line.startswith("source a: ")]
    share = told[0]["tokens"] / manifest["tokens"]
    assert first == f"source a: {told[0]['tokens']:,} tokens, {share:.1%}; {told[0]['sequences']:,} sequences"
    several = json.loads(call("plan", *inputs, "-c", 4, "-c", 16, *how))
    assert several["sources"] == told
    assert "sources" not in several["capacities"][0]


def test_verified_together(call, mixed):
    ran = call("verify", mixed, "-s", f"a={mixed.parent / 'a.jsonl'}", "-s", f"b={mixed.parent / 'b.jsonl'}")
    assert (ran.code, ran.err) == (0, "")
    first, second = ran.splitlines()
    assert first.startswith(f"✓ {mixed}/train: ")
    assert second.startswith(f"✓ {mixed}/validation: ")
    (mixed / "validation" / "plan.json").write_text("{}")
    ran = call("verify", mixed, "--json")
    assert ran.code == 1
    assert json.loads(ran)["problems"][0].startswith("validation: ")


def test_one_file_of_a_source_after_the_other(call, mixed, tmp_path):
    a, b = (mixed.parent / f"{name}.jsonl" for name in "ab")
    assert call("pack", f"x={a}", f"x={b}", "-o", tmp_path / "x", "-c", 16).code == 0
    [source] = json.loads((tmp_path / "x" / "nopad.json").read_text())["sources"]
    assert (source["name"], source["records"]) == ("x", 80)


def test_an_equals_sign_in_a_path_is_no_name(call, mixed, tmp_path):
    path = tmp_path / "k=1.jsonl"
    path.write_text('{"input_ids": [1]}\n')
    assert call("pack", path.name, "-o", tmp_path / "x", "-c", 4).code == 2
    ran = call("pack", path, "-o", tmp_path / "x", "-c", 4)
    assert (ran.code, ran.err) == (0, "")
    assert json.loads((tmp_path / "x" / "nopad.json").read_text())["sources"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a={a}", "{b}"], "{b} has no name, and others have; write NAME={b}, or name none"),
        (["{a}", "--validation", "100%"], "the share to hold out is 1.0; it must be at least 0 and below 1"),
        (["a={a}", "b={a}.gz"], "{a}.gz: no such file or folder; check the path, or put it back"),
    ],
)
def test_what_is_refused(call, mixed, tmp_path, arguments, message):
    names = {name: mixed.parent / f"{name}.jsonl" for name in "ab"}
    ran = call("pack", *(word.format(**names) for word in arguments), "-o", tmp_path / "x", "-c", 16)
    assert ran.code == 2
    assert ran.error().startswith(message.format(**names))
    assert not (tmp_path / "x").exists()


def test_shares():
    assert parse_share("2.5%") == parse_share("0.025") == 0.025
    with pytest.raises(OptionError, match="--validation must be a share such as 1% or"):
        parse_share("some")
