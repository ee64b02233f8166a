"""Store a task's name and options in a trained model's folder, so that predictions use the task of training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nopad.errors import FormatError
from nopad.files import write_atomic
from nopad.notation import from_json
from nopad.tasks.registry import tasks_by_name
from nopad.tasks.task import Task

__all__ = ["TASK_FILE", "stored_task", "write_task"]

TASK_FILE = "nopad_task.json"


def write_task(folder: Path, task: Task) -> None:
    """Write a task's name and options into a folder, as ``nopad_task.json``.

    Nothing is written if the task's class is not one of `nopad.tasks`, or if the value of an option has no JSON form.

    Raises:
        StorageError: the file cannot be written.
    """
    if type(task) is not tasks_by_name().get(getattr(task, "name", "")):
        return
    try:
        document = json.dumps({"task": task.name, "options": task.options}, indent=1, ensure_ascii=False)
    except (TypeError, ValueError):
        return
    write_atomic(folder / TASK_FILE, document.encode() + b"\n")


def stored_task(folder: str | Path) -> tuple[str, dict[str, Any]] | None:
    """Return (name, options) of the task for which a folder's model was trained; None without ``nopad_task.json``.

    `folder` is that of a trained model, or one of its checkpoints.

    Raises:
        FormatError: the file is damaged, or cannot be read.
    """
    path = Path(folder) / TASK_FILE
    if not path.is_file():
        return None
    try:
        found = from_json(path.read_text(encoding="utf-8"))
        return str(found["task"]), dict(found["options"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} is damaged: {error}; name the task and its options yourself") from error
