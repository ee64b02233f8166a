"""Replace the files that nopad wrote into a folder by new output, once the new output is complete.

No other file is touched.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from nopad.errors import (
    CorruptError,
    FormatError,
    InterruptedJobError,
    OutputBusyError,
    OutputExistsError,
    ResumeError,
    SourceError,
    StorageError,
)
from nopad.files import PARTIAL_SUFFIX, fsync_path, storage_errors
from nopad.store.manifest import MANIFEST, PLAN, SPLITS, split_folders, split_of
from nopad.store.workspace import JOB, WORK, Workspace

__all__ = ["DATASET", "LOCK", "NEW", "PREDICTIONS", "check_made", "is_held", "replaced"]

Made = TypeVar("Made")

# The names that a job leaves in its folder
NEW = ".replacing"  # subfolder of the old output, into which the new output is written
MOVING = ".moving"  # the same, once the old output is removed
LOCK = ".replacing.lock"  # keeps out other calls with --force until the new output is in its place
RESULTS = "_predictions.json"
WHOLE = (MANIFEST, RESULTS)  # a folder with one of these files is complete
_WORKING = rf"{re.escape(NEW)}|{re.escape(MOVING)}|{re.escape(LOCK)}|{re.escape(WORK)}"
_PARTIAL = rf"(?:{re.escape(PARTIAL_SUFFIX)})?"  # a kill leaves the file that was just being written
DATASET = re.compile(
    rf"(?:{re.escape(MANIFEST)}|{re.escape(PLAN)}|shards|packs\.arrow|sequences\.arrow){_PARTIAL}|{_WORKING}"
)
SHARDS = "shards"  # a folder of files that are called as `SHARD` says
SHARD = re.compile(rf"\d+-of-\d+\.parquet{_PARTIAL}")
PREDICTIONS = re.compile(rf"(?:{re.escape(RESULTS)}|part-\d+\.parquet){_PARTIAL}|{_WORKING}")
_OTHER_WORK = (OutputExistsError, ResumeError, CorruptError)
# After these, the same call may succeed, or another process uses the files
_GOES_ON = (InterruptedJobError, KeyboardInterrupt, StorageError, SourceError, OutputBusyError)


def replaced(out: Path, names: re.Pattern[str], make: Callable[[Path], Made]) -> Made:
    """Write new output in place of nopad's old output in a folder; return what `make` returns.

    If an interrupted call was just moving its new files to `out`, they are moved first, and then `make` is called with
    `out` itself. Otherwise `make` is called with the subfolder ``.replacing`` of `out` if `out` holds complete output,
    or if an interrupted call left this subfolder. In all other cases (`out` is missing, is empty or holds only
    unfinished work), `make` is called with `out` itself. If `make` refuses what is in `out`, it is called again with
    ``.replacing``. While `make` works there, the old files stay as they are; then the new files take their place. (The
    subfolder is inside of `out` since `out` may be a mount or a link.)

    The call may be interrupted or killed at any moment: the same call then goes on where it stopped. A call that makes
    something else begins anew.

    Args:
        out: the folder.
        names: a pattern for the names that nopad writes there: `DATASET` or `PREDICTIONS`. With `DATASET`, `out` may
            also hold the two datasets of a job with a held-out share, ``train`` and ``validation``, if both are
            finished or an interrupted call left them.
        make: writes the output to the folder that it gets, and goes on with its own job if one was interrupted there.
            It raises OutputExistsError, ResumeError or CorruptError if the folder holds other or damaged work. Its
            other errors are passed on.

    Raises:
        OutputExistsError: `out` is a file, holds an entry that nopad does not write there, also in the folders of
            datasets and shards, or is not empty but holds no trace of a job (`check_made`). Or something was added to
            `out` while `make` worked: then the new output stays in ``.replacing``, and the same call goes on with it.
        OutputBusyError: another process is writing there.
        InterruptedJobError: `make` was interrupted.
        StorageError: a file cannot be locked, removed or moved.
    """
    if Workspace(out).is_unused():
        return make(out)
    check_made(out, names)
    with _alone(out):
        return _replaced(out, make)


def _replaced(out: Path, make: Callable[[Path], Made]) -> Made:
    """Do what `replaced` does, for a folder `out` that already holds output or a job.

    The caller keeps other calls with ``--force`` out (`_alone`). All other calls are kept out here, by
    `Workspace.locked`, or by `make` while it works in `out` itself.
    """
    new, moving = out / NEW, out / MOVING
    with Workspace(out).locked(), storage_errors("replacing", out):
        moved = moving.is_dir()
        if moved:
            _move(moving, out)
    if moved or not (new.is_dir() or _is_whole(out)):
        with suppress(*_OTHER_WORK):
            return make(out)
    with Workspace(out).locked():
        return _remade(out, make)


def _remade(out: Path, make: Callable[[Path], Made]) -> Made:
    """Call `make` with the subfolder ``.replacing`` of `out`, and put the new output in place of the old.

    The result is that of `make`. The caller holds both locks of the folder `out` (`_alone` and `Workspace.locked`).
    """
    new, moving = out / NEW, out / MOVING
    with storage_errors("replacing", out):
        before = _entries(out)
    try:
        made = _made(new, make)
    except BaseException as error:
        if not isinstance(error, _GOES_ON):
            shutil.rmtree(new, ignore_errors=True)
            if not (_is_whole(out) or (out / WORK / JOB).is_file()):
                new.mkdir(exist_ok=True)  # the sign that the rest of an old output, partly removed, is nopad's
        if isinstance(error, InterruptedJobError):
            raise InterruptedJobError(
                f"interrupted; {out} is as it was. Run the same command again: it goes on where it stopped"
            ) from None
        raise
    with storage_errors("replacing", out):
        if added := _entries(out) - before:  # perhaps hours have passed
            raise OutputExistsError(
                f"{min(added)} was added while this call ran, and nothing was replaced; move it, and run the same call "
                f"again: the new output is kept in {new}"
            )
        for folder in (*split_folders(out), out):
            for name in WHOLE:
                _remove(folder / name)  # first, so that no folder seems complete
        for path in (*out.iterdir(), *(out / WORK).iterdir(), new / WORK):
            if path not in (new, out / LOCK, out / WORK, out / WORK / "lock"):
                _remove(path)
        fsync_path(out)
        os.replace(new, moving)  # from here on, all that is in `out` is new
        fsync_path(out)
        _move(moving, out)
    return made


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep other calls with ``--force`` out of a folder in a ``with`` block; the system ends this if the process ends.

    Without this, a second call could remove the files that the first one is just moving into their place.

    Raises:
        OutputBusyError: another process holds the lock.
        StorageError: the lock file cannot be written or removed, or the file system has no locks.
    """
    path = out / LOCK
    with storage_errors("locking", path):
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            taken = _taken(lock, out)
        except StorageError:
            path.unlink(missing_ok=True)  # nobody can hold it
            raise
        if not taken:
            raise OutputBusyError(f"another process is writing to {out}; wait for it, or choose another folder")
        try:
            yield
        finally:
            with storage_errors("unlocking", path):
                path.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _taken(lock: int, out: Path) -> bool:
    """Try to lock an open lock file of the folder `out`, and return whether it is locked now.

    `lock` is the file's descriptor. The result is False if another process has the lock, or has just removed the file.

    Raises:
        StorageError: the file system has no locks.
    """
    with storage_errors("locking", out):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return bool(os.fstat(lock).st_nlink)


def _made(new: Path, make: Callable[[Path], Made]) -> Made:
    """Call `make` with the folder `new`, which is created if it does not exist, and return its result.

    If the folder holds work, `make` may go on with it. If `make` refuses this work (by OutputExistsError, ResumeError
    or CorruptError), the work is removed, and `make` is called again.
    """
    with storage_errors("replacing", new):
        left = new.is_dir() and any(new.iterdir())
        new.mkdir(exist_ok=True)
    if left:
        with suppress(*_OTHER_WORK):
            return make(new)
        with storage_errors("replacing", new):
            _remove(new)
            new.mkdir()
    return make(new)


def _entries(out: Path) -> set[Path]:
    """Return the paths of all files and folders in `out`, without those of the new output (``.replacing``)."""
    return {path for path in out.rglob("*") if path.relative_to(out).parts[0] != NEW}


def _is_whole(out: Path) -> bool:
    """Return whether a folder holds a complete output.

    That is a manifest (``nopad.json``), the results of predictions, or both finished datasets of a job with a held-out
    share (``train`` and ``validation``).
    """
    return any((out / name).is_file() for name in WHOLE) or bool(split_folders(out))


def _move(moving: Path, out: Path) -> None:
    """Move the new files from `moving` to `out`, and remove `moving`.

    The manifest or the results come last (`WHOLE`), since one of these files shows that the output is complete.
    """
    for path in sorted(moving.iterdir(), key=lambda path: path.name in WHOLE):
        os.replace(path, out / path.name)
    fsync_path(out)
    moving.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_made(out: Path, names: re.Pattern[str]) -> None:
    """Check that `out` is a folder with output or a job of nopad, and nothing else.

    `names` is a pattern for the names that nopad writes there: `DATASET` or `PREDICTIONS`. With `DATASET`, `out` may
    also hold the two datasets of a job with a held-out share, ``train`` and ``validation``. Both must be there and
    finished, unless a job is going on in `out`. The folder `out` itself may be a link. An entry that is a link is
    refused: nopad writes none, and a link leads to files in another place.

    Raises:
        OutputExistsError: `out` is a file, holds an entry that nopad does not write there, also in the folders of
            datasets and shards, holds a link or a dataset that was packed by a job of its own, or holds no trace of a
            job.
    """
    if not out.is_dir():
        raise OutputExistsError(f"{out} is a file; choose a folder")
    begun = any((out / name).exists() for name in (f"{WORK}/{JOB}", NEW, MOVING, LOCK))
    halves = split_folders(out)
    if begun:  # a kill left what was written, removed or moved until then
        halves = [out / name for name in SPLITS if (out / name).is_dir()]
    if names is not DATASET:
        halves = []
    written = dict.fromkeys((out, *halves), names)
    written |= {folder / SHARDS: SHARD for folder in written if (folder / SHARDS).is_dir()}
    for folder, inside in written.items():
        for path in folder.iterdir():
            if path.is_symlink() or not (inside.fullmatch(path.name) or path in halves):
                link = "is a link, and " if path.is_symlink() else ""
                raise OutputExistsError(f"{path} {link}was not written by nopad; move it, or choose another folder")
    for folder in halves:
        path = folder / MANIFEST
        try:
            alone = path.is_file() and split_of(folder) != folder.name
        except CorruptError:  # a damaged half is replaced, as a damaged dataset is
            continue
        except FormatError as error:
            raise OutputExistsError(f"{path} was not written by nopad; move it, or choose another folder") from error
        if alone:
            raise OutputExistsError(
                f"{folder} was packed by a job of its own, not by one with a held-out share; move it, or choose "
                "another folder"
            )
    if not (begun or _is_whole(out)):
        raise OutputExistsError(f"{out} holds no job of nopad; choose another folder")


def is_held(path: Path) -> bool:
    """Return whether another process holds a lock file, or has just removed it; False if there is no such file.

    Raises:
        StorageError: the file cannot be opened, or the file system has no locks.
    """
    if not path.exists():
        return False
    with storage_errors("locking", path):
        lock = os.open(path, os.O_RDWR)
    try:
        return not _taken(lock, path)
    finally:
        os.close(lock)
