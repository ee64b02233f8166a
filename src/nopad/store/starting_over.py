"""Remove what nopad has written into a folder, and nothing else, so that a job can start over there."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from pathlib import Path

from nopad.errors import OutputBusyError, OutputExistsError
from nopad.files import storage_errors
from nopad.store.manifest import MANIFEST, PLAN, split_folders
from nopad.store.workspace import JOB, WORK

__all__ = ["DATASET", "PREDICTIONS", "check_made", "remove_made"]

# The names that a job leaves in its folder
DATASET = re.compile(rf"{re.escape(MANIFEST)}|{re.escape(PLAN)}|\.work|shards|packs\.arrow|sequences\.arrow")
PREDICTIONS = re.compile(r"_predictions\.json|part-\d+\.parquet|\.work")


def remove_made(out: Path, names: re.Pattern[str]) -> None:
    """Remove a folder that nopad has written, finished or not; do nothing if it does not exist or is empty.

    Args:
        out: the folder.
        names: the names that nopad writes there, `DATASET` or `PREDICTIONS`. The folder of a job that held a share out
            may also hold its two datasets' folders, ``train`` and ``validation``.

    Raises:
        OutputExistsError: the folder is a file, holds anything else, or holds no trace of a job.
        OutputBusyError: another process is writing there.
        StorageError: it cannot be removed.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    check_made(out, names)
    with storage_errors("removing", out):
        _refuse_busy(out)
        shutil.rmtree(out)


def check_made(out: Path, names: re.Pattern[str]) -> None:
    """Check that `out` is a folder that nopad has written, as `remove_made` does.

    Raises:
        OutputExistsError: it is not.
    """
    if not out.is_dir():
        raise OutputExistsError(f"{out} is a file; choose a folder")
    halves = split_folders(out) if names is DATASET else []
    for folder in (out, *halves):
        for path in folder.iterdir():
            if not names.fullmatch(path.name) and path not in halves:
                raise OutputExistsError(f"{path} was not written by nopad; move it, or choose another folder")
    made = (out / MANIFEST).is_file() or (out / "_predictions.json").is_file() or (out / WORK / JOB).is_file()
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
