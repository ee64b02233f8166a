"""JSON and TOML, read and written so that whatever is wrong with a text or a value is a `ValueError`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["from_json", "from_toml", "to_json"]

_DEEP = "nested too deeply"


def from_json(text: str | bytes, **how: Any) -> Any:
    """Return the value that a JSON text holds; `how` are further options of `json.loads`.

    For values nested too deeply, about 1,000 levels, `json.loads` itself raises RecursionError; this function does not.

    Raises:
        ValueError: the text is not JSON (`json.JSONDecodeError`) or not UTF-8 (UnicodeDecodeError), is nested too
            deeply, or has an integer of thousands of digits.

    >>> from_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> from_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: nested too deeply
    """
    try:
        return json.loads(text, **how)
    except RecursionError:
        raise ValueError(_DEEP) from None


def from_toml(text: str) -> dict[str, Any]:
    r"""Return the tables that a TOML text holds.

    Raises:
        ValueError: the text is not TOML (`tomllib.TOMLDecodeError`), is nested too deeply, or has an integer of
            thousands of digits.

    >>> from_toml("[data]\nseed = 3")
    {'data': {'seed': 3}}
    """
    import tomllib  # here, since `import nopad` needs JSON only

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_DEEP) from None


def to_json(value: Any, default: Callable[[Any], Any] = repr, **how: Any) -> str:
    """Return `value` as ASCII JSON.

    What JSON cannot hold is replaced by the result of `default`; keys of dicts that JSON cannot hold, by their `repr`.
    `how` are further options of `json.dumps`.

    Raises:
        ValueError: the value is nested too deeply, or holds itself or an integer of thousands of digits.

    >>> to_json({(1, 2): {3}})
    '{"(1, 2)": "{3}"}'
    """
    try:
        return _written(value, default, how)
    except RecursionError:
        raise ValueError(_DEEP) from None


def _written(value: Any, default: Callable[[Any], Any], how: dict[str, Any]) -> str:
    try:
        return json.dumps(value, default=default, **how)
    except TypeError:  # a key
        return json.dumps(_with_json_keys(value), default=lambda one: _with_json_keys(default(one)), **how)


def _with_json_keys(value: Any) -> Any:
    if isinstance(value, dict):
        known = str | int | float | None  # bool is an int
        return {key if isinstance(key, known) else repr(key): _with_json_keys(one) for key, one in value.items()}
    return [_with_json_keys(one) for one in value] if isinstance(value, list | tuple) else value
