"""The compiled loops of the store: copying tokens into shards, and checksums of sequences.

Conventions as in `nopad._kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._kernels import GOLDEN, mix


@njit(cache=True, nogil=True)
def gather_tokens(source: NDArray[Any], starts: NDArray[Any], lengths: NDArray[Any], out: NDArray[Any]) -> int:
    """Copy ``source[starts[i] : starts[i] + lengths[i]]`` back to back into `out`.

    Sequences lie anywhere in `source`, so each copy would wait for memory. Reading one token of each cache line of the
    next 32 sequences beforehand lets those waits overlap, which halves the time. The sum of these tokens is returned
    only so that the compiler keeps the loop.
    """
    at, touched = 0, 0
    for window in range(0, starts.shape[0], 32):
        end = min(window + 32, starts.shape[0])
        for i in range(window, end):
            for j in range(starts[i], starts[i] + min(lengths[i], 1024), 16):
                touched += source[j]
        for i in range(window, end):
            out[at : at + lengths[i]] = source[starts[i] : starts[i] + lengths[i]]
            at += lengths[i]
    return touched


@njit(cache=True, nogil=True)
def token_hashes(tokens: NDArray[Any], lengths: NDArray[Any], out: NDArray[Any]) -> None:
    """Set ``out[i]`` (uint64) to a hash of run i of `tokens`, so that runs can be compared without storing them.

    Run i has ``lengths[i]`` tokens, and the runs follow one another.
    """
    at = 0
    for i in range(lengths.shape[0]):
        state = np.uint64(lengths[i])
        for j in range(lengths[i]):
            state = mix(state + GOLDEN + np.uint64(tokens[at + j]))
        out[i] = state
        at += lengths[i]


@njit(cache=True, nogil=True)
def tag_sum(records: NDArray[Any], starts: NDArray[Any], lengths: NDArray[Any]) -> np.uint64:
    """Return a 64-bit checksum of a set of (record, start, length) triples that does not depend on their order.

    It is the sum of one 64-bit hash per triple, mod 2^64.
    """
    total = np.uint64(0)
    for i in range(records.shape[0]):
        state = mix(np.uint64(records[i]) + GOLDEN)
        state = mix((state ^ np.uint64(starts[i])) + GOLDEN)
        total += mix((state ^ np.uint64(lengths[i])) + GOLDEN)
    return total
