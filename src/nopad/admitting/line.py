"""Write a `Family`, the facts about one model type, as Python code."""

from __future__ import annotations

from dataclasses import fields

from nopad.admitting.deriving import Times
from nopad.model.families import Family

__all__ = ["line_of"]


def line_of(family: Family) -> str:
    """Return Python code that makes this `Family`; it sets the fields that differ from the defaults.

    The field `refuse`, a function, is left out. If `mixes` is a function other than a `Times`, the result is not valid
    code.

    >>> from nopad.admitting.line import line_of
    >>> from nopad.model.families import Family
    >>> line_of(Family(mixers=("MambaMixer",), pooled="last"))
    "Family(pooled='last', mixers=('MambaMixer',))"
    """
    usual, said = Family(), []
    for field in fields(Family):
        value = getattr(family, field.name)
        if field.name != "refuse" and value != getattr(usual, field.name):
            shown = f"lambda config: {value.count}" if isinstance(value, Times) else repr(value)
            said.append(f"{field.name}={shown}")
    return f"Family({', '.join(said)})"
