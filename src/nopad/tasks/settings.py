"""Store a task's name and options in a trained model's folder, so that predictions use the task of training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nopad.errors import FormatError
from nopad.files import write_atomic

__all__ = ["TASK_FILE", "stored_task", "write_task"]

TASK_FILE = "nopad_task.json"


def write_task(folder: Path, name: str, options: Mapping[str, Any]) -> None:
    """Write a task's name and options into a folder.

    Raises:
        StorageError: the file cannot be written.
    """
    document = {"task": name, "options": dict(options)}
    write_atomic(folder / TASK_FILE, json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n")


def stored_task(folder: str | Path) -> tuple[str, dict[str, Any]] | None:
    """Return name and options of the task for which a folder's model was trained; None if the folder does not say.

    `folder` is that of a trained model, or one of its checkpoints.

    Raises:
        FormatError: the file is damaged.
    """
    path = next((one / TASK_FILE for one in (Path(folder), Path(folder).parent) if (one / TASK_FILE).is_file()), None)
    if path is None:
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return str(found["task"]), dict(found["options"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} is damaged: {error}; name the task and its options yourself") from error
