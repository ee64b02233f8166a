"""Compiled loops that place sequences, longest first, into packs with limits on tokens, cost and number of sequences.

Item i stands for all sequences of one length, with ``sizes[i]`` tokens and a cost of ``costs[i]`` each. Items are in
ascending order of length. (`nopad.planning.several.both` has two kinds of size instead of tokens and cost, and orders
items by the larger of their two shares of the limits.)

Equal packs are one class. A class is a row of five int64:

* free tokens of each pack
* free cost of each pack
* free places for sequences in each pack
* number of packs
* the row of the last link of their content (-1: the packs are empty)

The content of a pack is a chain of links. A link is a row of three int64: the row of the link before it (-1: none), an
item, and the number of copies of this item. If a class is divided, its parts share the links of what they held before.

The score of a class says how empty its packs are (`score`). It is a float that every machine rounds alike. If two
classes have the same score, the one with the lower row is chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

TOKENS, COST, PLACES, PACKS, LINK = 0, 1, 2, 3, 4  # columns of a class
SHELVES = 2048  # ranges of free tokens, by which `best_fit` finds a class
SMALLEST, SUM, COST_ONLY = 0, 1, 2  # kinds of score


@njit(cache=True, nogil=True)
def score(pack: NDArray[Any], limits: NDArray[Any], kind: int, weight: float) -> Any:
    """Return a score of how empty a pack is; -1 if it has no free place for a sequence.

    `pack` is a class (see the module), which begins with its free tokens, cost and places; `limits` are those of an
    empty pack. Let t, c and s be the free shares of tokens, cost and places, from 0 to 1. The score is ``t + weight *
    c`` if `kind` is `SUM`, ``min(c, s)`` if it is `COST_ONLY`, and ``min(t, weight * c, s)`` if it is `SMALLEST`.
    """
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
    """Insert class `number` with score `value` into the heap, whose next free entry is `at`.

    ``heap[i]`` is a class and ``scores[i]`` its score. The highest score is first; of equal scores, the lowest class.
    """
    while at > 0:
        above = (at - 1) >> 1
        if scores[above] > value or (scores[above] == value and heap[above] < number):
            break
        scores[at], heap[at] = scores[above], heap[above]
        at = above
    scores[at], heap[at] = value, number


@njit(cache=True, nogil=True)
def sift_down(scores: NDArray[Any], heap: NDArray[Any], size: int, value: float, number: int) -> None:
    """Replace the first of the `size` classes in the heap by class `number` with score `value`, and restore the order.

    ``heap[i]`` is a class and ``scores[i]`` its score. The highest score is first; of equal scores, the lowest class.
    """
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
    """Return `rows` if at least two rows after the first `used` rows are free; otherwise a larger copy of it."""
    if used + 2 <= rows.shape[0]:
        return rows
    larger = np.empty((2 * rows.shape[0] + 2, rows.shape[1]), dtype=np.int64)
    larger[:used] = rows[:used]
    return larger


@njit(cache=True, nogil=True)
def moved(
    packs: NDArray[Any], at: int, number: int, size: int, cost: int, copies: int, links: NDArray[Any], item: int
) -> None:
    """Write to row `number` of `packs` what class `at` becomes if `copies` sequences of `item` are added to each pack.

    `size` and `cost` are those of one sequence of `item`. The new link is written to ``links[0]``. The caller sets the
    number of packs and the last link of row `number`.
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
    """Place sequences into the emptiest class of packs, from those of the last item down to those of item `first`.

    The emptiest class has the highest `score` for `kind` and `weight`. When a sequence does not fit into it, the
    remaining sequences of this item are not placed, even if another class has room; the next item follows. ``left[i]``
    is the number of sequences of item i to place; those placed are subtracted, in place.

    The rows in use are ``packs[:classes]`` and ``links[:linked]``. Returns ``(packs, classes, links, linked, steps)``
    after placing; the two arrays are those given, changed in place, or larger copies. A step changes or divides one
    class; the loop ends after `most` steps, and `steps` is the number of steps made.
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
    """Return the number, 0 to `SHELVES`, of the shelf for a class of packs with this many free tokens.

    A shelf is a list of classes with about the same number of free tokens; a higher number means more free tokens.
    `capacity` is the number of tokens that an empty pack has free.
    """
    return int(tokens * (SHELVES / capacity))


@njit(cache=True, nogil=True)
def tightest(
    packs: NDArray[Any], heads: NDArray[Any], after: NDArray[Any], first: int, size: int, cost: int
) -> tuple[int, int, int, int]:
    """Find the fullest class that a sequence fits into; return ``(class, before, shelf, looks)``.

    The fullest class has the fewest free tokens. The sequence has `size` tokens and the cost `cost`. A shelf is a list
    of classes with about the same number of free tokens (`shelf`): ``heads[s]`` is the first class on shelf s, and
    ``after[c]`` the class after class c; -1: none. The search begins at shelf `first`.

    ``before`` is the class before the found one on its shelf (-1: none), and ``looks`` the number of classes that were
    examined. If the sequence fits into no class, the first three results are -1, and ``looks`` also counts the shelves
    that were searched.
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
    """Place all sequences, those of the last item first, into the fullest class of packs that has room, or new packs.

    The fullest class has the fewest free tokens. Arguments and results are those of `spread_out`. The last result,
    ``steps``, counts the work of searching: 1 for each search, and the ``looks`` of `tightest`. After `most` steps no
    class is searched for any more: all other sequences go to new packs, which hold sequences of one item only.
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
            if opened:  # the class gets as many new packs as the rest of this item fills
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
