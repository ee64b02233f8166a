"""Write tables as TOML, which Python's standard library can only read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["as_toml", "to_toml"]


def to_toml(document: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables, by name, as the text of a TOML file; fields that are None are left out."""
    lines = []
    for name, table in document.items():
        lines.append(f"[{name}]")
        lines += [f"{_key(key)} = {as_toml(value)}" for key, value in table.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def as_toml(value: Any) -> str:
    """Return a value as TOML, such as ``["no", "yes"]``.

    >>> as_toml(True), as_toml(["no", 1e-05]), as_toml({"a b": None, "c": 1})
    ('true', '["no", 1e-05]', '{c = 1}')

    TOML has no None, so a key whose value is None is left out.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(key))} = {as_toml(one)}" for key, one in value.items() if one is not None)
        return f"{{{inner}}}"
    return f"[{', '.join(as_toml(one) for one in value)}]"
