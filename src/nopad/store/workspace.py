"""`Workspace`: the dataset folder of a packing job.

It finds out which job the folder belongs to, which of the job's files are finished, and whether the dataset is there. A
job that writes predictions has a `Workspace`, too (`nopad.tasks.prediction_files`).

``OUT/.work/job.json`` says which job a folder belongs to, by the job's settings and the files of its source. A folder
that belongs to another job, or has content and belongs to no job, is refused. A lock, ``OUT/.work/lock``, keeps two
calls from working in one folder. When the plan or a shard is finished, a journal line records its checksum; a resumed
run uses the finished files that have not changed, and makes the others again. ``job.json`` and the lines of the journal
include checksums of themselves.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from nopad.errors import CorruptError, OptionError, OutputBusyError, OutputExistsError, ResumeError, StorageError
from nopad.files import PARTIAL_SUFFIX, fsync_path, sha256_file, storage_errors, write_atomic
from nopad.notation import from_json
from nopad.seal import sealed, sealed_line, sealed_lines, unsealed
from nopad.store.manifest import MANIFEST, PLAN, Manifest

__all__ = ["Workspace", "check_outside", "differences", "holds"]

WORK = ".work"
JOB = "job.json"
FINISHED = "finished.jsonl"


class Inventoried(Protocol):
    """The source of a job, which can list its files."""

    def inventory(self) -> list[tuple[str, int]]:
        """Return (name, size in bytes) of each file."""


class Workspace:
    """The dataset folder `out` of a job, and ``out/.work`` while the job is unfinished.

    Attributes:
        out: the dataset folder.
        work: the folder of the unfinished files.
    """

    def __init__(self, out: Path, work: Path | None = None) -> None:
        """Store the paths; nothing is read or written yet. If `work` is None, it is ``.work`` in `out`."""
        self.out = out
        self.work = work or out / WORK

    def half(self, split: str | None) -> Workspace:
        """Return the workspace of one dataset of the job: `split` is "train" or "validation", the name of its folder.

        If `split` is None, the job has a single dataset, and this workspace itself is returned.
        """
        return self if split is None else Workspace(self.out / split, self.work / split)

    def has_manifest(self) -> bool:
        """Return whether `out` holds a finished dataset."""
        return (self.out / MANIFEST).exists()

    def finished(self, settings: Mapping[str, Any], fingerprint: str) -> Manifest:
        """Return the manifest of the finished dataset, after checking that this job would write the same dataset.

        `settings` are the manifest fields that the job knows beforehand; all but ``tool_versions`` must be equal.
        `fingerprint` is that of the job's source.

        Raises:
            OutputExistsError: the dataset was made with other settings or from another source.
            CorruptError: a file of the dataset, such as the plan, is missing or damaged.
            FormatError: the dataset has another format version.
            StorageError: a file cannot be read.
        """
        manifest = Manifest.load(self.out)
        wanted = {name: value for name, value in settings.items() if name != "tool_versions"}
        changed = differences({name: getattr(manifest, name) for name in wanted}, wanted)
        if changed:
            raise OutputExistsError(
                f"{self.out} already holds a packed dataset made with other settings ({changed}); choose another folder"
            )
        if fingerprint != manifest.source["sha256"]:
            raise OutputExistsError(
                f"{self.out} already holds a packed dataset of another source; choose another folder"
            )
        for name, digest in [(PLAN, manifest.plan_sha256), *((shard.file, shard.sha256) for shard in manifest.shards)]:
            path = self.out / name
            if not holds(path, digest):
                raise CorruptError(f"{path} is missing or damaged; delete {self.out} to pack again")
        return manifest

    @contextmanager
    def claim(self, settings: Mapping[str, Any], source: Inventoried) -> Iterator[None]:
        """For a ``with`` block, lock the output folder (`locked`).

        If the folder holds an unfinished job, it must be this one: with the same `settings` (manifest fields that are
        known before the source is read) and the same files of the `source`. If it holds none, the settings and the list
        of files are written to ``job.json``.

        Raises:
            OutputExistsError: `out` is a file, or is not empty and holds no unfinished job.
            OutputBusyError: another call works in the folder, or has just ended.
            StorageError: the work folder cannot be created or written to.
            ResumeError: the unfinished job has other settings or source files, or its ``job.json`` is missing or
                damaged.
        """
        if self._holds_something_else():
            raise OutputExistsError(f"{self.out} already holds something else; choose a new or empty folder")
        started = {"settings": dict(settings), "inventory": [list(entry) for entry in source.inventory()]}
        with self.locked():
            if self._holds_something_else():  # it came between the first look and the lock
                raise OutputBusyError(f"another call has just ended in {self.out}; run the same command again")
            job_file = self.work / JOB
            if job_file.exists():
                self._check_same_job(job_file, from_json(json.dumps(started)))
            else:
                write_atomic(job_file, (json.dumps(sealed(started), indent=2) + "\n").encode())
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For a ``with`` block, keep all other calls from writing to `out`; the system ends this if the process ends.

        Whoever changes what is in `out` holds this lock: a job, a call with ``--force``, and a clean-up. It is on the
        file ``lock`` in the work folder. Only its holder may remove this file. The block's end removes the work folder
        if only the lock is in it, and `out` holds something else.

        Raises:
            OutputBusyError: another call holds the lock, or has just removed the work folder.
            StorageError: the work folder cannot be created or written to, or the file system has no locks.
        """
        path = self.work / "lock"
        with storage_errors("creating", self.work):
            self.work.mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError as error:
                raise self._busy() from error
        try:
            self._lock(lock)
            try:
                yield
            finally:
                with suppress(OSError):
                    if os.fstat(lock).st_nlink and [*self.work.iterdir()] == [path] and not self.is_unused():
                        path.unlink()
                        self.work.rmdir()
        finally:
            os.close(lock)

    def stored_settings(self) -> dict[str, Any]:
        """Return the settings of the unfinished job; an empty dict if there is none, or its ``job.json`` is damaged."""
        try:
            found: dict[str, Any] = unsealed(from_json((self.work / JOB).read_text(encoding="utf-8")))["settings"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return found if isinstance(found, dict) else {}

    def abandon(self) -> None:
        """Remove the work folder of a job that can never finish, and `out` if it is then empty.

        An `out` that the system does not remove stays: a link, a mount point or ``.``, for example.
        """
        shutil.rmtree(self.work, ignore_errors=True)
        with suppress(OSError):
            self.out.rmdir()

    def note(self, file: str, origin: str, **known: Any) -> None:
        """Add a line to the journal that says that a file is finished, and on disk under its final name.

        `file` is the path of the file, relative to the work folder. `origin` is the fingerprint of the source. `known`
        has further entries for the line, by name; the file's ``sha256`` must be among them.

        Raises:
            StorageError: the disk is full, or the write failed.
        """
        line = sealed_line({"finished": {"file": file, **known}, "origin": origin})
        with storage_errors("writing", self.work), open(self.work / FINISHED, "ab") as journal:
            journal.write(b"\n" + line)  # begin with a line end, in case a kill left an incomplete line
            journal.flush()
            os.fsync(journal.fileno())

    def finished_files(self, origin: str, folder: Path | None = None) -> dict[str, dict[str, Any]]:
        """Return, for each file that is finished and has not changed since, what the journal says about it.

        The result is a dict by the file's path; its values are the entries that `note` wrote, such as ``sha256``.
        `origin` is the fingerprint of the job's source. The files are in `folder`; None: in the work folder. Files that
        have changed, and those whose line in the journal is damaged, are left out, so that the job makes them again.

        Raises:
            ResumeError: the journal has a file that was made from another source.
            StorageError: the journal or a file cannot be read.
        """
        where = folder or self.work
        with storage_errors("reading", self.work):
            found = [document for document, _ in sealed_lines(self.work / FINISHED) if document]
            noted = {document["finished"]["file"]: document["finished"] for document in found}
            if any(document["origin"] != origin for document in found):
                raise ResumeError(
                    f"the source changed since the job in {self.out} started; "
                    "put it back as it was, or delete the folder to start over"
                )
            return {name: known for name, known in noted.items() if holds(where / name, known["sha256"])}

    def take_back(self, name: str) -> None:
        """Move folder `name` from `out` back into the work folder; do nothing if it is not in `out`.

        It is in `out` if a run was killed while it moved results there.

        Raises:
            ResumeError: the work folder has a folder of this name too.
            StorageError: the folder cannot be moved.
        """
        if not (self.out / name).exists():
            return
        if (self.work / name).exists():
            raise ResumeError(
                f"{self.out / name} and {self.work / name} are both there, and no run of this job leaves both; "
                f"delete {self.out} to start over"
            )
        with storage_errors("resuming in", self.out):
            os.replace(self.out / name, self.work / name)

    def move_into_place(self, names: Iterable[str]) -> None:
        """Move files and folders with these names from the work folder to `out`, unless they were moved before.

        Raises:
            StorageError: one of them cannot be moved.
        """
        with storage_errors("publishing", self.out):
            for name in names:
                if (self.work / name).exists():
                    os.replace(self.work / name, self.out / name)
            fsync_path(self.out)

    def clear(self) -> None:
        """Remove the work folder, which a finished dataset no longer needs; the caller holds the lock (`locked`)."""
        shutil.rmtree(self.work, ignore_errors=True)

    def tidy(self) -> None:
        """Remove the work folder that a kill has left beside a finished dataset, unless another call is using it."""
        if self.work.is_dir():
            with suppress(OutputBusyError, StorageError), self.locked():
                self.clear()

    def is_unused(self) -> bool:
        """Return whether `out` is missing, is empty, or holds nothing but a work folder in which no job has begun.

        Such a work folder has nothing but a lock or a half-written ``job.json``.
        """
        if not self.out.is_dir():
            return not self.out.exists()
        beside = {path.name for path in self.out.iterdir()}
        return not beside or (beside == {WORK} and self.work.is_dir() and self._inside() <= {"lock"})

    def _inside(self) -> set[str]:
        """Return the names in the work folder, without that of a half-written ``job.json``."""
        return {path.name for path in self.work.iterdir()} - {JOB + PARTIAL_SUFFIX}

    def _holds_something_else(self) -> bool:
        """Return whether `out` is a file, or a folder that is not empty and holds no unfinished job of nopad.

        A work folder in which no job has begun does not count as content (`is_unused`).

        Raises:
            ResumeError: `out` holds an unfinished job without its ``job.json``.
            OutputBusyError: the same, and another call holds the lock.
        """
        if (self.work / JOB).is_file() or self.is_unused():
            return False
        if self.work.is_dir() and self._inside() > {"lock"}:
            with self.locked():  # else another call is just removing it
                raise ResumeError(f"{self.work / JOB} is missing, which says what job this is; {_start_over(self.out)}")
        return True

    def _lock(self, lock: int) -> None:
        """Lock the output folder; `lock` is the descriptor of its open lock file.

        Raises:
            OutputBusyError: another call holds the lock, or has just removed the work folder.
            StorageError: the file system has no locks.
        """
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(lock).st_nlink:
                raise BlockingIOError  # the other call has just removed its work folder
        except BlockingIOError as error:
            raise self._busy() from error
        except OSError:
            with storage_errors("locking", self.work):
                raise

    def _busy(self) -> OutputBusyError:
        return OutputBusyError(f"another process is writing to {self.out}; wait for it, or choose another folder")

    def _check_same_job(self, job_file: Path, started: Mapping[str, Any]) -> None:
        """Refuse to resume a job that was started with other settings or files.

        `job_file` is the job's ``job.json``; `started` is what this job would write there.

        Raises:
            ResumeError: settings or files differ, or `job_file` is damaged; the message says how.
            StorageError: `job_file` cannot be read.
        """
        with storage_errors("reading", job_file):
            content = job_file.read_bytes()
        try:
            stored = unsealed(from_json(content))
            changed = differences(stored["settings"], started["settings"])
            before, now = (dict(map(tuple, job["inventory"])) for job in (stored, started))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ResumeError(f"{job_file} is damaged ({error}); {_start_over(self.out)}") from error
        if changed:
            raise ResumeError(
                f"{self.out} holds an unfinished job with other settings ({changed}); "
                "use the same settings to finish it, or delete the folder to start over"
            )
        for name in [*before, *now]:
            if before.get(name) != now.get(name):
                what = "is gone" if name not in now else "is new" if name not in before else "changed its size"
                raise ResumeError(
                    f"the source changed since the job in {self.out} started: {name} {what}; "
                    "put it back as it was, or delete the folder to start over"
                )


def check_outside(folders: Iterable[Path], out: Path) -> None:
    """Refuse an output folder inside a folder of the input, since the next job would read the output as input.

    Raises:
        OptionError: `out` is one of `folders`, or lies in one.
    """
    for folder in folders:
        if out.resolve().is_relative_to(folder.resolve()):
            raise OptionError(f"{out} lies in {folder}, which is read; choose a folder outside of it")


def _start_over(out: Path) -> str:
    return f"delete {out} to start over"


def holds(path: Path, digest: str) -> bool:
    """Return whether the file `path` exists and its SHA-256, in hex, is `digest`."""
    return path.is_file() and sha256_file(path) == digest


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return a text that says which settings differ, such as "capacity was 512, now 384"; "" if none do.

    `stored` are the settings of the job or dataset in the folder, `now` those of this job.
    """
    groups = {"options": None, "tool_versions": None}
    flat = [{**s, **s["options"], **s.get("tool_versions", {}), **groups} for s in (stored, now)]
    names = [name for name in {**flat[0], **flat[1]} if flat[0].get(name) != flat[1].get(name)]
    short = [f"{name} was {_short(flat[0].get(name))}, now {_short(flat[1].get(name))}" for name in names]
    return "; ".join(short)


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and "sha256" in value:
        return f"{value['sha256'][:8]}…"
    return "none" if value is None else str(value)
