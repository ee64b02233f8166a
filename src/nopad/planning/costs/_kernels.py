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
SMALLEST, SUM, COST_ONLY = 0, 1, 2  # kinds of score


@njit(cache=True, nogil=True)
def score(pack: NDArray[Any], limits: NDArray[Any], kind: int, weight: float) -> float:
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
    """Make class `number` what `copies` of an item on a pack of class `at` give; its number of packs is set by the
    caller. The link goes to the first row of `links`.
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
def tightest(packs: NDArray[Any], classes: int, size: int, cost: int, limits: NDArray[Any], weight: float) -> int:
    """Return the fullest class that an item fits into, -1 if there is none: by free tokens plus `weight` x cost."""
    best, least = -1, np.inf
    for number in range(classes):
        if packs[number, TOKENS] >= size and packs[number, COST] >= cost and packs[number, PLACES] >= 1:
            room = packs[number, TOKENS] / limits[TOKENS] + weight * (packs[number, COST] / limits[COST])
            if room < least:
                best, least = number, room
    return best


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
    weight: float,
    most: int,
) -> tuple[NDArray[Any], int, NDArray[Any], int, int]:
    """Place all items, the last first, on the fullest class of packs they fit into; open packs for the others.

    After `most` classes looked at, every further item opens packs of its own. Returns as `spread_out`.
    """
    steps = 0
    for item in range(sizes.shape[0] - 1, -1, -1):
        size, cost = sizes[item], costs[item]
        while left[item] > 0:
            at = -1
            if steps < most:
                at = tightest(packs, classes, size, cost, limits, weight)
                steps += classes
            packs, links = grown(packs, classes + 1), grown(links, linked)
            if at < 0:  # open as many packs as the rest of this item fills
                at = classes
                classes += 1
                packs[at, TOKENS], packs[at, COST], packs[at, PLACES] = limits[TOKENS], limits[COST], limits[PLACES]
                packs[at, LINK], packs[at, PACKS] = -1, left[item]
            copies = min(packs[at, TOKENS] // size, packs[at, PLACES], left[item])
            if cost > 0:
                copies = min(copies, packs[at, COST] // cost)
            count = min(packs[at, PACKS], left[item] // copies)
            fresh = packs[at, LINK] < 0 and at == classes - 1
            moved(packs, at, classes, size, cost, copies, links[linked:], item)
            packs[classes, PACKS], packs[classes, LINK] = count, linked
            if packs[at, PACKS] == count or fresh:
                packs[at] = packs[classes]
            else:
                packs[at, PACKS] -= count
                classes += 1
            left[item] -= count * copies
            linked += 1
    return packs, classes, links, linked, steps
