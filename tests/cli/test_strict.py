"""What holds for every command: options given once, outputs on this machine, any stdout."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

OUTPUTS = [("pack", "-o"), ("plan", "--output"), ("report", "-o"), ("report", "--png"), ("demo", "--folder")]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["plan", "a.jsonl", "--ids-field", "a", "--ids-field", "b"], "--ids-field"),
        (["pack", "a.jsonl", "-o", "x", "-c", "4", "--capacity", "8"], "--capacity/-c"),
        (["pack", "a.jsonl", "-c", "4", "-o", "x", "-o", "y"], "--out/-o"),
        (["pack", "a.jsonl", "-o", "x", "-c", "4", "--seed", "1", "--seed", "1"], "--seed"),
        (["pack", "a.jsonl", "-o", "x", "-c", "4", "--special-tokens", "--no-special-tokens"], "--special-tokens"),
        (["verify", "x", "-t", "a", "-t", "b"], "--tokenizer/-t"),
        (["report", "x", "-o", "a.html", "-o", "b.html"], "--output/-o"),
        (["demo", "--seed", "1", "--seed", "2"], "--seed"),
        (["audit", "x", "--layers", "1", "--layers", "2"], "--layers"),
        (["study", "residuals", "x", "--plot", "a.svg", "--plot", "b.svg"], "--plot"),
    ],
)
def test_an_option_of_one_value_given_twice(call, tmp_path, monkeypatch, arguments, option):
    monkeypatch.chdir(tmp_path)
    ran = call(*arguments)
    assert (ran.code, ran) == (2, "")
    assert ran.error() == f"{option} is given 2 times, and takes one value; give it once"
    assert os.listdir(tmp_path) == []


def test_what_is_repeatable_still_is(call, histogram):
    ran = call("plan", histogram, "-a", "lpfhp", "-a", "ffd", "-d", "2", "-d", "3", "--json")
    assert [(row["algorithm"], row["depth"]) for row in json.loads(ran)["plans"]] == [
        ("lpfhp", 2),
        ("lpfhp", 3),
        ("ffd", 2),
        ("ffd", 3),
    ]


@pytest.mark.parametrize(("verb", "option"), OUTPUTS)
def test_a_url_to_write_to_is_refused_before_work(call, tmp_path, monkeypatch, ids, verb, option):
    monkeypatch.chdir(tmp_path)
    inputs = [] if verb == "demo" else [ids]
    ran = call(verb, *inputs, option, "s3://bucket/x", *(["-c", "4"] if verb == "pack" else []))
    assert ran.code == 2
    assert ran.error().startswith("s3://bucket/x: results are written to a folder of this machine")
    assert os.listdir(tmp_path) == [ids.name]


def test_a_path_that_looks_like_a_url(call, tmp_path, monkeypatch, ids):
    monkeypatch.chdir(tmp_path)
    ran = call("pack", ids.name, "-o", "run-12:30", "-c", 4)
    assert (ran.code, ran.err) == (0, "")
    assert (tmp_path / "run-12:30" / "nopad.json").is_file()
    assert call("verify", "run-12:30").code == 0
    assert call("plan", "run-12:30/plan.json", "-c", 4).code == 2  # a plan is no histogram, and that is all


@pytest.mark.parametrize("verb", ["plan", "report"])
def test_a_folder_where_a_file_is_to_be(call, histogram, verb):
    ran = call(verb, histogram, "-o", ".", *(["-a", "lpfhp", "-d", "2"] if verb == "plan" else []))
    assert (ran.code, ran.error()) == (2, ". is a folder; give the name of a file, such as ./out")


def test_stdout_in_ascii(run, packed, histogram):
    for arguments in (["verify", packed], ["plan", histogram]):
        ran = run(*arguments, PYTHONIOENCODING="ascii")
        assert (ran.code, ran.err) == (0, "")
        assert str(ran).isascii()


def test_stdout_closed(command, histogram):
    for stream in ("1", "2"):
        line = ["sh", "-c", f'exec "$@" {stream}>&-', "sh", *command("plan", histogram, "-a", "lpfhp", "-d", "2")]
        done = subprocess.run(line, capture_output=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, b"")


def test_names_that_are_no_utf8(command, tmp_path, ids):
    name = os.fsencode(tmp_path) + b"/na\xffme.jsonl"
    os.rename(ids, name)
    out = os.fsencode(tmp_path / "packed")
    done = subprocess.run([*command("pack", "-c", 4), name, b"-o", out], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    bad = os.fsencode(tmp_path) + b"/out\xff"
    done = subprocess.run([*command("pack", "-c", 4), name, b"-o", bad], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"out\\udcff: this name is not UTF-8; choose another" in done.stderr
    os.rename(out, bad)
    done = subprocess.run([*command("verify"), bad], capture_output=True, timeout=120)
    assert done.returncode in (0, 2)
    assert done.stderr.count(b"\n") <= 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["plan", "", "-c", "4"], "INPUT..."),
        (["pack", "a.jsonl", "", "-o", "x", "-c", "4"], "INPUT..."),
        (["pack", "a.jsonl", "-o", "", "-c", "4"], "--out/-o"),
        (["pack", "a.jsonl", "-o", "x", "-c", "4", "--carry", ""], "--carry"),
        (["verify", ""], "PATH..."),
        (["verify", "x", "--source", ""], "--source/-s"),
        (["report", ""], "PATH..."),
        (["demo", "--folder", ""], "--folder"),
        (["study", "distributions", ""], "FILE..."),
    ],
)
def test_a_variable_that_is_not_set_is_not_the_folder_one_is_in(call, tmp_path, monkeypatch, ids, arguments, what):
    """`nopad pack "$DATA" -o packed` packed whatever lay there."""
    monkeypatch.chdir(tmp_path)
    ran = call(*arguments)
    assert (ran.code, ran) == (2, "")
    assert ran.error() == f"{what} is empty; give a value (is a variable of the shell not set?)"
    assert os.listdir(tmp_path) == [ids.name]
