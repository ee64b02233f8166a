"""Who may go on with an unfinished job, and what a full disk does to one."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
from contextlib import contextmanager

import pytest

import nopad
from nopad.corpus import IterableSource
from nopad.errors import OutputBusyError, OutputExistsError, ResumeError, StorageError
from nopad.store import job, workspace
from nopad.store.workspace import Workspace


@pytest.fixture
def source(make_records) -> IterableSource:
    return IterableSource(make_records(150), block_records=10)


@pytest.mark.parametrize(("match", "at"), [("journal.jsonl", 2), ("plan.json", 0), ("finished.jsonl", 1)])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"capacity": 20}, "capacity was 16, now 20"),
        ({"depth": 3}, "depth was none, now 3"),
        ({"seed": 1, "order": "source"}, "seed was 0, now 1; order was random, now source"),
        ({"algorithm": "spfhp"}, "algorithm was auto, now spfhp"),
        ({"over_long": "drop"}, "over_long was error, now drop"),
        ({"empty": "error"}, "empty was skip, now error"),
        ({"on_bad_record": "skip"}, "on_bad_record was error, now skip"),
        ({"special_tokens": False}, "special_tokens was True, now False"),
        ({"shard_tokens": 999}, "shard_tokens was 200, now 999"),
        ({"index_only": True}, "kind was packed, now index"),
    ],
)
def test_other_settings_are_refused(tmp_path, small_groups, source, pack, interrupt, tree, match, at, change, says):
    out = tmp_path / "out"
    interrupt(source, out, match=match, at=at)
    before = tree(out)
    with pytest.raises(ResumeError) as caught:
        pack(source, out, **change)
    assert str(caught.value) == (
        f"{out} holds an unfinished job with other settings ({says}); "
        "use the same settings to finish it, or delete the folder to start over"
    )
    assert tree(out) == before


def test_another_tokenizer_is_refused(tmp_path, pack, interrupt, words):
    source, out = IterableSource(["w1 w2"] * 9), tmp_path / "out"
    other = type(words)(words._inner.from_str(words._inner.to_str().replace('"w9"', '"v9"')))
    interrupt(source, out, match="plan.json", tokenizer=words)
    with pytest.raises(ResumeError) as caught:
        pack(source, out, tokenizer=other)
    was, now = words.fingerprint[:8], other.fingerprint[:8]
    assert f"(tokenizer was {was}…, now {now}…)" in str(caught.value)
    with pytest.raises(ResumeError, match=rf"\(tokenizer was {was}…, now none\)"):
        pack(IterableSource([[1]] * 9), out)


def test_other_tool_versions_are_refused(tmp_path, source, pack, interrupt, monkeypatch):
    interrupt(source, tmp_path / "out", match="plan.json")
    real = job.tool_versions
    monkeypatch.setattr(job, "tool_versions", lambda *names: {**real(*names), "pyarrow": "0.1"})
    with pytest.raises(ResumeError, match=r"pyarrow was [0-9.]+, now 0\.1"):
        pack(source, tmp_path / "out")


def test_a_finished_dataset_does_not_depend_on_tool_versions(tmp_path, source, pack, monkeypatch):
    made = pack(source, tmp_path / "out")
    monkeypatch.setattr(job, "tool_versions", lambda *names: {"pyarrow": "0.1"})
    assert pack(source, tmp_path / "out") == made


class Unlisted(IterableSource):
    """A source that cannot say beforehand what it holds."""

    def inventory(self):
        return []


@pytest.mark.parametrize("stop", ["plan.json", "finished.jsonl"])
def test_a_longer_or_shorter_source_is_refused(tmp_path, small_groups, pack, interrupt, make_records, stop):
    records, out = make_records(60), tmp_path / "out"
    interrupt(Unlisted(records, block_records=5), out, match=stop)
    with pytest.raises(ResumeError) as caught:
        pack(Unlisted([*records, [1]], block_records=5), out)
    assert str(caught.value) == f"the source became longer since this job started; delete {out} to start over"
    with pytest.raises(ResumeError) as caught:
        pack(Unlisted(records[:50], block_records=5), out)
    assert str(caught.value) == (
        "the source became shorter since this job started (after memory); "
        "delete the output folder to start over, or put the source back as it was"
    )
    pack(Unlisted(records, block_records=5), out)
    assert nopad.verify(out, source=IterableSource(records, block_records=5)) == []


def test_one_job_at_a_time(tmp_path, source, pack, interrupt, tree):
    out = tmp_path / "out"
    interrupt(source, out, match="plan.json")
    before = tree(out)
    with open(out / ".work" / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputBusyError) as caught:
            pack(source, out)
    assert str(caught.value) == f"another process is writing to {out}; wait for it, or choose another folder"
    assert tree(out) == before
    pack(source, out)


def test_a_job_holds_the_lock_until_its_end(tmp_path, source, pack):
    class Second:
        def __init__(self):
            self.busy = []

        def stage(self, name, total, unit):
            with pytest.raises(OutputBusyError):
                pack(source, tmp_path / "out")
            self.busy.append(name)

        def advance(self, units, tokens=0):
            pass

    second = Second()
    pack(source, tmp_path / "out", monitor=second)
    assert second.busy == ["tokenising", "planning", "writing"]


def test_a_job_that_another_process_finished_meanwhile_is_reused(tmp_path, source, pack, monkeypatch, tree):
    """The other one finished after this one had looked for a manifest, and before it held the lock."""
    out = tmp_path / "out"
    claim = Workspace.claim

    def late(self, *args):
        monkeypatch.setattr(Workspace, "claim", claim)
        pack(source, out)
        (out / ".work").mkdir()
        (out / ".work" / "job.json").write_text((tmp_path / "job.json").read_text())
        return claim(self, *args)

    def keep(path, content, real=workspace.write_atomic):
        real(path, content)
        real(tmp_path / "job.json", content)

    monkeypatch.setattr(workspace, "write_atomic", keep)
    monkeypatch.setattr(Workspace, "claim", late)
    pack(source, out)
    pack(source, tmp_path / "whole")
    assert tree(out) == tree(tmp_path / "whole")


def test_a_lock_whose_folder_is_being_removed_does_not_count(tmp_path, source, pack, monkeypatch):
    def steal(lock, how, real=fcntl.flock):
        (tmp_path / "out" / ".work" / "lock").unlink()
        real(lock, how)

    monkeypatch.setattr(workspace.fcntl, "flock", steal)
    with pytest.raises(OutputBusyError):
        pack(source, tmp_path / "out")


def test_a_work_folder_that_is_being_removed(tmp_path, source, pack, interrupt):
    """The folder was said to lack its job.json, and to have to be deleted."""
    interrupt(source, tmp_path / "out", match="plan.json")
    with open(tmp_path / "out" / ".work" / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (tmp_path / "out" / ".work" / "job.json").unlink()
        with pytest.raises(OutputBusyError):
            pack(source, tmp_path / "out")


def test_a_work_folder_that_was_just_removed(tmp_path, source, pack, monkeypatch):
    def gone(path, *how, real=os.open):
        if path == tmp_path / "out" / ".work" / "lock":
            path.parent.rmdir()
        return real(path, *how)

    monkeypatch.setattr(workspace.os, "open", gone)
    with pytest.raises(OutputBusyError):
        pack(source, tmp_path / "out")


def test_a_killed_clean_up_is_finished(tmp_path, source, pack):
    made = pack(source, tmp_path / "out")
    (tmp_path / "out" / ".work").mkdir()
    (tmp_path / "out" / ".work" / "tokens.bin").touch()
    assert pack(source, tmp_path / "out") == made
    assert not (tmp_path / "out" / ".work").exists()


def test_an_unfinished_job_beside_foreign_files(tmp_path, pack):
    (tmp_path / ".work").mkdir()
    (tmp_path / ".work" / "lock").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(OutputExistsError):
        pack(IterableSource([[1]]), tmp_path)
    (tmp_path / "notes.txt").unlink()
    pack(IterableSource([[1]]), tmp_path)  # killed before it wrote down what it was


@contextmanager
def file_size_limit(size: int):
    """Make every write beyond so many bytes of a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("limit", "doing"), [(50_000, "spooling tokens to"), (2_000, "writing")])
def test_a_write_that_fails(tmp_path, make_records, pack, interrupt, tree, limit, doing):
    source, out = IterableSource(make_records(8000), block_records=100), tmp_path / "out"
    options = {"shard_tokens": 5000}
    pack(source, tmp_path / "whole", **options)
    if doing == "writing":
        interrupt(source, out, match="plan.json", **options)  # the spool is complete, the shards are not begun
    with pytest.raises(StorageError) as caught, file_size_limit(limit):
        pack(source, out, **options)
    assert str(caught.value).startswith(f"no space left while {doing} {out / '.work'}")
    assert str(caught.value).endswith(" (File too large); free some space and run the same command again")
    assert caught.value.exit_code == 3
    assert not list(out.rglob("*.partial"))
    pack(source, out, **options)
    assert tree(out) == tree(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path):
    """Mount (or grow) a small file system of so many kilobytes."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def size(kilobytes: int, *, how: str = "") -> None:
        command = ["mount", "-t", "tmpfs", "-o", f"{how}size={kilobytes}k", "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("needs root and the right to mount a tmpfs")

    yield folder, size
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)  # a traceback may map a file


@pytest.mark.parametrize("kilobytes", [8, 100, 350, 480, 600])
def test_a_disk_that_is_really_full(tmp_path, small_disk, make_records, pack, tree, kilobytes):
    folder, size = small_disk
    source, options = IterableSource(make_records(8000), block_records=100), {"shard_tokens": 5000}
    pack(source, tmp_path / "whole", **options)
    size(kilobytes)
    with pytest.raises(StorageError, match=r"^no space left while .* \(No space left on device\); free some space and"):
        pack(source, folder / "out", **options)
    assert not list((folder / "out").rglob("*.partial"))
    size(5_000, how="remount,")
    pack(source, folder / "out", **options)
    assert tree(folder / "out") == tree(tmp_path / "whole")
