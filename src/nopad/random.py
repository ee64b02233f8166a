"""The random number generator of nopad, specified here so that its numbers never change.

The generator is counter-based: every draw depends only on a key and an index. So any rank or worker computes the same
value without the draws before it, and no upgrade of NumPy or torch changes it. The generator is SplitMix64, computed at
an index:

* ``mix(x)``: ``x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >> 31`` (mod 2^64)
* ``key(p0, p1, ...)``: start at 0; for each part ``k = mix((k ^ part) + 0x9E3779B97F4A7C15)``
* ``draw(key, i) = mix(key + (i + 1) * 0x9E3779B97F4A7C15)``
* ``bounded(u, n) = (u * n) >> 64``, the high word of the 128-bit product, in ``[0, n)``
* ``shuffle``: Fisher-Yates from the top: for ``i = n - 1 .. 1`` swap ``i`` with ``bounded(draw(key, i), i + 1)``

This module is the readable reference on Python integers; `nopad._kernels` has the compiled versions, and tests check
that both give the same numbers. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["bounded", "draw", "key", "keys", "mix", "shuffle"]

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

# The part of a key that comes after the seed; it says for which random choice of nopad the key is.
STREAM_PACK_ORDER = 1
STREAM_WITHIN_LENGTH = 2
STREAM_ARRIVAL = 3
STREAM_BLOCK_ORDER = 4
STREAM_HELD_OUT = 6
STREAM_LEG = 8
STREAM_EPOCH = 9
STREAM_PASS = 10
STREAM_MASK = 11
STREAM_SHUFFLE = 12
STREAM_PAIRS = 13


def mix(x: int) -> int:
    """Return a 64-bit integer that is a hash of the lowest 64 bits of `x`: the last step of SplitMix64.

    >>> hex(mix(1))
    '0x5692161d100b05e5'
    """
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def key(*parts: int) -> int:
    """Return a 64-bit key made from the integers `parts`, such as ``key(seed, STREAM_PACK_ORDER)``.

    Each random choice of nopad has its own key, from which `draw` and `shuffle` make random numbers.
    """
    k = 0
    for part in parts:
        k = mix((k ^ (int(part) & MASK)) + GOLDEN)  # int(): a NumPy integer cannot hold MASK
    return k


def keys(values: NDArray[Any], *parts: int) -> NDArray[np.uint64]:
    """Return ``key(*parts, value)`` for each of `values`; uint64, with the shape of `values`.

    >>> keys(np.array([3, 4]), 7, 2).tolist() == [key(7, 2, 3), key(7, 2, 4)]
    True
    """
    x = (np.uint64(key(*parts)) ^ values.astype(np.uint64)) + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw(key: int, index: int) -> int:
    """Return draw number `index` (from 0) of `key`: a pseudo-random integer from 0 to 2^64 - 1."""
    return mix(key + (index + 1) * GOLDEN)


def bounded(u: int, n: int) -> int:
    """Return an integer from 0 to ``n - 1`` for a 64-bit draw `u`.

    If `u` is uniform, each integer has the probability ``1 / n``, to within ``1 / 2^64``.
    """
    return (u * n) >> 64


def shuffle(items: MutableSequence[Any], key: int) -> None:
    """Shuffle `items` in place, in the order that `key` gives.

    >>> items = list(range(8)); shuffle(items, key(0, STREAM_PACK_ORDER)); sorted(items) == list(range(8))
    True
    """
    for i in range(len(items) - 1, 0, -1):
        j = bounded(draw(key, i), i + 1)
        items[i], items[j] = items[j], items[i]
