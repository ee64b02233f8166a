"""Compiled loops that place sequences, longest first, on classes of equal packs with two or three resources.

A class is a row of int64: free tokens, free cost, free places, number of packs, and the last link of its content. A
link is (link below, item, copies), so packs that part later share what they held before. Scores are floats, made of
one division each, which every machine rounds alike; ties go to the class opened first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

TOKENS, COST, PLACES, PACKS, LINK = 0, 1, 2, 3, 4
SHELVES = 2048
SMALLEST, SUM, COST_ONLY = 0, 1, 2  # kinds of score


@njit(cache=True, nogil=True)
def score(pack: NDArray[Any], limits: NDArray[Any], kind: int, weight: float) -> Any:
    """Return how empty a pack is; -1 if it has no place left."""
    if pack[PLACES] < 1:
        return -1.0
    tokens, cost, places = pack[TOKENS] / limits[TOKENS], pack[COST] / limits[COST], pack[PLACES] / limits[PLACES]
    if kind == SUM:
        return tokens + weight * cost
    if kind == COST_ONLY:
        return min(cost, places)
    return min(tokens, weight * cost, places)


@njit(cache=True, nogil=True)
def sift_up(scores: NDArray[Any], heap: NDArray[Any], at: int, value: float, number: int) -> None:
    """Put class `number` into the heap from place `at` up."""
    while at > 0:
        above = (at - 1) >> 1
        if scores[above] > value or (scores[above] == value and heap[above] < number):
            break
        scores[at], heap[at] = scores[above], heap[above]
        at = above
    scores[at], heap[at] = value, number


@njit(cache=True, nogil=True)
def sift_down(scores: NDArray[Any], heap: NDArray[Any], size: int, value: float, number: int) -> None:
    """Put class `number` into the heap of `size` classes in place of its first, and down from there."""
    at = 0
    while 2 * at + 1 < size:
        below = 2 * at + 1
        other = below + 1
        if other < size and (
            scores[other] > scores[below] or (scores[other] == scores[below] and heap[other] < heap[below])
        ):
            below = other
        if value > scores[below] or (value == scores[below] and number < heap[below]):
            break
        scores[at], heap[at] = scores[below], heap[below]
        at = below
    scores[at], heap[at] = value, number


@njit(cache=True, nogil=True)
def grown(rows: NDArray[Any], used: int) -> NDArray[Any]:
    """Return `rows` with room for at least two more than `used`."""
    if used + 2 <= rows.shape[0]:
        return rows
    larger = np.empty((2 * rows.shape[0] + 2, rows.shape[1]), dtype=np.int64)
    larger[:used] = rows[:used]
    return larger


@njit(cache=True, nogil=True)
def moved(
    packs: NDArray[Any], at: int, number: int, size: int, cost: int, copies: int, links: NDArray[Any], item: int
) -> None:
    """Put `copies` of an item on a pack of class `at`, as class `number`; the caller sets its packs and its link.

    The link's content goes to the first row of `links`.
    """
    links[0, 0], links[0, 1], links[0, 2] = packs[at, LINK], item, copies
    packs[number, TOKENS] = packs[at, TOKENS] - copies * size
    packs[number, COST] = packs[at, COST] - copies * cost
    packs[number, PLACES] = packs[at, PLACES] - copies


@njit(cache=True, nogil=True)
def spread_out(
    sizes: NDArray[Any],
    costs: NDArray[Any],
    left: NDArray[Any],
    packs: NDArray[Any],
    classes: int,
    links: NDArray[Any],
    linked: int,
    limits: NDArray[Any],
    first: int,
    kind: int,
    weight: float,
    most: int,
) -> tuple[NDArray[Any], int, NDArray[Any], int, int]:
    """Place items from the last down to `first`, each on the emptiest class of packs while it fits there.

    `left` is the number of each item, reduced by what was placed. Ends after `most` steps. Returns classes, links, the
    number of each, and the number of steps.
    """
    scores, heap = np.empty(classes + sizes.shape[0] + 1), np.empty(classes + sizes.shape[0] + 1, dtype=np.int64)
    for number in range(classes):
        sift_up(scores, heap, number, score(packs[number], limits, kind, weight), number)
    steps = 0
    for item in range(sizes.shape[0] - 1, first - 1, -1):
        size, cost = sizes[item], costs[item]
        while left[item] > 0 and steps < most:
            at = heap[0]
            if packs[at, TOKENS] < size or packs[at, COST] < cost or packs[at, PLACES] < 1:
                break
            steps += 1
            packs, links = grown(packs, classes), grown(links, linked)
            if packs[at, PACKS] > left[item]:
                moved(packs, at, classes, size, cost, 1, links[linked:], item)
                packs[classes, PACKS], packs[classes, LINK] = left[item], linked
                packs[at, PACKS] -= left[item]
                sift_up(scores, heap, classes, score(packs[classes], limits, kind, weight), classes)
                classes += 1
                left[item] = 0
            else:
                moved(packs, at, at, size, cost, 1, links[linked:], item)
                packs[at, LINK] = linked
                left[item] -= packs[at, PACKS]
                sift_down(scores, heap, classes, score(packs[at], limits, kind, weight), at)
            linked += 1
    return packs, classes, links, linked, steps


@njit(cache=True, nogil=True)
def shelf(tokens: int, capacity: int) -> int:
    """Return the shelf of packs with so many free tokens; shelves ascend with them."""
    return int(tokens * (SHELVES / capacity))


@njit(cache=True, nogil=True)
def tightest(
    packs: NDArray[Any], heads: NDArray[Any], after: NDArray[Any], first: int, size: int, cost: int
) -> tuple[int, int, int, int]:
    """Return the fullest class that an item fits into, the one before it on its shelf, the shelf, and packs looked at.

    The class is -1 if there is none; the search begins at shelf `first`.
    """
    looks = 0
    for at in range(first, heads.shape[0]):
        best, before, previous, number = -1, -1, -1, heads[at]
        while number >= 0:
            looks += 1
            tokens = packs[number, TOKENS]
            fuller = best < 0 or tokens < packs[best, TOKENS]
            if fuller and tokens >= size and packs[number, COST] >= cost:
                best, before = number, previous
            previous, number = number, after[number]
        if best >= 0:
            return best, before, at, looks
    return -1, -1, -1, looks + heads.shape[0] - first


@njit(cache=True, nogil=True)
def best_fit(
    sizes: NDArray[Any],
    costs: NDArray[Any],
    left: NDArray[Any],
    packs: NDArray[Any],
    classes: int,
    links: NDArray[Any],
    linked: int,
    limits: NDArray[Any],
    most: int,
) -> tuple[NDArray[Any], int, NDArray[Any], int, int]:
    """Place all items, the last first, on the class of packs with fewest free tokens; open packs for the others.

    After `most` classes looked at, every further item opens packs of its own. Returns as `spread_out`.
    """
    items = left.shape[0]
    heads, after = np.full(SHELVES + 1, -1, dtype=np.int64), np.empty(classes + 3 * items + 16, dtype=np.int64)
    for number in range(classes):
        if packs[number, PLACES] > 0:
            at = shelf(packs[number, TOKENS], limits[TOKENS])
            after[number], heads[at] = heads[at], number
    steps = 0
    for item in range(items - 1, -1, -1):
        size, cost = sizes[item], costs[item]
        while left[item] > 0:
            number, before, at = -1, -1, -1
            if steps < most:
                number, before, at, looks = tightest(packs, heads, after, shelf(size, limits[TOKENS]), size, cost)
                steps += looks + 1
            packs, links = grown(packs, classes + 1), grown(links, linked)
            opened = number < 0
            if opened:  # as many packs as the rest of this item fills
                number = classes
                classes += 1
                packs[number, TOKENS], packs[number, COST], packs[number, PLACES] = limits[0], limits[1], limits[2]
                packs[number, LINK], packs[number, PACKS] = -1, left[item]
            elif before < 0:
                heads[at] = after[number]
            else:
                after[before] = after[number]
            copies = min(packs[number, TOKENS] // size, packs[number, PLACES], left[item])
            if cost > 0:
                copies = min(copies, packs[number, COST] // cost)
            count = min(packs[number, PACKS], left[item] // copies)
            rest = 0 if opened else packs[number, PACKS] - count
            if classes + 2 > after.shape[0]:
                longer = np.empty(2 * after.shape[0] + 2, dtype=np.int64)
                longer[: after.shape[0]] = after
                after = longer
            if rest:
                packs[classes] = packs[number]
                packs[classes, PACKS] = rest
                at = shelf(packs[classes, TOKENS], limits[TOKENS])
                after[classes], heads[at] = heads[at], classes
                classes += 1
            moved(packs, number, number, size, cost, copies, links[linked:], item)
            packs[number, PACKS], packs[number, LINK] = count, linked
            if packs[number, PLACES] > 0:
                at = shelf(packs[number, TOKENS], limits[TOKENS])
                after[number], heads[at] = heads[at], number
            left[item] -= count * copies
            linked += 1
    return packs, classes, links, linked, steps
