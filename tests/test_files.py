from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

import pytest

import nopad
from nopad.errors import FormatError, OptionError, StorageError
from nopad.files import (
    PARTIAL_SUFFIX,
    fsync_path,
    is_model_folder,
    locked,
    sha256_file,
    storage_errors,
    write_atomic,
)
from nopad.report import write_pictures, write_report


@pytest.mark.parametrize(
    "save",
    [
        nopad.Histogram.from_lengths([1]).save,
        nopad.plan([1], 8).save,
        nopad.pack([1], 8).save,
        nopad.plan_several([1], [8]).save,
        lambda path: write_report([object()], Path(path)),
        lambda path: write_pictures([], Path(path)),
    ],
)
@pytest.mark.parametrize("path", ["s3://bucket/a.json", "gs://bucket/a"])
def test_whatever_writes_refuses_a_url(save, path):
    with pytest.raises(OptionError, match=f"^{path}: results are written to a folder of this machine"):
        save(path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_says_what_to_do(tmp_path, code):
    with pytest.raises(StorageError) as caught, storage_errors("writing", tmp_path):
        raise OSError(code, "some library's own words")
    assert str(caught.value) == (
        f"no space left while writing {tmp_path} ({os.strerror(code)}); free some space and run the same command again"
    )
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("error", "reason"), [(OSError(errno.EIO, "broken disk"), "broken disk"), (OSError("x"), "x")])
def test_other_failures_name_the_reason(tmp_path, error, reason):
    with pytest.raises(StorageError) as caught, storage_errors("reading", tmp_path / "a"):
        raise error
    assert str(caught.value) == f"failed while reading {tmp_path / 'a'}: {reason}"
    assert caught.value.__cause__ is error


def test_what_is_no_storage_error_passes(tmp_path):
    with pytest.raises(ValueError, match="mine"), storage_errors("writing", tmp_path):
        raise ValueError("mine")


def test_write_atomic_replaces_the_content_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


def test_write_atomic_syncs_the_content_before_the_name_and_the_folder_after(tmp_path, monkeypatch):
    steps = []

    def fsync(descriptor: int) -> None:
        what = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        steps.append((what, os.fstat(descriptor).st_size if what == "file" else None))

    def rename(old, new, real=os.replace) -> None:
        steps.append(("rename", os.path.basename(old)))
        real(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    write_atomic(tmp_path / "a", b"12345")
    assert steps == [("file", 5), ("rename", "a" + PARTIAL_SUFFIX), ("folder", None)]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_content_and_no_partial_file(tmp_path, monkeypatch, call, error):
    def fail(*_):
        raise error

    path = tmp_path / "a"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageError if isinstance(error, OSError) else KeyboardInterrupt):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_leftover_of_a_killed_write_is_overwritten(tmp_path):
    (tmp_path / ("a" + PARTIAL_SUFFIX)).write_bytes(b"a much longer leftover")
    write_atomic(tmp_path / "a", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"new"}


def test_write_into_a_missing_folder(tmp_path):
    path = tmp_path / "missing" / "a"
    with pytest.raises(StorageError) as caught:
        write_atomic(path, b"")
    assert str(caught.value) == f"failed while writing {path}: No such file or directory"


def test_fsync_closes_what_it_opens(tmp_path):
    (tmp_path / "a").touch()
    before = os.listdir("/proc/self/fd")
    fsync_path(tmp_path / "a")
    fsync_path(tmp_path)
    with pytest.raises(FileNotFoundError):
        fsync_path(tmp_path / "b")
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("content", [b"", b"x" * 1_000_000])
def test_sha256_file(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    assert sha256_file(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_a_lock_says_only_what_it_failed_at_itself(tmp_path):
    """An error of the block was reported as one of the lock file."""
    full = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full") as caught, locked(tmp_path / "lock"):
        raise full
    assert caught.value is full
    with locked(tmp_path / "lock"):  # the lock was released
        pass
    with (
        pytest.raises(StorageError, match=r"failed while locking .*/no/lock: No such file"),
        locked(tmp_path / "no/lock"),
    ):
        pass


def test_a_home_folder_that_no_shell_wrote_out_is_named(tmp_path):
    with pytest.raises(FormatError, match=r"~/model does not exist; only a shell replaces the ~ by a home folder"):
        is_model_folder("~/model")
    with pytest.raises(FormatError, match=r"is no folder with a model: it has no config\.json"):
        is_model_folder(tmp_path)
    assert not is_model_folder("some/model")
