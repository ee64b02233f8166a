"""Compiled loops of the store: hashes and checksums of sequences.

As in `nopad._kernels`, arguments are plain arrays, and callers validate them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._kernels import GOLDEN, mix


@njit(cache=True, nogil=True)
def token_hashes(tokens: NDArray[Any], lengths: NDArray[Any], out: NDArray[Any]) -> None:
    """Set ``out[i]`` (uint64) to a hash of sequence i, so that sequences can be compared without storing their tokens.

    The sequences lie one after the other in `tokens`: sequence i has ``lengths[i]`` tokens and begins where sequence
    i - 1 ends.
    """
    at = 0
    for i in range(lengths.shape[0]):
        state = np.uint64(lengths[i])
        for j in range(lengths[i]):
            state = mix(state + GOLDEN + np.uint64(tokens[at + j]))
        out[i] = state
        at += lengths[i]


@njit(cache=True, nogil=True)
def sequence_hashes(ids: NDArray[Any], lengths: NDArray[Any], out: NDArray[Any]) -> None:
    """Set ``out[i]`` (uint32) to a hash of the ids of sequence i; an index-only dataset stores these hashes.

    `ids` holds the sequences one after the other, and sequence i has ``lengths[i]`` ids. Each id is mixed with its
    place in the sequence, and the mixed values are added up. These additions do not wait for each other, unlike the
    steps of `token_hashes`, so this takes 1 ns per token instead of 5.
    """
    at = 0
    for i in range(lengths.shape[0]):
        state, place = np.uint64(lengths[i]), np.uint64(0)
        for j in range(lengths[i]):
            place += GOLDEN
            state += mix(place + np.uint64(ids[at + j]))
        out[i] = mix(state) >> np.uint64(32)
        at += lengths[i]


@njit(cache=True, nogil=True)
def tag_sum(records: NDArray[Any], starts: NDArray[Any], lengths: NDArray[Any]) -> np.uint64:
    """Return a 64-bit checksum of n sequences.

    Sequence i is described by three numbers: ``records[i]`` is the number of its record, ``starts[i]`` the index of its
    first token in this record, and ``lengths[i]`` its number of tokens. The checksum is the sum of one 64-bit hash per
    sequence, mod 2^64, so it does not depend on the order of the sequences.
    """
    total = np.uint64(0)
    for i in range(records.shape[0]):
        state = mix(np.uint64(records[i]) + GOLDEN)
        state = mix((state ^ np.uint64(starts[i])) + GOLDEN)
        total += mix((state ^ np.uint64(lengths[i])) + GOLDEN)
    return total
