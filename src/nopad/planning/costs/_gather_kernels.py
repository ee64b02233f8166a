"""Compiled loops of `nopad.planning.costs.gathering`: exchange sequences between packs with limits on tokens and cost.

They are like those of `nopad.planning.optimal._gather_kernels`. There, free space is a number of tokens. Here a pack
has free tokens and free cost, so two other numbers stand for free space:

* for a pack, the *space*: the longest length that fits into it
* for a sequence, its *reach*: the longest length that its pack can hold in place of this sequence

The *worth* of a pack is the sum of the values of its sequences. The lower it is, the more of the pack is wasted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad import _bit_kernels as bits
from nopad.planning.costs._guide_kernels import root
from nopad.planning.optimal._gather_kernels import Lists, insert, random, remove

_ENTRIES = 8  # about this many members of one list are looked at, at most
_SHORTER = 64  # an exchange leaves the reach of the sequence that was moved at most this much above its length
_MOVE, _ENTRY = 50, 10  # steps counted for one move or exchange; for each sequence in a pack that changes
_COMPARED = 4  # comparisons of lengths that count as one step
_SCANNED, _SORTED = 3, 12  # packs that count as one step where all are looked at; steps for each pack that is sorted
_FAILED, _FILLED = 300, 30  # a sweep ends after so many failures; a pack filled before its turn counts as 30
_SWEEPS = 2  # sweeps before packs are shaken
_SHAKES = 4  # attempts to shake a pack, for each pack that is not tight
_HIDDEN = -1  # the space of a pack that is out of the indices
_IDLE = 16  # the search ends after so many shakes in a row without a pack less


class State(NamedTuple):
    """Packs of sequences, with two indices of those packs that are not empty.

    Attributes:
        length: length of each sequence; int32 ``[n]``.
        size: tokens that each sequence takes; int32 ``[n]``.
        value: value of each sequence; int64 ``[n]``.
        pack: the pack of each sequence; int32 ``[n]``.
        first: one sequence of each pack, -1 for an empty pack; int32 ``[packs]``.
        after: the next sequence of the same pack, -1 at the end; int32 ``[n]``.
        tokens: free tokens of each pack; int64 ``[packs]``.
        cost: free cost of each pack; int64 ``[packs]``.
        used: number of sequences in each pack; int32 ``[packs]``.
        worth: sum of the values in each pack; int64 ``[packs]``.
        reach: reach of each sequence, computed when its pack was last entered into `reaches`; int32 ``[n]``.
        space: space of each pack, computed when the pack was last entered into the indices; 0 for an empty pack, -1 for
            a pack that `_hide` has taken out; int32 ``[packs]``.
        reaches: linked lists of sequences: list r holds those with the reach r, if r is above their own length.
        spaces: linked lists of packs: list s holds those with the space s, for s > 0.
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
    by_tokens = min(s.size[i] + s.tokens[p], s.spaces.first.size - 1)
    cost = s.cost[p] + length * length
    return by_tokens if by_tokens * by_tokens <= cost else root(cost)


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
    """Take pack `p` out of the indices `reaches` and `spaces`; this must be done before its content changes."""
    i = s.first[p]
    while i >= 0:
        if s.reach[i] > s.length[i]:
            remove(s.reaches, s.reach[i], i)
        i = s.after[i]
    space = s.space[p]
    s.space[p] = _HIDDEN
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

    The sequences of `p` are tried in turn. The other pack must have room for the sequence, and hold fewer than `depth`
    sequences; of such packs, one with the smallest space is chosen. Only a few packs of each of 8 different spaces are
    looked at. Pack `p` must be out of the indices (`_hide`).
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

    The length of the longer sequence must be at most the reach of the shorter one, and less than `_SHORTER` tokens
    below this reach. Pairs with the smallest difference between this length and this reach are looked for first. Pack
    `p` ends with a lower worth than the other pack had before, so that exchanges cannot go round in circles. Pack `p`
    must be out of the indices (`_hide`).
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
                    s.steps[0] += 1
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
def sweep(s: State, packs: int, goal: int, depth: int, tight: int, most: int) -> int:
    """Try to empty one pack after another, the lowest worth first; return the number of packs that are not empty.

    `packs` is the number of packs that are not empty at the start. A pack holds at most `depth` sequences. Packs that
    are worth at least `tight` are left out. The sweep ends early in these cases:

    * at most `goal` packs are left
    * `State.steps` reaches `most`
    * many packs in a row could not be emptied, or became tight before their turn; going on would only move free space
      to packs in which no exchange can use it
    """
    failed = 0
    loose = np.flatnonzero((s.worth < tight) & (s.first >= 0))
    s.steps[0] += s.first.size // _SCANNED + _SORTED * loose.size
    for p in loose[np.argsort(s.worth[loose], kind="mergesort")]:
        if packs <= goal or s.steps[0] >= most or failed >= _FAILED:
            break
        if s.worth[p] >= tight:
            failed += _FILLED
        elif s.first[p] >= 0:
            _hide(s, p)
            while s.first[p] >= 0 and s.steps[0] < most and (_give(s, p, depth) or _exchange(s, p)):
                pass
            failed = 0 if s.first[p] < 0 else failed + 1
            packs -= s.first[p] < 0
            _show(s, p)
            s.steps[0] += _MOVE + _ENTRY * s.used[p]
    return packs


@njit(cache=True, nogil=True)
def _longer(s: State, p: int, other: int, number: int, held: NDArray[Any]) -> tuple[int, int]:
    """Find a sequence i of pack `other` that is longer than a sequence j of pack `p`; return the pair ``(i, j)``.

    Sequence i must fit into pack `p` in the place of j. Of all such pairs, numbered from 0, pair `number` is returned,
    or the last pair if there are fewer. The result is ``(-1, -1)`` if there is none. `held` is working memory, with at
    least one entry for each sequence of `other`.
    """
    size, shortest, longest = 0, s.length[s.first[other]], 0
    i = s.first[other]
    while i >= 0:
        held[size] = i
        shortest, longest = min(shortest, s.length[i]), max(longest, s.length[i])
        size += 1
        i = s.after[i]
    s.steps[0] += 2 * (s.used[p] + size)
    found, beside = -1, -1
    j = s.first[p]
    while j >= 0:
        length = s.length[j]
        if length < longest:
            reach = _reach(s, j) if s.space[p] == _HIDDEN else s.reach[j]
            if reach >= shortest and reach > length:
                s.steps[0] += size // _COMPARED
                for k in range(size):
                    if length < s.length[held[k]] <= reach:
                        found, beside = held[k], j
                        if number == 0:
                            return found, beside
                        number -= 1
        j = s.after[j]
    return found, beside


@njit(cache=True, nogil=True)
def _shake(s: State, tight: int, seed: int, most: int) -> int:
    """Exchange sequences so that free space moves from packs that are not tight to random packs; return the next seed.

    The packs with free space often hold lengths of one kind, so that no exchange between them helps. After this call,
    other packs have the free space. A pack is tight if it is worth at least `tight`. In an exchange, a longer sequence
    of a random pack and a shorter one of a pack that is not tight change places. Of the possible exchanges between two
    packs, one of the first four is made, at random. The number of attempts is four times the number of packs that are
    not tight at the start, or less if `State.steps` reaches `most`. Packs that change stay out of the indices until the
    end.
    """
    loose = np.flatnonzero((s.worth < tight) & (s.first >= 0))
    if loose.size == 0:
        return seed
    s.steps[0] += s.first.size // _SCANNED
    held = np.empty(s.used.max(), dtype=np.int32)
    for _ in range(_SHAKES * loose.size):
        seed, other = random(seed, s.first.size)
        seed, at = random(seed, loose.size)
        seed, number = random(seed, 4)
        p = loose[at]
        if s.steps[0] >= most:
            break
        if other == p or s.first[other] < 0 or s.first[p] < 0:
            continue
        given, taken = _longer(s, p, other, number, held)
        if given >= 0:
            for changed in (p, other):
                if s.space[changed] != _HIDDEN:
                    _hide(s, changed)
                    s.steps[0] += _MOVE + _ENTRY * s.used[changed]
            _move(s, given, p)
            _move(s, taken, other)
    for p in range(s.first.size):
        if s.space[p] == _HIDDEN:
            _show(s, p)
    return seed


@njit(cache=True, nogil=True)
def opened(
    length: NDArray[Any],
    size: NDArray[Any],
    value: NDArray[Any],
    indptr: NDArray[Any],
    limits: NDArray[Any],
    words: NDArray[Any],
    pack: NDArray[Any],
) -> State:
    """Return the state with which `gather` begins; every pack has been entered into the indices (`_show`).

    Sequence i has the length ``length[i]``, takes ``size[i]`` tokens, and is worth ``value[i]``. Pack p holds the
    sequences from ``indptr[p]`` up to ``indptr[p + 1]`` (exclusive); ``pack[i]`` is set to the pack of sequence i.
    `limits` are the most tokens, cost and sequences of a pack. `words` is an empty bit set, ``empty_set(longest
    length)``, which becomes `State.present`.
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
    return s


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
    """Move sequences between packs, so that fewer packs are left; return the steps taken.

    The search ends when at most `goal` packs are left, when sweeps stop helping, or soon after `most` steps.

    Sequence i has the length ``length[i]``, takes ``size[i]`` tokens, costs its squared length, and is worth
    ``value[i]``. Pack p holds the sequences from ``indptr[p]`` up to ``indptr[p + 1]`` (exclusive) at the start; at the
    end ``pack[i]`` is the pack of sequence i. `limits` are the most tokens, cost and sequences of a pack. Packs that
    are worth at least `tight` are not emptied. `words` is an empty bit set, ``empty_set(longest length)``.
    """
    s = opened(length, size, value, indptr, limits, words, pack)
    left, idle, seed = indptr.size - 1, 0, 1
    while left > goal and idle < _IDLE and s.steps[0] < most:
        before = left
        for _ in range(_SWEEPS):
            left = sweep(s, left, goal, limits[2], tight, most)
        idle = 0 if left < before else idle + 1
        if left > goal and idle < _IDLE:
            seed = _shake(s, tight, seed, most)
    return int(s.steps[0])
