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
    """Raise every entry of a table to the highest entry that is in no later row and in no later column."""
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
    """Return a table: ``table[r, q]`` is at least the value of any two steps that fit into a room of these parts.

    A room of t tokens and s squares has the entry ``t // parts[0], s // parts[1]``. The table covers rooms of up to
    `most` tokens and squares.
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
    """Raise ``table[r, q]`` to the value of one more item beside what ``before[r', q']`` holds, if both fit.

    Item i has the sizes ``sizes[i]`` and the value ``values[i]``. An entry of 0 in `before` holds nothing, and gets no
    item. With `again`, further items are added to what `table` holds; then no item may have the sizes (0, 0), and first
    sizes ascend.
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
    """Return a table like `pairs` for three or more items, at most `depth` (0: unlimited); `table` is that of `pairs`.

    Item i has the sizes ``sizes[i]``, in parts and rounded down (int64 ``[k, 2]``), and is worth ``values[i]``.
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
    """Return, for each step, a value that no pack exceeds in which it is the longest; int64 ``[m]``.

    The two longest sequences of a pack count with their exact sizes, and so does a third if it is the last. Two more
    are looked up in `fine`, and three or more in `coarse`: a table and its parts, as `pairs` and `three_or_more` make
    it. A pack has at most `limits` tokens and squares, and at most `depth` sequences (0: unlimited).
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
    """Return, for each step, a value that no pack exceeds in which it is the longest; float64 ``[m]``, not rounded.

    The longest sequence counts exactly. The others are valued by rates: s per square and p per sequence are given
    (``rates[k] = s, p``, float64 ``[n, 2]``), and t per token is the lowest rate at which no step that fits beside the
    longest one is worth more than its tokens, its square and itself at these rates. So all that fits is worth at most
    the room at these rates, and the best rates are used. A pack has at most `limits` tokens and squares, and at most
    `depth` sequences (0: unlimited; then p must be 0).
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
