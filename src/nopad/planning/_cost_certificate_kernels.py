"""Compiled loops that check a cost certificate (`nopad.planning.cost_certificate`).

A pack has a limit on its tokens and one on the sum of its squared lengths. A certificate groups lengths into *steps*. A
sequence of step i has at least ``tokens[i]`` tokens and a squared length of at least ``squares[i]``, and is worth at
most ``values[i]``. All three arrays are int64 ``[m]`` and ascend. The loops share no code with the solver that finds
the values, so they cannot share its mistakes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

FINE = 4096  # parts of each limit, in the table of pairs


@njit(cache=True, nogil=True)
def _spread(table: NDArray[Any]) -> None:
    """Raise every entry ``table[r, c]`` to the highest entry in the rows up to r and the columns up to c, in place."""
    rows, columns = table.shape
    for r in range(rows):
        for c in range(columns):
            if r:
                table[r, c] = max(table[r, c], table[r - 1, c])
            if c:
                table[r, c] = max(table[r, c], table[r, c - 1])


@njit(cache=True, nogil=True)
def pairs(
    tokens: NDArray[Any], squares: NDArray[Any], values: NDArray[Any], most: tuple[int, int], parts: tuple[int, int]
) -> NDArray[Any]:
    """Return a table of upper bounds on the total value of two sequences that fit together into a free room; int64.

    For a room of t tokens and a sum of squares of s, the bound is ``table[t // parts[0], s // parts[1]]``; 0: no two
    fit. The table covers rooms of up to ``most[0]`` tokens and ``most[1]`` squares. The module describes `tokens`,
    `squares` and `values`.
    """
    table = np.zeros((most[0] // parts[0] + 1, most[1] // parts[1] + 1), dtype=np.int64)
    for i in range(tokens.shape[0]):
        room, space = most[0] - tokens[i], most[1] - squares[i]
        for j in range(i + 1):
            if tokens[j] > room or squares[j] > space:
                break
            r, q = (tokens[i] + tokens[j]) // parts[0], (squares[i] + squares[j]) // parts[1]
            table[r, q] = max(table[r, q], values[i] + values[j])
    _spread(table)
    return table


@njit(cache=True, nogil=True)
def _add_one(sizes: NDArray[Any], values: NDArray[Any], before: NDArray[Any], table: NDArray[Any], again: bool) -> None:
    """Add one item to each set of items in `before`; raise the entries of `table` to the values of these larger sets.

    ``before[r, q]`` is the highest value of a set of items whose sizes add up to at most r and q; 0: there is no such
    set. ``table[r, q]`` is the same for the larger sets, and is changed in place. Item i has the two sizes ``sizes[i]``
    and the value ``values[i]``. With `again`, items are added to the sets in `table` too, any number of times. In that
    case, no item may have the sizes (0, 0), and the first sizes must ascend.
    """
    rows, columns = table.shape
    for r in range(rows):
        for i in range(sizes.shape[0] - 1, -1, -1):
            if sizes[i, 0] > r:
                continue
            above, place, value = r - sizes[i, 0], sizes[i, 1], values[i]
            for q in range(place, columns):
                held = before[above, q - place]
                if again:
                    held = max(held, table[above, q - place])
                if held > 0:
                    table[r, q] = max(table[r, q], held + value)
    _spread(table)


@njit(cache=True, nogil=True)
def three_or_more(table: NDArray[Any], sizes: NDArray[Any], values: NDArray[Any], depth: int) -> NDArray[Any]:
    """Return a table of upper bounds on the total value of three or more items that fit together into a free room.

    The result and `table` are int64 and have the same shape. Entry ``[r, q]`` is the bound for a room of r units of
    tokens and q units of squares; 0: no such items fit. `table` has the bounds for two items (from `pairs`). Item i is
    worth ``values[i]``, and has the sizes ``sizes[i]``, in these units and rounded down; int64 ``[k, 2]``. At most
    `depth` items share a room (0: unlimited).
    """
    found = np.zeros_like(table)
    if depth == 0:
        _add_one(sizes, values, table, found, True)
        return found
    before = table
    for _ in range(depth - 2):
        following = found.copy()
        _add_one(sizes, values, before, following, False)
        found = before = following
    return found


@njit(cache=True, nogil=True)
def worth_by_pairs(
    tokens: NDArray[Any],
    squares: NDArray[Any],
    values: NDArray[Any],
    limits: tuple[int, int],
    fine: tuple[NDArray[Any], int, int],
    coarse: tuple[NDArray[Any], int, int],
    depth: int,
) -> NDArray[Any]:
    """Return for each step an upper bound on the value of a pack whose longest sequence has this step; int64 ``[m]``.

    The module describes `tokens`, `squares` and `values`. The two longest sequences of a pack count with their exact
    sizes. In a pack of three, the third does too. In a pack of four, the value of the other two is looked up in `fine`;
    in a larger pack, the value of all others is looked up in `coarse`.

    `fine` and `coarse` are tuples ``(table, t, s)``. In a free room of x tokens and y squares, the value of the others
    is at most ``table[x // t, y // s]``. In `fine`, an index beyond the table counts as its last index. The table of
    `fine` comes from `pairs`, and that of `coarse` from `three_or_more`. A pack has at most ``limits[0]`` tokens,
    ``limits[1]`` squares, and `depth` sequences (0: unlimited).
    """
    m = tokens.shape[0]
    worth = values.copy()
    two, two_tokens, two_squares = fine
    more, more_tokens, more_squares = coarse
    for i in range(m):
        by_tokens, by_squares = -1, -1
        for j in range(i if depth != 1 else -1, -1, -1):
            room, space = limits[0] - tokens[i] - tokens[j], limits[1] - squares[i] - squares[j]
            if room < 0 or space < 0:
                continue
            held = values[i] + values[j]
            worth[i] = max(worth[i], held)
            while by_tokens + 1 < m and tokens[by_tokens + 1] <= room:
                by_tokens += 1
            while by_squares + 1 < m and squares[by_squares + 1] <= space:
                by_squares += 1
            last = min(by_tokens, by_squares, j)
            if last < 0 or depth == 2:
                continue
            worth[i] = max(worth[i], held + values[last])
            if depth == 0 or depth > 3:
                r, q = min(room // two_tokens, two.shape[0] - 1), min(space // two_squares, two.shape[1] - 1)
                worth[i] = max(worth[i], held + two[r, q])
            if depth == 0 or depth > 4:
                worth[i] = max(worth[i], held + more[room // more_tokens, space // more_squares])
    return worth


@njit(cache=True, nogil=True)
def worth_by_rates(
    tokens: NDArray[Any],
    squares: NDArray[Any],
    values: NDArray[Any],
    limits: tuple[int, int],
    depth: int,
    rates: NDArray[Any],
) -> NDArray[Any]:
    """Return for each step an upper bound on the value of a pack whose longest sequence has this step; float64 ``[m]``.

    The module describes `tokens`, `squares` and `values`. The longest sequence counts with its exact value. For the
    others, there are three rates: a value t per token, s per square and p per sequence. Each row of `rates`, float64
    ``[n, 2]``, gives s and p. Then t is the lowest rate, at least 0, with this property: no step that fits beside the
    longest sequence, and is not longer, is worth more than its tokens, its square and its place at these rates. So all
    the others together are worth at most what the free room and the free places are worth at these rates. A step's
    bound is the lowest that a row of `rates` gives. It is not rounded.

    A pack has at most ``limits[0]`` tokens, ``limits[1]`` squares and `depth` sequences (0: unlimited; then every p
    must be 0).
    """
    m = tokens.shape[0]
    beside = np.minimum(  # number of steps that fit beside step i, and are not longer
        np.searchsorted(tokens, limits[0] - tokens, side="right"),
        np.searchsorted(squares, limits[1] - squares, side="right"),
    )
    worth = np.full(m, np.inf)
    token_rate = np.empty(m)
    for k in range(rates.shape[0]):
        by_square, by_place = rates[k, 0], rates[k, 1]
        highest = 0.0
        for i in range(m):
            highest = max(highest, (values[i] - by_square * squares[i] - by_place) / tokens[i])
            token_rate[i] = highest
        for i in range(m):
            rest = 0.0
            others = min(i + 1, beside[i])
            if others > 0 and depth != 1:
                rest = token_rate[others - 1] * (limits[0] - tokens[i]) + by_square * (limits[1] - squares[i])
                rest += by_place * (depth - 1)
            worth[i] = min(worth[i], values[i] + rest)
    return worth
