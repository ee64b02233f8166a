"""The compiled loops of `nopad.assignment`, which assign sequences to the packs of a plan.

A strategy is a list of lengths that share a pack. A plan says how many packs have each strategy. Distinct lengths are
given by rank: rank k, counted from 0, stands for the k-th of them in ascending order.

As in `nopad._kernels`, arguments are plain arrays, and callers validate them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._kernels import shuffle


@njit(cache=True, nogil=True)
def shuffle_segments(items: NDArray[Any], indptr: NDArray[Any], keys: NDArray[Any]) -> None:
    """Shuffle each segment ``items[indptr[k]:indptr[k + 1]]`` in place, with the random key ``keys[k]`` (uint64)."""
    for k in range(indptr.shape[0] - 1):
        shuffle(items[indptr[k] : indptr[k + 1]], keys[k])


@njit(cache=True, nogil=True)
def look_up_ranks(lengths: NDArray[Any], table: NDArray[Any], ranks: NDArray[Any]) -> None:
    """Set ``ranks[i]`` to ``table[lengths[i]]`` for each i; ``table[l]`` is the rank of length l."""
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
    """Assign sequences to packs: pack after pack, each slot takes the next unused sequence of its length.

    A slot is the place of one sequence in a pack. The length of a slot is given by its rank.

    Args:
        strategy_of_pack: the number of each pack's strategy.
        strategy_indptr: where each strategy begins in `strategy_ranks`.
        strategy_ranks: the ranks of the slots: those of strategy s are
            ``strategy_ranks[strategy_indptr[s]:strategy_indptr[s + 1]]``.
        order: the sequence numbers, grouped by length.
        free: the next unused sequence of rank k is ``order[free[k]]``; updated in place.
        indptr: result: where each pack begins in `sequence`. ``indptr[0]`` is not written, and must be 0.
        sequence: result: pack p has the sequence numbers ``sequence[indptr[p]:indptr[p + 1]]``.
    """
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
    """Fill `packs` with one list for each distinct length: the numbers of the packs that hold this length.

    A list names each pack once, in ascending order. The list of rank k begins at ``packs[begin[k]]``; the caller has
    computed `begin`. Pack p has the strategy ``s = strategy_of_pack[p]``. The lengths of strategy s have the ranks
    ``strategy_ranks[strategy_indptr[s]:strategy_indptr[s + 1]]``, of which equal ones must be adjacent.
    """
    free = begin.copy()
    for p in range(strategy_of_pack.shape[0]):
        s = strategy_of_pack[p]
        for slot in range(strategy_indptr[s], strategy_indptr[s + 1]):
            k = strategy_ranks[slot]
            # Equal lengths are adjacent, so count each once
            if slot == strategy_indptr[s] or k != strategy_ranks[slot - 1]:
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
    """Assign sequences to packs so that the packs stay close to the order in which the sequences arrived.

    The first sequence that has no pack yet opens a pack: the next unused pack with a slot of this sequence's length.
    Each slot of the pack then takes the next unused sequence of the slot's length. This is repeated until each sequence
    has a pack. So the packs are in the order of their earliest sequences. Of two sequences of the same length, the
    later one never gets an earlier pack.

    Args:
        ranks: the rank of each sequence's length.
        order: the sequence numbers, grouped by length, ascending within a group.
        free: the next unused sequence of rank k is ``order[free[k]]``; updated in place.
        packs: for each rank, the numbers of the packs that have a slot of this rank (`packs_by_rank`).
        next_pack: the next pack to try for rank k is ``packs[next_pack[k]]``; updated in place.
        strategy_of_pack: the number of each pack's strategy; set to -1 for each used pack.
        strategy_indptr: where each strategy begins in `strategy_ranks`.
        strategy_ranks: the ranks of the slots: those of strategy s are
            ``strategy_ranks[strategy_indptr[s]:strategy_indptr[s + 1]]``.
        indptr: result: where each pack begins in `sequence`. ``indptr[0]`` is not written, and must be 0.
        sequence: result: the pack that was opened as number p (from 0) has the sequence numbers
            ``sequence[indptr[p]:indptr[p + 1]]``.
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
    """Return the position of copy number `copy` (from 0), if `count` copies are spread evenly over `packs` positions.

    This is floor((2 * copy + 1) * packs / (2 * count)).
    """
    return np.int64((np.uint64(2 * copy + 1) * np.uint64(packs)) // np.uint64(2 * count))


@njit(cache=True, nogil=True)
def spread(counts: NDArray[Any], packs: int, strategy_of_pack: NDArray[Any]) -> None:
    """Fill `strategy_of_pack`: strategy s gets ``counts[s]`` packs, spread evenly over all packs.

    `packs` is the number of packs, the sum of `counts`. Pack number c (from 0) of strategy s has the position
    ``even_position(c, counts[s], packs)``. The packs are sorted by position; those with equal positions are sorted by
    their strategy numbers.
    """
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
