"""The message about a column that an input lacks: which columns there are, and which of them was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from nopad.corpus.records import shown

__all__ = ["listed_columns", "no_column"]

_LISTED = 12


def no_column(name: str, columns: Iterable[str]) -> str:
    r"""Return the error text for an input that has these columns, but no column `name`.

    >>> no_column("Answer", ["id", "question", "answer"])
    'no column \'Answer\'; did you mean \'answer\'? It has the columns "id", "question", "answer"'
    """
    names = list(columns)
    near = [one for one in names if one.lower() == name.lower()] or get_close_matches(name, names, 1)
    meant = f"did you mean {near[0]!r}? It" if near else "it"
    return f"no column {name!r}; {meant} has {listed_columns(names)}"


def listed_columns(names: Sequence[str]) -> str:
    """Return a text that lists the columns: the names of the first twelve, and how many more there are.

    >>> listed_columns(["id", "text"]), listed_columns([])
    ('the columns "id", "text"', 'no columns')
    """
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"the columns {', '.join(map(shown, names[:_LISTED]))}{more}" if names else "no columns"
