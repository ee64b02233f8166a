"""Make a task from its name and options, as on the command line; or load it with its model, from a folder or the hub.

When a task is loaded, some options that the user does not give are taken from the model and its folder. A task's name
is the attribute `name` of its class. All subclasses of `Task` that `nopad.tasks` exports are found; a new task needs no
other registration.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nopad.corpus.network import NOT_REACHED, hub_in_reach, not_had
from nopad.corpus.tokenizer import with_words
from nopad.errors import FormatError, NopadError, OptionError
from nopad.files import is_model_folder
from nopad.model.admission import positions_of
from nopad.model.families import family_of
from nopad.options import shown
from nopad.tasks.fit import UNNAMED
from nopad.tasks.folder import quiet
from nopad.tasks.task import Task
from nopad.wording import first_line

__all__ = ["load_task", "options_of", "task_class", "task_named", "tasks_by_name"]


def tasks_by_name() -> dict[str, type[Task]]:
    """Return a dict from the names of all tasks of `nopad.tasks`, sorted, to their classes.

    >>> from nopad.tasks.registry import tasks_by_name
    >>> tasks_by_name()["classify"]
    <class 'nopad.tasks.classification.Classification'>
    """
    from nopad import tasks

    exported = [getattr(tasks, name) for name in tasks.__all__]
    found = [one for one in exported if isinstance(one, type) and issubclass(one, Task) and hasattr(one, "name")]
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}


def options_of(kind: type[Task]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a task's constructor, by name, except its tokenizer.

    Parameters that it hands on to the constructors of its base classes are included.
    """
    found: dict[str, inspect.Parameter] = {}
    for one in kind.__mro__:
        if "__init__" not in vars(one):
            continue
        parameters = inspect.signature(vars(one)["__init__"], eval_str=True).parameters
        more = [name for name, value in parameters.items() if value.kind is not inspect.Parameter.VAR_KEYWORD]
        found |= {name: parameters[name] for name in more if name not in ("self", "tokenizer") and name not in found}
        if len(more) == len(parameters):
            break  # it has no **options, which go to the base classes
    return found


def task_named(name: str, tokenizer: Any, options: Mapping[str, Any]) -> Task:
    """Return a new task: the one with this name, made with `tokenizer` and `options`.

    Raises:
        OptionError: there is no such task, it has no such option, an option that it needs is missing, or an option has
            an invalid value.

    >>> from nopad.tasks.registry import task_named
    >>> task_named("classify", tokenizer, {"labels": ["no", "yes"], "text": "question"}).text
    'question'
    """
    kind = task_class(name)
    known = options_of(kind)
    for option in options:
        if option not in known:
            near = "".join(f"; did you mean {one}?" for one in get_close_matches(option, known, 1))
            raise OptionError(f"the task {name} has no option {shown(option)}{near}; it has {', '.join(known)}")
    missing = [one for one, value in known.items() if value.default is value.empty and one not in options]
    if missing:
        raise OptionError(f"the task {name} needs {', '.join(missing)}")
    return kind(tokenizer, **options)


def load_task(name: str, spec: str | Path, options: Mapping[str, Any], **how: Any) -> tuple[Task, Any]:
    """Load a task and its model from a folder, or from the hub by name.

    Some options that are not in `options` are taken from the model. Names of labels come from the model's
    configuration, also if `options` have only the number of labels. `max_length` becomes the least of the model's
    number of positions, a length that the folder states, and the task's default length, as far as there are such
    limits. `Task.found_options` reads further options from a folder, but not from the hub.

    Args:
        name: the task's name.
        spec: the folder, or the name on the hub.
        options: options of the task.
        how: keyword arguments for ``from_pretrained``.

    Returns:
        ``(task, model)``; the model is not pack-safe yet.

    Raises:
        FormatError: there is no such model, transformers cannot read it, or it has no weights for the task's head.
        OptionError: there is no such task or option, an option has an invalid value, `max_length` exceeds the model's
            positions, or labels are given in another order or number than the model has them.
        UnsupportedModelError: nopad refuses models of this type; the message gives the reason.
    """
    path, kind, here, config = Path(spec), task_class(name), is_model_folder(spec), None
    with nullcontext(True) if here else hub_in_reach() as online, quiet():
        try:
            import transformers

            config = transformers.AutoConfig.from_pretrained(spec)
            tokenizer = with_words(transformers.AutoTokenizer.from_pretrained(spec), spec)
            found = {**(kind.found_options(path) if here else {}), **options}
            if "labels" in options_of(kind):
                found["labels"] = _labels(found.get("labels"), config, spec)
            # `over_long` needs max_length, which is known only when the model is loaded
            task = task_named(name, tokenizer, {n: value for n, value in found.items() if n != "over_long"})
            model, info = task.model(spec, output_loading_info=True, **{"dtype": "auto", **how})
        except NopadError:
            raise
        except Exception as error:  # a damaged file or a missing package may raise anything
            if not here and config is None:
                raise not_had(spec, error, online) from error
            away = "" if online else f"; {NOT_REACHED}"
            raise FormatError(
                f"{spec}: transformers cannot load this model for {name} ({first_line(error)}{away})"
            ) from error
    if missing := sorted(info["missing_keys"]):
        raise FormatError(
            f"{spec} has no weights for {', '.join(missing[:4])}: this model was not trained for {name}, and would "
            "predict at random; give the folder of one that was"
        )
    positions = positions_of(model, family_of(config))
    if positions is not None and "max_length" in options_of(kind):
        most = min(task.max_length or positions, positions)  # some tasks have a length of their own, such as 384
        if options.get("max_length") not in (None, most):
            raise OptionError(f"max_length is {options['max_length']}, and {spec} has {positions} positions")
        found["max_length"] = most
    return task_named(name, tokenizer, found), model


def task_class(name: str) -> type[Task]:
    """Return the class of the task with this name.

    Raises:
        OptionError: there is no such task; the message names the tasks that there are.
    """
    known = tasks_by_name()
    if name not in known:
        raise OptionError(f"there is no task {shown(name)}; there are {', '.join(known)}")
    return known[name]


def _labels(given: Any, config: Any, spec: Any) -> Any:
    """Return the names of the classes: those given, or (if none or only a number is given) those of the model.

    Raises:
        OptionError: `given` is neither names nor a number, or contradicts the model's configuration in the number of
            classes or their order.
    """
    by_number = {int(number): str(label) for number, label in (config.id2label or {}).items()}
    names = [by_number[number] for number in sorted(by_number)]
    if given is None:
        return names
    if type(given) is not int and not isinstance(given, list | tuple):
        raise OptionError(f"labels are {shown(given)}; expected their names, or their number")
    count = given if isinstance(given, int) else len(given)
    if count != len(names):
        raise OptionError(
            f"{count} labels are given, and the model in {spec} has {len(names)}: {', '.join(names[:20])}"
        )
    named = not all(label.startswith(UNNAMED) for label in names)
    if isinstance(given, int):
        return names
    if named and list(given) != names and set(given) == set(names):
        raise OptionError(f"labels are {', '.join(given)}, and the model in {spec} has them as {', '.join(names)}")
    return list(given)
