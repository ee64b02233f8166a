"""A new output takes the place of an old one: the old one stays until then, and the same call goes on after a stop."""

from __future__ import annotations

import errno
import os
import shutil
from itertools import count
from pathlib import Path

import pytest

import nopad
from nopad.corpus import IterableSource
from nopad.errors import FormatError, InterruptedJobError, OutputBusyError, OutputExistsError, RecordError, StorageError
from nopad.store import starting_over
from nopad.store.starting_over import DATASET, LOCK, MOVING, NEW, replaced
from nopad.store.workspace import JOB, WORK, Workspace


@pytest.fixture
def old(tmp_path, pack, make_records):
    """A finished dataset, which is to be replaced."""
    out = tmp_path / "out"
    pack(IterableSource(make_records(20, seed=1)), out)
    return out


@pytest.fixture
def source(make_records) -> IterableSource:
    return IterableSource(make_records(60), block_records=10)


@pytest.fixture
def again(pack):
    """Replace the output by a dataset of another source."""
    return lambda source, out, **options: replaced(out, DATASET, lambda place: pack(source, place, **options))


@pytest.fixture
def wanted(tmp_path, pack, source, tree):
    pack(source, tmp_path / "wanted")
    return tree(tmp_path / "wanted")


@pytest.fixture
def removals(break_at, monkeypatch):
    """Count removals of the old output as durable steps of `break_at` too."""
    real = starting_over._remove

    def stop_before(error, at):
        left = iter([None] * at)

        def remove(path):
            if path.parent.name == "out" and next(left, error) is error:
                raise error
            real(path)

        monkeypatch.setattr(starting_over, "_remove", remove)

    return stop_before


@pytest.mark.parametrize("name", ["mine", "shards/mine", "plan.json.partial", "train/mine"])
def test_what_is_added_meanwhile_stays(pack, old, source, again, wanted, tree, name):
    """It was removed with the old output, without a word."""
    before = tree(old)

    def make(place):
        made = pack(source, place)
        (old / name).parent.mkdir(exist_ok=True)
        (old / name).write_text("mine")
        return made

    added = old / name.split("/")[0] if "train" in name else old / name
    with pytest.raises(OutputExistsError) as caught:
        replaced(old, DATASET, make)
    assert str(caught.value) == (
        f"{added} was added while this call ran, and nothing was replaced; move it, and run the same call again: the "
        f"new output is kept in {old / NEW}"
    )
    assert (old / name).read_text() == "mine"
    kept = tree(old)
    assert {path: kept[path] for path in before} == before
    (old / name).unlink()
    if "train" in name:
        added.rmdir()
    again(source, old)
    assert tree(old) == wanted


@pytest.mark.parametrize("place", ["link", "cwd"])
def test_a_job_of_a_bad_record_ends_with_its_error_wherever_it_writes(pack, tmp_path, monkeypatch, place):
    """The folder could not be removed, and an OSError took the place of the record's error."""
    real = tmp_path / "real"
    real.mkdir()
    monkeypatch.chdir(real)
    link = tmp_path / "link"
    link.symlink_to(real)
    with pytest.raises(RecordError):
        pack(IterableSource([[1], [-1]]), link if place == "link" else Path())
    assert (link.is_symlink(), [*real.iterdir()]) == (True, [])


def test_stopped_at_any_step_the_same_call_ends_with_the_same_bytes(
    tmp_path, small_groups, old, source, again, wanted, tree, break_at
):
    before = tree(old)
    for at in count():
        out = tmp_path / f"of-{at}"
        shutil.copytree(old, out)
        steps = break_at(KeyboardInterrupt(), at=at)
        stopped = _stopped(again, source, out)
        break_at.patch.undo()
        if isinstance(stopped, InterruptedJobError):
            assert "is as it was. Run the same command again: it goes on where it stopped" in str(stopped)
            assert {name: data for name, data in tree(out).items() if not name.startswith(NEW)} == before
            assert nopad.verify(out) == []
        if stopped is not None:
            again(source, out)
        assert tree(out) == wanted, steps[-1]
        shutil.rmtree(out)
        if stopped is None:
            break
    assert at > 20


def _stopped(again, source, out):
    """What stopped the call; None: it went to its end."""
    try:
        again(source, out)
    except (InterruptedJobError, KeyboardInterrupt) as error:
        return error
    return None


@pytest.mark.parametrize("at", range(3))
def test_stopped_while_the_old_output_is_removed(old, source, again, wanted, tree, removals, monkeypatch, at):
    removals(KeyboardInterrupt(), at)
    with pytest.raises(KeyboardInterrupt):
        again(source, old)
    monkeypatch.undo()
    assert (old / NEW / "nopad.json").is_file()
    again(source, old)
    assert tree(old) == wanted


def test_it_goes_on_and_does_not_begin_anew(small_groups, old, source, again, break_at):
    break_at(KeyboardInterrupt(), match="plan.json")
    with pytest.raises(InterruptedJobError):
        again(source, old)
    break_at.patch.undo()
    steps = break_at(KeyboardInterrupt(), match="spool", at=10**6)
    again(source, old)
    assert steps == []  # what was read is not read again


def test_a_call_for_something_else_begins_anew(small_groups, old, source, again, break_at, pack, tree, tmp_path):
    break_at(KeyboardInterrupt(), match="plan.json")
    with pytest.raises(InterruptedJobError):
        again(source, old)
    break_at.patch.undo()
    again(source, old, capacity=20)
    pack(source, tmp_path / "wanted", capacity=20)
    assert tree(old) == tree(tmp_path / "wanted")


def test_an_unfinished_job_in_the_folder_itself_goes_on(
    tmp_path, small_groups, source, again, interrupt, wanted, tree, break_at
):
    out = tmp_path / "out"
    interrupt(source, out, match="plan.json")
    steps = break_at(KeyboardInterrupt(), match="spool", at=10**6)
    again(source, out)
    assert steps == []
    assert tree(out) == wanted
    shutil.rmtree(out)
    break_at.patch.undo()
    interrupt(source, out, match="plan.json", capacity=20)
    again(source, out)
    assert tree(out) == wanted


def test_what_no_repetition_mends_leaves_nothing(old, again, tree, break_at, disk_full, source):
    before = tree(old)
    with pytest.raises(RecordError):
        again(IterableSource([[1, 2], ["no id"]]), old)
    assert tree(old) == before
    break_at(disk_full, match="plan.json")
    with pytest.raises(StorageError):
        again(source, old)
    break_at.patch.undo()
    assert (old / NEW).is_dir()
    assert nopad.verify(old) == []


def test_a_folder_of_moved_files_is_completed_and_replaced(old, source, again, tree, pack, tmp_path):
    """The kill was within the move, and the next call asks for something else."""
    (old / MOVING).mkdir()
    (old / "nopad.json").rename(old / MOVING / "nopad.json")
    with pytest.raises(OutputExistsError):
        pack(source, old)
    again(source, old, capacity=20)
    pack(source, tmp_path / "wanted", capacity=20)
    assert tree(old) == tree(tmp_path / "wanted")


def test_a_second_call_leaves_the_first_alone_at_every_step(
    tmp_path, small_groups, old, source, again, wanted, tree, break_at, monkeypatch
):
    """Whenever the second call comes, it is refused, and the first one ends as if it had been alone."""
    refused = []

    def second(*_args):
        with monkeypatch.context() as patch:  # the second call is not disturbed itself
            for module, name in undisturbed:
                patch.setattr(module, name, undisturbed[module, name])
            with pytest.raises(OutputBusyError, match="another process is writing to"):
                again(source, old)
        refused.append(1)

    undisturbed = {(starting_over, name): getattr(starting_over, name) for name in ("_made", "_remove", "_move")}
    for name in ("_made", "_remove", "_move"):
        real = getattr(starting_over, name)

        def before_and_after(*args, real=real):
            second()
            made = real(*args)
            second()
            return made

        monkeypatch.setattr(starting_over, name, before_and_after)
    again(source, old)
    assert len(refused) >= 8
    assert tree(old) == wanted


@pytest.mark.parametrize("halves", [{}, {"validation": 0.2}], ids=["one", "halves"])
def test_a_job_in_the_folder_is_refused_at_every_step(
    tmp_path, source, again, interrupt, pack, wanted, tree, monkeypatch, halves
):
    """It was resumed, and lost its files while it worked; or the other call took the job's files for the user's."""
    out, refused = tmp_path / "out", []
    interrupt(source, out, match="plan.json", capacity=20, **halves)

    def job(looks):
        with monkeypatch.context() as patch:
            if not looks:  # it did before the other call began
                patch.setattr(Workspace, "_holds_something_else", lambda self: False)
            with pytest.raises(OutputBusyError) as caught:
                pack(source, out, capacity=20, **halves)
        assert str(caught.value) == f"another process is writing to {out}; wait for it, or choose another folder"
        refused.append(looks)

    def watched(real):
        def step(*args):
            job(looks=False)
            if (out / WORK / JOB).is_file():
                job(looks=True)
            made = real(*args)
            if not (out / "nopad.json").exists():  # the new output is complete
                job(looks=False)
            return made

        return step

    for name in ("_made", "_remove", "_move"):
        monkeypatch.setattr(starting_over, name, watched(getattr(starting_over, name)))
    again(source, out)
    assert (len(refused) > 10, True in refused) == (True, True)
    assert tree(out) == wanted


def test_a_job_that_looked_before_a_call_ended_is_refused_after_it(old, source, again, pack, monkeypatch, tree):
    """It would have written beside the new output."""
    again(source, old, validation=0.2)
    before = sorted(old.rglob("*"))
    looks = iter([False])
    real = Workspace._holds_something_else
    monkeypatch.setattr(Workspace, "_holds_something_else", lambda self: next(looks, True) and real(self))
    with pytest.raises(OutputBusyError):
        pack(source, old)
    assert sorted(old.rglob("*")) == before


def test_a_reused_dataset_leaves_the_lock_of_a_call_that_replaces_it(tmp_path, old, source, again, pack, make_records):
    def make(place):
        lock = (old / WORK / "lock").stat()
        pack(IterableSource(make_records(20, seed=1)), old)
        assert (old / WORK / "lock").stat() == lock
        return pack(source, place)

    replaced(old, DATASET, make)
    assert not (old / WORK).exists()


def test_two_datasets_are_not_unfinished_while_they_are_replaced(old, source, again, pack):
    again(source, old, validation=0.2)

    def make(place):
        with pytest.raises(FormatError, match="holds two datasets; open"):
            nopad.open_packed(old)
        return pack(source, place)

    replaced(old, DATASET, make)


def test_a_lock_that_a_kill_left_is_no_lock(old, source, again, wanted, tree):
    (old / LOCK).touch()
    again(source, old)
    assert tree(old) == wanted


def test_a_lock_that_the_first_call_has_just_removed_is_no_lock(old, source, again, monkeypatch):
    real = starting_over.fcntl.flock

    def flock(file, how):
        (old / LOCK).unlink()  # another call has ended between our opening and our locking
        real(file, how)

    monkeypatch.setattr(starting_over.fcntl, "flock", flock)
    with pytest.raises(OutputBusyError, match="wait for it"):
        again(source, old)


def test_a_file_system_without_locks(old, source, again, monkeypatch, tree):
    before = tree(old)

    def flock(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(starting_over.fcntl, "flock", flock)
    with pytest.raises(StorageError, match=r"failed while locking .*: No locks available"):
        again(source, old)
    assert tree(old) == before
