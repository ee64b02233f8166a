"""Write a `Family`, the facts about one model type, as Python code."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from nopad.admitting.deriving import Times
from nopad.model.families import Family

__all__ = ["line_of"]


def line_of(family: Family) -> str:
    """Return Python code that makes this `Family`; it sets the fields that differ from the defaults.

    The field `refuse`, a function, is left out. Functions of `nopad.model.families` are given by their names there.

    >>> from nopad.admitting.line import line_of
    >>> from nopad.model.families import Family
    >>> line_of(Family(mixers=("MambaMixer",), pooled="last"))
    "Family(pooled='last', mixers=('MambaMixer',))"
    """
    usual, said = Family(), []
    for field in fields(Family):
        value = getattr(family, field.name)
        if field.name != "refuse" and value != getattr(usual, field.name):
            said.append(f"{field.name}={_shown(value)}")
    return f"Family({', '.join(said)})"


def _shown(value: Any) -> str:
    if isinstance(value, Times):
        return f"lambda config: {value.count}"
    return str(value.__name__) if callable(value) else repr(value)
