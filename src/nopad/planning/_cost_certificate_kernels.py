"""Compiled loops that check a cost certificate (`nopad.planning.cost_certificate`).

A pack holds steps: step i stands for sequences of at least ``tokens[i]`` tokens and a square of at least
``squares[i]``, each worth at most ``values[i]``. All three arrays are int64 ``[m]`` and ascend. A pack is named by its
longest step. The loops share no code with the solver that finds the values, so they cannot share its mistakes.
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
    """Return a table of upper bounds on the value of two steps that share a free room; an entry of 0 means no pair.

    For a room of t tokens and s squares, the bound is ``table[t // parts[0], s // parts[1]]``; int64. `parts` are the
    numbers of tokens and of squares between neighbouring entries. The table covers rooms of up to ``most[0]`` tokens
    and ``most[1]`` squares.
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
    """Raise the entries of `table` to the values of the sets in `before` with one more item added to each; in place.

    ``before[r, q]`` is the value of a set of items of total sizes up to r and q; 0 means that there is no such set.
    ``table[r, q]`` has the same meaning for the larger sets. Item i has the sizes ``sizes[i]`` and the value
    ``values[i]``. With `again`, items are added to the sets in `table` too, any number of times. In that case, no item
    may have the sizes (0, 0), and the first sizes must ascend.
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
    """Return a table like that of `pairs`, with upper bounds on the value of three items or more that share a room.

    `table` is the table of `pairs`. At most `depth` items share the room (0: unlimited). Item i is worth ``values[i]``.
    Its sizes ``sizes[i]`` are in the parts of `pairs`, rounded down; int64 ``[k, 2]``.
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
    """Return for each step an upper bound on the value of a pack whose longest step it is; int64 ``[m]``.

    The two longest sequences of a pack count with their exact sizes. So does the third in a pack of three. In a pack of
    four, the value of the other two is looked up in `fine`; in a larger pack, the value of all others in `coarse`.
    `fine` is a table of `pairs` and its two parts: ``(table, tokens, squares)``. `coarse` is the same for
    `three_or_more`. A pack has at most ``limits[0]`` tokens, ``limits[1]`` squares, and `depth` sequences (0:
    unlimited).
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
    """Return for each step an upper bound on the value of a pack whose longest step it is; float64 ``[m]``.

    The longest sequence counts exactly. The others are valued by three rates: t per token, s per square and p per
    sequence. ``rates[k] = s, p`` are given; float64 ``[n, 2]``. For these, t is the lowest rate at which every step
    that fits beside the longest one is worth at most what its tokens, its square and its place are worth at the rates.
    So all the other sequences together are worth at most what the free room is worth. Of all given rates, those that
    give the lowest bound are used. The bound is not rounded.

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
