"""Check the user's arguments of `plan_several`: sizes, capacities, prices and depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.errors import LengthError, OptionError
from nopad.histogram import Histogram, integers
from nopad.options import MAX_LENGTH, Option
from nopad.options import shown as value_shown
from nopad.planning.several.task import Task, whole_prices

__all__ = [
    "EFFORT",
    "MOST_SEQUENCES",
    "Capacity",
    "Price",
    "check_capacities",
    "check_depth",
    "check_prices",
    "distinct",
    "histogram_columns",
    "shown",
    "task_of",
    "two_columns",
]

Capacity = tuple[int, ...]
Price = int | float

MOST_CAPACITIES = 64
MOST_SEQUENCES = 2**62
MOST_DISTINCT = 2**20  # distinct sizes
MOST_RATIO = 10**9  # highest price / lowest price
LEAST_PRICE, MOST_PRICE = 1e-100, 1e100  # so that the price of any plan is in the range of a float
EFFORT = Option(default=3, low=0, help="budget, in seconds of an ordinary core, counted in operations")


def two_columns(sizes: ArrayLike, name: str = "sizes") -> tuple[NDArray[np.int64], int]:
    """Return sizes as int64 ``[n, 2]``, and the number of kinds of size; with one kind, the second column is 0.

    First sizes are from 1 to 2^31 - 1, second sizes from 0. Messages about a wrong shape, or about sizes that cannot be
    read, call them `name`.

    Raises:
        LengthError: the sizes cannot be read, are not integers, have another shape than ``[n]`` or ``[n, 2]``, or are
            out of range.
    """
    array = np.ma.asarray(sizes) if isinstance(sizes, np.ma.MaskedArray) else _array(sizes, name)
    if array.ndim == 2 and array.shape[1] == 2:
        columns = [array[:, 0], array[:, 1]]
    elif array.ndim == 1:
        columns = [array]
    else:
        raise LengthError(
            f"{name} must be integers [n], or [n, 2] for two kinds (tokens and images, nodes and edges), got shape "
            f"{array.shape}"
        )
    whole = np.zeros((array.shape[0], 2), dtype=np.int64)
    for kind, column in enumerate(columns):
        checked = integers(column)
        least = 1 - kind
        if checked.size and (int(checked.min()) < least or int(checked.max()) > MAX_LENGTH):
            i = int(np.argmax((checked < least) | (checked > MAX_LENGTH)))
            what = "second size" if kind else "size" if len(columns) == 2 else "length"
            raise LengthError(f"{what} {int(checked[i])} at index {i}; it is from {least} to {MAX_LENGTH}")
        whole[:, kind] = checked
    return whole, len(columns)


def _array(values: ArrayLike, name: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of unequal sizes
        raise LengthError(f"{name} must be integers [n], or [n, 2] for two kinds: {error}") from error
    except (TypeError, RuntimeError) as error:  # a tensor with gradients, or on another device
        raise LengthError(f"{name} cannot be read ({error}); give a list or an array of integers") from error


def distinct(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct rows of `sizes`, in lexicographic order, and for each row of `sizes` its index among them.

    `sizes` are int64 ``[n, 2]``, from 0 to 2^31 - 1. The results are int64 ``[k, 2]`` and ``[n]``.
    """
    found, at = np.unique(sizes[:, 0] * 2**31 + sizes[:, 1], return_inverse=True)
    return np.stack([found // 2**31, found % 2**31], axis=1), at.ravel()


def _listed(values: Any, name: str) -> list[Any]:
    """Return the value of an option as a list; a single value becomes a list of one.

    Arrays and scalars of NumPy and torch become plain Python values. Error messages call the option `name`.

    Raises:
        OptionError: `values` is an array with masked values, or a tensor that cannot be read.
    """
    if np.ma.is_masked(values):
        raise OptionError(f"{name} must not have masked values, got {value_shown(values)}")
    if hasattr(values, "tolist"):  # arrays and scalars of NumPy and torch
        try:
            values = values.tolist()
        except RuntimeError as error:  # a tensor on device "meta"
            raise OptionError(f"{name} cannot be read ({error}); give numbers") from error
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        return [values]
    return [one.item() if getattr(one, "ndim", 1) == 0 and hasattr(one, "item") else one for one in values]


def check_capacities(capacities: Any) -> tuple[Capacity, ...]:
    """Return the capacities after a check: tuples of one limit each, or of two limits for two kinds of size.

    Raises:
        OptionError: one of these:

            * a limit is not an integer or is out of range, or limits are masked
            * capacities have different numbers of limits, or more than two
            * a capacity is given twice, or there are none, or more than 64 of them
            * there are two kinds of size, and the second limit of every capacity is 0
    """
    given = _listed(capacities, "capacities")
    held = [tuple(_listed(one, "a capacity")) for one in given]
    if not 1 <= len(held) <= MOST_CAPACITIES:
        raise OptionError(f"there are from 1 to {MOST_CAPACITIES} capacities, got {len(held)}")
    kinds = len(held[0])
    if kinds not in (1, 2) or any(len(one) != kinds for one in held):
        raise OptionError(
            f"capacities are integers, or pairs of integers for two kinds, all alike; got {value_shown(given)}"
        )
    for one in held:
        for kind, limit in enumerate(one):
            if type(limit) is not int or not 1 - kind <= limit <= MAX_LENGTH:
                raise OptionError(
                    f"a capacity must be an integer from {1 - kind} to {MAX_LENGTH}, got {value_shown(limit)}"
                )
    checked = tuple(held)
    if len(set(checked)) < len(checked):
        twice = next(one for one in checked if checked.count(one) > 1)
        raise OptionError(f"the capacity {shown(twice)} is given twice; give each once, with its price")
    if kinds == 2 and not any(one[1] for one in checked):
        raise OptionError("no capacity has room for the second kind; give one size per sequence instead")
    return checked


def shown(capacity: Capacity) -> str:
    """Return a capacity as text for messages and tables.

    >>> shown((8192,)), shown((8192, 32))
    ('8,192', '8,192 x 32')
    """
    return " x ".join(f"{limit:,}" for limit in capacity)


def _short(value: Any) -> str:
    """Return a value as text for messages.

    An integer above 1e100 or below -1e100 becomes its number of bits, since Python may refuse to print it.
    """
    huge = type(value) is int and abs(value) > MOST_PRICE
    return f"an integer of {value.bit_length():,} bits" if huge else repr(value)


def check_prices(prices: Any, capacities: tuple[Capacity, ...]) -> tuple[Price, ...]:
    """Return one price for each capacity, after a check.

    If `prices` is None, a single capacity costs 1, and several capacities cost their number of tokens each.

    Raises:
        OptionError: there are more or fewer prices than capacities; a price is not a number from 1e-100 to 1e100, or is
            masked; prices are more than a factor of 10^9 apart; or `prices` is None, and there are several capacities
            with two limits each.
    """
    if prices is None:
        if len(capacities) > 1 and len(capacities[0]) > 1:
            raise OptionError("several capacities of two kinds need prices: what one pack of each costs")
        prices = [1] if len(capacities) == 1 else [one[0] for one in capacities]
    checked = _listed(prices, "prices")
    if len(checked) != len(capacities):
        raise OptionError(f"there are {len(capacities)} capacities and {len(checked)} prices; give one for each")
    for price in checked:
        if type(price) not in (int, float) or not LEAST_PRICE <= price <= MOST_PRICE:
            raise OptionError(
                f"a price must be a positive number, got {_short(price)}; prices are from {LEAST_PRICE:.0e} to "
                f"{MOST_PRICE:.0e}"
            )
    if max(checked) > MOST_RATIO * min(checked):
        raise OptionError(
            f"prices from {min(checked)} to {max(checked)} are more than a factor of {MOST_RATIO:,} apart: leave out a "
            "capacity, or bring them nearer"
        )
    return tuple(checked)


def check_depth(depth: Any, kinds: int) -> int | None:
    """Return the depth as a Python integer, after a check; None (unlimited) stays None.

    `kinds` is the number of kinds of size.

    Raises:
        OptionError: the depth is not an integer from 1 to 2^31 - 1; or a depth is given, and there are two kinds of
            size.
    """
    if depth is None:
        return None
    if isinstance(depth, bool) or not isinstance(depth, int | np.integer) or not 1 <= depth <= MAX_LENGTH:
        raise OptionError(
            f"depth must be an integer from 1 to {MAX_LENGTH} (None for unlimited), got {value_shown(depth)}"
        )
    if kinds == 2:
        raise OptionError("a depth is only for one kind of size; with two kinds, a pack has two limits already")
    return int(depth)


def task_of(
    sizes: NDArray[np.int64],
    counts: NDArray[np.int64],
    capacities: tuple[Capacity, ...],
    prices: tuple[Price, ...],
    depth: int | None,
) -> Task:
    """Return the task of packing ``counts[i]`` sequences of each size ``sizes[i]``.

    `sizes` are distinct and in lexicographic order; int64 ``[k, 2]``. If `depth` sequences of the smallest size leave
    room in the largest capacity, `depth` may limit a pack. It then becomes the second limit of every capacity, and the
    second size of every sequence becomes 1.

    Raises:
        LengthError: a sequence fits into no capacity; there are more than 2^62 sequences; or there are more than 2^20
            distinct sizes, and several capacities or two kinds of size.
    """
    kinds = len(capacities[0])
    limits = np.zeros((len(capacities), 2), dtype=np.int64)
    limits[:, :kinds] = capacities
    own = sizes
    if (
        depth is not None and len(sizes) and depth * int(sizes[:, 0].min()) < limits[:, 0].max()
    ):  # otherwise the depth limits no pack
        limits[:, 1] = depth
        own = np.stack([sizes[:, 0], np.ones(len(sizes), dtype=np.int64)], axis=1)
    whole, unit = whole_prices(prices)
    task = Task(own, counts, limits, whole, unit, kinds=kinds, depth=depth)
    over = task.cheapest(own) < 0
    if over.any():
        n = sum(counts[over].tolist())
        longest = sizes[over].max(axis=0).tolist()[:kinds]
        raise LengthError(
            f"{n:,} sequence{' fits' if n == 1 else 's fit'} into no capacity (the largest take{'s' if n == 1 else ''} "
            f"{shown(tuple(longest))}; capacities: {', '.join(map(shown, capacities))}); cut or remove "
            f"{'it' if n == 1 else 'them'}, or add a capacity that holds {'it' if n == 1 else 'them'}"
        )
    if len(sizes) > MOST_DISTINCT and (kinds > 1 or len(capacities) > 1):
        raise LengthError(
            f"{len(sizes):,} distinct sizes are too many for several capacities (limit {MOST_DISTINCT:,}); round sizes "
            "up to multiples of a few tokens"
        )
    if task.sequences > MOST_SEQUENCES:
        raise LengthError(f"{task.sequences:,} sequences are too many: plans are exact up to {MOST_SEQUENCES:,}")
    return task


def histogram_columns(histogram: Histogram) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct sizes and the counts of a histogram of lengths, int64 ``[k, 2]`` and ``[k]``.

    The second size is 0.
    """
    return np.stack([histogram.lengths, np.zeros_like(histogram.lengths)], axis=1), histogram.counts
