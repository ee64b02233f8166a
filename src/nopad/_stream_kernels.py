"""Compiled loops that pack sequences one by one and hold back a bounded number of them.

`nopad.online.stream` packs streams with them, and `nopad.planning.optimal.streamed` makes plans with them. As in
`nopad._kernels`, arguments are plain arrays, and callers validate them. The sequences held back are kept in five arrays
(`empty_buffer`), always passed in this order:

* ``state`` int64 ``[5]``: the number of sequences held (`HELD`), the number of their tokens (`TOKENS`), the number of
  sequences that ever arrived (`ARRIVED`), and the rows in ``slots`` of the oldest and the newest held sequence
  (`OLDEST`, `NEWEST`; -1: none)
* ``slots`` int64 ``[buffer, 5]``: one row for each held sequence. It has the sequence's number and length (`NUMBER`,
  `LENGTH`), the row of the next held sequence of the same length (`NEXT`), and the rows of the held sequences just
  before and just after it in the order of arrival (`BEFORE`, `AFTER`); -1: none. Unused rows form a stack linked by
  `NEXT`. The number of the stack's top row is in the last row of ``queues``, in column `FIRST`
* ``queues`` int32 ``[capacity + 2, 3]``: row l is for length l. It has the number of held sequences of this length
  (`COUNT`), and the rows in ``slots`` of the first and the last of them (`FIRST`, `LAST`)
* ``words`` uint64: the set of the held lengths, in levels as in `nopad._bit_kernels`, the lowest level first; and one
  more word at the end, which `window` needs
* ``mirror`` uint64 ``[capacity // 64 + 2]``: bit ``capacity - l`` is set if length l is held

``mirror`` serves to find two held lengths that together fill the room of a pack (its free tokens). Bit a of ``words``
is set if length a is held, and bit ``capacity - room + a`` of ``mirror`` is set if length ``room - a`` is held. So one
AND of two words tests 64 values of a. Near the capacity, such an AND also reads words of the next level. They give no
false pairs, since ``mirror`` has no bits there.

Functions that return a length or a sequence number return -1 if there is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._bit_kernels import add, at_least, at_most, empty_set, lowest_bit, remove

HELD, TOKENS, ARRIVED, OLDEST, NEWEST = 0, 1, 2, 3, 4
NUMBER, LENGTH, NEXT, BEFORE, AFTER = 0, 1, 2, 3, 4
COUNT, FIRST, LAST = 0, 1, 2

ANCHORS = 64  # longest lengths tried as the first member of a pack
PAIRS = 64  # pairs compared for one room
STEPS = 8  # lengths considered when the padding of a pack is estimated

_0, _1, _63 = np.uint64(0), np.uint64(1), np.uint64(63)


def empty_buffer(capacity: int, buffer: int, arrived: int = 0) -> tuple[NDArray[Any], ...]:
    """Return the five arrays of an empty buffer (see the module), which can hold at most `buffer` sequences.

    `arrived` is the number that the first sequence will get. `capacity` is the most tokens of a pack.
    """
    slots = np.full((buffer, 5), -1, dtype=np.int64)
    slots[:-1, NEXT] = np.arange(1, buffer)  # the unused rows, linked
    return (
        np.array([0, 0, arrived, -1, -1], dtype=np.int64),
        slots,
        np.zeros((capacity + 2, 3), dtype=np.int32),
        np.zeros(empty_set(capacity).size + 1, dtype=np.uint64),
        np.zeros(capacity // 64 + 2, dtype=np.uint64),
    )


@njit(cache=True, nogil=True)
def window(row: NDArray[Any], at: int) -> np.uint64:
    """Return 64 bits of `row`, from bit `at` on, as one word; the lowest bit of the result is bit `at`.

    The word with bit `at` must not be the last word of `row`, since the next word is read too.
    """
    word, shift = at >> 6, np.uint64(at & 63)
    bits: np.uint64 = (row[word] >> shift) | ((row[word + 1] << _1) << (_63 - shift))
    return bits


@njit(cache=True, nogil=True)
def mark(queues: NDArray[Any], words: NDArray[Any], mirror: NDArray[Any], length: int, change: int) -> None:
    """Add `change` (1 or -1) to the number of held sequences of this length.

    `words` and `mirror` mark the lengths of which sequences are held (see the module). They change if the number goes
    from 0 to 1, or from 1 to 0.
    """
    queues[length, COUNT] += change
    if queues[length, COUNT] == (change + 1) // 2:  # the count went from 0 to 1, or from 1 to 0
        capacity = queues.shape[0] - 2
        if change > 0:
            add(words, capacity, length)
        else:
            remove(words, capacity, length)
        mirrored = capacity - length
        mirror[mirrored >> 6] ^= _1 << np.uint64(mirrored & 63)


@njit(cache=True, nogil=True)
def insert(
    state: NDArray[Any],
    slots: NDArray[Any],
    queues: NDArray[Any],
    words: NDArray[Any],
    mirror: NDArray[Any],
    number: int,
    length: int,
) -> None:
    """Add a sequence with this number and length to those held back, as the newest; the buffer must not be full."""
    unused = queues.shape[0] - 1
    slot, newest = queues[unused, FIRST], state[NEWEST]
    queues[unused, FIRST] = slots[slot, NEXT]
    slots[slot, NUMBER], slots[slot, LENGTH], slots[slot, NEXT] = number, length, -1
    slots[slot, BEFORE], slots[slot, AFTER] = newest, -1
    if newest < 0:
        state[OLDEST] = slot
    else:
        slots[newest, AFTER] = slot
    state[NEWEST] = slot
    if queues[length, COUNT] == 0:
        queues[length, FIRST] = slot
    else:
        slots[queues[length, LAST], NEXT] = slot
    queues[length, LAST] = slot
    state[HELD] += 1
    state[TOKENS] += length
    mark(queues, words, mirror, length, 1)


@njit(cache=True, nogil=True)
def take(
    state: NDArray[Any],
    slots: NDArray[Any],
    queues: NDArray[Any],
    words: NDArray[Any],
    mirror: NDArray[Any],
    length: int,
) -> int:
    """Remove the oldest held sequence of this length, and return its number; there must be such a sequence."""
    unused = queues.shape[0] - 1
    slot = queues[length, FIRST]
    queues[length, FIRST] = slots[slot, NEXT]
    slots[slot, NEXT] = queues[unused, FIRST]
    queues[unused, FIRST] = slot
    before, after = slots[slot, BEFORE], slots[slot, AFTER]
    if before < 0:
        state[OLDEST] = after
    else:
        slots[before, AFTER] = after
    if after < 0:
        state[NEWEST] = before
    else:
        slots[after, BEFORE] = before
    state[HELD] -= 1
    state[TOKENS] -= length
    mark(queues, words, mirror, length, -1)
    return int(slots[slot, NUMBER])


@njit(cache=True, nogil=True)
def exact(queues: NDArray[Any], words: NDArray[Any], mirror: NDArray[Any], room: int, places: int) -> int:
    """Return the held length that fills `room` tokens exactly, or the longer of two that fill them together.

    The result is -1 if there are no such lengths. `places` is how many sequences may still be added to the pack; if it
    is 1, no pairs are considered. If there are several ways to fill the room, the length or pair with the most held
    sequences is taken, so that the buffer keeps many different lengths; a pair counts the sequences of both lengths.
    Pairs of lengths near half the room are compared first, up to 64 pairs at a time. The search ends once `PAIRS` or
    more pairs are compared.
    """
    best, most = -1, 0
    if queues[room, COUNT] > 0:
        best, most = room, int(queues[room, COUNT])
    if places < 2:
        return best
    shift = queues.shape[0] - 2 - room
    longer, compared = (room + 1) >> 1, 0
    while longer < room and compared < PAIRS:
        # Bit i is set if lengths longer + i and room - longer - i are both held.
        both = window(words, longer) & window(mirror, longer + shift)
        while both != _0:
            a = longer + lowest_bit(both)
            both &= both - _1
            b = room - a
            copies = int(queues[a, COUNT]) + int(queues[b, COUNT])
            # A pair of equal lengths needs two sequences of that length.
            if copies > most and (a != b or queues[a, COUNT] > 1):
                best, most = a, copies
            compared += 1
        longer += 64
    return best


@njit(cache=True, nogil=True)
def padding(queues: NDArray[Any], words: NDArray[Any], room: int, places: int) -> int:
    """Return an estimate of how many of `room` tokens stay empty if held sequences are added to a pack.

    The estimate adds the longest sequence that fits, again and again, until `places` sequences are added or none fits.
    At most `STEPS` different lengths are considered. Nothing is changed.
    """
    capacity, length = queues.shape[0] - 2, room
    for _ in range(STEPS):
        length = at_most(words, capacity, min(room, length))
        if length < 0 or places == 0:
            break
        copies = min(int(queues[length, COUNT]), room // length, places)
        room -= copies * length
        places -= copies
        length -= 1
    return room


@njit(cache=True, nogil=True)
def anchor(queues: NDArray[Any], words: NDArray[Any], mirror: NDArray[Any], capacity: int, depth: int) -> int:
    """Return the length with which the next pack, of at most `depth` sequences, begins; -1 if no sequence is held.

    Only held lengths of at least a third of the capacity are tried, at most `ANCHORS` of them, the longest first. The
    result is the first of these for which one or two other held sequences fill the rest of the pack exactly (one, if
    `depth` is 2). If there is none, it is the one of these whose pack would have the least padding by the estimate of
    `padding`. If all held lengths are below a third of the capacity, the result is the longest.
    """
    length, best, least = capacity, -1, capacity + 1
    for _ in range(ANCHORS):
        length = at_most(words, capacity, length - 1)
        if length * 3 < capacity:  # three lengths up to this one cannot fill a pack; -1 means that none is left
            return best if best >= 0 else length
        # One sequence of this length begins the pack, so it cannot also complete it.
        mark(queues, words, mirror, length, -1)
        found = exact(queues, words, mirror, capacity - length, depth - 1)
        left = capacity if found >= 0 else padding(queues, words, capacity - length, depth - 1)
        mark(queues, words, mirror, length, 1)
        if found >= 0:
            return length
        if left < least:
            best, least = length, left
    return best


@njit(cache=True, nogil=True)
def emit(
    state: NDArray[Any],
    slots: NDArray[Any],
    queues: NDArray[Any],
    words: NDArray[Any],
    mirror: NDArray[Any],
    first: int,
    depth: int,
    sequence: NDArray[Any],
    at: int,
) -> int:
    """Write one pack that begins with length `first` to ``sequence[at:]``; return where in `sequence` the pack ends.

    The sequences of the pack are removed from those held back. The longest sequence that fits is added again and again.
    But if one held sequence would fill the room exactly, or two (if two may still be added), one of the length that
    `exact` returns is added instead. The pack ends when it is full, when nothing fits, or when it holds `depth`
    sequences.

    There is another rule if the held sequences are so short that `depth` of them, at their average length, would not
    fill a pack. Then the room is shared equally among the sequences that may still be added, as long as these are more
    than two. The next sequence is the longest that is not longer than its share; if there is none, it is the shortest
    that fits. The last two sequences are chosen as above.
    """
    capacity = queues.shape[0] - 2
    # Packs of `depth` sequences of average length would not be full, so places are scarcer than room.
    scarce = depth <= capacity and state[TOKENS] < (state[HELD] * capacity + depth - 1) // depth
    sequence[at] = take(state, slots, queues, words, mirror, first)
    at += 1
    room, places = capacity - first, depth - 1
    while room > 0 and places > 0 and state[HELD] > 0:
        if scarce and places > 2:
            length = at_most(words, capacity, max(room // places, 1))
            if length < 0:
                length = at_least(words, capacity, room // places + 1)
                if length > room:
                    break
        else:
            length = at_most(words, capacity, room)
            if length < 0:
                break
            if 2 * length >= room:
                ending = exact(queues, words, mirror, room, places)
                length = ending if ending >= 0 else length
        sequence[at] = take(state, slots, queues, words, mirror, length)
        at += 1
        room -= length
        places -= 1
    return at


@njit(cache=True, nogil=True)
def push(
    state: NDArray[Any],
    slots: NDArray[Any],
    queues: NDArray[Any],
    words: NDArray[Any],
    mirror: NDArray[Any],
    lengths: NDArray[Any],
    depth: int,
    patience: int,
    most: int,
    indptr: NDArray[Any],
    sequence: NDArray[Any],
) -> int:
    """Add sequences of these `lengths` one by one; write the packs that are made, and return how many there are.

    When the buffer is full or holds at least `most` tokens, packs are made until neither is so. A pack is also made
    when `patience` sequences have arrived after one that is still held; this pack begins with the length of the oldest
    held sequence. A sequence as long as the capacity becomes a pack by itself at once. If `depth`, the most sequences
    of a pack, is 1, every sequence becomes a pack by itself.

    Pack p gets the sequence numbers ``sequence[indptr[p]:indptr[p + 1]]``, where ``indptr[0]`` must be 0.
    """
    capacity = queues.shape[0] - 2
    packs, at = 0, 0
    for i in range(lengths.shape[0]):
        length = int(lengths[i])
        number = state[ARRIVED]
        state[ARRIVED] += 1
        if length == capacity or depth == 1:
            sequence[at] = number
            at += 1
            packs += 1
            indptr[packs] = at
        else:
            insert(state, slots, queues, words, mirror, number, length)
            while state[HELD] == slots.shape[0] or (state[TOKENS] >= most and state[HELD] > 0):
                first = anchor(queues, words, mirror, capacity, depth)
                at = emit(state, slots, queues, words, mirror, first, depth, sequence, at)
                packs += 1
                indptr[packs] = at
        while state[HELD] > 0 and number - slots[state[OLDEST], NUMBER] >= patience:
            at = emit(state, slots, queues, words, mirror, slots[state[OLDEST], LENGTH], depth, sequence, at)
            packs += 1
            indptr[packs] = at
    return packs


@njit(cache=True, nogil=True)
def drain(
    state: NDArray[Any],
    slots: NDArray[Any],
    queues: NDArray[Any],
    words: NDArray[Any],
    mirror: NDArray[Any],
    depth: int,
    indptr: NDArray[Any],
    sequence: NDArray[Any],
) -> int:
    """Write packs of all sequences held back, so that none is held any more; return how many packs there are.

    A pack holds at most `depth` sequences. Pack p gets the sequence numbers ``sequence[indptr[p]:indptr[p + 1]]``,
    where ``indptr[0]`` must be 0.
    """
    packs, at = 0, 0
    while state[HELD] > 0:
        first = anchor(queues, words, mirror, queues.shape[0] - 2, depth)
        at = emit(state, slots, queues, words, mirror, first, depth, sequence, at)
        packs += 1
        indptr[packs] = at
    return packs
