"""Compiled loops of `nopad.planning.costs.gathering`: exchange sequences between packs with limits on tokens and cost.

They are like those of `nopad.planning.optimal._gather_kernels`. There, free space is a number of tokens. Here a pack
has free tokens and free cost, so two other numbers stand for free space:

* for a pack, the *space*: the longest length that fits into it
* for a sequence, its *reach*: the longest length that fits into its pack in its place

How much of a pack is wasted is measured by the values of its sequences: the lower their sum, its worth, the more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad import _bit_kernels as bits
from nopad.planning.costs._guide_kernels import root
from nopad.planning.optimal._gather_kernels import Lists, insert, remove

_ENTRIES = 8  # most members of one list that are looked at
_SHORTER = 64  # an exchange leaves the reach of the sequence that was moved at most this much above its length
_MOVE, _ENTRY = 20, 2  # steps counted for one move or exchange; for each sequence in a pack that takes part
_SWEEPS = 2  # sweeps before packs are shaken
_SHAKES = 4  # attempts to shake a pack, for each pack that is not tight
_IDLE = 8  # the search ends after so many shakes in a row without a pack less


class State(NamedTuple):
    """Packs of sequences, with two indices of those packs that are not empty.

    Attributes:
        length: length of each sequence; int32 ``[n]``.
        size: tokens that each sequence takes; int32 ``[n]``.
        value: value of each sequence; int64 ``[n]``.
        pack: the pack of each sequence; int32 ``[n]``.
        first: one sequence of each pack, -1 if it is empty; int32 ``[packs]``.
        after: the next sequence of the same pack, -1 at the end; int32 ``[n]``.
        tokens: free tokens of each pack; int64 ``[packs]``.
        cost: free cost of each pack; int64 ``[packs]``.
        used: number of sequences in each pack; int32 ``[packs]``.
        worth: sum of the values in each pack; int64 ``[packs]``.
        reach: reach of each sequence, as it is in `reaches`; int32 ``[n]``.
        space: space of each pack, as it is in `spaces`; int32 ``[packs]``.
        reaches: list r holds the sequences with the reach r, if that is above their length.
        spaces: list s holds the packs with the space s, s > 0.
        present: the bit set (`nopad._bit_kernels`) of all s for which the list in `spaces` is not empty.
        steps: how much work the search has done; int64 ``[1]``.
    """

    length: NDArray[Any]
    size: NDArray[Any]
    value: NDArray[Any]
    pack: NDArray[Any]
    first: NDArray[Any]
    after: NDArray[Any]
    tokens: NDArray[Any]
    cost: NDArray[Any]
    used: NDArray[Any]
    worth: NDArray[Any]
    reach: NDArray[Any]
    space: NDArray[Any]
    reaches: Lists
    spaces: Lists
    present: NDArray[Any]
    steps: NDArray[Any]


@njit(cache=True, nogil=True)
def _reach(s: State, i: int) -> Any:
    """Return the reach of sequence `i`, at most the longest length of all."""
    p, length = s.pack[i], np.int64(s.length[i])
    return min(s.size[i] + s.tokens[p], root(s.cost[p] + length * length), s.spaces.first.size - 1)


@njit(cache=True, nogil=True)
def _show(s: State, p: int) -> None:
    """Enter pack `p` into the indices `reaches` and `spaces`, if it is not empty."""
    longest = s.spaces.first.size - 1
    s.space[p] = 0
    i = s.first[p]
    if i < 0:
        return
    while i >= 0:
        s.reach[i] = _reach(s, i)
        if s.reach[i] > s.length[i]:
            insert(s.reaches, s.reach[i], i)
        i = s.after[i]
    space = min(s.tokens[p], root(s.cost[p]), longest)
    s.space[p] = space
    if space > 0:
        if s.spaces.first[space] < 0:
            bits.add(s.present, longest, space)
        insert(s.spaces, space, p)


@njit(cache=True, nogil=True)
def _hide(s: State, p: int) -> None:
    """Take pack `p` out of the indices `reaches` and `spaces`; this comes before every change of its content."""
    i = s.first[p]
    while i >= 0:
        if s.reach[i] > s.length[i]:
            remove(s.reaches, s.reach[i], i)
        i = s.after[i]
    space = s.space[p]
    if space > 0:
        remove(s.spaces, space, p)
        if s.spaces.first[space] < 0:
            bits.remove(s.present, s.spaces.first.size - 1, space)


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
    square = np.int64(s.length[i]) * np.int64(s.length[i])
    s.tokens[p] += s.size[i]
    s.tokens[to] -= s.size[i]
    s.cost[p] += square
    s.cost[to] -= square
    s.used[p] -= 1
    s.used[to] += 1
    s.worth[p] -= s.value[i]
    s.worth[to] += s.value[i]


@njit(cache=True, nogil=True)
def _give(s: State, p: int, depth: int) -> bool:
    """Move one sequence of pack `p` to another pack that has room for it; return whether such a pack was found.

    It is the first sequence of `p` for which a pack is found. It goes to the pack with the smallest space that has room
    and holds fewer than `depth` sequences; but no more than 8 packs of each of 8 different spaces are looked at. Pack
    `p` must be out of the indices (`_hide`).
    """
    longest = s.spaces.first.size - 1
    i = s.first[p]
    while i >= 0:
        space = bits.at_least(s.present, longest, s.length[i])
        tries = 0
        while space >= 0 and tries < _ENTRIES:
            to, seen = s.spaces.first[space], 0
            while to >= 0 and s.used[to] >= depth and seen < _ENTRIES:
                to, seen = s.spaces.after[to], seen + 1
            if to >= 0 and s.used[to] < depth:
                _hide(s, to)
                _move(s, i, to)
                _show(s, to)
                s.steps[0] += _MOVE + _ENTRY * s.used[to]
                return True
            space = bits.at_least(s.present, longest, space + 1) if space < longest else -1
            tries += 1
        i = s.after[i]
    return False


@njit(cache=True, nogil=True)
def _exchange(s: State, p: int) -> bool:
    """Exchange a sequence of pack `p` for a shorter one of another pack; return whether such an exchange was found.

    The longer sequence is within `_SHORTER` of the reach of the shorter one; the nearest are looked for first. Pack `p`
    ends with a lower worth than the other pack had before, so that exchanges cannot go round in circles. Pack `p` must
    be out of the indices (`_hide`).
    """
    longest = s.spaces.first.size - 1
    for more in range(_SHORTER):
        i = s.first[p]
        while i >= 0:
            s.steps[0] += 1
            length = s.length[i]
            if length + more <= longest:
                j, seen = s.reaches.first[length + more], 0
                while j >= 0 and seen < _ENTRIES:
                    other = s.pack[j]
                    if s.length[j] < length and s.worth[p] - s.value[i] + s.value[j] < s.worth[other]:
                        _hide(s, other)
                        _move(s, i, other)
                        _move(s, j, p)
                        _show(s, other)
                        s.steps[0] += _MOVE + _ENTRY * s.used[other]
                        return True
                    j, seen = s.reaches.after[j], seen + 1
            i = s.after[i]
    return False


@njit(cache=True, nogil=True)
def _sweep(s: State, packs: int, goal: int, depth: int, tight: int, most: int) -> int:
    """Try to empty one pack after another, the lowest worth first; return the number of packs that are not empty.

    `packs` is this number at the start. Packs that are worth at least `tight` are left out. The sweep ends early when
    at most `goal` packs are left, or when `State.steps` reaches `most`.
    """
    for p in np.argsort(s.worth, kind="mergesort"):
        if packs <= goal or s.steps[0] >= most or s.worth[p] >= tight:
            break
        if s.first[p] >= 0:
            _hide(s, p)
            while s.first[p] >= 0 and s.steps[0] < most and (_give(s, p, depth) or _exchange(s, p)):
                pass
            packs -= s.first[p] < 0
            _show(s, p)
            s.steps[0] += _MOVE + _ENTRY * s.used[p]
    return packs


@njit(cache=True, nogil=True)
def _random(seed: int, below: int) -> tuple[int, int]:
    """Return ``(next seed, random integer from 0 to below - 1)``."""
    seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
    return seed, (seed >> 4) % below


@njit(cache=True, nogil=True)
def _shake(s: State, tight: int, seed: int, most: int) -> int:
    """Exchange sequences so that free space moves from packs that are not tight to random packs; return the next seed.

    The packs with free space often hold lengths of one kind, so that no exchange between them helps; afterwards other
    packs have the free space. A pack is tight if it is worth at least `tight`. A longer sequence of a random pack is
    exchanged for a shorter one of a pack that is not tight: the first, second, third or fourth possible exchange. This
    ends when `State.steps` reaches `most`.
    """
    loose = np.flatnonzero((s.worth < tight) & (s.first >= 0))
    if loose.size == 0:
        return seed
    for _ in range(_SHAKES * loose.size):
        seed, other = _random(seed, s.first.size)
        seed, at = _random(seed, loose.size)
        seed, skipped = _random(seed, 4)
        p = loose[at]
        if s.steps[0] >= most:
            break
        if other == p or s.first[other] < 0 or s.first[p] < 0:
            continue
        s.steps[0] += _ENTRY * (s.used[p] + s.used[other])
        given, taken = -1, -1
        j = s.first[p]
        while j >= 0 and skipped >= 0:
            reach = _reach(s, j)
            i = s.first[other]
            while i >= 0 and skipped >= 0:
                if s.length[j] < s.length[i] <= reach:
                    given, taken, skipped = i, j, skipped - 1
                i = s.after[i]
            j = s.after[j]
        if given >= 0:
            _hide(s, p)
            _hide(s, other)
            _move(s, given, p)
            _move(s, taken, other)
            _show(s, p)
            _show(s, other)
            s.steps[0] += _MOVE + _ENTRY * (s.used[p] + s.used[other])
    return seed


@njit(cache=True, nogil=True)
def gather(
    length: NDArray[Any],
    size: NDArray[Any],
    value: NDArray[Any],
    indptr: NDArray[Any],
    limits: NDArray[Any],
    goal: int,
    tight: int,
    most: int,
    words: NDArray[Any],
    pack: NDArray[Any],
) -> int:
    """Move sequences between packs until at most `goal` packs are left, or sweeps stop helping; return the steps taken.

    Sequence i has the length ``length[i]``, takes ``size[i]`` tokens, costs its squared length, and is worth
    ``value[i]``. Pack p holds the sequences from ``indptr[p]`` up to ``indptr[p + 1]`` (exclusive) at the start; at the
    end ``pack[i]`` is the pack of sequence i. `limits` are the most tokens, cost and sequences of a pack. Packs that
    are worth at least `tight` are not emptied. There are about `most` steps. `words` is an empty bit set,
    ``empty_set(longest length)``.
    """
    n, packs, longest = length.size, indptr.size - 1, length.max()
    s = State(
        length,
        size,
        value,
        pack,
        np.full(packs, -1, np.int32),
        np.full(n, -1, np.int32),
        np.full(packs, limits[0], np.int64),
        np.full(packs, limits[1], np.int64),
        np.zeros(packs, np.int32),
        np.zeros(packs, np.int64),
        np.zeros(n, np.int32),
        np.zeros(packs, np.int32),
        Lists(np.full(longest + 1, -1, np.int32), np.full(n, -1, np.int32), np.full(n, -1, np.int32)),
        Lists(np.full(longest + 1, -1, np.int32), np.full(packs, -1, np.int32), np.full(packs, -1, np.int32)),
        words,
        np.zeros(1, np.int64),
    )
    for p in range(packs):
        for i in range(indptr[p], indptr[p + 1]):
            pack[i] = p
            s.after[i] = s.first[p]
            s.first[p] = i
            s.tokens[p] -= size[i]
            s.cost[p] -= np.int64(length[i]) * np.int64(length[i])
            s.used[p] += 1
            s.worth[p] += value[i]
        _show(s, p)
    left, idle, seed = packs, 0, 1
    while left > goal and idle < _IDLE and s.steps[0] < most:
        before = left
        for _ in range(_SWEEPS):
            left = _sweep(s, left, goal, limits[2], tight, most)
        idle = 0 if left < before else idle + 1
        if left > goal and idle < _IDLE:
            seed = _shake(s, tight, seed, most)
    return int(s.steps[0])
