"""Replace the files that nopad wrote into a folder, and no others, once the new output is complete."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nopad.errors import InterruptedJobError, OutputBusyError, OutputExistsError
from nopad.files import fsync_folder, storage_errors
from nopad.store.manifest import MANIFEST, PLAN, split_folders
from nopad.store.workspace import JOB, WORK

__all__ = ["DATASET", "PREDICTIONS", "check_made", "replacement"]

# The names that a job leaves in its folder
NEW = ".replacing"  # subfolder of the old output, into which the new output is written
RESULTS = "_predictions.json"
WHOLE = (MANIFEST, RESULTS)  # a folder with one of these files is complete
DATASET = re.compile(
    rf"{re.escape(MANIFEST)}|{re.escape(PLAN)}|{re.escape(NEW)}|\.work|shards|packs\.arrow|sequences\.arrow"
)
PREDICTIONS = re.compile(rf"{re.escape(RESULTS)}|{re.escape(NEW)}|part-\d+\.parquet|\.work")


@contextmanager
def replacement(out: Path, names: re.Pattern[str]) -> Iterator[Path]:
    """For a ``with`` block, give the folder to write into; the end of the block replaces nopad's old output in `out`.

    If `out` is missing or empty, the block gets `out` itself. Otherwise it gets the subfolder `NEW` of `out`; `out` may
    be a mount or a link. At the end of the block, the old files are removed and the new files take their place. If the
    block raises an error, the old files stay as they are. A kill after the removal leaves a folder without a manifest,
    which a later call of this function replaces, too.

    Args:
        out: the folder.
        names: the names that nopad writes there, `DATASET` or `PREDICTIONS`. The folder of a job that held a share out
            may also hold its two datasets' folders, ``train`` and ``validation``.

    Raises:
        OutputExistsError: `out` is a file, holds a file with any other name, or holds no trace of a job.
        OutputBusyError: another process is writing there.
        InterruptedJobError: the block was interrupted.
        StorageError: a file cannot be removed or moved.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        yield out
        return
    check_made(out, names)
    new = out / NEW
    with storage_errors("replacing", out):
        for folder in (out, new):
            _refuse_busy(folder)
        _remove(new)
        new.mkdir()
    try:
        yield new
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        if isinstance(error, InterruptedJobError):
            raise InterruptedJobError(f"interrupted; {out} is as it was") from None
        raise
    with storage_errors("replacing", out):
        _swap(out, new)


def _swap(out: Path, new: Path) -> None:
    """Remove the old files, those in `WHOLE` first; then move the new files to `out`, those in `WHOLE` last."""
    old = sorted((path for path in out.iterdir() if path != new), key=lambda path: path.name not in WHOLE)
    for path in old:
        _remove(path)
    fsync_folder(out)
    for path in sorted(new.iterdir(), key=lambda path: path.name in WHOLE):
        os.replace(path, out / path.name)
    fsync_folder(out)
    new.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_made(out: Path, names: re.Pattern[str]) -> None:
    """Check that `out` is a folder that nopad has written; `names` is as in `replacement`.

    Raises:
        OutputExistsError: `out` is a file, holds a file with any other name, or holds no trace of a job.
    """
    if not out.is_dir():
        raise OutputExistsError(f"{out} is a file; choose a folder")
    halves = split_folders(out) if names is DATASET else []
    for folder in (out, *halves):
        for path in folder.iterdir():
            if not names.fullmatch(path.name) and path not in halves:
                raise OutputExistsError(f"{path} was not written by nopad; move it, or choose another folder")
    made = (
        (out / MANIFEST).is_file() or (out / RESULTS).is_file() or (out / WORK / JOB).is_file() or (out / NEW).is_dir()
    )
    if not (made or halves):
        raise OutputExistsError(f"{out} holds no job of nopad; choose another folder")


def _refuse_busy(out: Path) -> None:
    if not (out / WORK / "lock").exists():
        return
    lock = os.open(out / WORK / "lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputBusyError(f"another process is writing to {out}; wait for it, or choose another folder") from error
    finally:
        os.close(lock)
