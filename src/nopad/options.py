"""Describe options that a user gives, and check their values before any work begins.

`Option` describes an option of any part of nopad. `check_integer`, `check_number` and `check_choice` check one value
each; `check_sizes` checks the options that every plan has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from nopad.errors import OptionError

__all__ = [
    "BOOLEAN",
    "MAX_LENGTH",
    "Option",
    "check_choice",
    "check_integer",
    "check_number",
    "check_sizes",
    "is_number",
    "names_in",
    "parse_integer",
    "shown",
]

BOOLEAN = (True, False)
MAX_LENGTH = 2**31 - 1  # lengths and capacities are int32


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option that a user gives to some part of nopad: its default, and the values that are allowed.

    Attributes:
        default: the default value.
        help: one line for the documentation and the command line.
        choices: the allowed values; None: an integer from `low` to `high`.
        low, high: the smallest and the largest integer allowed, if `choices` is None.
        none: whether None is allowed too.
    """

    default: Any
    help: str
    choices: tuple[Any, ...] | None = None
    low: int = 1
    high: int = MAX_LENGTH
    none: bool = False

    def check(self, name: str, value: Any) -> Any:
        """Check `value`, given for the option called `name`; return it as a plain Python value.

        Integer scalars of NumPy and torch become Python integers.

        Raises:
            OptionError: the value is not allowed; the message gives the allowed values.
        """
        if value is None and self.none:
            return None
        if self.choices is not None:
            if any(type(value) is type(choice) and value == choice for choice in self.choices):
                return value
            raise OptionError(f"{name} must be one of {', '.join(map(repr, self.choices))}, got {shown(value)}")
        return check_integer(name, value, self.low, self.high, " or None" if self.none else "")


def check_integer(name: str, value: Any, low: int = 1, high: int = MAX_LENGTH, also: str = "") -> int:
    """Return `value`, an integer of Python, NumPy or torch from `low` to `high`, as a Python integer.

    For the error message, `name` is the name of the option, and `also` says what else is allowed.

    Raises:
        OptionError: `value` is no such integer; the message gives the limits.

    >>> check_integer("depth", np.int64(3)), check_integer("seed", 0, low=0)
    (3, 0)
    """
    number = value
    if not isinstance(value, int) and getattr(value, "ndim", 1) == 0:  # a number of NumPy or torch
        number = value.item()
    if type(number) is not int or not low <= number <= high:
        raise OptionError(f"{name} must be an integer from {low} to {high}{also}, got {shown(value)}")
    return number


def parse_integer(text: str, low: int = 1, high: int = MAX_LENGTH) -> int | None:
    """Return the integer from `low` to `high` that is written as `text`, in decimal digits; None if it is no such text.

    Zeros may come first. A text of thousands of digits, for which Python's `int` raises an error, may be given too.
    `low` is at least 0.

    >>> parse_integer("16"), parse_integer("0"), parse_integer("-1"), parse_integer("1" * 5000)
    (16, None, None, None)
    """
    if not text.isdecimal() or len(text.lstrip("0")) > len(str(high)):
        return None
    number = int(text.lstrip("0") or "0")
    return number if low <= number <= high else None


def shown(value: Any) -> str:
    """Return ``repr(value)`` for an error message; if `repr` raises an error, a description that has the value's type.

    `repr` raises an error for integers of thousands of digits, for values that are nested too deeply, and for objects
    whose ``__repr__`` fails. None of these errors is passed on, since the message itself matters more.
    """
    try:
        return repr(value)
    except ValueError:
        return f"an integer of {value.bit_length():,} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    except Exception:
        return f"a {type(value).__name__}"


def check_choice(name: str, value: Any, kind: Any) -> Any:
    """Check that `value` is one of the strings of `kind`, a `Literal` of two or more strings; return it.

    `name` is the name of the option, for the error message.

    Raises:
        OptionError: `value` is none of these strings; the message lists them.

    >>> from typing import Literal
    >>> check_choice("last", "pad", Literal["drop", "fill", "short", "refuse"])
    Traceback (most recent call last):
    nopad.errors.OptionError: last is 'pad'; it is 'drop', 'fill', 'short' or 'refuse'
    """
    *others, last = get_args(kind)
    if isinstance(value, str) and value in (*others, last):
        return value
    raise OptionError(f"{name} is {shown(value)}; it is {', '.join(map(repr, others))} or {last!r}")


def names_in(value: Any) -> tuple[str, ...] | None:
    """Return the strings in `value`, a list or another iterable of strings; None if it is anything else, or a string.

    >>> names_in(["a", "b"]), names_in("ab"), names_in([1]), names_in(None)
    (('a', 'b'), None, None, None)
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return None
    try:
        found = tuple(value)
    except TypeError:  # an array without dimensions
        return None
    return found if all(isinstance(one, str) for one in found) else None


def is_number(value: Any) -> bool:
    """Return whether `value` is an integer or a finite float, of Python or NumPy; for a boolean, return False.

    An integer that is too large for a float counts as not finite, so the result is False.

    >>> [is_number(value) for value in (1, np.float32(0.5), True, float("inf"), 10**400, "1", None)]
    [True, True, False, False, False, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer above all floats
        return False


def check_number(
    name: str,
    value: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
) -> float:
    """Check that `value` is a finite number within the limits, and return it as a float.

    The limits are: at least `low`, above `above`, at most `high`, below `below`; None: there is no such limit. `name`
    is the name of the option, for the error message.

    Raises:
        OptionError: `value` is no such number; the message gives the limits.

    >>> check_number("smoothing", 0.1, low=0, below=0.5)
    0.1
    >>> check_number("smoothing", True, low=0, below=0.5)
    Traceback (most recent call last):
    nopad.errors.OptionError: smoothing is True; it is a number from 0 to below 0.5
    """
    if (
        is_number(value)
        and (low is None or value >= low)
        and (above is None or value > above)
        and (high is None or value <= high)
        and (below is None or value < below)
    ):
        return float(value)
    limits = (("above", above), ("from", low), ("to", high), ("to below", below))
    said = "".join(f" {word} {limit:g}" for word, limit in limits if limit is not None)
    finite = "finite " if isinstance(value, float) and not is_number(value) else ""
    raise OptionError(f"{name} is {shown(value)}; it is a {finite}number{said}")


def check_sizes(capacity: int, depth: int | None, seed: int = 0) -> tuple[int, int | None]:
    """Check capacity, depth and seed; return capacity and depth as Python integers.

    Raises:
        OptionError: capacity or depth is not an integer from 1 to 2^31 - 1 (depth may also be None), or seed is not an
            integer from 0 to 2^64 - 1.
    """
    capacity = check_integer("capacity", capacity)
    if depth is not None:
        depth = check_integer("depth", depth, also=" (None for unlimited)")
    check_integer("seed", seed, 0, 2**64 - 1)
    return capacity, depth
