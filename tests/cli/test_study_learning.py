"""`nopad study learning`, at toy size."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.slow
def test_the_toy(call, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    command = ("study", "learning", "--size", "toy", "--seeds", "1", "--only", "equal batch", "-o", tmp_path / "kept")
    told = call(*command, "--json")
    assert told.code == 0, told.err
    assert "2 recipes x 1 seeds of 64 sequences, 16 a step" in told.err
    document = json.loads(told)
    assert [one["recipe"] for one in document["curves"]] == ["not packed", "packed"]
    assert {name: len(each) for name, each in document["tuned"].items()} == {"not packed": 2, "packed": 2}
    again = call(*command, "--plot", tmp_path / "curves.svg")  # nothing is trained again
    assert again.code == 0, again.err
    assert "seed 0" not in again
    last = document["curves"][1]["points"][-1]
    assert f"{last['steps']}" in again
    assert f"{last['slots']:,}" in again
    assert "classifiers tuned afterwards" in again
    assert "as many sequences a step" in (tmp_path / "curves.svg").read_text()


def test_numbers_of_a_run_that_diverged_are_valid_json():
    from types import SimpleNamespace

    from nopad.cli.study_learning import as_document
    from nopad.study.learning import SIZES, Curve, Learning, Point

    counts = dict.fromkeys(("samples", "tokens", "slots", "steps"), 1)
    points = tuple(
        Point(**counts, seconds=1.0, masked_loss=loss, accuracy=0.5, next_accuracy=None) for loss in (2.0, float("inf"))
    )
    prepared = SimpleNamespace(size=SIZES["toy"], factor=2.0, parameters=1)
    found = Learning(factor=2.0, curves=[Curve(recipe="packed", seed=0, points=points)])
    [made] = json.loads(json.dumps(as_document(prepared, found), allow_nan=False))["curves"]
    assert [point["masked_loss"] for point in made["points"]] == [2.0, None]
    assert (made["recipe"], made["seed"]) == ("packed", 0)
    nan = float("nan")
    last = Point(**counts, seconds=nan, masked_loss=-float("inf"), accuracy=nan, next_accuracy=nan)
    curves = [Curve(recipe="packed", seed=0, points=(last,))]
    document = as_document(prepared, Learning(factor=2.0, curves=curves, tuned={"packed": [0.5, nan]}))
    read = json.loads(json.dumps(document, allow_nan=False))
    [point] = read["curves"][0]["points"]
    assert point == {**counts, "seconds": None, "masked_loss": None, "accuracy": None, "next_accuracy": None}
    assert read["tuned"] == {"packed": [0.5, None]}


def test_what_it_would_take(call):
    told = call("study", "learning", "--size", "toy", "--dry-run")
    assert told.code == 0, told.err
    assert "17 recipes x 3 seeds" in told
    assert "about" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--size", "big"), "--size must be one of 'toy', 'quick', 'full', got 'big'"),
        (("--seeds", "0"), "--seeds must be an integer from 1"),
        (("--only", "mask"), "--only is 'mask'; it is one of equal batch, larger batch, tuned, faults, choices"),
        (("--plot", "a.doc"), "a.doc"),
    ],
)
def test_bad_options(call, words, message):
    assert message in call("study", "learning", *words).error()
