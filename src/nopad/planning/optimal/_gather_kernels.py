"""Compiled loops of `nopad.planning.optimal.gathering`: exchange sequences between packs so that free space gathers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad import _bit_kernels as bits

_ENTRIES = 8  # about this many members of one list are looked at, at most
_STEPS = 64  # an exchange leaves fewer free tokens than this in the other pack
_MOVE = 100  # steps counted for one move or exchange
_IDLE = 2  # the search ends after more than this many idle sweeps in a row
_SLOW = 0.98  # a sweep is idle if it emptied no pack, and left more than this share of the packs with free space


class Lists(NamedTuple):
    """Doubly linked lists of the integers 0, 1, ..., each in at most one list; int32 arrays, in which -1 means none.

    List k begins with ``first[k]``; ``after[m]`` and ``before[m]`` are the neighbours of member m.
    """

    first: NDArray[Any]
    after: NDArray[Any]
    before: NDArray[Any]


class State(NamedTuple):
    """Packs of sequences, with two indices of those packs that have free space and are not empty.

    Attributes:
        length: tokens of each sequence; int32 ``[n]``.
        pack: the pack of each sequence; int32 ``[n]``.
        first: one sequence of each pack, -1 for an empty pack; int32 ``[packs]``.
        after: the next sequence of the same pack, -1 at the end; int32 ``[n]``.
        free: free tokens of each pack; int32 ``[packs]``.
        used: number of sequences in each pack; int32 ``[packs]``.
        sums: linked lists of sequences: list s holds those whose length plus the free tokens of their pack is s.
        spaces: linked lists of packs: list f holds those with f free tokens, for f > 0.
        present: the bit set (`nopad._bit_kernels`) of all f for which the list in `spaces` is not empty.
        steps: how much work the search has done; int64 ``[1]``.
    """

    length: NDArray[Any]
    pack: NDArray[Any]
    first: NDArray[Any]
    after: NDArray[Any]
    free: NDArray[Any]
    used: NDArray[Any]
    sums: Lists
    spaces: Lists
    present: NDArray[Any]
    steps: NDArray[Any]


@njit(cache=True, nogil=True)
def insert(lists: Lists, key: int, member: int) -> None:
    """Put `member`, which is in no list, at the beginning of list `key`."""
    head = lists.first[key]
    lists.after[member] = head
    lists.before[member] = -1
    if head >= 0:
        lists.before[head] = member
    lists.first[key] = member


@njit(cache=True, nogil=True)
def remove(lists: Lists, key: int, member: int) -> None:
    """Take `member` out of list `key`, in which it is."""
    after, before = lists.after[member], lists.before[member]
    if before >= 0:
        lists.after[before] = after
    else:
        lists.first[key] = after
    if after >= 0:
        lists.before[after] = before


@njit(cache=True, nogil=True)
def random(seed: int, below: int) -> tuple[int, int]:
    """Return ``(next seed, random integer from 0 to below - 1)``."""
    seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
    return seed, (seed >> 4) % below


@njit(cache=True, nogil=True)
def _show(s: State, p: int) -> None:
    """Enter pack `p` into the indices `sums` and `spaces`, if it has free space and is not empty."""
    if s.free[p] > 0 and s.first[p] >= 0:
        i = s.first[p]
        while i >= 0:
            insert(s.sums, s.length[i] + s.free[p], i)
            i = s.after[i]
        if s.spaces.first[s.free[p]] < 0:
            bits.add(s.present, s.spaces.first.size - 1, s.free[p])
        insert(s.spaces, s.free[p], p)


@njit(cache=True, nogil=True)
def _hide(s: State, p: int) -> None:
    """Take pack `p` out of the indices `sums` and `spaces`; this must be done before its content changes."""
    if s.free[p] > 0 and s.first[p] >= 0:
        i = s.first[p]
        while i >= 0:
            remove(s.sums, s.length[i] + s.free[p], i)
            i = s.after[i]
        remove(s.spaces, s.free[p], p)
        if s.spaces.first[s.free[p]] < 0:
            bits.remove(s.present, s.spaces.first.size - 1, s.free[p])


@njit(cache=True, nogil=True)
def _move(s: State, i: int, to: int) -> None:
    """Move sequence `i` from its pack to pack `to`; both packs must be out of the indices (`_hide`)."""
    p = s.pack[i]
    if s.first[p] == i:
        s.first[p] = s.after[i]
    else:
        j = s.first[p]
        while s.after[j] != i:
            j = s.after[j]
        s.after[j] = s.after[i]
    s.after[i] = s.first[to]
    s.first[to] = i
    s.pack[i] = to
    s.free[p] += s.length[i]
    s.free[to] -= s.length[i]
    s.used[p] -= 1
    s.used[to] += 1


@njit(cache=True, nogil=True)
def _give(s: State, p: int, depth: int) -> bool:
    """Move one sequence of pack `p` to another pack that has room for it; return whether such a pack was found.

    The sequences of `p` are tried in turn. The other pack must have room for the sequence, and hold fewer than `depth`
    sequences; of such packs, one of the fullest is chosen. Only a few packs of each of 8 different free spaces are
    looked at. Pack `p` must be out of the indices (`_hide`).
    """
    capacity = s.spaces.first.size - 1
    i = s.first[p]
    while i >= 0:
        space = bits.at_least(s.present, capacity, s.length[i])
        tries = 0
        while space >= 0 and tries < _ENTRIES:
            to, seen = s.spaces.first[space], 0
            while to >= 0 and s.used[to] >= depth and seen < _ENTRIES:
                to, seen = s.spaces.after[to], seen + 1
            if to >= 0 and s.used[to] < depth:
                _hide(s, to)
                _move(s, i, to)
                _show(s, to)
                return True
            space = bits.at_least(s.present, capacity, space + 1) if space < capacity else -1
            tries += 1
        i = s.after[i]
    return False


@njit(cache=True, nogil=True)
def _exchange(s: State, p: int) -> bool:
    """Exchange a sequence of pack `p` for a shorter one of another pack; return whether such an exchange was found.

    Fewer than `_STEPS` tokens stay free in the other pack, which had free space before. Exchanges that leave the fewest
    tokens free there are looked for first. Pack `p` ends with more free space than the other pack had before, so that
    exchanges cannot go round in circles. Pack `p` must be out of the indices (`_hide`).
    """
    capacity = s.spaces.first.size - 1
    for more in range(_STEPS):
        i = s.first[p]
        while i >= 0:
            s.steps[0] += 1
            length = s.length[i]
            if length + more <= capacity:
                j, seen = s.sums.first[length + more], 0
                while j >= 0 and seen < _ENTRIES:
                    if s.length[j] < length and s.free[p] + length - s.length[j] > s.free[s.pack[j]]:
                        other = s.pack[j]
                        _hide(s, other)
                        _move(s, i, other)
                        _move(s, j, p)
                        _show(s, other)
                        return True
                    j, seen = s.sums.after[j], seen + 1
            i = s.after[i]
    return False


@njit(cache=True, nogil=True)
def _open(s: State) -> int:
    """Return the number of packs that have free space and are not empty."""
    found = 0
    for p in range(s.first.size):
        found += s.free[p] > 0 and s.first[p] >= 0
    return found


@njit(cache=True, nogil=True)
def _shake(s: State, seed: int) -> int:
    """Exchange sequences so that the free space of some packs moves to random full packs; return the next seed.

    The packs with free space often hold lengths of one kind, such as odd ones only, so that no exchange between them
    helps. After this call, other packs have the free space.
    """
    packs = s.first.size
    for _ in range(min(packs, 4 * _open(s))):
        seed, full = random(seed, packs)
        if s.free[full] == 0:
            i = s.first[full]
            while i >= 0:
                j = s.sums.first[s.length[i]]  # without j, the pack of j has room for i exactly
                if j >= 0 and s.free[s.pack[j]] < _STEPS:
                    other = s.pack[j]
                    _hide(s, other)
                    _move(s, i, other)
                    _move(s, j, full)
                    _show(s, full)
                    break
                i = s.after[i]
    return seed


@njit(cache=True, nogil=True)
def _sweep(s: State, packs: int, goal: int, depth: int, most: int) -> int:
    """Try to empty one pack after another, most free space first; return the number of packs that are not empty.

    `packs` is the number of packs that are not empty at the start. A pack holds at most `depth` sequences. The sweep
    ends early when at most `goal` packs are left, or when `State.steps` reaches `most`.
    """
    order = np.argsort(-s.free.astype(np.int64), kind="mergesort")
    for p in order:
        if packs <= goal or s.steps[0] >= most:
            break
        if s.free[p] > 0 and s.first[p] >= 0:
            _hide(s, p)
            while s.first[p] >= 0 and s.steps[0] < most and (_give(s, p, depth) or _exchange(s, p)):
                s.steps[0] += _MOVE
            packs -= s.first[p] < 0
            _show(s, p)
    return packs


@njit(cache=True, nogil=True)
def gather(
    length: NDArray[Any],
    indptr: NDArray[Any],
    capacity: int,
    depth: int,
    goal: int,
    sweeps: int,
    most: int,
    words: NDArray[Any],
    pack: NDArray[Any],
) -> int:
    """Move sequences between packs until at most `goal` packs are left, or sweeps stop helping; return the steps taken.

    Sequence i has ``length[i]`` tokens. Pack p holds the sequences from ``indptr[p]`` up to ``indptr[p + 1]``
    (exclusive) at the start; at the end ``pack[i]`` is the pack of sequence i. A pack holds at most `depth` sequences.
    There are at most `sweeps` sweeps over the packs, and about `most` steps. `words` is an empty bit set,
    ``empty_set(capacity)``.
    """
    n, packs = length.size, indptr.size - 1
    s = State(
        length,
        pack,
        np.full(packs, -1, np.int32),
        np.full(n, -1, np.int32),
        np.full(packs, capacity, np.int32),
        np.zeros(packs, np.int32),
        Lists(np.full(capacity + 1, -1, np.int32), np.full(n, -1, np.int32), np.full(n, -1, np.int32)),
        Lists(np.full(capacity + 1, -1, np.int32), np.full(packs, -1, np.int32), np.full(packs, -1, np.int32)),
        words,
        np.zeros(1, np.int64),
    )
    for p in range(packs):
        for i in range(indptr[p], indptr[p + 1]):
            pack[i] = p
            s.after[i] = s.first[p]
            s.first[p] = i
            s.free[p] -= length[i]
            s.used[p] += 1
        _show(s, p)
    left, idle, seed, open_ = packs, 0, 1, _open(s)
    for _ in range(sweeps):
        before, opened = left, open_
        left = _sweep(s, left, goal, depth, most)
        open_ = _open(s)
        idle = idle + 1 if left == before and open_ > opened * _SLOW else 0
        if left <= goal or s.steps[0] >= most or idle > _IDLE:
            break
        seed = _shake(s, seed)
    return int(s.steps[0])
