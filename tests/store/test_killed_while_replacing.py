"""A call with ``--force`` that is killed at any step ends, when it is repeated, as if it had not been killed."""

from __future__ import annotations

import os
import re
import shutil
from itertools import count

import pytest

from nopad.corpus import IterableSource
from nopad.errors import OutputExistsError, RecordError
from nopad.store.starting_over import DATASET, LOCK, MOVING, NEW, PREDICTIONS, WORK, check_made, replaced

SIGNS = (NEW, WORK, "lock", "job", "job.json")
STEPS = ("fsync", "mkdir", "open", "replace", "rmdir", "unlink")
BAD = [["no id"]]
HALVES = {"validation": 0.2}
OLD = {"nothing": None, "one": {"seed": 5}, "halves": {"seed": 5, **HALVES}}


@pytest.fixture
def force(pack, make_records):
    """Pack 8 records as with ``--force``."""
    records = make_records(8)

    def run(out, bad=(), **options):
        source = IterableSource([*records, *bad])
        return replaced(out, DATASET, lambda place: pack(source, place, **options))

    return run


@pytest.fixture
def kills(tmp_path, monkeypatch):
    """The folders that kills would leave: copies of `out` before and after each step of a call that changes files.

    Of unfinished work, only what tells whether there is a job makes a difference here; for the rest, see `test_kill`.
    """
    numbers = count()

    def run(out, call):
        left = {}

        def look():
            found = [path.relative_to(out) for path in sorted(out.rglob("*"))]
            state = str([path for path in found if path.parts[0] not in (NEW, WORK) or path.stem in SIGNS])
            if out.exists() and state not in left:
                left[state] = shutil.copytree(out, tmp_path / f"left-{next(numbers)}")

        def watched(real):
            def step(*args, **kwargs):
                with monkeypatch.context() as patch:
                    for name in STEPS:
                        patch.setattr(os, name, undisturbed[name])
                    look()
                    made = real(*args, **kwargs)
                    look()
                return made

            return step

        undisturbed = {name: getattr(os, name) for name in STEPS}
        with monkeypatch.context() as patch:
            for name in STEPS:
                patch.setattr(os, name, watched(undisturbed[name]))
            call(out)
        return list(left.values())

    return run


@pytest.mark.parametrize("new", [{}, HALVES, {"index_only": True}], ids=["one", "halves", "index"])
@pytest.mark.parametrize("old", OLD)
def test_killed_at_any_step_the_same_call_ends_with_the_same_bytes(tmp_path, force, kills, tree, old, new):
    out = tmp_path / "out"
    if OLD[old]:
        force(out, **OLD[old])
    left = kills(out, lambda out: force(out, **new))
    assert len(left) >= 10
    for folder in left:
        before = sorted(folder.rglob("*"))
        force(folder, **new)
        assert tree(folder) == tree(out), before


@pytest.mark.parametrize("bad", [(), BAD], ids=["good", "bad"])
def test_a_call_for_something_else_is_killed_too(tmp_path, force, kills, tree, bad):
    """The old output is partly removed when the other call begins, so that only the new one's folder is a sign."""
    out = tmp_path / "out"
    force(out, **OLD["halves"])
    left = [folder for folder in kills(out, lambda out: force(out, **HALVES)) if (folder / NEW / "train").is_dir()]
    shutil.rmtree(out)
    force(out, index_only=True)
    assert len(left) > 5

    def other(folder):
        if bad:
            with pytest.raises(RecordError):
                force(folder, bad, index_only=True)
        else:
            force(folder, index_only=True)

    for folder in kills(left[-1], other):
        other(folder)
        force(folder, index_only=True)
        assert tree(folder) == tree(out)


@pytest.mark.parametrize("old", OLD)
def test_a_bad_record_is_found_again_after_a_kill(tmp_path, force, kills, tree, old):
    out = tmp_path / "out"
    if OLD[old]:
        force(out, **OLD[old])

    def refused(folder):
        with pytest.raises(RecordError):
            force(folder, BAD)

    before = tree(out)
    for folder in kills(out, refused):
        refused(folder)
        assert tree(folder) == tree(out) == before


@pytest.mark.parametrize("sign", [NEW, MOVING, WORK])
@pytest.mark.parametrize("place", ["", "train", "validation"])
def test_what_nopad_did_not_write_is_no_job(tmp_path, sign, place):
    out = tmp_path / "out"
    (out / sign).mkdir(parents=True)
    (out / sign / "job.json").touch()
    (out / "train").mkdir()
    check_made(out, DATASET)
    with pytest.raises(OutputExistsError, match=r"train was not written by nopad"):
        check_made(out, PREDICTIONS)
    (out / place).mkdir(exist_ok=True)
    (out / place / "notes").mkdir()
    with pytest.raises(OutputExistsError, match=r"notes was not written by nopad; move it, or choose another folder"):
        check_made(out, DATASET)


def test_two_halves_without_a_sign_of_a_job(tmp_path, force):
    out = tmp_path / "out"
    force(out, **HALVES)
    (out / "validation" / "nopad.json").unlink()
    with pytest.raises(OutputExistsError, match=re.escape(f"{out}") + r"/\w+ was not written by nopad"):
        force(out)
    shutil.rmtree(out)
    (out / WORK).mkdir(parents=True)
    (out / "shards").mkdir()
    with pytest.raises(OutputExistsError, match="holds no job of nopad"):
        force(out)


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (DATASET, "plan.json"),
        (DATASET, "nopad.json"),
        (PREDICTIONS, "part-00001.parquet"),
        (PREDICTIONS, "_predictions.json"),
    ],
)
def test_a_file_that_was_just_being_written_is_nopads(tmp_path, names, name):
    (tmp_path / LOCK).touch()
    (tmp_path / f"{name}.partial").touch()
    check_made(tmp_path, names)
