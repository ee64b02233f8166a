"""Compiled functions for sets of integers from 0 to `capacity`, stored as bits.

A set has several levels of 64-bit words. Bit v of the lowest level says whether v is a member. Bit w of each other
level says whether word w of the level below is not 0, so a search skips words without a member. The highest level is
one word. So finding the nearest member takes O(log64(capacity)) steps.

A set is passed as its words, the lowest level first (a uint64 array, from `empty_set`), and its capacity, which
determines where the levels begin. Functions that look for a member return -1 if there is none. As in `nopad._kernels`,
callers validate the arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

_0, _1, _63 = np.uint64(0), np.uint64(1), np.uint64(63)


def empty_set(capacity: int) -> NDArray[np.uint64]:
    """Return the words of an empty set of integers from 0 to `capacity`: a one-dimensional uint64 array of zeros.

    A large array takes memory only where it is written to.
    """
    words = 0
    while capacity:
        capacity >>= 6
        words += capacity + 1
    return np.zeros(max(words, 1), dtype=np.uint64)


def highest_bit(word: np.uint64) -> int:
    """Return the position of the highest set bit of a word (uint64, not 0); the lowest bit of a word has position 0.

    The compiled version uses the processor's instruction that counts leading zeros.
    """
    return int(word).bit_length() - 1


# Numba has no function for the instruction that counts leading zeros. With portable code instead (shifts and a table),
# packing a stream takes 5 to 10 % longer.
def _instruction(_: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zeros = builder.ctlz(arguments[0], context.get_constant(types.boolean, True))
        return builder.sub(context.get_constant(types.int64, 63), zeros)

    return types.int64(types.uint64), generate


_highest_bit: Any = intrinsic(_instruction)


@overload(highest_bit)
def _compiled(word: Any) -> Any:
    def one_instruction(word: Any) -> Any:
        return _highest_bit(word)

    return one_instruction


@njit(cache=True, nogil=True)
def lowest_bit(word: np.uint64) -> int:
    """Return the position of the lowest set bit of a word (uint64, not 0); the lowest bit of a word has position 0."""
    return highest_bit(word & (~word + _1))


@njit(cache=True, nogil=True)
def add(words: NDArray[Any], capacity: int, value: int) -> None:
    """Add `value`, an integer from 0 to `capacity`, to a set, in place. If it is a member already, nothing changes."""
    begin = 0
    while True:
        word = begin + (value >> 6)
        before = words[word]
        words[word] = before | (_1 << np.uint64(value & 63))
        capacity >>= 6
        if before != _0 or capacity == 0:
            return
        begin += capacity + 1
        value >>= 6


@njit(cache=True, nogil=True)
def remove(words: NDArray[Any], capacity: int, value: int) -> None:
    """Remove `value` from a set, in place. The value must be a member."""
    begin = 0
    while True:
        word = begin + (value >> 6)
        after = words[word] ^ (_1 << np.uint64(value & 63))
        words[word] = after
        capacity >>= 6
        if after != _0 or capacity == 0:
            return
        begin += capacity + 1
        value >>= 6


@njit(cache=True, nogil=True)
def at_least(words: NDArray[Any], capacity: int, value: int) -> int:
    """Return the smallest member of a set that is not below `value`; -1 if the set has no such member.

    `value` is from 0 to `capacity`.
    """
    begin, shift = 0, 6
    bits = words[value >> 6] & (~_0 << np.uint64(value & 63))
    while bits == _0:
        value = (value >> 6) + 1
        if value > capacity >> shift:
            return -1
        begin += (capacity >> shift) + 1
        shift += 6
        bits = words[begin + (value >> 6)] & (~_0 << np.uint64(value & 63))
    value = (value >> 6 << 6) + lowest_bit(bits)
    while begin > 0:
        shift -= 6
        begin -= (capacity >> shift) + 1
        value = (value << 6) + lowest_bit(words[begin + value])
    return value


@njit(cache=True, nogil=True)
def at_most(words: NDArray[Any], capacity: int, value: int) -> int:
    """Return the largest member of a set that is not above `value`; -1 if the set has no such member.

    `value` is from 0 to `capacity`.
    """
    begin, shift = 0, 6
    bits = words[value >> 6] & (~_0 >> (_63 - np.uint64(value & 63)))
    while bits == _0:
        value = (value >> 6) - 1
        if value < 0:
            return -1
        begin += (capacity >> shift) + 1
        shift += 6
        bits = words[begin + (value >> 6)] & (~_0 >> (_63 - np.uint64(value & 63)))
    value = (value >> 6 << 6) + highest_bit(bits)
    while begin > 0:
        shift -= 6
        begin -= (capacity >> shift) + 1
        value = (value << 6) + highest_bit(words[begin + value])
    return value
