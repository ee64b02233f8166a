"""The compiled loops that choose tokens at random and mask them, for masked language modelling (BERT).

As in `nopad._kernels`, arguments are plain arrays, and callers validate them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._kernels import GOLDEN, bounded, mix
from nopad.corpus.masks import BEGINS, GOES_ON, NEVER
from nopad.sequences import IGNORED

_MASKED = np.uint64(int(0.8 * 2**64))  # a draw below this becomes [MASK]
_OTHER = np.uint64(int(0.9 * 2**64))  # other draws below this become an ordinary token
_1, _2, _3 = np.uint64(1), np.uint64(2), np.uint64(3)


@njit(cache=True, nogil=True)
def choose(kinds: NDArray[Any], key: np.uint64, below: np.uint64, count: int, chosen: NDArray[Any]) -> None:
    """Set `chosen`, bool ``[T]``: True for the tokens of a sequence that the model is to predict, False for all others.

    `kinds`, int8 ``[T]``, has for each token `NEVER` (it is never predicted), `BEGINS` (it begins a word) or `GOES_ON`
    (it continues a word). A word is chosen as a whole, except for any tokens in it that are never predicted. Tokens
    that continue a word before any word has begun are not chosen.

    `key` is a random seed. It determines a series of random 64-bit integers, which are numbered from 0. Each word uses
    the one with the number ``3 * t``, where t is the index of the word's first token. If `count` is -1, the words whose
    random integer is less than `below` are chosen. Otherwise the words are tried in ascending order of their random
    integers. A word is skipped if more than `count` tokens would be chosen with it.
    """
    words = 0
    for t in range(kinds.shape[0]):
        words += kinds[t] == BEGINS
    first, last = np.empty(words, np.int64), np.empty(words, np.int64)
    draws = np.empty(words, np.uint64)
    at, inside = 0, False
    for t in range(kinds.shape[0]):
        chosen[t] = False
        if kinds[t] == BEGINS:
            first[at], last[at] = t, t
            draws[at] = mix(key + (np.uint64(t) * _3 + _1) * GOLDEN)
            at += 1
            inside = True
        elif kinds[t] == GOES_ON and inside:
            last[at - 1] = t
    if count < 0:
        for word in range(words):
            if draws[word] < below:
                mark(kinds, first[word], last[word], chosen)
        return
    left = count
    for word in by_draw(draws):
        size = 0
        for t in range(first[word], last[word] + 1):
            size += kinds[t] != NEVER
        if size <= left:
            mark(kinds, first[word], last[word], chosen)
            left -= size
        if left == 0:
            return


@njit(cache=True, nogil=True)
def by_draw(draws: NDArray[Any]) -> NDArray[Any]:
    """Return the indices, int64 ``[n]``, that sort `draws` in ascending order.

    This is Shell sort, since NumPy's sort takes longer to compile. Equal numbers may come in any order.
    """
    order = np.arange(draws.shape[0])
    gap = 1
    while 9 * gap < draws.shape[0]:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, order.shape[0]):
            word = order[i]
            j = i - gap
            while j >= 0 and draws[order[j]] > draws[word]:
                order[j + gap] = order[j]
                j -= gap
            order[j + gap] = word
        gap //= 3
    return order


@njit(cache=True, nogil=True, inline="always")
def mark(kinds: NDArray[Any], first: int, last: int, chosen: NDArray[Any]) -> None:
    """Set ``chosen[t]`` for the tokens t from `first` to `last` (inclusive): False where `kinds` is `NEVER`, else True.

    Tokens that are `NEVER` are never predicted.
    """
    for t in range(first, last + 1):
        chosen[t] = kinds[t] != NEVER


@njit(cache=True, nogil=True)
def mask(
    ids: NDArray[Any],
    labels: NDArray[Any],
    kinds: NDArray[Any],
    lengths: NDArray[Any],
    names: NDArray[Any],
    key: np.uint64,
    below: np.uint64,
    counts: NDArray[Any],
    mask_id: int,
    ordinary: NDArray[Any],
) -> None:
    """Mask tokens of `ids` in place, and set `labels`: the original id of a chosen token, -100 for all others.

    `ids`, `labels` and `kinds` hold n sequences, one after the other; sequence i has ``lengths[i]`` tokens. The
    function `choose` chooses tokens of a sequence by their `kinds`: up to ``counts[i]`` of them; but if this is -1,
    each word with probability ``below / 2**64``. The random integers of a sequence are determined by its own seed. This
    is made from `key` and from ``names[i]``, the k integers that identify the sequence; `names` is int64 ``[n, k]``.

    A chosen token becomes `mask_id` (80 %), becomes an id drawn from the array `ordinary` (10 %), or is kept (10 %).
    For the token with index t in its sequence, the random integer with the number ``3 * t + 1`` decides between these
    three, and the one with the number ``3 * t + 2`` draws the id.
    """
    at = 0
    for i in range(lengths.shape[0]):
        mine = key
        for part in range(names.shape[1]):
            mine = mix((mine ^ np.uint64(names[i, part])) + GOLDEN)
        chosen = np.empty(lengths[i], np.bool_)
        choose(kinds[at : at + lengths[i]], mine, below, counts[i], chosen)
        for t in range(lengths[i]):
            labels[at] = IGNORED
            if chosen[t]:
                labels[at] = ids[at]
                first = np.uint64(t) * _3 + _1
                how = mix(mine + (first + _1) * GOLDEN)
                if how < _MASKED:
                    ids[at] = mask_id
                elif how < _OTHER:
                    drawn = mix(mine + (first + _2) * GOLDEN)
                    ids[at] = ordinary[np.int64(bounded(drawn, np.uint64(ordinary.shape[0])))]
            at += 1
