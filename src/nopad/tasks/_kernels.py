"""The compiled loops of tasks: drawing masks. Conventions as in `nopad._kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._kernels import GOLDEN, bounded, mix

NEVER, GOES_ON, BEGINS = 0, 1, 2  # what a token is for masking

_IGNORED = -100
_MASKED = np.uint64(int(0.8 * 2**64))  # below: [MASK]
_OTHER = np.uint64(int(0.9 * 2**64))  # below: any other token
_1, _2, _3 = np.uint64(1), np.uint64(2), np.uint64(3)


@njit(cache=True, nogil=True)
def mask(
    ids: NDArray[Any],
    labels: NDArray[Any],
    kinds: NDArray[Any],
    lengths: NDArray[Any],
    names: NDArray[Any],
    key: np.uint64,
    below: np.uint64,
    mask_id: int,
    ordinary: NDArray[Any],
) -> None:
    """Mask tokens in place, and set the labels: the tokens as they were, -100 where none is to be predicted.

    ``names[i]`` are the integers that name sequence i; its masks depend on them and `key` alone. Token t of it is
    chosen if draw 3 t of the sequence's key is less than `below`; a token that goes on with a word is chosen as the
    word's first is. Draw 3 t + 1 says what becomes of a chosen token, draw 3 t + 2 which of the `ordinary` ids.
    """
    at = 0
    for i in range(lengths.shape[0]):
        mine = key
        for part in range(names.shape[1]):
            mine = mix((mine ^ np.uint64(names[i, part])) + GOLDEN)
        chosen = False
        for t in range(lengths[i]):
            labels[at] = _IGNORED
            first = np.uint64(t) * _3 + _1
            if kinds[at] == BEGINS:
                chosen = bool(mix(mine + first * GOLDEN) < below)
            if chosen and kinds[at] != NEVER:
                labels[at] = ids[at]
                how = mix(mine + (first + _1) * GOLDEN)
                if how < _MASKED:
                    ids[at] = mask_id
                elif how < _OTHER:
                    drawn = mix(mine + (first + _2) * GOLDEN)
                    ids[at] = ordinary[np.int64(bounded(drawn, np.uint64(ordinary.shape[0])))]
            at += 1
