"""Check values of a configuration against their types, and names against the known names."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from nopad.errors import OptionError
from nopad.options import is_number, shown

__all__ = ["Given", "fitted", "known"]

_NAMED = 12  # most names that a message lists if none is similar


class Given(NamedTuple):
    """A value from the command line, parsed as TOML (`value`), and the original `text`, for fields that hold text."""

    value: Any
    text: str


class _Misfit(Exception):
    """Raised by `_fit` if a value does not fit the type."""


def fitted(name: str, value: Any, hint: Any) -> Any:
    """Return `value` converted to the type `hint`: an integer to a float, a list to a tuple, "none" to None.

    Args:
        name: name of the field, for messages.
        value: a value from TOML, or a `Given`.
        hint: a type as `typing.get_type_hints` returns it.

    Raises:
        OptionError: the value has another type.

    >>> fitted("trainer.learning_rate", 1, float), fitted("packing.depth", "none", int | None)
    (1.0, None)
    >>> fitted("task.pair", "none", str | None) is None  # so this column cannot be called "none"
    True
    >>> fitted("trainer.run_name", Given(5, "5"), str)
    '5'
    """
    said = value.text if isinstance(value, Given) else value
    for tried in (value.value, value.text) if isinstance(value, Given) else (value,):
        try:
            return _fit(tried, hint)
        except _Misfit:
            continue
    raise OptionError(f"{name} is {shown(said)}, and must be {_words(hint)}")


def known(name: str, names: Iterable[str], what: str) -> None:
    """Refuse a name that is not in `names`.

    `what` says what has these names, such as "[packing]"; the message of the error begins with it.

    Raises:
        OptionError: the name is unknown; the message gives the nearest known name, or some of them if none is near.
    """
    there = list(names)
    if name in there:
        return
    near = get_close_matches(name, there, n=1, cutoff=0.5)
    if near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"there are {', '.join(there[:_NAMED])}{', ...' if len(there) > _NAMED else ''}"
    raise OptionError(f"{what} has no {name!r}; {hint}")


def _fit(value: Any, hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _fit_one_of(value, inner)
    if origin is Literal:
        if any(type(value) is type(one) and value == one for one in inner):
            return value
    elif hint is type(None):
        if value in (None, "none"):
            return None
    elif hint is float:
        if type(value) is float or (type(value) is int and is_number(value)):
            return float(value)
    elif hint in (bool, int, str):
        if type(value) is hint:
            return value
    elif isinstance(hint, type) and issubclass(hint, Enum):
        if value in [one.value for one in hint]:
            return value
    elif (origin or hint) in (dict, Mapping):
        if isinstance(value, Mapping):
            each = inner[1] if inner else Any
            return {str(key): _fit(one, each) for key, one in value.items()}
    elif (origin or hint) in (list, tuple, Sequence, Iterable) and isinstance(value, list | tuple):
        made = [_fit(one, inner[0] if inner else Any) for one in value]
        return tuple(made) if (origin or hint) is tuple else made
    raise _Misfit


def _fit_one_of(value: Any, hints: tuple[Any, ...]) -> Any:
    """Return `value` converted to the first of the types `hints` that it fits.

    None and the text "none" become None, if None is allowed. If an Enum is among the types, str is not tried.

    Raises:
        _Misfit: the value fits none of the types.
    """
    if value in (None, "none") and type(None) in hints:
        return None
    chosen = [one for one in hints if isinstance(one, type) and issubclass(one, Enum)]
    for hint in [one for one in hints if not (chosen and one is str)]:
        try:
            return _fit(value, hint)
        except _Misfit:
            continue
    raise _Misfit


_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a text", type(None): "none"}
_WORDS |= {Any: "anything"}


def _words(hint: Any) -> str:
    """Return what a type is called in messages."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        names = any(isinstance(one, type) and issubclass(one, Enum) for one in inner)
        return " or ".join(dict.fromkeys(_words(one) for one in inner if not (names and one is str)))
    if origin is Literal:
        return " or ".join(repr(one) for one in inner)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(repr(one.value) for one in hint)}"
    if hint in _WORDS:
        return _WORDS[hint]
    if (origin or hint) in (dict, Mapping):
        return "a table"
    if (origin or hint) in (list, tuple, Sequence, Iterable):
        kinds = [_words(one) for one in inner if one is not Ellipsis]
        return f"a list, of {kinds[0]} each" if kinds and kinds[0] != "anything" else "a list"
    return f"a {getattr(hint, '__name__', hint)}, which a file cannot give"
