"""Words and values that messages, reports and JSON share."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["counted", "finite", "first_line", "numbers_of", "spanned"]


def counted(number: int, noun: str) -> str:
    """Return a number and its noun as text; the noun gets an "s" unless the number is 1.

    >>> counted(1, "row"), counted(2088, "row")
    ('1 row', '2,088 rows')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def finite(value: Any) -> Any:
    """Return a value for JSON: Python floats that are infinite or NaN become None, also in dicts, lists and tuples.

    >>> finite({"loss": float("nan"), "rates": (0.5, float("inf"))})
    {'loss': None, 'rates': [0.5, None]}
    """
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's message; of an error without a message, the name of its class.

    >>> first_line(ValueError("odd\nmore")), first_line(ValueError())
    ('odd', 'ValueError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def spanned(low: int, high: int, noun: str) -> str:
    """Return the range from `low` to `high` with a noun, as text; if both are equal, one number with the noun.

    >>> spanned(5, 1500, "token"), spanned(7, 7, "token"), spanned(1, 1, "token")
    ('5 to 1,500 tokens', '7 tokens', '1 token')
    """
    return counted(high, noun) if low == high else f"{low:,} to {counted(high, noun)}"


def numbers_of(noun: str, first: int, last: int) -> str:
    """Return a noun followed by the numbers `first` to `last`, as text; if both are equal, by one number.

    >>> numbers_of("row", 5, 9), numbers_of("row", 5, 5)
    ('rows 5 to 9', 'row 5')
    """
    return f"{noun} {first}" if first == last else f"{noun}s {first} to {last}"
