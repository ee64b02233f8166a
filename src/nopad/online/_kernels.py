"""The compiled loops of `nopad.online.stream`.

Like `nopad._kernels`: plain arrays in and out, no policy, callers validate. What is held is kept in five arrays, which
always travel together, in this order:

* ``state`` int64 ``[5]``: `HELD` how many sequences, their `TOKENS`, how many ever `ARRIVED`, and the slots of the
  `OLDEST` and the `NEWEST` (-1: none)
* ``slots`` int64 ``[buffer, 5]``, one row a held sequence: `NUMBER`, `LENGTH`, the `NEXT` of its length, and its
  neighbours `BEFORE` and `AFTER` in order of arrival (-1: none). Unused rows are a stack linked by `NEXT`; its top
  stands in the last entry of ``queues``
* ``queues`` int32 ``[capacity + 2, 3]``, one row per length: `COUNT` held, and the slots of the `FIRST` and `LAST`
* ``words`` uint64, the set of the lengths held, as `nopad._bit_kernels` has it, and one word more for `window`
* ``mirror`` uint64 ``[capacity // 64 + 2]``: bit ``capacity - l`` of it says that length l is held. Two lengths a + b =
  room are a pair where bit a of ``words`` and bit ``capacity - room + a`` of ``mirror`` are both set: 64 at a look.
  What lies in ``words`` behind its lowest level makes no pair, as nothing lies there in ``mirror``

None is -1 throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._bit_kernels import add, at_least, at_most, lowest_bit, remove

HELD, TOKENS, ARRIVED, OLDEST, NEWEST = 0, 1, 2, 3, 4
NUMBER, LENGTH, NEXT, BEFORE, AFTER = 0, 1, 2, 3, 4
COUNT, FIRST, LAST = 0, 1, 2

ANCHORS = 64  # longest lengths tried as the first member of a pack
PAIRS = 64  # pairs compared for one room
STEPS = 8  # lengths looked at when the padding of a pack is estimated

_0, _1, _63 = np.uint64(0), np.uint64(1), np.uint64(63)


@njit(cache=True, nogil=True)
def window(row: NDArray[Any], at: int) -> np.uint64:
    """Return the 64 bits from position `at` on; a word must follow the one that holds it."""
    word, shift = at >> 6, np.uint64(at & 63)
    bits: np.uint64 = (row[word] >> shift) | ((row[word + 1] << _1) << (_63 - shift))
    return bits


@njit(cache=True, nogil=True)
def mark(queues: NDArray[Any], words: NDArray[Any], mirror: NDArray[Any], length: int, change: int) -> None:
    """Add `change` (1 or -1) to the count of a length, and keep both sets true."""
    queues[length, COUNT] += change
    if queues[length, COUNT] == (change + 1) // 2:  # it was none, or there are none left
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
    """Hold one more sequence, the newest."""
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
    """Let go of the oldest sequence of this length; return its number."""
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
    """Return the longer of the one or two lengths that fill `room` exactly, -1 when none do.

    Among several, the one with the most copies held (of both together): that keeps the buffer varied. The first
    `PAIRS` are compared, the most even first.
    """
    best, most = -1, 0
    if queues[room, COUNT] > 0:
        best, most = room, int(queues[room, COUNT])
    if places < 2:
        return best
    shift = queues.shape[0] - 2 - room
    longer, compared = (room + 1) >> 1, 0
    while longer < room and compared < PAIRS:
        both = window(words, longer) & window(mirror, longer + shift)
        while both != _0:
            a = longer + lowest_bit(both)
            both &= both - _1
            b = room - a
            copies = int(queues[a, COUNT]) + int(queues[b, COUNT])
            if copies > most and (a != b or queues[a, COUNT] > 1):
                best, most = a, copies
            compared += 1
        longer += 64
    return best


@njit(cache=True, nogil=True)
def padding(queues: NDArray[Any], words: NDArray[Any], room: int, places: int) -> int:
    """Estimate what stays empty of `room` when the longest that fits is taken again and again."""
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
    """Choose the length that a pack begins with, -1 when nothing is held.

    Of the `ANCHORS` longest held, the first that one or two others complete exactly; if there is none, the one whose
    pack would stay least empty.
    """
    length, best, least = capacity, -1, capacity + 1
    for _ in range(ANCHORS):
        length = at_most(words, capacity, length - 1)
        if length * 3 < capacity:  # neither it nor a shorter one can be completed by two (-1: there is none)
            return best if best >= 0 else length
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
    """Write one pack that begins with length `first` to ``sequence[at:]``; return where it ends.

    Whenever one or two held lengths fill the room that is left exactly, they end the pack; until then the longest that
    fits is added. But where sequences are so short that the depth is what runs out, all places must be used: then
    the length next to the average that the room needs is added, down to the last two places.
    """
    capacity = queues.shape[0] - 2
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
    indptr: NDArray[Any],
    sequence: NDArray[Any],
) -> int:
    """Let sequences arrive one by one; write the packs that become ready, return how many.

    A pack becomes ready when the buffer is full, or when a sequence has seen `patience` others arrive after it.
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
            if state[HELD] == slots.shape[0]:
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
    """Write everything held as packs; return how many."""
    packs, at = 0, 0
    while state[HELD] > 0:
        first = anchor(queues, words, mirror, queues.shape[0] - 2, depth)
        at = emit(state, slots, queues, words, mirror, first, depth, sequence, at)
        packs += 1
        indptr[packs] = at
    return packs
