"""`RunFolder`: the output folder of a run, with its lock, its checkpoints and its metrics.

::

    FOLDER/nopad_train.toml     the configuration, which `nopad train` reads again
    FOLDER/nopad_run.json       a step's size and the data's fingerprints at the beginning; whether the run is over
    FOLDER/nopad_task.json      the task and its options, for predictions
    FOLDER/metrics.jsonl        one line per log
    FOLDER/checkpoint-N/        a checkpoint of the Trainer, with the loader's state
    FOLDER/.cache/              the encoded data

A process that is killed leaves only whole lines of metrics. It may leave an incomplete checkpoint, which a resumed run
removes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from nopad.errors import OutputBusyError, OutputExistsError, ResumeError
from nopad.files import PARTIAL_SUFFIX, local_path, storage_errors, write_atomic
from nopad.notation import from_json, from_toml
from nopad.options import is_number
from nopad.training.checkpoint import STATE_FILE
from nopad.training.longer import LENGTHS, compared
from nopad.training.tables import TrainConfig
from nopad.training.toml import to_toml

__all__ = [
    "CONFIG_FILE",
    "METRICS_FILE",
    "RUN_FILE",
    "RunFolder",
    "append_line",
    "kept_lines",
    "last_checkpoint",
    "last_weights",
]

CONFIG_FILE = "nopad_train.toml"
RUN_FILE = "nopad_run.json"
METRICS_FILE = "metrics.jsonl"
CACHE = ".cache"
_LOCK = ".lock"
_PREFIX = "checkpoint-"

# Fields that may change when a run is resumed, since they do not change what is learned. Rows, sequences and
# accumulation may change if their product over all ranks stays the same (`check_run`).
_FREE_TABLES = {
    "packing": {"accumulation", "prefetch", "rows", "sequences"},
    "output": {"folder"},
    "model": {"backend"},
}
_FREE_TRAINER = (
    "activation_checkpointing",
    "dataloader_",
    "ddp_",
    "debug",
    "disable_",
    "enable_jit_checkpoint",
    "eval_accumulation",
    "fsdp",
    "gradient_checkpointing",
    "hub_",
    "include_",
    "local_rank",
    "log_",
    "logging_",
    "per_device_eval_batch_size",
    "project",
    "push_to_hub",
    "report_to",
    "run_name",
    "save_",
    "skip_memory_metrics",
    "torch_empty_cache_steps",
    "use_cpu",
)


class RunFolder:
    """The output folder of a run. Only the first rank may call the methods that lock it, write to it, or unlock it.

    Raises:
        OptionError: `folder` is a URL, or cannot be written in UTF-8.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = local_path(folder)
        self._lock: int | None = None

    @property
    def cache(self) -> Path:
        """The folder for the run's encoded data."""
        return self.path / CACHE

    def take(self, config: TrainConfig, *, resume: bool) -> None:
        """Lock the folder for this process; create it if it does not exist.

        Args:
            config: configuration of the run.
            resume: whether the run in the folder is resumed.

        Raises:
            OutputExistsError: without `resume`: the folder holds a run, or files other than the remains of a run that
                did not begin.
            ResumeError: with `resume`: the folder holds no run; the run began with another configuration (fields that
                do not change what is learned may differ); the stored configuration is damaged; or the run would become
                shorter.
            StorageError: the folder cannot be made or locked.
            OutputBusyError: another process trains in the folder.
        """
        known = (self.path / CONFIG_FILE).is_file()
        if resume and not known:
            raise ResumeError(f"there is no run in {self.path} to resume; leave --resume out to begin one")
        if not resume and self.path.exists():
            self._refuse_content(known)
        with storage_errors("making", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._hold()
        if resume:
            self._check_same(config)

    def begin(self, config: TrainConfig, *, per_step: str, data: Mapping[str, str]) -> None:
        """Write a new run's configuration, step size and data fingerprints; from then on, the folder holds a run.

        `per_step` is the size of a step in words, such as "32 rows". `data` has the fingerprints of the data by field,
        such as "data.train".

        Raises:
            StorageError: the disk is full, or a file cannot be written.
        """
        write_atomic(self.path / RUN_FILE, _json({"per_step": per_step, "data": dict(data), "finished": None}))
        write_atomic(self.path / CONFIG_FILE, to_toml(config.document()).encode())  # last: it makes this a run

    def undo(self) -> None:
        """Remove the configuration, ``nopad_run.json`` and the metrics of a run that failed before its first step.

        Another run can then begin in this folder.
        """
        for name in (CONFIG_FILE, RUN_FILE, METRICS_FILE):
            (self.path / name).unlink(missing_ok=True)

    def leave(self) -> None:
        """Unlock the folder, so that other processes can take it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _refuse_content(self, known: bool) -> None:
        if known:
            raise OutputExistsError(
                f"{self.path} holds a run already; give --resume to go on with it, or another output.folder"
            )
        inside = sorted(os.listdir(self.path)) if self.path.is_dir() else [self.path.name]
        left = (_LOCK, CACHE, RUN_FILE)  # of a run that did not begin
        inside = [
            name
            for name in inside
            if name.removesuffix(PARTIAL_SUFFIX) not in (*left, CONFIG_FILE) and not name.startswith("nopad_batch_")
        ]
        if inside:
            raise OutputExistsError(
                f"{self.path} is not empty, and what is in it is no run: {', '.join(inside[:5])}; give another "
                "output.folder"
            )

    def _hold(self) -> None:
        """Take the folder's lock; if this process is killed, the system releases it.

        Raises:
            StorageError: the lock file cannot be opened, or the file system has no locks.
            OutputBusyError: another process has the lock.
        """
        with storage_errors("locking", self.path):
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.leave()
            raise OutputBusyError(f"another process trains in {self.path}; wait for it, or stop it") from error
        except OSError:
            self.leave()
            with storage_errors("locking", self.path):
                raise

    def check_run(self, per_step: str, data: Mapping[str, str]) -> None:
        """Refuse to resume if the data or the size of a step are not those with which the run began.

        Args:
            per_step: the size of a step in words, such as "32 rows".
            data: fingerprints of the training and evaluation data, by field: "data.train", "data.eval".

        Raises:
            ResumeError: the data or the size of a step differ, or the size of a step is not known any more.
        """
        before = self.facts().get("per_step")
        if before is None:
            raise ResumeError(
                f"{self.path / RUN_FILE} is missing or damaged, so nothing tells how large a step of this run was; "
                f"{self._anew()}"
            )
        known = self.facts().get("data")
        if isinstance(known, dict) and (odd := [name for name in data if data[name] != known.get(name)]):
            raise ResumeError(
                f"{' and '.join(odd)}: the content changed since the run in {self.path} began; put it back as it was, "
                f"or {self._anew()}"
            )
        if before != per_step:
            self._refuse(
                [
                    f"a step has {per_step} on all ranks and had {before}: change packing.accumulation with the number "
                    "of ranks"
                ]
            )

    def _check_same(self, config: TrainConfig) -> None:
        """Refuse another configuration than the one that the run began with.

        Fields that do not change what is learned may differ, and the run may become longer.

        Raises:
            ResumeError: another field differs, the run would become shorter, or the stored configuration is damaged.
        """
        began, mine = self._began(), from_toml(to_toml(config.document()))
        odd = [
            f"{table}.{name} is {_shown(mine, table, name)} and was {_shown(began, table, name)}"
            for table in sorted({*began, *mine})
            for name in sorted({*began.get(table, {}), *mine.get(table, {})})
            if not _is_free(table, name) and began.get(table, {}).get(name) != mine.get(table, {}).get(name)
        ]
        shorter = compared(began.get("trainer", {}), mine.get("trainer", {}))[1]
        odd += [shorter] if shorter else []
        if odd:
            self._refuse(odd)

    def _refuse(self, odd: list[str]) -> NoReturn:
        raise ResumeError(
            f"the run in {self.path} began with another configuration: {'; '.join(odd[:5])}. Resume with the same, "
            f"such as {self.path / CONFIG_FILE}; or {self._anew()}"
        )

    def _anew(self) -> str:
        """Return advice on what to do instead of resuming, as text for a message.

        The advice is to begin a new run with the weights of this one; or without them, if this run has written none.
        """
        if not _checkpoints(self.path) and not [*self.path.glob("*model*.safetensors")]:
            return "begin anew in another output.folder: this run has no weights yet"
        return f"take only its weights, with --init-from {self.path} and another output.folder"

    def _began(self) -> dict[str, Any]:
        """Return the configuration with which the run began, as tables of fields.

        Raises:
            ResumeError: the stored file is damaged.
        """
        try:
            found = from_toml((self.path / CONFIG_FILE).read_text(encoding="utf-8"))
            _check_tables(found)
        except ValueError as error:
            raise ResumeError(
                f"{self.path / CONFIG_FILE} is damaged ({error}); begin anew in another folder"
            ) from error
        return found

    def is_longer(self, config: TrainConfig) -> bool:
        """Return whether this configuration gives a resumed run more epochs or steps than it had before.

        The result is False if the folder holds no run.

        Raises:
            ResumeError: the run would get longer, but it is over and left no checkpoint from which to resume; or the
                stored configuration is damaged.
        """
        if not (self.path / CONFIG_FILE).is_file():
            return False
        longer, _ = compared(self._began().get("trainer", {}), config.trainer)
        if longer and self.facts().get("finished") is not None and last_checkpoint(self.path) is None:
            raise ResumeError(
                f"the run in {self.path} is over, and left no checkpoint from which it could get longer "
                f"(trainer.save_strategy); take its weights with --init-from {self.path} and another output.folder"
            )
        return longer

    def facts(self) -> dict[str, Any]:
        """Return the content of ``nopad_run.json``; {} if it is missing or damaged."""
        found = _read(self.path / RUN_FILE)
        sound = isinstance(found, dict) and isinstance(found.get("finished"), int | None)
        return found if sound else {}

    def note(self, **facts: Any) -> None:
        """Add fields to ``nopad_run.json``, or replace them.

        Raises:
            StorageError: the disk is full, or the file cannot be written.
        """
        write_atomic(self.path / RUN_FILE, _json({**self.facts(), **facts}))

    def clear_incomplete(self) -> None:
        """Remove checkpoints newer than the last complete one, or all if none is complete.

        The run was killed while it wrote them, or they have no state of the optimiser.

        Raises:
            ResumeError: no checkpoint is complete, and one was saved without the optimiser's state.
        """
        last = last_checkpoint(self.path)
        for number, path in _checkpoints(self.path):
            if last is None or number > int(last.name.removeprefix(_PREFIX)):
                shutil.rmtree(path, ignore_errors=True)


def _check_tables(config: Mapping[str, Any]) -> None:
    """Check that a configuration consists of tables, and that the length of training in it is a number.

    Raises:
        ValueError: an entry is no table; or ``trainer.max_steps`` or ``trainer.num_train_epochs`` is no number.
    """
    for name, table in config.items():
        if not isinstance(table, dict):
            raise ValueError(f"{name} is no table")
    for name in LENGTHS:
        if not is_number(config.get("trainer", {}).get(name, 0)):
            raise ValueError(f"trainer.{name} is no number")


def _is_free(table: str, name: str) -> bool:
    if table == "trainer" and name in LENGTHS:  # which have rules of their own
        return True
    return name in _FREE_TABLES.get(table, ()) or (table == "trainer" and name.startswith(_FREE_TRAINER))


def _shown(document: Mapping[str, Any], table: str, name: str) -> str:
    value = document.get(table, {}).get(name)
    return "not given" if value is None else repr(value)


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode() + b"\n"


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return number and folder of each checkpoint, the newest first."""
    found = []
    for path in folder.glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX)
        if number.isdecimal() and path.is_dir():
            found.append((int(number), path))
    return sorted(found, reverse=True)


def last_checkpoint(folder: Path) -> Path | None:
    """Return the folder of a run's last complete checkpoint; None if no checkpoint is complete.

    Raises:
        ResumeError: no checkpoint is complete, and one was saved without the optimiser's state.
    """
    found = [path for _, path in _checkpoints(folder)]
    for path in found:
        if _is_complete(path):
            return path
    for path in found:
        if _is_weights(path):
            raise ResumeError(
                f"{path} has no state of the optimiser (trainer.save_only_model), so nothing can go on from it as it "
                f"was; take its weights with --init-from {path} and another output.folder"
            )
    return None


def last_weights(folder: Path) -> Path | None:
    """Return a run's last checkpoint that is complete or was saved without the optimiser's state; None if none is."""
    found = (path for _, path in _checkpoints(folder))
    return next((path for path in found if _is_complete(path) or _is_weights(path)), None)


def _is_weights(path: Path) -> bool:
    """Return whether a checkpoint was written to its end without the optimiser's state (``save_only_model``).

    The Trainer writes its own state last.
    """
    return _state(path) is not None and not _optimizer(path)


def _is_complete(path: Path) -> bool:
    """Return whether a checkpoint was written to its end.

    A complete checkpoint has the states of the Trainer, the loader, the optimiser and its schedule, and the random
    state of each rank. Of the files, ``scheduler.pt``, ``optimizer.pt`` (if there is one) and the random states must be
    whole archives.
    """
    state, loader = _state(path), _read(path / STATE_FILE)
    if state is None or loader is None or not _optimizer(path) or not (path / "scheduler.pt").is_file():
        return False
    archives = [path / "scheduler.pt", *path.glob("optimizer.pt")]
    return all(map(zipfile.is_zipfile, archives)) and _has_random_states(path, loader)


def _has_random_states(path: Path, loader: Any) -> bool:
    """Return whether a checkpoint has a whole file of random state for each rank.

    `loader` is the loader's state in the checkpoint. The last entry of its list ``legs`` has the number of ranks;
    without entries, there is one rank. If the number cannot be read, the result is False.
    """
    try:
        ranks = loader["legs"][-1]["world_size"] if loader.get("legs") else 1
        names = ("rng_state.pth" if ranks == 1 else f"rng_state_{rank}.pth" for rank in range(ranks))
        return ranks > 0 and all(zipfile.is_zipfile(path / name) for name in names)
    except (AttributeError, LookupError, TypeError):
        return False


def _state(path: Path) -> Any:
    return _read(path / "trainer_state.json")


def _read(path: Path) -> Any:
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _optimizer(path: Path) -> bool:
    return any(path.glob("optimizer*")) or any(path.glob("global_step*"))


def append_line(path: Path, document: Mapping[str, Any]) -> None:
    """Append a document as one line of JSON, in one write: a process that is killed leaves the whole line or nothing.

    Raises:
        StorageError: the disk is full, or the write failed.
    """
    line = json.dumps(document).encode() + b"\n"
    with storage_errors("writing", path):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            if os.write(file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)


def kept_lines(path: Path, step: int) -> None:
    """Keep the lines of a metrics file up to step number `step`, and remove those of later steps.

    Each line is a JSON object with the key "step"; a line without this key counts as step 0. Damaged lines, and those
    whose step is not a number, are removed too.

    Raises:
        StorageError: the file cannot be written.
    """
    if not path.is_file():
        return
    kept = []
    for line in path.read_bytes().split(b"\n"):
        try:
            found = from_json(line)
        except ValueError:
            continue
        if isinstance(found, dict) and is_number(taken := found.get("step", 0)) and taken <= step:
            kept.append(line + b"\n")
    write_atomic(path, b"".join(kept))
