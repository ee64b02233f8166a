"""Read ``nopad.toml``, which sets options in one table per command; options on the command line override it.

Such a file is, for example:

[pack]
capacity = 4096
tokenizer = "path/to/model"

[study.packing]
json = true
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nopad.errors import FormatError, OptionError
from nopad.notation import from_toml

__all__ = ["CONFIG", "read_config"]

CONFIG = "nopad.toml"  # in the folder where nopad is run
_Values = dict[str, Any]


def read_config(path: Path, group: Any) -> _Values:
    """Return the values in a configuration file as defaults (click's ``default_map``) for the commands of `group`.

    The result has a dict for each command in the file: values by the names of parameters. A group of commands has a
    dict of such dicts.

    Raises:
        FormatError: the file cannot be read, or is not TOML.
        OptionError: the file names a command or an option that does not exist, gives an option twice, or has a value
            that is of a wrong type or an empty text.
    """
    try:
        document = from_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror}); give another --config") from error
    except ValueError as error:  # also an integer of thousands of digits
        raise FormatError(f"{path} is not TOML: {error}") from error
    return _of_group(document, group, str(path), "")


def _of_group(document: Mapping[str, Any], group: Any, place: str, before: str) -> _Values:
    found: _Values = {}
    for name, value in document.items():
        command = group.commands.get(name)
        if command is None:
            raise OptionError(f"{place}: {_unknown('command', before + name, group.commands)}")
        if not isinstance(value, dict):
            raise OptionError(f"{place}: {before}{name} is {value!r}; a command is a table, [{before}{name}]")
        if hasattr(command, "commands"):
            found[name] = _of_group(value, command, place, f"{name}.")
        else:
            found[name] = _of_command(value, command, f"{place}, [{before}{name}]")
    return found


def _of_command(table: Mapping[str, Any], command: Any, place: str) -> _Values:
    known = {
        option.lstrip("-").replace("-", "_"): param
        for param in command.params
        for option in param.opts
        if option.startswith("--")
    }
    found: _Values = {}
    for key, value in table.items():
        param = known.get(key.replace("-", "_"))
        if param is None:
            raise OptionError(f"{place}: {_unknown('option', key, [name.replace('_', '-') for name in known])}")
        if param.name in found:
            raise OptionError(f"{place}: {key} is given twice")
        found[param.name] = _checked(value, param, f"{place}: {key}")
    return found


def _checked(value: Any, param: Any, place: str) -> Any:
    """Return a value of the file in the form in which click takes it, after a check.

    The result is a bool for a flag, a list of texts for an option that takes several values, and a text for any other
    option. `param` is the option. The message of an error begins with `place`.

    Raises:
        OptionError: the value has a wrong type, or is an empty text.
    """
    if param.is_flag:
        if not isinstance(value, bool):
            raise OptionError(f"{place} is {value!r}; it is true or false")
        return value
    listed = param.multiple or param.nargs != 1
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not listed:
        raise OptionError(f"{place} is a list, and takes one value")
    if any(isinstance(one, bool) or not isinstance(one, str | int | float) or one == "" for one in values):
        raise OptionError(f"{place} is {value!r}; it is a text or a number{', or a list of them' if listed else ''}")
    texts = [str(one) for one in values]
    return texts if listed else texts[0]


def _unknown(what: str, name: str, known: Any) -> str:
    near = get_close_matches(name, list(known), 1)
    return f"there is no {what} {name!r}; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}")
