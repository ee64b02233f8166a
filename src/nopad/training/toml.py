"""Write tables as TOML, which Python's standard library can only read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["to_toml"]


def to_toml(document: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables, by name, as the text of a TOML file; fields that are None are left out."""
    lines = []
    for name, table in document.items():
        lines.append(f"[{name}]")
        lines += [f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(key))} = {_value(one)}" for key, one in value.items() if one is not None)
        return f"{{{inner}}}"
    return f"[{', '.join(_value(one) for one in value)}]"
