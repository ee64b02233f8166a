"""The study of learning, at toy size: what it trains, what it keeps, and what it says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from nopad.errors import FormatError, OptionError
from nopad.study.learning import BASE, RIGHT, SIZES, Curve, Learning, Point, Recipe, prepare, recipes, study_learning
from nopad.study.learning.setups import GROUPS, WITHOUT_NEXT
from nopad.study.learning.study import RESULTS

TOY = SIZES["toy"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learning")
    prepared = prepare(TOY, [BASE, RIGHT, WITHOUT_NEXT], 1, folder)
    said: list[str] = []
    return folder, prepared, study_learning(prepared, folder, said.append), said


def test_each_recipe_trains_on_the_samples(done):
    _, prepared, found, said = done
    assert prepared.factor > 1.1
    assert found.names() == ["not packed", "packed", "no next sentence"]
    assert len(said) == 6
    for curve in found.curves:
        assert [one.samples > 0 for one in curve.points] == [False, True, True]
        assert TOY.samples <= curve.last.samples < TOY.samples + 2 * TOY.sequences
        assert curve.last.tokens <= curve.last.slots
    alone, packed, without = (found.of(name)[0].last for name in found.names())
    assert alone.slots == alone.samples * TOY.capacity
    assert packed.slots < alone.slots
    assert without.next_accuracy is None
    assert {name: len(each) for name, each in found.tuned.items()} == dict.fromkeys(found.names(), TOY.seeds)


def test_the_same_again(done):
    _, prepared, found, _ = done
    again = study_learning(replace(prepared, recipes=(RIGHT,)))
    ours, theirs = again.of("packed")[0], found.of("packed")[0]
    assert [replace(one, seconds=0) for one in ours.points] == [replace(one, seconds=0) for one in theirs.points]
    assert again.tuned["packed"] == found.tuned["packed"]


def test_what_was_stopped_goes_on(done, tmp_path):
    folder, prepared, found, _ = done
    lines = (folder / RESULTS).read_text().splitlines(keepends=True)
    (tmp_path / RESULTS).write_text("".join(lines[:2]) + lines[2][:50])
    for weights in folder.glob("*.safetensors"):
        (tmp_path / weights.name).write_bytes(weights.read_bytes())
    said: list[str] = []
    again = study_learning(prepared, tmp_path, said.append)
    assert not any("not packed" in line for line in said if line.startswith("seed"))
    assert [one.last.accuracy for one in again.curves] == [one.last.accuracy for one in found.curves]
    assert again.tuned == found.tuned
    said.clear()
    assert study_learning(prepared, tmp_path, said.append) == again
    assert [line[:5] for line in said] == ["tuned"] * 3


def test_preparing_changes_no_results(done, tmp_path):
    folder, prepared, _, _ = done
    half = (folder / RESULTS).read_text()[:-20]  # as while another process writes
    (tmp_path / RESULTS).write_text(half)
    prepare(TOY, prepared.recipes, 1, tmp_path)
    assert (tmp_path / RESULTS).read_text() == half
    prepare(TOY, prepared.recipes, 1, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_more_seeds_are_the_study_of_so_many_from_the_beginning(done, tmp_path):
    folder, prepared, found, _ = done
    lines = (folder / RESULTS).read_text()
    (tmp_path / RESULTS).write_text(lines + lines.split("\n", 1)[1])  # as if two processes had written
    for weights in folder.glob("*.safetensors"):
        (tmp_path / weights.name).write_bytes(weights.read_bytes())
    two = replace(prepared, recipes=(BASE, RIGHT), seeds=2)
    grown, whole = study_learning(two, tmp_path), study_learning(two)
    for name in ("not packed", "packed"):
        assert [one.last.accuracy for one in grown.of(name)] == [one.last.accuracy for one in whole.of(name)]
        assert grown.tuned[name] == whole.tuned[name]
    written = [json.loads(line) for line in (tmp_path / RESULTS).read_text().splitlines()]
    last = {line["tuned"]: (line["seed"], line["weights"]) for line in written if "tuned" in line}
    assert last["packed"] == last["not packed"] == (1, 1)
    assert study_learning(prepared, tmp_path) == found


def test_a_folder_that_is_not_there_is_made(done, tmp_path):
    _, prepared, *_ = done
    folder = tmp_path / "new" / "study"
    assert study_learning(replace(prepared, recipes=()), folder) == Learning(factor=prepared.factor)
    assert len((folder / RESULTS).read_text().splitlines()) == 1


def test_weights_that_are_gone_are_named(done, tmp_path):
    folder, prepared, *_ = done
    lines = (folder / RESULTS).read_text().splitlines(keepends=True)
    (tmp_path / RESULTS).write_text("".join(line for line in lines if not line.startswith('{"tuned"')))
    with pytest.raises(FormatError, match=r"not_packed-0.safetensors is gone"):
        study_learning(prepared, tmp_path)


def test_results_of_another_study_are_refused(done):
    folder, *_ = done
    with pytest.raises(FormatError, match="of a study of another size"):
        prepare(replace(TOY, samples=96), [BASE], 1, folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"7", "line 2 is no result of a study; choose another folder"),
        (b'{"curve": 7}', "line 2 is no result"),
        (b'{"tuned": "packed"}', "line 2 is no result"),
        (b"{}", "line 2 is no result"),
        (b'"\xff"', "is not of this study: 'utf-8' codec"),
        pytest.param(b"[" * 60_000, "is not of this study: nested too deeply", id="deep"),
    ],
)
def test_results_that_are_damaged_are_refused(done, tmp_path, line, message):
    folder, prepared, *_ = done
    header = (folder / RESULTS).read_bytes().splitlines(keepends=True)[0]
    (tmp_path / RESULTS).write_bytes(header + line + b"\n")
    with pytest.raises(FormatError, match=message):
        study_learning(prepared, tmp_path)


def test_a_recipe_of_the_same_name_with_other_settings_is_not_done(done):
    folder, prepared, *_ = done
    other = replace(RIGHT, rate=2.0)
    with pytest.raises(FormatError, match=r"has a run of the recipe 'packed' with other settings; give the recipe"):
        prepare(TOY, [BASE, other], 1, folder)
    with pytest.raises(FormatError, match="with other settings"):
        study_learning(replace(prepared, recipes=(BASE, other)), folder)


def test_every_recipe_has_a_name_of_its_own():
    found = recipes()
    assert len({one.name for one in found}) == len(found) == len({replace(one, name="") for one in found})
    assert [one.name for one in recipes(("faults",))][:2] == ["not packed", "packed"]
    assert len(recipes(())) == 2
    assert {name for name, _ in GROUPS} == {"equal batch", "larger batch", "tuned", "faults", "choices"}


def curve(recipe, seed, *accuracies):
    points = [
        Point(
            samples=10 * at, tokens=0, slots=0, steps=at, seconds=2.0 * at, masked_loss=1.0, accuracy=one,
            next_accuracy=None,
        )
        for at, one in enumerate(accuracies)
    ]  # fmt: skip
    return Curve(recipe=recipe, seed=seed, points=tuple(points))


def test_when_an_accuracy_is_reached():
    found = Learning(
        factor=2.0, curves=[curve("a", 1, 0.0, 0.5, 0.5), curve("a", 0, 0.0, 0.2, 0.6), curve("b", 0, 0, 0)]
    )
    assert found.reached("a", 0.4, "samples") == pytest.approx((8 + 15) / 2)
    assert found.reached("a", 0.4, "seconds") == pytest.approx((1.6 + 3.0) / 2)
    assert found.reached("a", 0.55, "samples") is None  # one seed never does
    assert found.reached("b", 0.1, "samples") is None
    found.curves += [curve("c", 0, 0.5, 0.4, 0.9), curve("c", 1, 0.0, 1.0)]
    assert found.reached("c", 0.5, "samples") == (0 + 5) / 2  # one seed begins there: this was "not reached"
    assert found.reached("c", 0.4, "seconds") == pytest.approx(0.8 / 2)
    spread = found.spread("a", "accuracy")
    assert (spread.mean, spread.least, spread.most) == (pytest.approx(0.55), 0.5, 0.6)
    assert found.spread("a", "next_accuracy") is None


def test_recipes_without_curves_have_no_spread():
    found = Learning(factor=2.0, curves=[curve("a", 0, 0.0, 0.5), curve("b", 0, 0.0)])
    for asked in (lambda: found.spread("c", "accuracy"), lambda: found.reached("c", 0.1, "samples")):
        with pytest.raises(OptionError, match="there is no curve of 'c'; there are those of a, b"):
            asked()
    with pytest.raises(OptionError, match="there is no curve of 'a'; there are those of none"):
        Learning(factor=2.0).spread("a", "accuracy")


def test_a_larger_batch_has_as_many_rows():
    from nopad.study.learning.runs import batches

    prepared = prepare(TOY, [RIGHT], 1)
    given = prepared.material
    rows = [
        next(iter(batches(one, given, TOY, 0)))["input_ids"].shape[0]
        for one in (BASE, RIGHT, Recipe(name="x", larger=True), replace(BASE, larger=True))
    ]
    p = prepared.factor
    assert rows == [16, round(16 / p), 16, round(16 * p)]
