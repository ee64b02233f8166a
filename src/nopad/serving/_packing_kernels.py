"""Compiled loops of the online packer: they choose which waiting requests form the next batch, and whether it leaves.

As in `nopad._kernels`, arguments are plain arrays, and callers validate them. Requests wait in ``table`` int64
``[places, 6]``, one in each row, in order of arrival. They lie from row ``state[HEAD]`` to before row ``state[TAIL]``.
``state`` int64 ``[8]`` also has totals of the requests that wait. ``limits`` are the settings of a `Batching`
(`nopad.serving.Batching.limits`). The names of the table's columns, and of the places in the other arrays, are defined
below and in `nopad.serving._placing_kernels`.

The row of a request that has left is a gap (length `GONE`, never due) until gaps are closed. Many are closed at once,
since moving thousands of requests takes longer than choosing a batch. Row ``state[HEAD]`` is never a gap. Times are in
nanoseconds; `NEVER` is later than any of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._sort_kernels import ascending, gathered, smallest
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
    NEXT_FIT,
    POLICY,
    ROWS,
    SEPARATOR,
    WAIT,
    WINDOW,
    filled,
    look_ahead,
    look_ahead_in_order,
    place_in_order,
    put,
    stopped,
    top_up,
    widest_of,
)

NUMBER, LENGTH, ARRIVED, DUE, DEADLINE, PRIORITY = range(6)  # columns of the table
# Places of the state. NEXT_DUE and NEXT_DEADLINE may be too early. NEXT is the number of the next request to arrive.
HEAD, TAIL, TOKENS, NEXT_DUE, NEXT_DEADLINE, URGENT, GAPS, NEXT = range(8)
TIMEOUT, IDLE, DEADLINE_NEAR, DRAIN = range(3, 7)  # why a batch leaves, besides `FULL` and `COUNT`; 0: none leaves

NEVER = 2**62
MIDDLE = 2**20  # urgency of a new request of priority 0
GONE = 2**62  # length of a gap
GAP = -(2**30)  # urgency of a gap, below all others
BLOCK = 64  # rows that are looked at together
MISSES = 1024  # waiting requests that are looked at in vain, one after the other, before an estimate goes on
CLOSED = 4  # gaps are closed when they are more than one in CLOSED rows


@njit(cache=True, nogil=True)
def waiting_of(state: NDArray[Any]) -> int:
    """Return the number of requests that wait."""
    return int(state[TAIL] - state[HEAD] - state[GAPS])


@njit(cache=True, nogil=True)
def candidates(state: NDArray[Any], table: NDArray[Any], limits: NDArray[Any], now: int) -> NDArray[Any]:
    """Return the rows of the table from which the next batch is chosen, in order of arrival.

    There are three cases:

    * With `KEEP_ORDER` (requests must leave in order of arrival), these are the first requests, until together
      they have more tokens than a batch has slots.
    * Without `KEEP_ORDER`, with `LOOK_AHEAD`, and if some request has a priority or a deadline, these are the most
      urgent requests: at least as many as in the next case, and with more tokens than two batches have slots. The
      request that has waited longest is always among them.
    * Otherwise, these are the first `WINDOW` requests, and further ones until together they have more tokens than two
      batches have slots.

    If fewer requests wait, all of them are returned. `now` is the time in nanoseconds.
    """
    head, tail, waiting = state[HEAD], state[TAIL], waiting_of(state)
    slots = limits[ROWS] * limits[CAPACITY]
    enough = slots if limits[KEEP_ORDER] else 2 * slots
    first = np.empty(waiting, dtype=np.int64)
    n: Any = np.int64(0)  # a literal 0 is a type of its own: Numba would compile twice what gets it
    tokens = 0
    for at in range(head, tail):
        if tokens > enough and (limits[KEEP_ORDER] or n >= limits[WINDOW]):
            break
        if table[at, LENGTH] < GONE:
            first[n] = at
            n += 1
            tokens += table[at, LENGTH]
    if limits[POLICY] != LOOK_AHEAD or limits[KEEP_ORDER] or state[URGENT] == 0 or n == waiting:
        return first[:n]
    every = np.empty(tail - head, dtype=np.int64)
    for at in range(head, tail):
        every[at - head] = at
    levels = levels_of(table, every, limits, now)
    levels[0] = 2 * LEVELS
    while True:
        tokens, chosen = 0, most_urgent(levels, n)
        for i in range(n):
            chosen[i] += head
            tokens += table[chosen[i], LENGTH]
        if n == waiting or tokens > enough:
            return chosen
        n = min(2 * n, waiting)  # the most urgent ones are shorter than the oldest


@njit(cache=True, nogil=True)
def most_urgent(levels: NDArray[Any], n: int) -> NDArray[Any]:
    """Return the indices of the `n` highest levels, ascending; of equal levels, the first ones.

    Gaps are left out, so there must be `n` levels that are no gaps. On the way, at most 2 n indices are kept. When
    there are 2 n, only those of the n highest levels stay. From then on, a level is passed over unless it is above the
    lowest of these n.
    """
    kept = np.empty(2 * n, dtype=np.int64)
    size, least = 0, GAP
    for i in range(levels.size):
        if levels[i] > least:
            kept[size] = i
            size += 1
            if size == kept.size:
                size, least = n, keep_highest(levels, kept, n)
    keep_highest(levels, kept[:size], n)
    return kept[:n]


@njit(cache=True, nogil=True)
def keep_highest(levels: NDArray[Any], kept: NDArray[Any], n: int) -> int:
    """Move the indices of the `n` highest levels to the beginning of `kept`; return the lowest of these levels.

    Only the levels at the indices in `kept` count. There are at least `n` such indices, ascending; of equal levels, the
    first ones are taken. What is behind the first `n` indices afterwards has no meaning.
    """
    least = smallest(gathered(levels, kept), kept.size - n)
    left = n  # how many of the least level are among them
    for at in kept:
        left -= levels[at] > least
    to = 0
    for at in kept:
        level = levels[at]
        if level > least or (level == least and left > 0):
            left -= level == least
            kept[to] = at
            to += 1
    return least


@njit(cache=True, nogil=True)
def levels_of(table: NDArray[Any], index: NDArray[Any], limits: NDArray[Any], now: int) -> NDArray[Any]:
    """Return the urgency of the requests whose rows in the table are `index`; int64, same shape.

    The urgency of a request whose time to leave has come is `LEVELS`, plus 1 for each distinct later deadline among
    such requests. Otherwise, it is the sum of `MIDDLE`, the request's priority, and 1 for each `AGE_STEP` that it has
    waited; at most ``LEVELS - 1``. Gaps have the urgency `GAP`. `index` is in order of arrival. `now` is the time in
    nanoseconds.
    """
    levels = np.empty(index.size, dtype=np.int64)
    due, deadlines, n = np.empty(index.size, dtype=np.int64), np.empty(index.size, dtype=np.int64), 0
    waited, until = 0, -1  # those that arrived until then have waited so many steps, or more
    for i in range(index.size):
        at = index[i]
        if table[at, ARRIVED] > until:  # divisions would take most of the time
            waited = (now - table[at, ARRIVED]) // limits[AGE_STEP]
            until = now - waited * limits[AGE_STEP]
        levels[i] = min(MIDDLE + table[at, PRIORITY] + waited, LEVELS - 1) if table[at, LENGTH] < GONE else GAP
        if table[at, DUE] <= now:
            due[n], deadlines[n] = i, table[at, DEADLINE]
            n += 1
    if n > 0:
        order = ascending(deadlines[:n])
        level, last = LEVELS, deadlines[order[n - 1]]
        for j in range(n - 1, -1, -1):
            level += deadlines[order[j]] != last
            last = deadlines[order[j]]
            levels[due[order[j]]] = level
    return levels


@njit(cache=True, nogil=True)
def lengths_of(table: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
    """Return the lengths of the requests whose rows in the table are `index`; int64, same shape."""
    found = np.empty(index.size, dtype=np.int64)
    for i in range(index.size):
        found[i] = table[index[i], LENGTH]
    return found


@njit(cache=True, nogil=True)
def take(state: NDArray[Any], table: NDArray[Any], at: int) -> None:
    """Make row `at` of the table a gap, and subtract its request from the totals in `state`.

    Call `close` afterwards.
    """
    state[TOKENS] -= table[at, LENGTH]
    state[URGENT] -= is_urgent(table, at)
    state[GAPS] += 1
    table[at, LENGTH], table[at, PRIORITY] = GONE, 0
    table[at, DUE] = table[at, DEADLINE] = NEVER


@njit(cache=True, nogil=True)
def close(state: NDArray[Any], table: NDArray[Any]) -> None:
    """Remove the gaps before the first request, so that no gap is the first row.

    If more than one in `CLOSED` of the remaining rows is a gap, close all gaps: requests move towards the table's end.
    """
    while state[GAPS] > 0 and table[state[HEAD], LENGTH] == GONE:
        state[HEAD] += 1
        state[GAPS] -= 1
    if CLOSED * state[GAPS] <= state[TAIL] - state[HEAD]:
        return
    to = state[TAIL]
    for at in range(state[TAIL] - 1, state[HEAD] - 1, -1):
        if table[at, LENGTH] < GONE:
            to -= 1
            if to != at:
                copy(table, at, table, to)
    state[HEAD], state[GAPS] = to, 0


@njit(cache=True, nogil=True)
def is_urgent(table: NDArray[Any], at: int) -> int:
    """Return 1 if the request in row `at` of the table has a priority or a deadline, and 0 otherwise."""
    return int(table[at, PRIORITY] != 0 or table[at, DUE] < NEVER)


@njit(cache=True, nogil=True)
def arrive(state: NDArray[Any], table: NDArray[Any], requests: NDArray[Any]) -> None:
    """Append requests, int64 ``[n, 6]``, to the table, which must have room for them; update the totals in `state`.

    Their numbers ascend. Requests that have arrived before are passed over, so that a repeated call does no harm.
    """
    for i in range(requests.shape[0]):
        if requests[i, NUMBER] < state[NEXT]:
            continue
        at = state[TAIL]
        state[NEXT] = requests[i, NUMBER] + 1
        copy(requests, i, table, at)
        state[TAIL] += 1
        state[TOKENS] += table[at, LENGTH]
        state[URGENT] += is_urgent(table, at)
        state[NEXT_DUE] = min(state[NEXT_DUE], table[at, DUE])
        state[NEXT_DEADLINE] = min(state[NEXT_DEADLINE], table[at, DEADLINE])


@njit(cache=True, nogil=True)
def copy(table: NDArray[Any], at: int, other: NDArray[Any], to: int) -> None:
    """Copy row `at` of a table to row `to` of a table."""
    for column in range(table.shape[1]):
        other[to, column] = table[at, column]


@njit(cache=True, nogil=True)
def cancel(state: NDArray[Any], table: NDArray[Any], number: int) -> int:
    """Remove the request with this number from those that wait; return 1 if it was waiting, otherwise 0."""
    low, high = state[HEAD], state[TAIL]
    while low < high:
        middle = (low + high) // 2
        if table[middle, NUMBER] < number:
            low = middle + 1
        else:
            high = middle
    if low == state[TAIL] or table[low, NUMBER] != number or table[low, LENGTH] == GONE:
        return 0
    take(state, table, low)
    close(state, table)
    return 1


@njit(cache=True, nogil=True)
def ahead(
    state: NDArray[Any], table: NDArray[Any], limits: NDArray[Any], deadline: int, mine: NDArray[Any]
) -> tuple[int, int]:
    """Return how many batches run until a new request has run completely, and the number of tokens in these batches.

    `mine` has the lengths of the request's sequences, int64 ``[k]``, and `deadline` is its deadline. All rows of a
    batch are taken as one row with the slots of all, and separators are not counted.

    Each batch begins with the request that has waited longest. Then come those with the new request's `deadline` or an
    earlier one, the new request itself, and at last all others; of each kind in order of arrival. What does not fit is
    passed over, up to `MISSES` in a row. But without `LOOK_AHEAD`, or with `KEEP_ORDER`, all waiting requests come
    before the new one, and the first that does not fit ends a batch.
    """
    head, n, k = state[HEAD], state[TAIL] - state[HEAD], mine.size
    in_order = limits[POLICY] != LOOK_AHEAD or limits[KEEP_ORDER] != 0
    lengths = np.empty(n + k, dtype=np.int64)
    before, waits = np.ones(n + k, dtype=np.bool_), np.ones(n + k, dtype=np.bool_)
    least, left_of_mine, batches, tokens = GONE, k, 0, 0
    for at in range(n + k):
        lengths[at] = table[head + at, LENGTH] if at < n else mine[at - n]
        waits[at] = lengths[at] < GONE
        before[at] = in_order or at >= n or table[head + at, DEADLINE] <= deadline
        least = min(least, lengths[at])
    begins = np.zeros(2, dtype=np.int64)  # of each kind (before: 1), what lies before has left
    oldest = 0
    while left_of_mine > 0:
        left, places = limits[ROWS] * limits[CAPACITY], limits[MOST]
        while oldest < n + k and not waits[oldest]:
            oldest += 1
        waits[oldest] = False  # it may be longer than a flat batch
        left_of_mine -= oldest >= n
        left -= lengths[oldest]
        tokens += lengths[oldest]
        places -= 1
        for kind in (1, 0):
            whole, misses = True, 0  # whether all of this kind up to here have left
            for at in range(begins[kind], n + k):
                if places == 0 or left < least or misses == MISSES:
                    break
                if not waits[at] or before[at] != kind:
                    begins[kind] += whole and at == begins[kind]
                    continue
                if lengths[at] > left:
                    whole, misses = False, misses + 1
                    if in_order:
                        break
                    continue
                waits[at], misses = False, 0
                left_of_mine -= at >= n
                left -= lengths[at]
                tokens += lengths[at]
                places -= 1
        batches += 1
        if places > 0 and left >= least and not in_order:  # all were looked at: not again for what has left
            least = GONE
            for at in range(oldest, n + k):
                if waits[at]:
                    least = min(least, lengths[at])
    return batches, tokens


@njit(cache=True, nogil=True)
def look(state: NDArray[Any], table: NDArray[Any]) -> None:
    """Set `NEXT_DUE` and `NEXT_DEADLINE` to the earliest `DUE` and `DEADLINE` of the requests that wait."""
    state[NEXT_DUE] = state[NEXT_DEADLINE] = NEVER
    for at in range(state[HEAD], state[TAIL]):
        state[NEXT_DUE] = min(state[NEXT_DUE], table[at, DUE])
        state[NEXT_DEADLINE] = min(state[NEXT_DEADLINE], table[at, DEADLINE])


@njit(cache=True, nogil=True)
def expire(state: NDArray[Any], table: NDArray[Any], now: int, numbers: NDArray[Any]) -> int:
    """Remove the requests whose deadline has come, write their numbers to `numbers`, and return how many there are.

    `now` is the time in nanoseconds. `numbers` needs a place for each request that waits.
    """
    n = 0
    for at in range(state[HEAD], state[TAIL]):
        if table[at, DEADLINE] <= now:
            numbers[n] = table[at, NUMBER]
            take(state, table, at)
            n += 1
    close(state, table)
    look(state, table)
    return n


@njit(cache=True, nogil=True)
def top_up_later(
    state: NDArray[Any],
    table: NDArray[Any],
    limits: NDArray[Any],
    index: NDArray[Any],
    row: NDArray[Any],
    start: NDArray[Any],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], int, int]:
    """Place waiting requests that are no candidates, in order of arrival, until no more of them fit.

    `index` has the candidates' rows of the table. `row` and `start` say where in the batch each candidate is placed so
    far (`row` -1: it is not). Return (index, row, start, reason, widest). The first three are `index`, `row` and
    `start` with the requests added that are placed now, in order of arrival. The reason is why the batch takes no more
    (`COUNT` or `FULL`), or 0; widest is the length of the longest request that still fits. The scan ends as soon as
    nothing more can fit. So it is long only while the requests that wait are too long for the slots that are left.
    """
    waiting = waiting_of(state)
    fill, placed = filled(lengths_of(table, index), limits, row, start)
    widest = widest_of(fill, limits)
    most = min(waiting, index.size + min(limits[MOST] - placed, limits[ROWS] * limits[CAPACITY]))
    found = np.empty((3, most), dtype=np.int64)
    n, known = 0, 0
    for begin in range(state[HEAD], state[TAIL], BLOCK):
        if placed == limits[MOST] or widest < 1:
            break
        end = min(begin + BLOCK, state[TAIL])
        fits = shortest(table, begin, end) <= widest
        for at in range(begin, end):
            if known < index.size and index[known] == at:
                found[0, n], found[1, n], found[2, n] = at, row[known], start[known]
                n, known = n + 1, known + 1
            elif fits and table[at, LENGTH] <= widest and placed < limits[MOST]:
                found[0, n] = at
                found[1, n], found[2, n] = put(fill, table[at, LENGTH], limits)
                n, placed = n + 1, placed + 1
                widest = widest_of(fill, limits)
            elif not fits and known == index.size:
                break
    for at in range(known, index.size):
        found[0, n], found[1, n], found[2, n] = index[at], row[at], start[at]
        n += 1
    return found[0, :n], found[1, :n], found[2, :n], stopped(placed, waiting, widest, limits), widest


@njit(cache=True, nogil=True)
def shortest(table: NDArray[Any], begin: int, end: int) -> int:
    """Return the length of the shortest request in the rows `begin` to `end` (exclusive) of the table.

    The result is `GONE` if there are only gaps. This loop compiles to vector instructions, so it takes a fraction of
    the time of a search.
    """
    least = GONE
    for at in range(begin, end):
        least = min(least, table[at, LENGTH])
    return least


@njit(cache=True, nogil=True)
def decide(
    state: NDArray[Any],
    table: NDArray[Any],
    limits: NDArray[Any],
    now: int,
    idle: int,
    draining: int,
    stuck: int,
    batch: NDArray[Any],
) -> tuple[int, int, int]:
    """Choose the next batch, and take its requests out of the table; return (reason, number of requests, their tokens).

    `now` is the time in nanoseconds. `idle` is 1 if the model has nothing to run, `draining` is 1 if no more requests
    will come, and `stuck` is 1 if none can come before a batch has left; else they are 0. ``batch``, int64 ``[4, n]``,
    gets the number, length, row and start of each request, in order of arrival; n must be large enough. The reason why
    the batch leaves is `FULL`, `COUNT`, `TIMEOUT`, `IDLE`, `DEADLINE_NEAR` or `DRAIN`. If no batch leaves now, the
    result is (0, 0, 0).
    """
    waiting = waiting_of(state)
    if waiting == 0:
        return 0, 0, 0
    if state[NEXT_DUE] <= now:
        look(state, table)
    why = 0
    if idle and not limits[ACCUMULATE]:
        why = IDLE
    if stuck and idle and why == 0:  # waiting makes it no fuller
        why = FULL
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
    lengths = lengths_of(table, index)
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
    passed_over = index.size < waiting and not limits[KEEP_ORDER] and limits[POLICY] != NEXT_FIT
    if passed_over and stop == FULL and widest > 0:
        index, row, start, stop, widest = top_up_later(state, table, limits, index, row, start)
    why = stop if stop != 0 else why
    if why == 0:
        return 0, 0, 0
    n, tokens = 0, 0
    for i in range(index.size):
        if row[i] >= 0:
            at = index[i]
            batch[0, n], batch[1, n], batch[2, n], batch[3, n] = table[at, NUMBER], table[at, LENGTH], row[i], start[i]
            tokens += table[at, LENGTH]
            take(state, table, at)
            n += 1
    close(state, table)
    return why, n, tokens
