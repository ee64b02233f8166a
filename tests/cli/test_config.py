"""nopad.toml: options of every command, from a file."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_file_of_the_folder(call, here, ids):
    (here / "nopad.toml").write_text('[plan]\ncapacity = 4\nalgorithm = ["lpfhp", "ffd"]\ndepth = 2\njson = true\n')
    ran = call("plan", ids)
    assert ran.code == 0
    assert ran.err == "nopad: nopad.toml sets capacity, algorithm, depth, as_json\n"
    found = json.loads(ran)
    assert found["capacity"] == 4
    assert [(row["algorithm"], row["depth"]) for row in found["plans"]] == [("lpfhp", 2), ("ffd", 2)]


def test_the_command_line_wins(call, here, ids):
    (here / "nopad.toml").write_text('[plan]\ncapacity = 4\nalgorithm = "ffd"\n')
    found = json.loads(call("plan", ids, "-c", 9, "-a", "lpfhp", "-d", 3, "--json"))
    assert found["capacity"] == 9
    assert [row["algorithm"] for row in found["plans"]] == ["lpfhp"]


def test_required_options_and_pairs(call, here):
    (here / "a.csv").write_text("x,y\none,two\n")
    (here / "own.toml").write_text('[pack]\nout = "packed"\ncapacity = 16\ntext-pair = ["x", "y"]\n')
    ran = call("--config", "own.toml", "pack", "a.csv")
    assert ran.code == 0, ran.err
    assert (here / "packed" / "nopad.json").is_file()


def test_a_command_of_a_group(call, here, histogram):
    (here / "nopad.toml").write_text("[study.packing]\njson = true\n")
    assert json.loads(call("study", "packing", histogram))


def test_other_commands_are_not_mentioned(call, here, histogram):
    (here / "nopad.toml").write_text("[pack]\ncapacity = 4\n")
    assert call("plan", histogram).err == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pakc]", "there is no command 'pakc'; did you mean pack?"),
        ("[pack]\ncapcity = 3", "[pack]: there is no option 'capcity'; did you mean capacity?"),
        ("[study.packing]\nfrob = 3", "[study.packing]: there is no option 'frob'; there are json"),
        ("pack = 3", "pack is 3; a command is a table, [pack]"),
        ("[pack]\ncapacity = [3, 4]", "[pack]: capacity is a list, and takes one value"),
        ("[pack]\ncapacity = true", "[pack]: capacity is True; it is a text or a number"),
        ("[pack]\njson = 3", "[pack]: json is 3; it is true or false"),
        ("[pack]\ncarry = [true]", "[pack]: carry is [True]; it is a text or a number, or a list of them"),
        ("[pack]\nshard-tokens = 1\nshard_tokens = 2", "[pack]: shard_tokens is given twice"),
        ("[pack", "nopad.toml is not TOML: "),
        (f"[pack]\ncapacity = {'1' * 5000}", "nopad.toml is not TOML: "),
    ],
)
def test_what_is_refused(call, here, histogram, text, message):
    (here / "nopad.toml").write_text(text)
    ran = call("plan", histogram)
    assert (ran.code, ran) == (2, "")
    assert message in ran.error()


def test_a_file_that_is_not_there(call, here):
    ran = call("--config", "no.toml", "plan", "x")
    assert (ran.code, ran.error()) == (2, "no.toml: cannot be read (No such file or directory); give another --config")


def test_messages_are_worded_for_the_verb_and_not_for_the_file(call, here, ids):
    """The file of --config comes before the verb."""
    (here / "own.toml").write_text("")
    plain = call("pack", ids, "-o", here / "packed", "-c", 1)
    assert "--over-long truncate" in plain.error()
    for before in (("--config", "own.toml"), ("--config=own.toml",)):
        ran = call(*before, "pack", ids, "-o", here / "packed", "-c", 1)
        assert (ran.code, ran.error()) == (2, plain.error())
