"""Columns in messages: those that an input lacks, what it has instead, and columns for which Arrow has no type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from nopad.corpus.records import shown

__all__ = ["is_name", "is_untyped", "listed_columns", "no_column", "type_of", "untyped"]

_LISTED = 12
_WHY = b"nopad.untyped"  # in the metadata of a field that holds values, but none for which Arrow has a type


def is_name(key: Any) -> bool:
    r"""Return whether a key of a record can name a column: whether it is a string that UTF-8 can hold.

    >>> is_name("label"), is_name(5), is_name("\ud800")
    (True, False, False)
    """
    try:
        return isinstance(key, str) and bool(key.encode() or True)
    except UnicodeEncodeError:
        return False


def untyped(name: str, reason: str) -> pa.Field:
    """Return the field of a column that holds values, but none for which Arrow has a type; `reason` says why."""
    return pa.field(name, pa.null(), metadata={_WHY: reason.encode("ascii", "backslashreplace")})


def is_untyped(field: pa.Field) -> bool:
    """Return whether a field is one of `untyped`: it holds values, but none for which Arrow has a type."""
    return _WHY in (field.metadata or {})


def type_of(field: pa.Field) -> str:
    """Return words for the type of a column, for messages.

    >>> type_of(pa.field("n", pa.int64())), type_of(untyped("n", "too large"))
    ('int64', 'of no type that Arrow has (too large)')
    """
    reason = (field.metadata or {}).get(_WHY)
    return str(field.type) if reason is None else f"of no type that Arrow has ({reason.decode()})"


def no_column(name: str, columns: Iterable[str]) -> str:
    r"""Return the error text for an input that has these columns, but no column `name`.

    >>> no_column("Answer", ["id", "question", "answer"])
    'no column \'Answer\'; did you mean \'answer\'? It has the columns "id", "question", "answer"'
    """
    names = list(columns)
    words = [one for one in names if isinstance(one, str)]
    near = [one for one in words if one.lower() == name.lower()] or get_close_matches(name, words, 1)
    meant = f"did you mean {near[0]!r}? It" if near else "it"
    return f"no column {name!r}; {meant} has {listed_columns(names)}"


def listed_columns(names: Sequence[str]) -> str:
    """Return a text that lists the columns: the names of the first twelve, and how many more there are.

    >>> listed_columns(["id", "text"]), listed_columns([])
    ('the columns "id", "text"', 'no columns')
    """
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"the columns {', '.join(map(shown, names[:_LISTED]))}{more}" if names else "no columns"
