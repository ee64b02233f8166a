"""List and count all ways to fill a pack exactly; these ways are the strategies of NNLSHP and ENNLSHP.

A strategy here is a multiset of lengths whose sum is the capacity: a partition of the capacity into at most `depth`
parts. The list of all strategies has O(strategies x depth) numbers. The dense matrix for least squares, ``[capacity,
strategies]``, takes more memory, so its size is limited (`check_size`). At capacity 512, it takes 86 MiB at depth 3
(22,102 strategies), and 3.7 GiB at depth 4 (959,631).

Source: supplement to arXiv 2107.02027, sections D.4.1 and D.5.1. Its equations 5 and 6 approximate the counts, which
are exact here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopad.errors import OptionError

__all__ = ["MATRIX_LIMIT_BYTES", "check_size", "full_strategies", "packing_matrix", "strategy_count"]

MATRIX_LIMIT_BYTES = 2**30  # SciPy's solver makes copies, and needs up to four times as much
_COLUMN = 8  # bytes of a float64


def full_strategies(capacity: int, depth: int) -> NDArray[np.int32]:
    """Return every multiset of at most `depth` lengths that sum to `capacity`; int32 ``[strategies, depth]``.

    A row holds the lengths in ascending order, then zeros.

    >>> full_strategies(4, 3).tolist()
    [[1, 1, 2], [1, 3, 0], [2, 2, 0], [4, 0, 0]]
    """
    done = np.zeros((1, 0), dtype=np.int32)
    rest = np.array([capacity], dtype=np.int32)  # tokens that are not assigned yet
    for place in range(depth):
        last = done[:, -1] if place else np.ones(1, dtype=np.int32)
        # A part that is followed by another one, at least as large, is at most half of the rest; the last is all of it.
        halves = np.maximum(rest // 2 - last + 1, 0) if place < depth - 1 else np.zeros_like(rest)
        choices = np.where(rest > 0, halves, 0) + 1
        ends = np.cumsum(choices)
        chosen = np.arange(ends[-1], dtype=np.int64) - np.repeat(ends - choices, choices)
        part = (np.repeat(last, choices) + chosen).astype(np.int32)
        part[ends - 1] = rest
        done = np.column_stack([np.repeat(done, choices, axis=0), part])
        rest = np.repeat(rest, choices) - part
    return done


def packing_matrix(strategies: NDArray[np.int32], capacity: int) -> NDArray[np.float64]:
    """Return how often each strategy holds each length; float64 ``[capacity, strategies]``.

    Row i is for the length i + 1. `strategies` is the array that `full_strategies` returns.
    """
    matrix = np.zeros((capacity, len(strategies)))
    for part in strategies.T:
        (column,) = np.nonzero(part)
        matrix[part[column] - 1, column] += 1
    return matrix


def strategy_count(capacity: int, depth: int, enough: int) -> int:
    """Return the number of strategies that fill a pack exactly, with at most `depth` sequences each.

    The result is exact up to a `depth` of 4. At larger depths, counting stops once the number exceeds `enough`: a
    result above `enough` is then only a lower limit.

    >>> [strategy_count(512, depth, 10**6) for depth in (1, 2, 3, 4)]
    [1, 257, 22102, 959631]
    """
    t = capacity + 4
    closed = (
        1,
        capacity // 2 + 1,
        ((capacity + 3) ** 2 + 6) // 12,
        (t**3 + 3 * t**2 - 9 * t * (t % 2) + 72) // 144,
    )
    if depth <= len(closed) or closed[-1] > enough:
        return closed[min(depth, len(closed)) - 1]
    ways = [1] * (capacity + 1)  # ways[n]: number of partitions of n into parts up to the loop's current part
    for part in range(2, depth + 1):
        for total in range(part, capacity + 1):
            ways[total] += ways[total - part]
        if ways[capacity] > enough:
            break
    return ways[capacity]


def check_size(name: str, capacity: int, depth: int, granularity: int, copies: int) -> None:
    """Refuse a problem whose matrix for least squares takes more than `MATRIX_LIMIT_BYTES` (1 GiB).

    This matrix has `copies` times as many rows as the `packing_matrix`. With 2 copies, it also has one extra column for
    each row of the `packing_matrix`. Lengths are rounded up to multiples of `granularity`. `name` is the algorithm's
    name, for the error message.

    Raises:
        OptionError: the matrix is too large; the message says which depth or granularity is within the limit.
    """

    def size(units: int, depth: int) -> tuple[int, int]:
        """Return ``(number of strategies, bytes of the matrix)`` for a capacity of `units` times the granularity.

        If the matrix is above the limit, both numbers may be too low, but the bytes are still above the limit.
        """
        row = _COLUMN * copies * units
        count = strategy_count(units, min(depth, units), MATRIX_LIMIT_BYTES // row)
        return count, row * (count + (copies - 1) * units)

    units = max(capacity // granularity, 1)
    count, needed = size(units, depth)
    if needed <= MATRIX_LIMIT_BYTES:
        return
    deeper = range(min(depth, units, 64) - 1, 1, -1)  # if depth 64 is within the limit, so is every depth
    deepest = next((d for d in deeper if size(units, d)[1] <= MATRIX_LIMIT_BYTES), 0)
    coarser = granularity
    while size(max(capacity // coarser, 1), depth)[1] > MATRIX_LIMIT_BYTES:
        coarser *= 2
    more = "more than " if min(depth, units) > 4 else ""
    at = f"capacity {capacity}" + (f", granularity {granularity}" if granularity > 1 else "")
    at += f" and depth {depth}" if depth < capacity else " without a depth limit"
    depths = f"a depth of at most {deepest}, " if deepest else ""
    raise OptionError(
        f"{name} lists all strategies that fill a pack: {more}{count:,} at {at}, a matrix of "
        f"{more}{needed / 2**30:.2g} GiB (limit {MATRIX_LIMIT_BYTES / 2**30:g}); take {depths}"
        f"granularity={coarser} (lengths rounded up to multiples of {coarser}), or algorithm='optimal'"
    )
