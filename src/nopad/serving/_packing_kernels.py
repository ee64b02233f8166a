"""Compiled loops of the online packer: they choose which waiting requests form the next batch, and whether it leaves.

As in `nopad._kernels`, arguments are plain arrays, and callers validate them. Requests wait in ``table`` int64
``[places, 6]``, in order of arrival from row ``state[HEAD]`` to before ``state[TAIL]``; the names of the columns, and
of the places in the other arrays, are defined below. Times are in nanoseconds; `NEVER` is later than any of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad.serving._placing_kernels import (
    ACCUMULATE,
    AGE_STEP,
    CAPACITY,
    FLAT,
    FULL,
    KEEP_ORDER,
    LEVELS,
    LOOK_AHEAD,
    MOST,
    POLICY,
    ROWS,
    SEPARATOR,
    WAIT,
    WINDOW,
    look_ahead,
    look_ahead_in_order,
    place_in_order,
    top_up,
)

NUMBER, LENGTH, ARRIVED, DUE, DEADLINE, PRIORITY = range(6)  # columns of the table
HEAD, TAIL, TOKENS, NEXT_DUE, NEXT_DEADLINE, URGENT = range(6)  # places of the state; NEXT_... may be too early
TIMEOUT, IDLE, DEADLINE_NEAR, DRAIN = range(3, 7)  # why a batch leaves, besides `FULL` and `COUNT`; 0: none leaves

NEVER = 2**62
MIDDLE = 2**20  # urgency of a new request of priority 0


@njit(cache=True, nogil=True)
def candidates(state: NDArray[Any], table: NDArray[Any], limits: NDArray[Any], now: int) -> NDArray[Any]:
    """Return the rows of the table from which the next batch is chosen, in order of arrival.

    Policies that keep the order of arrival need no more requests than a batch can hold. The others choose among
    `WINDOW` requests, or among more if these are too short to fill two batches. With `LOOK_AHEAD`, if even more
    requests wait and some of them have a priority or a deadline, the most urgent requests are returned, along with the
    request that has waited longest. Unless all requests are returned, those returned do not fit into one batch.
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
    """Return the indices of the `n` highest levels; of equal levels, the first ones. The indices ascend."""
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
    """Return the urgency of the requests whose rows in the table are `index`; int64, same shape.

    It is `LEVELS` once a request must leave. Before, it is `MIDDLE` + priority + 1 per `AGE_STEP` waited, and less than
    `LEVELS`.
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
    """Close the gaps of removed requests (length 0) in the table up to row `last`; the others move towards `last`."""
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
def among_all(
    index: NDArray[Any], head: int, waiting: int, row: NDArray[Any], start: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Extend `index`, `row` and `start` from some candidates to all waiting requests, and return them.

    `index` has rows of the table; `row` and `start` are places in the batch. Requests that are not in the given `index`
    get row -1 and start 0.
    """
    row_of, start_of = np.full(waiting, -1), np.zeros(waiting, dtype=np.int64)
    row_of[index - head], start_of[index - head] = row, start
    return np.arange(head, head + waiting), row_of, start_of


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
    # While few tokens wait, requests that arrive later may allow a better choice.
    little = ahead and waiting < min(limits[WINDOW], 2 * limits[MOST]) and state[TOKENS] < 2 * slots
    if why == 0 and little and state[TOKENS] + limits[SEPARATOR] * waiting < slots:
        return 0, 0, 0
    index = candidates(state, table, limits, now)
    lengths = table[index, LENGTH]
    row, start = np.empty(index.size, dtype=np.int64), np.empty(index.size, dtype=np.int64)
    if ahead:
        look_ahead(lengths, levels_of(table, index, limits, now), limits, row, start)
    elif limits[POLICY] == LOOK_AHEAD and not limits[FLAT]:
        look_ahead_in_order(lengths, limits, row, start)
    else:
        place_in_order(lengths, limits, limits[KEEP_ORDER], row, start)
    stop, widest = top_up(lengths, limits, limits[KEEP_ORDER], row, start)
    if why == 0 and little and widest > 0:
        return 0, 0, 0
    if index.size < waiting and stop == FULL and widest > 0 and not limits[KEEP_ORDER]:
        index, row, start = among_all(index, state[HEAD], waiting, row, start)
        lengths = table[index, LENGTH]
        stop, widest = top_up(lengths, limits, 0, row, start)
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
