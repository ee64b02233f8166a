"""Words that messages and reports share."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """Return a number and its noun as text; the noun gets an "s" unless the number is 1.

    >>> counted(1, "row"), counted(2088, "row")
    ('1 row', '2,088 rows')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
