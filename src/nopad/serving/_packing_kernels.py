"""Compiled loops of the online packer: they choose which waiting requests form the next batch, and whether it leaves.

As in `nopad._kernels`, arguments are plain arrays, and callers validate them. Requests wait in ``table`` int64
``[places, 6]``, in order of arrival from row ``state[HEAD]`` to before ``state[TAIL]``; the names of the columns, and
of the places in the other arrays, are defined below. Times are in nanoseconds; `NEVER` is later than any of them.

Loops that place requests get the lengths of `n` candidates. They write ``row``, the row of the batch that each
candidate gets (-1: it goes on waiting), and ``start``, its first slot in this row. They return why the batch takes no
further request: `FULL`, `COUNT`, or 0 if all candidates are in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

NUMBER, LENGTH, ARRIVED, DUE, DEADLINE, PRIORITY = range(6)  # columns of the table
HEAD, TAIL, TOKENS, NEXT_DUE, NEXT_DEADLINE, URGENT = range(6)  # places of the state; NEXT_... may be too early
POLICY, ROWS, CAPACITY, FLAT, MOST, SEPARATOR, KEEP_ORDER, WINDOW, WAIT, ACCUMULATE, AGE_STEP = range(11)  # limits
END_TO_END, FIRST_FIT, NEXT_FIT, BEST_FIT, LOOK_AHEAD = range(5)  # policies
FULL, COUNT, TIMEOUT, IDLE, DEADLINE_NEAR, DRAIN = range(1, 7)  # why a batch leaves; 0: it does not

NEVER = 2**62
LEVELS = 2**30  # urgency of a request whose time to leave has come; all others are below
MIDDLE = 2**20  # urgency of a new request of priority 0
_LENGTHS = 2**31


@njit(cache=True, nogil=True)
def place_in_order(
    lengths: NDArray[Any], limits: NDArray[Any], keep_order: int, row: NDArray[Any], start: NDArray[Any]
) -> int:
    """Place candidates in the order given; if `keep_order` is not 0, stop at the first that does not fit."""
    policy, rows, capacity, separator = limits[POLICY], limits[ROWS], limits[CAPACITY], limits[SEPARATOR]
    crossing = policy == END_TO_END or policy == LOOK_AHEAD  # a flat batch is one row that is filled to its end
    fill = np.zeros(1 if crossing else rows, dtype=np.int64)
    room = capacity * rows if crossing else capacity
    row[:] = -1
    placed, stop, current = 0, 0, 0
    for i in range(lengths.size):
        if placed == limits[MOST]:
            return COUNT
        length = lengths[i]
        chosen = -1
        if crossing or policy == NEXT_FIT:
            for at in range(current, min(current + 2, fill.size)):
                if after(fill[at], separator) + length <= room:
                    chosen = current = at
                    break
            if limits[FLAT] != 0 and placed == 0:
                chosen = 0
        else:
            for at in range(rows):
                if after(fill[at], separator) + length <= room and (chosen < 0 or fill[at] > fill[chosen]):
                    chosen = at
                    if policy == FIRST_FIT:
                        break
                if fill[at] == 0:
                    break
        if chosen < 0:
            stop = FULL
            if keep_order:
                return FULL
            continue
        begin = after(fill[chosen], separator)
        fill[chosen] = begin + length
        row[i], start[i] = (begin // capacity, begin % capacity) if crossing else (chosen, begin)
        placed += 1
    if stop == 0 and placed == limits[MOST]:
        return COUNT
    return FULL if fill.sum() >= rows * capacity else stop


@njit(cache=True, nogil=True)
def after(fill: int, separator: int) -> int:
    """Return the slot at which the next request of a row begins: `fill`, plus `separator` unless the row is empty."""
    return fill + separator if fill > 0 else 0


@njit(cache=True, nogil=True)
def best_fit_decreasing(
    lengths: NDArray[Any],
    order: NDArray[Any],
    limits: NDArray[Any],
    row: NDArray[Any],
    start: NDArray[Any],
    fill: NDArray[Any],
    count: NDArray[Any],
    opener: NDArray[Any],
) -> int:
    """Pack the candidates that `order` lists into as many rows as needed; return the number of rows.

    Each candidate goes into the fullest row that still has room for it. ``fill``, ``count`` and ``opener`` get, for
    each row, the number of slots used, the number of candidates, and the first candidate.
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
) -> int:
    """Pack all candidates, by urgency and then longest first; choose the rows that leave by urgency, then by fill.

    The first candidate has waited longest. It is placed first, and its row always leaves. `levels` are those of
    `levels_of`.
    """
    n, rows, capacity = lengths.size, limits[ROWS], limits[CAPACITY]
    if limits[FLAT] != 0:
        order = np.argsort(urgency(levels, np.zeros(n, dtype=np.int64)), kind="mergesort")
        row_of, start_of = row.copy(), start.copy()
        stop = place_in_order(lengths[order], limits, 0, row_of, start_of)
        row[order], start[order] = row_of, start_of
        return stop
    fill, count, opener = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    order = np.argsort(urgency(levels, _LENGTHS - 1 - lengths), kind="mergesort")
    opened = best_fit_decreasing(lengths, order, limits, row, start, fill, count, opener)
    first = np.argsort(urgency(levels[opener[:opened]], capacity - fill[:opened]), kind="mergesort")
    number = np.full(opened, -1, dtype=np.int64)  # of each row in the batch
    chosen, placed, stop, used = 0, 0, 0, 0
    for at in first:
        if chosen == rows or placed + count[at] > limits[MOST]:
            stop = FULL if chosen == rows else COUNT
            continue
        number[at] = chosen
        chosen += 1
        placed += count[at]
        used += fill[at]
    for i in range(n):
        row[i] = number[row[i]]
    if stop == 0 and placed == limits[MOST]:
        return COUNT
    return FULL if used == rows * capacity else stop


@njit(cache=True, nogil=True)
def urgency(levels: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return sort keys for candidates: the highest level first, then the lowest `second`.

    The key of the first candidate, which has waited longest, is the smallest.
    """
    made: NDArray[Any] = (LEVELS - levels) * _LENGTHS + second
    if made.size > 0:
        made[0] = -1
    return made


@njit(cache=True, nogil=True)
def look_ahead_in_order(lengths: NDArray[Any], limits: NDArray[Any], row: NDArray[Any], start: NDArray[Any]) -> int:
    """Place the first n candidates, with n as large as best-fit decreasing can fit into the rows of a batch."""
    n, tokens = 0, 0
    slots = limits[ROWS] * limits[CAPACITY]
    while n < min(lengths.size, limits[MOST]) and tokens + lengths[n] <= slots:
        tokens += lengths[n]
        n += 1
    fill, count, opener = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    most = n
    while True:
        order = np.argsort(-lengths[:n], kind="mergesort")
        if best_fit_decreasing(lengths, order, limits, row, start, fill, count, opener) <= limits[ROWS]:
            break
        n -= 1
    row[n:] = -1
    if n == limits[MOST]:
        return COUNT
    return FULL if n < most or n < lengths.size or fill.sum() == slots else 0


@njit(cache=True, nogil=True)
def candidates(state: NDArray[Any], table: NDArray[Any], limits: NDArray[Any], now: int) -> NDArray[Any]:
    """Return the rows of the table from which the next batch is chosen, in order of arrival.

    Policies that keep the order of arrival need no more requests than a batch can hold. The others choose among
    `WINDOW` requests, or among more if these are too short to fill two batches. If even more requests wait, and some of
    them have a priority or a deadline, then the most urgent ones are returned, along with the one that has waited
    longest. So unless all requests are returned, those returned do not fit into one batch.
    """
    head, tail = state[HEAD], state[TAIL]
    slots = limits[ROWS] * limits[CAPACITY]
    enough = slots if limits[KEEP_ORDER] else 2 * slots
    n, tokens = 0, 0
    for at in range(head, tail):
        if tokens > enough and (limits[KEEP_ORDER] or n >= limits[WINDOW]):
            break
        n += 1
        tokens += table[at, LENGTH]
    if limits[POLICY] != LOOK_AHEAD or limits[KEEP_ORDER] or state[URGENT] == 0 or n == tail - head:
        return np.arange(head, head + n)
    levels = levels_of(table, np.arange(head, tail), limits, now)
    levels[0] = LEVELS
    chosen: NDArray[Any] = head + most_urgent(levels, n)
    while n < tail - head and table[chosen, LENGTH].sum() <= enough:  # the most urgent ones are shorter than the oldest
        n = min(2 * n, tail - head)
        chosen = head + most_urgent(levels, n)
    return chosen


@njit(cache=True, nogil=True)
def most_urgent(levels: NDArray[Any], n: int) -> NDArray[Any]:
    """Return the indices of the `n` highest levels in rising order; of equal levels, the first ones."""
    least = np.partition(levels, levels.size - n)[levels.size - n]
    left = n - np.sum(levels > least)
    chosen = np.empty(n, dtype=np.int64)
    at = 0
    for i in range(levels.size):
        if levels[i] > least or (levels[i] == least and left > 0):
            left -= levels[i] == least
            chosen[at] = i
            at += 1
    return chosen


@njit(cache=True, nogil=True)
def levels_of(table: NDArray[Any], index: NDArray[Any], limits: NDArray[Any], now: int) -> NDArray[Any]:
    """Return the urgency of requests: priority plus one per `AGE_STEP` waited, or `LEVELS` once they must leave.

    `index` has the requests' rows in the table.
    """
    levels = np.empty(index.size, dtype=np.int64)
    for i in range(index.size):
        at = index[i]
        waited = (now - table[at, ARRIVED]) // limits[AGE_STEP]
        due = table[at, DUE] <= now
        levels[i] = LEVELS if due else min(MIDDLE + table[at, PRIORITY] + waited, LEVELS - 1)
    return levels


@njit(cache=True, nogil=True)
def remove(state: NDArray[Any], table: NDArray[Any], last: int) -> None:
    """Close the gaps that removed requests (length 0) leave in the table before row `last`, by moving the others up."""
    to = last
    for at in range(last, state[HEAD] - 1, -1):
        if table[at, LENGTH] > 0:
            if to != at:
                table[to] = table[at]
            to -= 1
    state[HEAD] = to + 1


@njit(cache=True, nogil=True)
def take(state: NDArray[Any], table: NDArray[Any], at: int) -> None:
    """Subtract the request in row `at` from the totals, and set its length to 0; `remove` then closes the gap."""
    state[TOKENS] -= table[at, LENGTH]
    state[URGENT] -= is_urgent(table, at)
    table[at, LENGTH] = 0


@njit(cache=True, nogil=True)
def is_urgent(table: NDArray[Any], at: int) -> int:
    """Return 1 if the request in row `at` of the table has a priority or a deadline, and 0 otherwise."""
    return int(table[at, PRIORITY] != 0 or table[at, DUE] < NEVER)


@njit(cache=True, nogil=True)
def arrive(state: NDArray[Any], table: NDArray[Any], requests: NDArray[Any]) -> None:
    """Append requests to the table, which must have room for them."""
    for i in range(requests.shape[0]):
        at = state[TAIL]
        table[at] = requests[i]
        state[TAIL] += 1
        state[TOKENS] += table[at, LENGTH]
        state[URGENT] += is_urgent(table, at)
        state[NEXT_DUE] = min(state[NEXT_DUE], table[at, DUE])
        state[NEXT_DEADLINE] = min(state[NEXT_DEADLINE], table[at, DEADLINE])


@njit(cache=True, nogil=True)
def cancel(state: NDArray[Any], table: NDArray[Any], number: int) -> int:
    """Remove the request with this number; return 1 if it was waiting, otherwise 0."""
    low, high = state[HEAD], state[TAIL]
    while low < high:
        middle = (low + high) // 2
        if table[middle, NUMBER] < number:
            low = middle + 1
        else:
            high = middle
    if low == state[TAIL] or table[low, NUMBER] != number:
        return 0
    take(state, table, low)
    remove(state, table, low)
    return 1


@njit(cache=True, nogil=True)
def look(state: NDArray[Any], table: NDArray[Any]) -> None:
    """Set `NEXT_DUE` and `NEXT_DEADLINE` to the earliest such time of all requests that wait."""
    state[NEXT_DUE] = state[NEXT_DEADLINE] = NEVER
    for at in range(state[HEAD], state[TAIL]):
        state[NEXT_DUE] = min(state[NEXT_DUE], table[at, DUE])
        state[NEXT_DEADLINE] = min(state[NEXT_DEADLINE], table[at, DEADLINE])


@njit(cache=True, nogil=True)
def expire(state: NDArray[Any], table: NDArray[Any], now: int, numbers: NDArray[Any]) -> int:
    """Remove the requests whose deadline has come, write their numbers to `numbers`, and return how many there are."""
    n, last = 0, -1
    for at in range(state[HEAD], state[TAIL]):
        if table[at, DEADLINE] <= now:
            numbers[n] = table[at, NUMBER]
            take(state, table, at)
            n, last = n + 1, at
    if n > 0:
        remove(state, table, last)
    look(state, table)
    return n


@njit(cache=True, nogil=True)
def decide(
    state: NDArray[Any],
    table: NDArray[Any],
    limits: NDArray[Any],
    now: int,
    idle: int,
    draining: int,
    batch: NDArray[Any],
) -> tuple[int, int, int]:
    """Choose the next batch, and take its requests out of the table; return (reason, number of requests, their tokens).

    ``batch``, int64 ``[4, waiting]``, gets the number, length, row and start of each request, in order of arrival.
    Three zeros mean that no batch leaves now.
    """
    waiting = state[TAIL] - state[HEAD]
    if waiting == 0:
        return 0, 0, 0
    if state[NEXT_DUE] <= now:
        look(state, table)
    why = 0
    if idle and not limits[ACCUMULATE]:
        why = IDLE
    if draining:
        why = DRAIN
    if now - table[state[HEAD], ARRIVED] >= limits[WAIT]:
        why = TIMEOUT
    if state[NEXT_DUE] <= now:
        why = DEADLINE_NEAR
    slots = limits[ROWS] * limits[CAPACITY]
    ahead = limits[POLICY] == LOOK_AHEAD and not limits[KEEP_ORDER]
    little = ahead and waiting < limits[WINDOW] and state[TOKENS] < 2 * slots  # more to choose from may yet come
    if why == 0 and little and state[TOKENS] < slots:
        return 0, 0, 0
    index = candidates(state, table, limits, now)
    lengths = table[index, LENGTH]
    row, start = np.empty(index.size, dtype=np.int64), np.empty(index.size, dtype=np.int64)
    if ahead:
        stop = look_ahead(lengths, levels_of(table, index, limits, now), limits, row, start)
    elif limits[POLICY] == LOOK_AHEAD and not limits[FLAT]:
        stop = look_ahead_in_order(lengths, limits, row, start)
    else:
        stop = place_in_order(lengths, limits, limits[KEEP_ORDER], row, start)
    if why == 0 and little and (stop != FULL or np.sum(np.where(row >= 0, lengths, 0)) < slots):
        return 0, 0, 0
    why = stop if stop != 0 else why
    if why == 0:
        return 0, 0, 0
    n, tokens = 0, 0
    for i in range(index.size):
        if row[i] >= 0:
            at = index[i]
            batch[0, n], batch[1, n], batch[2, n], batch[3, n] = table[at, NUMBER], lengths[i], row[i], start[i]
            tokens += lengths[i]
            take(state, table, at)
            n += 1
    remove(state, table, index[-1])
    return why, n, tokens
