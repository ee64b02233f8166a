"""Tasks by the name that they have on the command line."""

from __future__ import annotations

from nopad.errors import OptionError
from nopad.tasks.task import Task

__all__ = ["task_class", "task_classes"]


def task_classes() -> dict[str, type[Task]]:
    """Return all tasks of nopad by name, sorted: the subclasses of `Task` that `nopad.tasks` exports."""
    import nopad.tasks

    found = [getattr(nopad.tasks, name) for name in nopad.tasks.__all__]
    kinds = [one for one in found if isinstance(one, type) and issubclass(one, Task) and hasattr(one, "name")]
    return {one.name: one for one in sorted(kinds, key=lambda one: one.name)}


def task_class(name: str) -> type[Task]:
    """Return the task with this name.

    Raises:
        OptionError: there is no such task; the message names those that there are.

    >>> task_class("classify").__name__
    'Classification'
    """
    kinds = task_classes()
    if name not in kinds:
        raise OptionError(f"there is no task {name!r}; there are {', '.join(kinds)}")
    return kinds[name]
