"""Compiled loops of the online packer that place requests: which row of the next batch each gets, and where in it.

As in `nopad._kernels`, arguments are plain arrays, and callers validate them. ``limits`` are those of
`nopad.serving.Batching.limits`, under the names defined below. The loops get the lengths of `n` candidates. They write
``row``, the row of the batch that each candidate gets (-1: it goes on waiting), and ``start``, its first slot in this
row. `top_up` then places other candidates that still fit, and returns why the batch takes no more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._sort_kernels import ascending, gathered

POLICY, ROWS, CAPACITY, FLAT, MOST, SEPARATOR, KEEP_ORDER, WINDOW, WAIT, ACCUMULATE, AGE_STEP = range(11)  # limits
END_TO_END, FIRST_FIT, NEXT_FIT, BEST_FIT, LOOK_AHEAD = range(5)  # policies
FULL, COUNT = 1, 2  # why a batch takes no more requests; 0: it takes more

LEVELS = 2**30  # least urgency of a request whose time to leave has come; all others are below
_LENGTHS = 2**31
_NO: Any = np.int64(0)  # literal numbers are types of their own: Numba would compile `place_in_order` for each
_YES: Any = np.int64(1)


@njit(cache=True, nogil=True)
def place_in_order(
    lengths: NDArray[Any], limits: NDArray[Any], keep_order: int, row: NDArray[Any], start: NDArray[Any]
) -> None:
    """Place candidates in the order given, by the policy in `limits`; write their `row` and `start`.

    A candidate that does not fit gets no row. If `keep_order` is not 0, all candidates after it get no row either. At
    most `MOST` candidates are placed. In a flat batch, the first one is placed even if it is longer than the batch.
    """
    policy, rows, capacity, separator = limits[POLICY], limits[ROWS], limits[CAPACITY], limits[SEPARATOR]
    crossing = is_crossing(limits)
    fill = np.zeros(1 if crossing else rows, dtype=np.int64)
    room = room_of(limits)
    row[:] = -1
    placed, current = 0, 0
    for i in range(lengths.size):
        if placed == limits[MOST]:
            return
        length = lengths[i]
        chosen = -1
        if policy == NEXT_FIT:
            for at in range(current, min(current + 2, fill.size)):
                if after(fill[at], separator) + length <= room:
                    chosen = current = at
                    break
        elif placed == 0 and limits[FLAT] != 0:
            chosen = 0
        else:
            chosen = row_for(fill, length, room, limits)
        if chosen < 0:
            if keep_order:
                return
            continue
        begin = after(fill[chosen], separator)
        fill[chosen] = begin + length
        row[i], start[i] = (begin // capacity, begin % capacity) if crossing else (chosen, begin)
        placed += 1


@njit(cache=True, nogil=True)
def is_crossing(limits: NDArray[Any]) -> bool:
    """Return whether all rows are one stream, which is filled to its end: in flat batches, and with `END_TO_END`."""
    return bool(limits[POLICY] == END_TO_END or limits[FLAT] != 0)


@njit(cache=True, nogil=True)
def row_for(fill: NDArray[Any], length: int, room: int, limits: NDArray[Any]) -> int:
    """Return the fullest row that has room for this length; with `FIRST_FIT`, the first such row; -1 if there is none.

    ``fill[r]`` is the number of slots used in row r, and `room` is the number of slots that each row has.
    """
    chosen = -1
    for at in range(fill.size):
        if after(fill[at], limits[SEPARATOR]) + length <= room and (chosen < 0 or fill[at] > fill[chosen]):
            chosen = at
            if limits[POLICY] == FIRST_FIT:
                break
        if fill[at] == 0:
            break
    return chosen


@njit(cache=True, nogil=True)
def top_up(
    lengths: NDArray[Any], limits: NDArray[Any], keep_order: int, row: NDArray[Any], start: NDArray[Any]
) -> tuple[int, int]:
    """Place requests that were passed over (``row`` -1), in order of arrival, until no more of them fit.

    `lengths` are those of the candidates. If `keep_order` is not 0, stop at the first request that does not fit. With
    `NEXT_FIT`, no request is placed, since earlier rows are closed.

    Return (reason, widest). `widest` is the length of the longest request that still fits, or 0 if none does. The
    reason is the first of these that holds:

    * `COUNT`: the batch has `MOST` requests;
    * `FULL`: some of the given requests are not placed, or not even a request of a single token would fit;
    * 0: the batch takes more requests.
    """
    fill, placed = filled(lengths, limits, row, start)
    widest = widest_of(fill, limits)
    for i in range(lengths.size):
        if placed == limits[MOST] or widest < 1 or limits[POLICY] == NEXT_FIT:
            break
        if row[i] >= 0:
            continue
        if lengths[i] > widest:
            if keep_order:
                break
            continue
        row[i], start[i] = put(fill, lengths[i], limits)
        placed += 1
        widest = widest_of(fill, limits)
    return stopped(placed, lengths.size, widest, limits), widest


@njit(cache=True, nogil=True)
def filled(
    lengths: NDArray[Any], limits: NDArray[Any], row: NDArray[Any], start: NDArray[Any]
) -> tuple[NDArray[Any], int]:
    """Return the number of slots used in each row, and the number of requests placed.

    If all rows are one stream (`is_crossing`), the first result has one number, for the stream.
    """
    crossing = is_crossing(limits)
    fill = np.zeros(1 if crossing else limits[ROWS], dtype=np.int64)
    placed = 0
    for i in range(lengths.size):
        if row[i] >= 0:
            placed += 1
            at, begin = (0, row[i] * limits[CAPACITY]) if crossing else (row[i], 0)
            fill[at] = max(fill[at], begin + start[i] + lengths[i])
    return fill, placed


@njit(cache=True, nogil=True)
def put(fill: NDArray[Any], length: int, limits: NDArray[Any]) -> tuple[int, int]:
    """Place a request of this length in the fullest row with room, or the first such row with `FIRST_FIT`.

    There must be such a row. Its entry in `fill` is updated. Return (row, first slot in this row).
    """
    capacity, crossing = limits[CAPACITY], is_crossing(limits)
    at = row_for(fill, length, room_of(limits), limits)
    begin = after(fill[at], limits[SEPARATOR])
    fill[at] = begin + length
    return (begin // capacity, begin % capacity) if crossing else (at, begin)


@njit(cache=True, nogil=True)
def stopped(placed: int, requests: int, widest: int, limits: NDArray[Any]) -> int:
    """Return why a batch takes no more requests: `COUNT` or `FULL`; 0 if it takes more.

    The batch has `placed` of `requests` given requests, and a request of up to `widest` tokens still fits.
    """
    if placed == limits[MOST]:
        return COUNT
    return FULL if placed < requests or widest < 1 else 0


@njit(cache=True, nogil=True)
def room_of(limits: NDArray[Any]) -> int:
    """Return the number of slots of a row or, if all rows are one stream (`is_crossing`), of the stream."""
    return int(limits[CAPACITY] * limits[ROWS] if is_crossing(limits) else limits[CAPACITY])


@njit(cache=True, nogil=True)
def widest_of(fill: NDArray[Any], limits: NDArray[Any]) -> int:
    """Return the length of the longest request that still fits into the batch; 0 if none fits.

    ``fill[r]`` is the number of slots used in row r (or in the stream, if `is_crossing`). With `NEXT_FIT`, only the
    last row in use and those after it are open.
    """
    widest, room, first = 0, room_of(limits), 0
    while limits[POLICY] == NEXT_FIT and first + 1 < fill.size and fill[first + 1] > 0:
        first += 1
    for used in fill[first:]:
        widest = max(widest, room - after(used, limits[SEPARATOR]))
    return widest


@njit(cache=True, nogil=True)
def after(fill: int, separator: int) -> int:
    """Return the slot at which the next request of a row begins, if `fill` slots of the row are used.

    This is `fill` plus `separator`; in an empty row, it is 0.
    """
    return fill + separator if fill > 0 else 0


@njit(cache=True, nogil=True)
def best_fit_decreasing(
    lengths: NDArray[Any],
    order: NDArray[Any],
    limits: NDArray[Any],
    rows: int,
    row: NDArray[Any],
    start: NDArray[Any],
    fill: NDArray[Any],
    count: NDArray[Any],
    opener: NDArray[Any],
) -> int:
    """Pack the candidates that `order` lists, in this order, by best fit; return the number of rows.

    Each candidate goes into the fullest row that still has room for it and holds fewer than `MOST` candidates, or else
    into a new row. Its row and its first slot are written to `row` and `start`. ``fill``, ``count`` and ``opener`` get,
    for each row, the number of slots used, the number of candidates, and the index of the first candidate. If more than
    `rows` rows are needed, the result is rows + 1, and the candidates that are left are not placed.
    """
    capacity, separator, opened = limits[CAPACITY], limits[SEPARATOR], 0
    for i in order:
        length, chosen = lengths[i], -1
        most = capacity - length - separator
        for at in range(opened):
            if fill[at] <= most and count[at] < limits[MOST] and (chosen < 0 or fill[at] > fill[chosen]):
                chosen = at
                if fill[at] == most:
                    break
        if chosen < 0:
            if opened == rows:
                return rows + 1
            chosen = opened
            fill[chosen], count[chosen], opener[chosen] = 0, 0, i
            opened += 1
        row[i], start[i] = chosen, after(fill[chosen], separator)
        fill[chosen] = start[i] + length
        count[chosen] += 1
    return opened


@njit(cache=True, nogil=True)
def look_ahead(
    lengths: NDArray[Any], levels: NDArray[Any], limits: NDArray[Any], row: NDArray[Any], start: NDArray[Any]
) -> None:
    """Choose candidates for the next batch by urgency, and place them; write their `row` and `start`.

    `levels` has the urgency of each candidate; a higher number is more urgent. The first candidate has waited longest:
    it is placed first, and always leaves. The others are placed in order of urgency. Those that do not leave get no
    row (-1).

    In a flat batch, of equally urgent candidates, the one that arrived first comes first. Those that fit in this order
    leave.

    Otherwise, of equally urgent candidates, the longest comes first, and all are packed into rows by best fit, also
    into more rows than a batch has. A row is as urgent as its first candidate. The row of the first of all candidates
    leaves, then the most urgent rows, and of equally urgent rows the fullest. If the rows that leave hold more than
    `MOST` requests, only the `MOST` that were packed first leave.
    """
    n = lengths.size
    if limits[FLAT] != 0:
        order = ascending(urgency(levels, np.zeros(n, dtype=np.int64)))
        row_of, start_of = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        place_in_order(gathered(lengths, order), limits, _NO, row_of, start_of)
        for i in range(n):
            row[order[i]] = row_of[i]
            if row_of[i] >= 0:
                start[order[i]] = start_of[i]
        return
    fill, count, opener = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    order = ascending(urgency(levels, _LENGTHS - 1 - lengths))
    opened = best_fit_decreasing(lengths, order, limits, n, row, start, fill, count, opener)
    first = ascending(urgency(gathered(levels, opener[:opened]), limits[CAPACITY] - fill[:opened]))
    number = np.zeros(opened, dtype=np.int64) - 1  # of each row in the batch; -1: it stays
    left = limits[MOST]
    for chosen, at in enumerate(first[: limits[ROWS]]):
        number[at] = chosen
    for i in order:  # also the order of places in a row, so that no gap is left in it
        row[i] = number[row[i]] if left > 0 else -1
        left -= row[i] >= 0


@njit(cache=True, nogil=True)
def urgency(levels: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return an int64 sort key for each candidate; the candidate with the lowest key comes first.

    `levels` has the urgency of each candidate: the highest level comes first. Of equal levels, the lowest number in
    `second` comes first. But the first candidate has waited longest, so it gets the lowest key, -1.
    """
    if levels.size == 0:
        return second
    highest = levels[0]
    for level in levels:
        highest = max(highest, level)
    made: NDArray[Any] = (highest - levels) * _LENGTHS + second
    made[0] = -1
    return made


@njit(cache=True, nogil=True)
def look_ahead_in_order(lengths: NDArray[Any], limits: NDArray[Any], row: NDArray[Any], start: NDArray[Any]) -> None:
    """Place the first n candidates in the rows of one batch, and give the others no row; write their `row` and `start`.

    n is the largest that a bisection finds. Each of the O(log n) steps packs the first candidates by best-fit
    decreasing, and tells whether they fit into the rows of a batch. The bisection begins between the number of
    candidates that fit in order of arrival, and the number whose tokens and separators do not exceed the slots (at most
    `MOST`).
    """
    rows, slots, separator = limits[ROWS], limits[ROWS] * limits[CAPACITY], limits[SEPARATOR]
    place_in_order(lengths, limits, _YES, row, start)
    low, high, used = 0, 0, 0
    while low < lengths.size and row[low] >= 0:
        low += 1
    while high < min(lengths.size, limits[MOST]):
        used += lengths[high] + (separator if high >= rows else 0)  # the first request of a row has none before it
        if used > slots:
            break
        high += 1
    fill, count, opener = np.zeros(high, dtype=np.int64), np.zeros(high, dtype=np.int64), np.zeros(high, dtype=np.int64)
    row_of, start_of = np.empty(row.size, dtype=np.int64), np.empty(row.size, dtype=np.int64)
    while low < high:
        n = (low + high + 1) // 2
        order = ascending(-lengths[:n])
        if best_fit_decreasing(lengths, order, limits, rows, row_of, start_of, fill, count, opener) <= rows:
            low = n
            for i in range(n):
                row[i], start[i] = row_of[i], start_of[i]
        else:
            high = n - 1
