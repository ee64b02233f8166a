"""Named sources and a held-out share: two datasets of one job."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

import nopad
from nopad.corpus import IterableSource, LengthsFile, open_source
from nopad.corpus.mixture import MixtureSource
from nopad.errors import FormatError, OutputExistsError, RecordError, ResumeError
from nopad.store import Manifest, open_packed
from nopad.store.verification.content import LOST


@pytest.fixture(scope="module")
def records(make_records):
    return {"a": make_records(120, high=30), "b": [[], *make_records(60, high=30, seed=1)]}


@pytest.fixture(scope="module")
def source(records):
    return MixtureSource({name: IterableSource(ids, block_records=10) for name, ids in records.items()})


OPTIONS = {"validation": 0.2, "over_long": "split", "seed": 4}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, pack, source):
    out = tmp_path_factory.mktemp("whole") / "out"
    pack(source, out, **OPTIONS)
    return out


@pytest.fixture
def mine(tmp_path, whole):
    return shutil.copytree(whole, tmp_path / "mine")


def test_every_record_is_in_one_of_them(whole, source, records, read_back):
    every = [ids for part in records.values() for ids in part]
    train, held = (read_back(whole / name) for name in ("train", "validation"))
    seen = [{number for number, _ in found} for found in (train, held)]
    assert not seen[0] & seen[1]
    for (number, start), tokens in {**train, **held}.items():
        assert tokens == every[number][start : start + 16]
    for name, here in (("train", seen[0]), ("validation", seen[1])):
        manifest = Manifest.load(whole / name)
        assert len(here) + sum(manifest.counts[why] for why in LOST) == len(every)
        assert manifest.options["split"] == name
        for key, total in manifest.counts.items():
            assert sum(part[key] for part in manifest.sources) == total
    assert seen[0] | seen[1] == {number for number, ids in enumerate(every) if ids}
    assert len(seen[0]) > len(seen[1]) > 10


def test_each_source_is_counted_apart(whole, records):
    manifest = Manifest.load(whole / "train")
    a, b = manifest.sources
    assert [(part["name"], part["first_record"]) for part in (a, b)] == [("a", 0), ("b", 120)]
    assert (a["records"], b["records"], b["empty_skipped"]) == (120, 61, 1)
    for part, held in zip((a, b), Manifest.load(whole / "validation").sources, strict=True):
        assert part["tokens"] + held["tokens"] == sum(map(len, records[part["name"]]))
    for row in open_packed(whole / "train"):
        np.testing.assert_array_equal(row["seq_source"], row.seq_index >= 120)


def test_proven(whole, source):
    assert nopad.verify(whole) == []
    assert nopad.verify(whole, source=source) == []
    assert nopad.verify(whole / "validation", source=source) == []


def test_a_folder_of_two_is_not_one(whole):
    with pytest.raises(FormatError, match=r"holds two datasets; open .*/train or .*/validation"):
        open_packed(whole)


@pytest.mark.slow
@pytest.mark.parametrize("index_only", [False, True])
def test_a_crash_at_every_step_changes_no_byte(tmp_path, small_groups, pack, source, tree, break_at, index_only):
    class Crash(BaseException):
        pass

    options = OPTIONS | {"index_only": index_only}
    steps = break_at(Crash(), at=10**9)
    pack(source, tmp_path / "whole", **options)
    break_at.patch.undo()
    wanted = tree(tmp_path / "whole")
    assert {name.split("/")[0] for name in wanted} == {"train", "validation"}
    assert len(steps) > 25
    for at in range(0, len(steps), 1 if index_only else 3):
        out = tmp_path / f"at-{at}"
        break_at(Crash(), at=at)
        with pytest.raises(Crash):
            pack(source, out, **options)
        break_at.patch.undo()
        pack(source, out, **options)
        assert tree(out) == wanted, steps[at]


def test_the_same_call_again_reuses_both(mine, pack, source, tree):
    before = tree(mine)
    made = pack(source, mine, **OPTIONS)
    assert made == Manifest.load(mine / "train")
    assert tree(mine) == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"validation": 0.3}, "validation was 0.2, now 0.3"),
        ({"validation": 0}, "already holds something else"),
    ],
)
def test_other_settings_are_refused(mine, pack, source, tree, change, says):
    before = tree(mine)
    with pytest.raises(OutputExistsError, match=says):
        pack(source, mine, **OPTIONS | change)
    assert tree(mine) == before


def test_an_unfinished_job_knows_its_share(tmp_path, pack, source, interrupt):
    interrupt(source, tmp_path / "out", match="plan.json", **OPTIONS)
    with pytest.raises(ResumeError, match=r"validation was 0\.2, now none"):
        pack(source, tmp_path / "out", **OPTIONS | {"validation": 0})


def test_nothing_is_left_of_a_job_that_cannot_be(tmp_path, pack):
    source = MixtureSource({"a": IterableSource([[1]]), "b": IterableSource([[]])})
    with pytest.raises(RecordError, match=r"holding out 10\.000% of 1 records leaves none to train on"):
        pack(source, tmp_path / "out", validation=0.1)
    assert list(tmp_path.iterdir()) == []


def test_other_sources_are_not_those_that_were_packed(whole, records, only):
    other = {name: IterableSource(ids, block_records=10) for name, ids in reversed(records.items())}
    assert "not the tokens that this source gives" in nopad.verify(whole / "train", source=MixtureSource(other))[0]
    renamed = {"x": other["a"], "b": other["b"]}
    problem = only(nopad.verify(whole / "train", source=MixtureSource(renamed)))
    assert "this is not the source that was packed: fingerprint" in problem


@pytest.fixture
def edit(write_manifest):
    def run(out, name, change):
        path = out / name / "nopad.json"
        document = json.loads(path.read_text())
        change(document)
        write_manifest(path, document)

    return run


def test_another_choice_than_stated_is_found(tmp_path, pack, edit, source, only):
    """It holds the record with the smallest key, which only the whole source tells."""
    pack(source, tmp_path / "train", over_long="split", seed=4)
    edit(tmp_path, "train", lambda m: m["options"].update(validation=1e-9, split="train"))
    assert nopad.verify(tmp_path / "train") == []
    problem = only(nopad.verify(tmp_path / "train", source=source))
    assert problem == "these are not the records that seed 4 and the share held out choose"


def test_another_share_than_stated_is_found_without_the_source(mine, edit):
    edit(mine, "train", lambda m: m["options"].update(validation=0.3))
    edit(mine, "validation", lambda m: m["options"].update(validation=0.1))
    for name, where in (("train", "held out, not trained on"), ("validation", "trained on, not held out")):
        problems = nopad.verify(mine / name)
        assert len(problems) == 3
        for problem in problems:
            assert re.fullmatch(rf"record \d+ is in {name}; by seed 4 it is {where}", problem)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["sources"][0].update(other_split=0), "of 'a' 92 records are packed and 0 left out"),
        (lambda m: m["sources"][1].update(first_record=119), "of 'b'"),
        (lambda m: m["sources"].pop(), "nopad.json states 181 records, and others for its named sources"),
        (lambda m: m["sources"].reverse(), "has another number than"),
        (lambda m: m["sources"][0].update(name=3), "is damaged: sources is"),
    ],
)
def test_edited_sources_are_found(mine, edit, change, says):
    edit(mine, "train", change)
    assert any(says in problem for problem in nopad.verify(mine)), nopad.verify(mine)


OTHER = {
    "seed": ({"seed": 5}, "seed is 4, and 5"),
    "share": ({"validation": 0.25}, "validation is 0.2, and 0.25"),
    "capacity": ({"capacity": 17}, "capacity is 16, and 17"),
    "depth": ({"depth": 40}, "depth is None, and 40"),
    "source": ({}, "sha256 is "),
}


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("half", ["train", "validation"])
def test_halves_of_two_jobs_are_found(tmp_path, mine, pack, source, records, only, name, half):
    """Each of them is sound, and no record may even be in both."""
    options, says = OTHER[name]
    if name == "source":
        other = {**records, "b": [*records["b"][:-1], [1] * len(records["b"][-1])]}
        source = MixtureSource({name: IterableSource(ids, block_records=10) for name, ids in other.items()})
    pack(source, tmp_path / "other", **OPTIONS | options)
    shutil.rmtree(mine / half)
    shutil.copytree(tmp_path / "other" / half, mine / half)
    assert nopad.verify(mine / "train") == nopad.verify(mine / "validation") == []
    if half == "train":
        says = {"seed is 4, and 5": "seed is 5, and 4"}.get(says, says.split(" is ")[0])
    assert only(nopad.verify(mine)).startswith(f"train and validation are not of one job: {says}")


def test_a_half_that_says_it_is_of_another_job_is_found(tmp_path, mine, pack, source, edit):
    pack(source, tmp_path / "other", **OPTIONS | {"seed": 5})
    edit(tmp_path / "other", "validation", lambda m: m.update(seed=4))
    shutil.rmtree(mine / "validation")
    shutil.copytree(tmp_path / "other" / "validation", mine / "validation")
    assert re.fullmatch(
        r"validation: record \d+ is in validation; by seed 4 it is trained on, not held out", nopad.verify(mine)[0]
    )


def test_halves_that_changed_places(mine, only):
    (mine / "train").rename(mine / "x")
    (mine / "validation").rename(mine / "train")
    (mine / "x").rename(mine / "validation")
    assert only(nopad.verify(mine)) == (
        "these are not the two datasets of one job: they are ['validation', 'train'], and should be "
        "['train', 'validation']"
    )


def test_what_the_halves_say_of_each_other(mine, edit, only):
    def one_less(manifest):
        for counts in (manifest["counts"], manifest["sources"][0]):
            counts["other_split_tokens"] -= 1

    edit(mine, "train", one_less)
    assert "train and validation are not of one job: validation has " in only(nopad.verify(mine))


def test_lengths_alone_are_split_too(tmp_path, pack):
    np.save(tmp_path / "lengths.npy", np.arange(1, 201, dtype=np.int32) % 16 + 1)
    lengths = LengthsFile(tmp_path / "lengths.npy")
    pack(lengths, tmp_path / "out", validation=0.1, index_only=True)
    assert nopad.verify(tmp_path / "out", source=lengths) == []
    held = Manifest.load(tmp_path / "out" / "validation")
    assert held.sequences + Manifest.load(tmp_path / "out" / "train").sequences == 200
    np.save(tmp_path / "lengths.npy", np.arange(200, dtype=np.int32) % 15 + 1)
    other = LengthsFile(tmp_path / "lengths.npy")
    assert "validation: the lengths in the packs are not those of the source" in nopad.verify(
        tmp_path / "out", source=other
    )


def test_a_block_of_bad_records_beside_carried_columns(tmp_path, pack):
    rows = [{"input_ids": [1, 2], "label": 3}] * 3 + [{"label": 1}] * 3
    made = pack(open_source(rows), tmp_path / "out", on_bad_record="skip")
    assert (made.counts["bad_skipped"], made.sequences) == (3, 3)
    halves = [{"input_ids": [1] * (1 + n % 3), "label": 3} for n in range(1000)] + [{"label": 1}] * 1000
    assert pack(open_source(halves), tmp_path / "more", on_bad_record="skip").sequences == 1000
