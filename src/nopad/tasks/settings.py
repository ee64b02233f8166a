"""What a trained model's folder says of its task, so that predictions are made as the model was trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nopad.errors import FormatError, OptionError
from nopad.files import write_atomic
from nopad.tasks.registry import task_named
from nopad.tasks.task import Task

__all__ = ["TASK_FILE", "read_task", "write_task"]

TASK_FILE = "nopad_task.json"


def write_task(folder: Path, name: str, options: Mapping[str, Any]) -> None:
    """Write a task's name and options into a folder.

    Raises:
        StorageError: the file cannot be written.
    """
    document = {"task": name, "options": dict(options)}
    write_atomic(folder / TASK_FILE, json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n")


def read_task(folder: str | Path, tokenizer: Any, **options: Any) -> Task | None:
    """Return the task that a folder's model was trained for; None: the folder does not say.

    Args:
        folder: of a trained model, or one of its checkpoints.
        tokenizer: the model's.
        options: of the task, in place of those that it was trained with.

    Raises:
        FormatError: the file is damaged, this nopad has no such task, or an option has an invalid value.
    """
    path = next((one / TASK_FILE for one in (Path(folder), Path(folder).parent) if (one / TASK_FILE).is_file()), None)
    if path is None:
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        name, stored = found["task"], dict(found["options"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} is damaged: {error}; name the task and its options yourself") from error
    try:
        return task_named(name, tokenizer, {**stored, **options})
    except OptionError as error:
        raise FormatError(f"{path}: {error}; name the task and its options yourself") from error
