"""`read_config`: the configuration of `nopad train`, TOML in tables, checked field by field before any work begins.

A table becomes a frozen dataclass with the same fields (`nopad.training.tables`), except two: ``[trainer]`` has the
fields of `transformers.TrainingArguments`, and ``[task]`` the options of the task that it names. A field that is
unknown, invalid or of a wrong type is refused by an `OptionError` that names it, and the file or ``--set`` that gives
it. Fields given on the command line (``--set TABLE.FIELD=VALUE``) replace those of the file; a value that is not TOML
is taken as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from nopad.errors import MissingExtraError, OptionError, SourceError, install
from nopad.notation import from_toml
from nopad.options import shown
from nopad.training.tables import CHOOSES, TABLES, Data, Model, Output, Packing, TaskTable, TrainConfig
from nopad.training.typed import Given, fitted, known

__all__ = ["read_config"]

# Fields of [trainer] that are refused, since another table gives them or `nopad train` sets them itself
_ELSEWHERE = {
    "output_dir": "output.folder says where to",
    "per_device_train_batch_size": "packing.rows says how many rows a micro-step has",
    "gradient_accumulation_steps": "packing.accumulation says it",
    "resume_from_checkpoint": "give --resume on the command line",
    "disable_tqdm": "nopad train shows its own progress",
    "remove_unused_columns": "the task says which columns there are",
}


def read_config(path: str | Path, overrides: Sequence[str] = (), *, init_from: str | None = None) -> TrainConfig:
    """Read a configuration from a TOML file, check it, and return it.

    Args:
        path: path of the TOML file.
        overrides: fields as ``TABLE.FIELD=VALUE``, which replace those of the file; a value that is not TOML is taken
            as text.
        init_from: replaces ``model.init_from``.

    Raises:
        SourceError: there is no such file, or it cannot be read.
        OptionError: the file is not TOML; or a table or field, in the file or in `overrides`, is unknown, missing, of a
            wrong type, out of range, or contradicts another one.
        MissingExtraError: the configuration has fields of ``[trainer]`` or ``[task]``, and a package that they need is
            not installed.
    """
    document: dict[str, dict[str, Any]] = {}
    for name, table in _parsed(Path(path)).items():
        with _of(str(path)):
            known(name, TABLES, "the configuration")
            if not isinstance(table, dict):
                raise OptionError(f"{name} is {shown(table)}, and must be a table: [{name}]")
        document[name] = table
    made = {name: _table(name, document.get(name, {}), str(path)) for name in TABLES}
    for text in overrides:
        _override(made, text)
    if init_from is not None:
        made["model"]["init_from"] = init_from
    made["task"] = _table("task", made["task"], str(path))  # again, since an override may have changed task.name
    with _of(str(path)):
        return TrainConfig(
            model=Model(**made["model"]),
            data=Data(**made["data"]),
            task=_task(made["task"]),
            packing=Packing(**made["packing"]),
            optimizer=_optional("optimizer", made, document),
            schedule=_optional("schedule", made, document),
            trainer=made["trainer"],
            output=Output(**made["output"]),
        )


def _optional(name: str, made: Mapping[str, Mapping[str, Any]], document: Mapping[str, Any]) -> Any:
    """Return the table called `name`, which is optional, as its dataclass; None if it was left out.

    `made` has the fields of each table, from the file and from ``--set``; `document` has the tables of the file.

    Raises:
        OptionError: the table is given without its required field, ``optimizer.name`` or ``schedule.counts``; or a
            value is out of range.
    """
    if not made[name] and name not in document:
        return None
    if CHOOSES[name] not in made[name]:
        choice = CHOOSES[name]
        raise OptionError(f"{name}.{choice} is missing; give one of {', '.join(get_args(_hints(name, None)[choice]))}")
    return TABLES[name](**made[name])


@contextmanager
def _of(where: str) -> Iterator[None]:
    """In a ``with`` block, begin the message of an `OptionError` with `where`: the file or ``--set`` that is wrong."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from error


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return from_toml(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise SourceError(f"{path}: no such file; give the configuration of a run, a TOML file") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # also an integer of thousands of digits
        raise OptionError(f"{path} is no TOML: {error}") from error


def _override(made: dict[str, dict[str, Any]], text: str) -> None:
    """Put ``TABLE.FIELD=VALUE`` into the tables `made`, in place.

    ``TABLE.FIELD.KEY=VALUE`` sets one key of a field that is a table itself.

    Raises:
        OptionError: `text` has another form, the table or field is unknown, or the value does not fit the field.
        MissingExtraError: a package that the fields of ``[trainer]`` or ``[task]`` need is not installed.
    """
    name, equals, value = text.partition("=")
    names = [one.strip() for one in name.split(".")]
    with _of(f"--set {text}"):
        if not equals or len(names) < 2 or not all(names):
            raise OptionError("it must be TABLE.FIELD=VALUE, such as trainer.learning_rate=3e-5")
        known(names[0], TABLES, "the configuration")
        given: Any = Given(_toml_value(value.strip()), value.strip())
        if len(names) > 2:
            there = made[names[0]].get(names[1], {})
            given = dict(there) if isinstance(there, Mapping) else {}
            inner = given
            for one in names[2:-1]:
                below = inner.get(one)
                inner[one] = dict(below) if isinstance(below, Mapping) else {}
                inner = inner[one]
            inner[names[-1]] = _toml_value(value.strip())
        made[names[0]].update(_table(names[0], {names[1]: given}, None, made["task"].get("name")))


def _toml_value(text: str) -> Any:
    """Return the value of a text that is TOML; return any other text unchanged."""
    try:
        found = from_toml(f"value = {text}")
    except ValueError:
        return text
    return found["value"] if found.keys() == {"value"} else text


def _table(name: str, given: Mapping[str, Any], path: str | None, task: str | None = None) -> dict[str, Any]:
    """Return the fields `given` of the table called `name`, each converted to its type.

    `path` is the file that gives these fields, for messages; None: the command line gives them. `task` is the name of
    the task, used if `given` does not have it.

    Raises:
        OptionError: a field is unknown, has a value of a wrong type, or must be set elsewhere (``task.empty``, for
            example, as ``data.empty``); there is no such task; or ``[task]`` has options, and no name.
        MissingExtraError: a package that the fields of ``[trainer]`` or ``[task]`` need is not installed.
    """
    made = {}
    for key, value in given.items():
        try:
            if name == "task" and key != "name" and "name" not in given and task is None:
                raise OptionError(f"task.name is missing, and {key} would be an option of it")
            hints = _hints(name, given.get("name", task))
            if name == "trainer" and key in _ELSEWHERE:
                raise OptionError(f"trainer.{key}: leave it out; {_ELSEWHERE[key]}")
            if (name, key, getattr(value, "text", value)) == ("trainer", "optim", "lamb"):
                raise OptionError(
                    'trainer.optim: LAMB is nopad\'s own; leave it out, and write [optimizer] name = "lamb"'
                )
            if (name, key) == ("task", "empty"):
                raise OptionError("task.empty: leave it out; data.empty says it")
            known(key, hints, f"[{name}]")
            made[key] = fitted(f"{name}.{key}", value, hints[key])
        except OptionError as error:
            raise OptionError(f"{path}: {error}" if path else str(error)) from error
    return made


def _hints(name: str, task: Any) -> Mapping[str, Any]:
    """Return the fields that the table called `name` may have, with their types.

    The fields of ``[task]`` are ``name`` and, if `task` is the name of a task, this task's options.

    Raises:
        OptionError: there is no such task.
        MissingExtraError: the table is ``[trainer]``, or ``[task]`` with a task, and a package that its fields need is
            not installed.
    """
    if name == "trainer":
        return _trainer_fields()
    if name == "task":
        name = getattr(task, "text", task)
        return {"name": str, **(_task_options(name) if isinstance(name, str) else {})}
    return get_type_hints(TABLES[name])


def _task(made: dict[str, Any]) -> TaskTable:
    return TaskTable(name=made.get("name"), options={name: value for name, value in made.items() if name != "name"})


@cache
def _trainer_fields() -> Mapping[str, Any]:
    """Return the fields that ``[trainer]`` may have (of `transformers.TrainingArguments`), with their types.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    try:
        from transformers import TrainingArguments
    except ImportError as error:
        raise MissingExtraError(f"training needs {error.name}; {install('train')}") from error
    found = {one.name: one.type for one in fields(TrainingArguments) if one.init and one.name not in _ELSEWHERE}
    return found | {"report_to": str | list[str]}  # here, "none" is a value and does not mean None


@cache
def _task_options(name: str) -> Mapping[str, Any]:
    """Return the options of a task, with their types.

    Raises:
        OptionError: there is no task called `name`.
        MissingExtraError: a package that `nopad.tasks` needs is not installed.
    """
    from nopad.tasks.registry import options_of, task_class

    found = options_of(task_class(name))
    return {option: Any if one.annotation is one.empty else one.annotation for option, one in found.items()}
