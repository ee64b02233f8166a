"""The compiled loops of the algorithms that place sequences one by one as they arrive.

As in `nopad._kernels`, arguments are plain arrays, and callers validate them. The kernels `first_fit`, `best_fit`,
`look_ahead`, `harmonic` and `next_fit` each run an algorithm, and return how many packs it opened. All of these but
`next_fit` fill the array `pack_of` with the pack of each sequence; packs are numbered in the order of opening.
`nopad.planning.arrival.grouped` makes `Packs` from `pack_of`.

Sets of rooms (free tokens of packs) and sets of lengths are bit sets of `nopad._bit_kernels`. A hash table (open
addressing, at most half full) finds the packs with a given room, or the sequences of a given length. An array with an
entry for every room would be too large, since capacities go up to 2^31 - 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._bit_kernels import add, at_least, at_most, remove
from nopad._kernels import GOLDEN, mix


@njit(cache=True, nogil=True)
def pack_bounds(pack_of: NDArray[Any], indptr: NDArray[Any]) -> None:
    """Set ``indptr[p]`` to the position at which pack p begins if sequences are listed pack after pack.

    ``pack_of[i]`` is the pack of sequence i. `indptr` has one entry more than there are packs, and is all 0 at first.
    Its last entry becomes the number of sequences.
    """
    for i in range(pack_of.shape[0]):
        indptr[pack_of[i] + 1] += 1
    for p in range(1, indptr.shape[0]):
        indptr[p] += indptr[p - 1]


@njit(cache=True, nogil=True)
def settle(tree: NDArray[Any], node: int, room: int) -> None:
    """Set the free room of one leaf of the tree of `first_fit`, and update the nodes above it.

    `node` is the index of the leaf in `tree`. The children of node i are the nodes 2 i and 2 i + 1; node i holds the
    larger value of the two.
    """
    tree[node] = room
    node >>= 1
    while node:
        largest = max(tree[2 * node], tree[2 * node + 1])
        if tree[node] == largest:
            return
        tree[node] = largest
        node >>= 1


@njit(cache=True, nogil=True)
def move_open(
    tree: NDArray[Any],
    packs: NDArray[Any],
    used: NDArray[Any],
    new_tree: NDArray[Any],
    new_packs: NDArray[Any],
    new_used: NDArray[Any],
) -> int:
    """Copy those leaves of `tree` whose room is above 0 into `new_tree`, in the same order; return their number.

    `new_tree` must be all 0 at first; its inner nodes are set as well. ``packs[leaf]`` is the number of the pack at a
    leaf, and ``used[leaf]`` is how many sequences that pack holds. For the leaves that were copied, `new_packs` and
    `new_used` get these two numbers.
    """
    size, new_size = packs.shape[0], new_packs.shape[0]
    at = 0
    for leaf in range(size):
        if tree[size + leaf] > 0:
            new_tree[new_size + at] = tree[size + leaf]
            new_packs[at] = packs[leaf]
            new_used[at] = used[leaf]
            at += 1
    for node in range(new_size - 1, 0, -1):
        new_tree[node] = max(new_tree[2 * node], new_tree[2 * node + 1])
    return at


@njit(cache=True, nogil=True)
def first_fit(
    lengths: NDArray[Any], capacity: int, depth: int, shortest: int, leaves: int, pack_of: NDArray[Any]
) -> int:
    """Place each sequence into the earliest opened pack that has room for it; return the number of packs.

    ``pack_of[i]`` gets the pack of sequence i. A pack closes when its room is below `shortest`, the length of the
    shortest sequence, or when it holds `depth` sequences.

    The pack is found by a tournament tree. Its leaves are packs in order of opening, with a room of 0 for closed ones.
    Each inner node holds the largest room below it. The tree starts with `leaves` leaves (a power of two). When a pack
    needs a leaf and none is free, the leaves of closed packs are dropped; if more than half of the leaves remain, the
    number of leaves is doubled. So the number of leaves is at most the larger of `leaves` and four times the highest
    number of packs open at a time. Dropping leaves costs O(1) per pack on average.
    """
    tree = np.zeros(2 * leaves, np.int32)
    numbers, used = np.empty(leaves, pack_of.dtype), np.empty(leaves, np.int32)
    packs, taken = 0, 0
    for i in range(lengths.shape[0]):
        length = int(lengths[i])
        if tree[1] >= length:
            node = 1
            # Go left wherever the left half has room: the leftmost leaf is the pack opened first.
            while node < leaves:
                node *= 2
                if tree[node] < length:
                    node += 1
            leaf = node - leaves
            room = tree[node] - length
        else:
            packs += 1
            room = capacity - length
            if room < shortest or depth == 1:
                pack_of[i] = packs - 1
                continue
            if taken == leaves:
                more = leaves * 2 if 2 * np.count_nonzero(tree[leaves:]) > leaves else leaves
                old = tree, numbers, used
                tree, used = np.zeros(2 * more, np.int32), np.empty(more, np.int32)
                numbers = np.empty(more, numbers.dtype)
                taken = move_open(*old, tree, numbers, used)
                leaves = more
            leaf = taken
            numbers[leaf], used[leaf] = packs - 1, 0
            taken += 1
        pack_of[i] = numbers[leaf]
        used[leaf] += 1
        settle(tree, leaves + leaf, 0 if room < shortest or used[leaf] == depth else room)
    return packs


@njit(cache=True, nogil=True)
def slot_of(keys: NDArray[Any], key: int) -> int:
    """Return the index of `key` in the hash table `keys`; the key is added if the table does not have it yet.

    The table has 2^b entries; free entries are -1, and at least one must be free.
    """
    # Multiplicative hashing with linear probing.
    slot: int = ((key * 0x9E3779B1) >> 16) & (keys.shape[0] - 1)
    while keys[slot] != key:
        if keys[slot] < 0:
            keys[slot] = key
            break
        slot = (slot + 1) & (keys.shape[0] - 1)
    return slot


@njit(cache=True, nogil=True)
def best_fit(
    lengths: NDArray[Any],
    capacity: int,
    depth: int,
    shortest: int,
    words: NDArray[Any],
    keys: NDArray[Any],
    pack_of: NDArray[Any],
) -> int:
    """Place each sequence into the fullest pack that has room for it; return the number of packs.

    Among equally full packs, the one used last is taken. ``pack_of[i]`` gets the pack of sequence i. A pack is closed
    when its room is below `shortest`, the length of the shortest sequence, or when it holds `depth` sequences. `words`
    is an empty set of rooms (`nopad._bit_kernels.empty_set`), and `keys` an empty hash table
    (`nopad.planning.arrival.empty_table`); both are changed.
    """
    tops = np.full(keys.shape[0], -1, pack_of.dtype)
    below, used = np.empty_like(pack_of), np.empty_like(pack_of)
    packs = 0
    for i in range(lengths.shape[0]):
        length = int(lengths[i])
        room = at_least(words, capacity, length)
        if room < 0:
            room, p = capacity, packs
            used[p] = 0
            packs += 1
        else:
            slot = slot_of(keys, room)
            p = tops[slot]
            tops[slot] = below[p]
            if below[p] < 0:
                remove(words, capacity, room)
        pack_of[i] = p
        used[p] += 1
        room -= length
        if room >= shortest and used[p] < depth:
            slot = slot_of(keys, room)
            if tops[slot] < 0:
                add(words, capacity, room)
            below[p] = tops[slot]
            tops[slot] = p
    return packs


@njit(cache=True, nogil=True)
def enqueue(i: int, slot: int, first: NDArray[Any], last: NDArray[Any], following: NDArray[Any]) -> bool:
    """Append sequence i to the linked queue in `slot`; return whether the queue was empty before.

    ``first[slot]`` (-1: the queue is empty) and ``last[slot]`` are the queue's ends; ``following[i]`` is the sequence
    after i (-1: none).
    """
    was_empty = first[slot] < 0
    if was_empty:
        first[slot] = i
    else:
        following[last[slot]] = i
    following[i] = -1
    last[slot] = i
    return bool(was_empty)


@njit(cache=True, nogil=True)
def look_ahead(
    lengths: NDArray[Any],
    capacity: int,
    depth: int,
    window: int,
    words: NDArray[Any],
    keys: NDArray[Any],
    pack_of: NDArray[Any],
) -> int:
    """Fill packs one after another from a buffer of `window` sequences; return the number of packs.

    A pack takes the oldest sequence of the buffer first. Then it takes the longest one in the buffer that fits, again
    and again, until none fits or the pack holds `depth` sequences. The buffer is refilled after each sequence that is
    taken. ``pack_of[i]``, -1 at first, gets the pack of sequence i. `words` is an empty set of lengths
    (`nopad._bit_kernels.empty_set`), and `keys` is an empty hash table (`nopad.planning.arrival.empty_table`); both are
    changed.
    """
    first, last = np.full(keys.shape[0], -1, pack_of.dtype), np.empty(keys.shape[0], pack_of.dtype)
    following = np.empty_like(pack_of)
    packs, arrived, placed, oldest = 0, 0, 0, 0
    while oldest < lengths.shape[0]:
        room, members = capacity, 0
        while members < depth:
            while arrived - placed < window and arrived < lengths.shape[0]:
                slot = slot_of(keys, int(lengths[arrived]))
                if enqueue(arrived, slot, first, last, following):
                    add(words, capacity, int(lengths[arrived]))
                arrived += 1
            length = at_most(words, capacity, room) if members else int(lengths[oldest])
            if length < 0:
                break
            slot = slot_of(keys, length)
            pack_of[first[slot]] = packs
            first[slot] = following[first[slot]]
            if first[slot] < 0:
                remove(words, capacity, length)
            placed += 1
            members += 1
            room -= length
        packs += 1
        while oldest < lengths.shape[0] and pack_of[oldest] >= 0:
            oldest += 1
    return packs


@njit(cache=True, nogil=True)
def harmonic(lengths: NDArray[Any], capacity: int, depth: int, k: int, pack_of: NDArray[Any]) -> int:
    """Divide sequences into `k` classes by length, and pack each class by next-fit; return the number of packs.

    Class j < k has the lengths in (capacity / (j + 1), capacity / j], and class k has all shorter lengths. In each
    class, one pack is open at a time. A pack holds at most `depth` sequences. ``pack_of[i]`` gets the pack of sequence
    i.
    """
    last = np.empty(k + 1, pack_of.dtype)
    room, places = np.zeros(k + 1, np.int64), np.zeros(k + 1, np.int64)
    packs = 0
    for i in range(lengths.shape[0]):
        length = int(lengths[i])
        j = min(capacity // length, k)
        if room[j] < length or places[j] == 0:
            last[j], room[j], places[j] = packs, capacity, depth
            packs += 1
        pack_of[i] = last[j]
        room[j] -= length
        places[j] -= 1
    return packs


@njit(cache=True, nogil=True)
def next_fit(lengths: NDArray[Any], capacity: int, depth: int, indptr: NDArray[Any]) -> int:
    """Pack sequences by next-fit, in order of arrival; return the number of packs.

    A pack closes when the next sequence does not fit, or when the pack holds `depth` sequences. Pack p gets the
    sequences from ``indptr[p]`` up to ``indptr[p + 1]`` (exclusive). `indptr` has n + 1 entries for n sequences, since
    each sequence may need its own pack. Entries after those of the last pack are not set.
    """
    packs, tokens, members = 0, 0, 0
    indptr[0] = 0
    for i in range(lengths.shape[0]):
        if members > 0 and (tokens + lengths[i] > capacity or members == depth):
            packs += 1
            indptr[packs] = i
            tokens, members = 0, 0
        tokens += lengths[i]
        members += 1
    if members > 0:
        packs += 1
        indptr[packs] = lengths.shape[0]
    return packs


@njit(cache=True, nogil=True)
def multiset_keys(indptr: NDArray[Any], sequence: NDArray[Any], lengths: NDArray[Any], keys: NDArray[Any]) -> None:
    """Set ``keys[p]`` (uint64) to a hash of the lengths in pack p, so that packs of the same lengths have equal keys.

    The order of lengths in a pack does not matter.

    Pack p holds the sequences ``sequence[indptr[p]:indptr[p + 1]]``; ``lengths[i]`` is the length of sequence i.
    """
    for p in range(indptr.shape[0] - 1):
        total = np.uint64(0)
        for i in range(indptr[p], indptr[p + 1]):
            # Two rounds: a single mix(2x) is often 2 * mix(x), so [73, 73] and [146] would share a key.
            total += mix(mix(np.uint64(lengths[sequence[i]]) * GOLDEN) + GOLDEN)
        keys[p] = total
