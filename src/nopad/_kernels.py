"""Every compiled loop of nopad; nothing else is compiled.

Kernels take and return plain arrays, release the GIL, cache their compilation and hold no policy: their callers
validate. Each is also run as plain Python (``kernel.py_func``) by the tests, which hold both forms equal.
Integers that wrap are ``uint64`` throughout: mixing them with signed ones would silently become float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)
_1, _27, _30, _31, _32 = np.uint64(1), np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def mix(x: np.uint64) -> np.uint64:
    """SplitMix64 finaliser; see `nopad.random`."""
    x = (x ^ (x >> _30)) * _M1
    x = (x ^ (x >> _27)) * _M2
    return x ^ (x >> _31)


@njit(cache=True, nogil=True, inline="always")
def bounded(u: np.uint64, n: np.uint64) -> np.uint64:
    """High word of the 128-bit product u * n, from four 64-bit ones."""
    u_hi, u_lo, n_hi, n_lo = u >> _32, u & _LOW, n >> _32, n & _LOW
    middle = u_hi * n_lo + ((u_lo * n_lo) >> _32)
    low = (middle & _LOW) + u_lo * n_hi
    return u_hi * n_hi + (middle >> _32) + (low >> _32)


@njit(cache=True, nogil=True)
def shuffle(items: NDArray[Any], key: np.uint64) -> None:
    """Fisher-Yates shuffle in place; `key` is uint64."""
    for i in range(items.shape[0] - 1, 0, -1):
        position = np.uint64(i) + _1
        j = np.int64(bounded(mix(key + position * _GOLDEN), position))
        items[i], items[j] = items[j], items[i]


@njit(cache=True, nogil=True)
def shuffle_segments(items: NDArray[Any], indptr: NDArray[Any], keys: NDArray[Any]) -> None:
    """Shuffle each segment ``items[indptr[k]:indptr[k + 1]]`` with its own key."""
    for k in range(indptr.shape[0] - 1):
        shuffle(items[indptr[k] : indptr[k + 1]], keys[k])


@njit(cache=True, nogil=True)
def group_by_rank(ranks: NDArray[Any], indptr: NDArray[Any], order: NDArray[Any]) -> None:
    """Stable counting sort: fill `order` with indices grouped by rank; ``indptr[k]`` is where group k begins."""
    free = indptr.copy()
    for i in range(ranks.shape[0]):
        k = ranks[i]
        order[free[k]] = i
        free[k] += 1


@njit(cache=True, nogil=True)
def look_up_ranks(lengths: NDArray[Any], table: NDArray[Any], ranks: NDArray[Any]) -> None:
    """ranks[i] = table[lengths[i]]."""
    for i in range(lengths.shape[0]):
        ranks[i] = table[lengths[i]]


@njit(cache=True, nogil=True)
def deal(
    strategy_of_pack: NDArray[Any],
    strategy_indptr: NDArray[Any],
    strategy_ranks: NDArray[Any],
    order: NDArray[Any],
    free: NDArray[Any],
    indptr: NDArray[Any],
    sequence: NDArray[Any],
) -> None:
    """Fill packs one by one: each slot takes the next unused sequence of its length (`free` is advanced)."""
    at = 0
    for p in range(strategy_of_pack.shape[0]):
        s = strategy_of_pack[p]
        for slot in range(strategy_indptr[s], strategy_indptr[s + 1]):
            k = strategy_ranks[slot]
            sequence[at] = order[free[k]]
            free[k] += 1
            at += 1
        indptr[p + 1] = at


@njit(cache=True, nogil=True)
def packs_by_rank(
    strategy_of_pack: NDArray[Any],
    strategy_indptr: NDArray[Any],
    strategy_ranks: NDArray[Any],
    begin: NDArray[Any],
    packs: NDArray[Any],
) -> None:
    """List, for each length rank, the packs that hold it, ascending; the list of rank k begins at ``begin[k]``."""
    free = begin.copy()
    for p in range(strategy_of_pack.shape[0]):
        s = strategy_of_pack[p]
        for slot in range(strategy_indptr[s], strategy_indptr[s + 1]):
            k = strategy_ranks[slot]
            if slot == strategy_indptr[s] or k != strategy_ranks[slot - 1]:  # equal lengths stand side by side
                packs[free[k]] = p
                free[k] += 1


@njit(cache=True, nogil=True)
def deal_in_order(
    ranks: NDArray[Any],
    order: NDArray[Any],
    free: NDArray[Any],
    packs: NDArray[Any],
    next_pack: NDArray[Any],
    strategy_of_pack: NDArray[Any],
    strategy_indptr: NDArray[Any],
    strategy_ranks: NDArray[Any],
    indptr: NDArray[Any],
    sequence: NDArray[Any],
) -> None:
    """Deal in order of arrival: the first sequence not yet dealt opens the next pack that holds its length.

    The other places of that pack take the next sequences of their lengths. So packs come out by their first member,
    and the sequences of any one length stay in order of arrival. `free` and `next_pack` are advanced, and
    `strategy_of_pack` is used up.
    """
    dealt = np.zeros(ranks.shape[0], dtype=np.uint8)
    at, p = 0, 0
    for i in range(ranks.shape[0]):
        if dealt[i]:
            continue
        k = ranks[i]
        while strategy_of_pack[packs[next_pack[k]]] < 0:
            next_pack[k] += 1
        s = strategy_of_pack[packs[next_pack[k]]]
        strategy_of_pack[packs[next_pack[k]]] = -1  # used
        for slot in range(strategy_indptr[s], strategy_indptr[s + 1]):
            k = strategy_ranks[slot]
            member = order[free[k]]
            sequence[at] = member
            dealt[member] = 1
            free[k] += 1
            at += 1
        p += 1
        indptr[p] = at


@njit(cache=True, nogil=True, inline="always")
def even_position(copy: int, count: int, packs: int) -> np.int64:
    """Place of one of `count` copies spread evenly over `packs`: floor((2 * copy + 1) * packs / (2 * count))."""
    return np.int64((np.uint64(2 * copy + 1) * np.uint64(packs)) // np.uint64(2 * count))


@njit(cache=True, nogil=True)
def spread(counts: NDArray[Any], packs: int, strategy_of_pack: NDArray[Any]) -> None:
    """Interleave strategies evenly: a counting sort of all their copies by `even_position`."""
    begin = np.zeros(packs + 1, dtype=np.uint32)
    for s in range(counts.shape[0]):
        for copy in range(counts[s]):
            begin[even_position(copy, counts[s], packs) + 1] += 1
    for p in range(packs):
        begin[p + 1] += begin[p]
    for s in range(counts.shape[0]):
        for copy in range(counts[s]):
            position = even_position(copy, counts[s], packs)
            strategy_of_pack[begin[position]] = s
            begin[position] += 1


@njit(cache=True, nogil=True)
def sort_within_packs(indptr: NDArray[Any], sequence: NDArray[Any]) -> None:
    """Sort the members of every pack ascending, in place (insertion sort: packs are short)."""
    for p in range(indptr.shape[0] - 1):
        low, high = indptr[p], indptr[p + 1]
        if high - low > 32:
            sequence[low:high].sort()
            continue
        for i in range(low + 1, high):
            value = sequence[i]
            j = i - 1
            while j >= low and sequence[j] > value:
                sequence[j + 1] = sequence[j]
                j -= 1
            sequence[j + 1] = value


@njit(cache=True, nogil=True)
def permute_packs(
    indptr: NDArray[Any],
    sequence: NDArray[Any],
    permutation: NDArray[Any],
    new_indptr: NDArray[Any],
    new_sequence: NDArray[Any],
) -> None:
    """Write the packs in the order of `permutation` (old pack numbers)."""
    at = 0
    for q in range(permutation.shape[0]):
        p = permutation[q]
        for i in range(indptr[p], indptr[p + 1]):
            new_sequence[at] = sequence[i]
            at += 1
        new_indptr[q + 1] = at


@njit(cache=True, nogil=True)
def next_fit(lengths: NDArray[Any], capacity: int, depth: int, indptr: NDArray[Any]) -> int:
    """Cut the arrival order into packs; fill `indptr` (room for n + 1) and return the number of packs."""
    packs, tokens, members = 0, 0, 0
    indptr[0] = 0
    for i in range(lengths.shape[0]):
        if members > 0 and (tokens + lengths[i] > capacity or members == depth):
            packs += 1
            indptr[packs] = i
            tokens, members = 0, 0
        tokens += lengths[i]
        members += 1
    if members > 0:
        packs += 1
        indptr[packs] = lengths.shape[0]
    return packs


@njit(cache=True, nogil=True)
def multiset_keys(indptr: NDArray[Any], sequence: NDArray[Any], lengths: NDArray[Any], keys: NDArray[Any]) -> None:
    """keys[p] = sum of a hash of each member's length: equal for packs of equal lengths, in any order."""
    for p in range(indptr.shape[0] - 1):
        total = np.uint64(0)
        for i in range(indptr[p], indptr[p + 1]):
            # Two rounds: a single mix(2x) is often 2 * mix(x), so [73, 73] and [146] would share a key.
            total += mix(mix(np.uint64(lengths[sequence[i]]) * _GOLDEN) + _GOLDEN)
        keys[p] = total


@njit(cache=True, nogil=True)
def gather_tokens(source: NDArray[Any], starts: NDArray[Any], lengths: NDArray[Any], out: NDArray[Any]) -> int:
    """Copy ``source[starts[i] : starts[i] + lengths[i]]`` back to back into `out`.

    Sequences lie anywhere in `source`, so the copy waits for memory at each of them. Touching one token of each cache
    line of the next 32 first lets those waits overlap, which halves the time; the sum of what was touched is returned
    so that the compiler keeps the loop.
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
    """out[i] = 64-bit hash of the i-th run of tokens (order matters), for comparing runs without keeping them."""
    at = 0
    for i in range(lengths.shape[0]):
        state = np.uint64(lengths[i])
        for j in range(lengths[i]):
            state = mix(state + _GOLDEN + np.uint64(tokens[at + j]))
        out[i] = state
        at += lengths[i]


@njit(cache=True, nogil=True)
def tag_sum(records: NDArray[Any], starts: NDArray[Any], lengths: NDArray[Any]) -> np.uint64:
    """Order-free 64-bit checksum of a set of (record, start, length) triples: sum of mixed triples mod 2^64."""
    total = np.uint64(0)
    for i in range(records.shape[0]):
        state = mix(np.uint64(records[i]) + _GOLDEN)
        state = mix((state ^ np.uint64(starts[i])) + _GOLDEN)
        total += mix((state ^ np.uint64(lengths[i])) + _GOLDEN)
    return total
