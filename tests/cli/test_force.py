"""Nothing is overwritten unless --force is given, and then only what nopad wrote."""

from __future__ import annotations

import fcntl
import json
import os

import pytest

import nopad
from nopad.cli.starting_over import way_out
from nopad.store.starting_over import DATASET, LOCK, PREDICTIONS


def capacity_of(out):
    return nopad.open_packed(out).manifest.capacity


def test_pack_over_another_dataset(call, ids, packed):
    ran = call("pack", ids, "-o", packed, "-c", 8)
    assert ran.code == 2
    assert (
        "made with other settings (capacity was 4, now 8); choose another folder, or start over with --force"
        in ran.error()
    )
    assert capacity_of(packed) == 4
    assert call("pack", ids, "-o", packed, "-c", 8, "--force").code == 0
    assert capacity_of(packed) == 8
    assert call("verify", packed, "-s", ids).code == 0


def test_pack_over_two_halves(call, mixed, ids):
    assert call("pack", ids, "-o", mixed, "-c", 8, "--force").code == 0
    assert sorted(path.name for path in mixed.iterdir() if path.is_dir()) == ["shards"]


@pytest.mark.parametrize("place", ["", "shards/.."])
def test_what_nopad_did_not_write_stays(call, ids, packed, place):
    (packed / place / "notes.txt").write_text("mine")
    before = (packed / "nopad.json").read_bytes()
    ran = call("pack", ids, "-o", packed, "-c", 8, "--force")
    assert ran.code == 2
    assert "notes.txt was not written by nopad; move it, or choose another folder" in ran.error()
    assert (packed / "nopad.json").read_bytes() == before


@pytest.mark.parametrize("place", ["shards", "train/shards", "train"])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_nor_inside_its_folders(call, ids, packed, mixed, place, what):
    out = mixed if "train" in place else packed
    mine = out / place / "mine"
    mine.mkdir() if what == "folder" else mine.touch()
    ran = call("pack", ids, "-o", out, "-c", 8, "--force")
    assert (ran.code, mine.exists()) == (2, True)
    assert f"{mine} was not written by nopad; move it, or choose another folder" in ran.error()
    assert "--force" not in call("pack", ids, "-o", out, "-c", 8).error()  # which would not help


@pytest.mark.parametrize("name", ["train", "shards", "nopad.json"])
def test_links_and_what_is_behind_them_stay(call, ids, packed, mixed, tmp_path, name):
    """The manifest behind the link was removed, and the rest stayed there: neither a dataset nor gone."""
    out = mixed if name == "train" else packed
    (out / name).rename(tmp_path / "elsewhere")
    (out / name).symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    ran = call("pack", ids, "-o", out, "-c", 8, "--force")
    assert (ran.code, sorted(tmp_path.rglob("*"))) == (2, before)
    assert f"{out / name} is a link, and was not written by nopad; move it, or choose another folder" in ran.error()


def test_two_datasets_of_two_jobs_stay(call, ids, tmp_path):
    out = tmp_path / "out"
    for name in ("train", "validation"):
        assert call("pack", ids, "-o", out / name, "-c", 4).code == 0
    ran = call("pack", ids, "-o", out, "-c", 8, "--force")
    assert (ran.code, capacity_of(out / "train")) == (2, 4)
    assert f"{out / 'train'} was packed by a job of its own, not by one with a held-out share; move it" in ran.error()


@pytest.mark.parametrize("damaged", ["", '{"format": "nopad.packed"}'])
@pytest.mark.parametrize("name", ["train", "validation"])
def test_a_damaged_half_is_replaced_as_a_damaged_dataset_is(call, ids, mixed, name, damaged):
    """It was refused as a dataset that was packed by a job of its own."""
    (mixed / name / "nopad.json").write_text(damaged)
    assert call("pack", ids, "-o", mixed, "-c", 8, "--force").code == 0
    assert (capacity_of(mixed), (mixed / name).exists()) == (8, False)


def test_a_half_that_is_no_dataset_stays(call, ids, mixed):
    path = mixed / "train" / "nopad.json"
    path.write_text('{"format": "mine"}')
    ran = call("pack", ids, "-o", mixed, "-c", 8, "--force")
    assert (ran.code, path.read_text()) == (2, '{"format": "mine"}')
    assert f"{path} was not written by nopad; move it, or choose another folder" in ran.error()


def test_a_folder_without_a_job_stays(call, ids, tmp_path):
    (tmp_path / "out" / "shards").mkdir(parents=True)
    ran = call("pack", ids, "-o", tmp_path / "out", "-c", 8, "--force")
    assert (ran.code, ran.error()) == (2, f"{tmp_path / 'out'} holds no job of nopad; choose another folder")


def test_a_bad_call_removes_nothing(call, ids, packed):
    assert call("pack", ids, "-o", packed, "-c", 8, "--force", "--carry", "nothing").code == 2
    assert call("pack", ids, "-o", packed, "-c", 8, "--force", "-a", "nothing").code == 2
    assert capacity_of(packed) == 4


def test_another_process_is_writing(call, ids, packed):
    (packed / ".work").mkdir()
    lock = os.open(packed / ".work" / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        ran = call("pack", ids, "-o", packed, "-c", 8, "--force")
    finally:
        os.close(lock)
    assert (ran.code, capacity_of(packed)) == (2, 4)
    assert "another process is writing to" in ran.error()


def test_plan_over_a_file(call, histogram, tmp_path):
    path = tmp_path / "a.plan.json"
    path.write_text("mine")
    how = ["plan", histogram, "-a", "lpfhp", "-d", "none", "-o", path]
    ran = call(*how)
    assert (ran.code, ran) == (2, "")
    assert ran.error() == f"{path} is there already; --force replaces it, or choose another name"
    assert path.read_text() == "mine"
    assert call(*how, "--force").code == 0
    assert nopad.Plan.load(path).packs == 3


def test_pack_json(call, ids, tmp_path):
    out = tmp_path / "out"
    found = json.loads(call("pack", ids, "-o", out, "-c", 4, "--json"))
    (made,) = found["datasets"]
    assert (found["reused"], made["folder"], made["packs"], made["sequences"], made["tokens"]) == (
        False,
        str(out),
        2,
        3,
        6,
    )
    assert made["counts"]["records"] == 3
    assert json.loads(call("pack", ids, "-o", out, "-c", 4, "--json"))["reused"] is True


@pytest.mark.parametrize(("error", "said"), [(RuntimeError, "broken"), (KeyboardInterrupt, "is as it was")])
def test_the_old_output_stays_until_the_new_one_is_whole(call, ids, packed, monkeypatch, error, said):
    before = {path: path.read_bytes() for path in packed.rglob("*") if path.is_file()}

    def breaks(*_, **__):
        assert nopad.verify(packed) == []
        raise error("broken")

    monkeypatch.setattr("nopad.store.workspace.Workspace.move_into_place", breaks)
    ran = call("pack", ids, "-o", packed, "-c", 8, "--force")
    assert ran.code != 0
    assert said in ran.err
    kept = {path: path.read_bytes() for path in packed.rglob("*") if path.is_file() and ".replacing" not in path.parts}
    assert kept == before
    assert (packed / ".replacing").is_dir() is (error is KeyboardInterrupt)
    monkeypatch.undo()
    assert call("verify", packed).code == 0
    assert call("pack", ids, "-o", packed, "-c", 8, "--force").code == 0
    assert (capacity_of(packed), (packed / ".replacing").exists()) == (8, False)


def test_a_link_stays_a_link(call, ids, packed, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(packed)
    assert call("pack", ids, "-o", link, "-c", 8, "--force").code == 0
    assert link.is_symlink()
    assert (capacity_of(packed), nopad.verify(link)) == (8, [])
    assert not (packed / ".replacing").exists()


def test_the_folder_itself_stays(call, ids, packed):
    number = packed.stat().st_ino  # a mount cannot be moved or made anew
    assert call("pack", ids, "-o", packed, "-c", 8, "--force").code == 0
    assert packed.stat().st_ino == number


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_an_empty_folder_is_used(call, ids, tmp_path, force):
    out = tmp_path / "out"
    out.mkdir()
    assert call("pack", ids, "-o", out, "-c", 8, *force).code == 0
    assert capacity_of(out) == 8


def test_what_a_kill_while_replacing_leaves_is_replaced(call, ids, packed):
    (packed / "nopad.json").unlink()
    (packed / ".replacing").mkdir()
    assert call("pack", ids, "-o", packed, "-c", 8, "--force").code == 0
    assert (capacity_of(packed), nopad.verify(packed)) == (8, [])


def test_an_old_output_that_is_equal_is_made_again(call, ids, packed):
    found = json.loads(call("pack", ids, "-o", packed, "-c", 4, "--force", "--json"))
    assert found["reused"] is False


@pytest.mark.parametrize("names", [DATASET, PREDICTIONS])
def test_what_an_interrupted_call_left_is_named(tmp_path, names):
    """Another call without --force ended well, and the files stayed for ever without a word."""
    with way_out(tmp_path, names):
        pass
    (tmp_path / ".replacing").mkdir()
    with (
        pytest.warns(UserWarning, match=r"/.replacing holds the files of an unfinished call with --force; run it"),
        way_out(tmp_path, names),
    ):
        pass


@pytest.mark.parametrize("names", [DATASET, PREDICTIONS])
def test_what_another_call_is_writing_is_not_named(tmp_path, recwarn, names):
    """The warning told the user to delete a folder that a call with --force was just writing to."""
    (tmp_path / ".replacing").mkdir()
    with open(tmp_path / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with way_out(tmp_path, names):
            pass
        assert not recwarn.list
    with pytest.warns(UserWarning, match="unfinished call"), way_out(tmp_path, names):  # a kill leaves the file
        pass
