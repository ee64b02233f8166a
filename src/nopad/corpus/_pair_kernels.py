"""The compiled loops that make sentence pairs for pre-training (as for BERT), and write the tokens of these pairs.

As in `nopad._kernels`, arguments are plain arrays, and callers validate them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._kernels import GOLDEN, bounded, mix
from nopad.corpus.pairs import A_END, B_END, CUT, DOCUMENT, NUMBER, RANDOM, A, B

_1 = np.uint64(1)


@njit(cache=True, nogil=True, inline="always")
def drawn(key: np.uint64, at: int, low: int, high: int) -> Any:
    """Return a random integer from `low` to `high` (both included).

    It is number `at` (from 0) in the series of random integers that the seed `key` determines.
    """
    word = mix(key + (np.uint64(at) + _1) * GOLDEN)
    return low + np.int64(bounded(word, np.uint64(high - low + 1)))


@njit(cache=True, nogil=True, inline="always")
def happens(key: np.uint64, at: int, below: np.uint64) -> bool:
    """Return whether random integer number `at` (from 0) of the seed `key` is less than `below`.

    The integer has 64 bits, so the result is True with a probability of ``below / 2**64``.
    """
    return bool(mix(key + (np.uint64(at) + _1) * GOLDEN) < below)


@njit(cache=True, nogil=True)
def pairs(
    document: int,
    first: NDArray[Any],
    ends: NDArray[Any],
    key: np.uint64,
    room: int,
    short_below: np.uint64,
    random_below: np.uint64,
    out: NDArray[Any],
) -> int:
    """Make the pairs of document number `document`, and return how many there are. Each pair fills a row of `out`.

    A pair consists of two texts, called side A and side B. `out` is int64, has at least as many rows as the document
    has sentences, and has these columns:

    * ``DOCUMENT``, and ``NUMBER``, the number of the pair in its document, from 0
    * ``A``, ``A_END``, ``B`` and ``B_END``: where the tokens of the two sides begin and end
    * ``RANDOM``: 1 if side B is from another document, else 0
    * ``CUT``: number of tokens removed in step 4

    Document d has sentences ``first[d]`` to ``first[d + 1]`` (exclusive), and sentence s has tokens ``ends[s]`` to
    ``ends[s + 1]`` (exclusive). No document and no sentence is empty, and there are at least two documents. `key` is a
    random seed. All pairs of the document have the same target number of tokens. If random number 0 of `key` is less
    than `short_below`, random number 1 draws the target from 2 to `room`; otherwise it is `room`. A pair is made in
    these steps, which use the random numbers of `key` from number 2 on, in this order:

    1. The next sentences of the document are taken, until they have the target number of tokens or the document ends.
    2. The first few of them become side A. How many is random: at least one, and not all; but if only one sentence was
       taken, it is side A.
    3. The others become side B, with two exceptions: only one sentence was taken, or the next random number is less
       than `random_below`. Side B then comes from another document, which is chosen at random. It begins with a random
       sentence of that document. The sentences that follow are added, until the pair has the target number of tokens or
       that document ends. With such a side B, the sentences that were taken in step 1 and are not in side A go to the
       next pair.
    4. While the pair has more than `room` tokens, the longer side (B if both are equal) loses its first or its last
       token, at random.
    """
    at, made = 0, 0
    target = room
    if happens(key, at, short_below):
        target = drawn(key, at + 1, 2, room)
    at += 2
    begin, stop = first[document], first[document + 1]
    while begin < stop:
        end = begin + 1
        while end < stop and ends[end] - ends[begin] < target:
            end += 1
        split = begin + 1
        if end - begin >= 2:
            split = drawn(key, at, begin + 1, end - 1)
            at += 1
        other = end - begin == 1
        if not other:
            other = happens(key, at, random_below)
            at += 1
        row = out[made]
        row[DOCUMENT], row[NUMBER], row[RANDOM], row[CUT] = document, made, other, 0
        row[A], row[A_END] = ends[begin], ends[split]
        if other:
            which = drawn(key, at, 0, first.shape[0] - 3)
            which += which >= document
            start = drawn(key, at + 1, first[which], first[which + 1] - 1)
            at += 2
            last = start + 1
            while last < first[which + 1] and ends[last] - ends[start] < target - (row[A_END] - row[A]):
                last += 1
            row[B], row[B_END] = ends[start], ends[last]
            begin = split  # the sentences after the split are used again
        else:
            row[B], row[B_END] = ends[split], ends[end]
            begin = end
        while row[A_END] - row[A] + row[B_END] - row[B] > room:
            side = A if row[A_END] - row[A] > row[B_END] - row[B] else B
            if drawn(key, at, 0, 1):
                row[side] += 1
            else:
                row[side + 1] -= 1
            row[CUT] += 1
            at += 1
        made += 1
    return made


@njit(cache=True, nogil=True)
def all_pairs(
    first: NDArray[Any],
    ends: NDArray[Any],
    keys: NDArray[Any],
    room: int,
    short_below: np.uint64,
    random_below: np.uint64,
    out: NDArray[Any],
) -> int:
    """Make the pairs of every document, several times with different random seeds; return the number of pairs.

    ``keys[d, c]`` is the seed for copy c of document d; `keys` is uint64 ``[documents, copies]``. All pairs of a
    document come before those of the next document. `out` gets a row for each pair, with the columns that `pairs`
    describes; it needs ``sentences * copies`` rows.

    Document d has sentences ``first[d]`` to ``first[d + 1]`` (exclusive), and sentence s has tokens ``ends[s]`` to
    ``ends[s + 1]`` (exclusive). A pair has at most `room` tokens. The pairs of one copy of a document are built up to a
    target number of tokens. With probability ``short_below / 2**64``, the target is a random number from 2 to `room`;
    otherwise it is `room`.

    If the next sentence alone has at least the target number of tokens, or is the last of its document, it is side A,
    and side B is from another document. Otherwise, side B is from another document with probability
    ``random_below / 2**64``.
    """
    made = 0
    for document in range(keys.shape[0]):
        for copy in range(keys.shape[1]):
            made += pairs(document, first, ends, keys[document, copy], room, short_below, random_below, out[made:])
    return made


@njit(cache=True, nogil=True)
def write(
    made: NDArray[Any], tokens: NDArray[Any], start: int, middle: int, ids: NDArray[Any], types: NDArray[Any]
) -> None:
    """Write the token ids of the pairs in `made` to `ids`, one pair after the other, and their token types to `types`.

    A pair becomes `start`, the tokens of side A, `middle`, the tokens of side B, `middle`. `start` and `middle` are the
    ids of two special tokens ([CLS] and [SEP] of BERT). The token type is 0 up to and including the first `middle` of a
    pair, and 1 after it. `made` has one row per pair, made by `pairs`: the columns ``A`` to ``B_END`` say where its
    sides begin and end in `tokens`, the token ids of all documents.
    """
    at = 0
    for i in range(made.shape[0]):
        ids[at] = start
        types[at] = 0
        at += 1
        for side in range(2):
            for t in range(made[i, A + 2 * side], made[i, A_END + 2 * side]):
                ids[at] = tokens[t]
                types[at] = side
                at += 1
            ids[at] = middle
            types[at] = side
            at += 1
