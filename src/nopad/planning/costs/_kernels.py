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

To find a class quickly, best-fit puts classes on shelves. Shelf s is a linked list of the classes with ``free tokens //
2**shift == s``. The array `peaks` is a binary tree over all shelves: node 1 is the root, node n has the nodes 2n and 2n
+ 1 below it, and the last half of all nodes are the shelves. The number at a shelf is an upper bound on the free cost
of its classes; the number at any other node is the highest one below it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

TOKENS, COST, PLACES, PACKS, LINK = 0, 1, 2, 3, 4  # columns of a class
SHELVES = 2**15  # at most so many ranges of free tokens, by which `best_fit` finds a class
_SEARCH = 8  # steps counted for a search of the shelves, besides the classes looked at
SMALLEST, SUM, COST_ONLY = 0, 1, 2  # kinds of score


@njit(cache=True, nogil=True)
def score(pack: NDArray[Any], limits: NDArray[Any], kind: int, weight: float) -> Any:
    """Return a score of how empty a pack is; -1 if it has no free place for a sequence.

    `pack` is the row of a class (see the module). `limits` are the most tokens, cost and sequences of a pack. Let t, c
    and s be the shares of these limits that are free, from 0 to 1. The score is ``t + weight * c`` if `kind` is `SUM`,
    ``min(c, s)`` if it is `COST_ONLY`, and ``min(t, weight * c, s)`` if it is `SMALLEST`.
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
def enter(scores: NDArray[Any], winners: NDArray[Any], number: int, value: float) -> None:
    """Set the score of class `number` to `value`, in a tournament of all classes.

    The tournament is a binary tree: node 1 is the root, node n has the nodes 2n and 2n + 1 below it, and the last half
    of all nodes are the classes. ``scores[n]`` is the highest score below node n, and ``winners[n]`` is its class; of
    equal scores, the lowest class wins. A class that does not take part has the score -1.
    """
    node = scores.shape[0] // 2 + number
    scores[node], winners[node] = value, number
    while node > 1:
        rival, other = scores[node ^ 1], winners[node ^ 1]
        # `&` and `|` instead of `and` and `or`: no branches, which would be hard to predict
        lost = (rival > value) | ((rival == value) & (other < number))
        value, number = (rival if lost else value), (other if lost else number)
        node >>= 1
        scores[node], winners[node] = value, number


@njit(cache=True, nogil=True)
def grown(rows: NDArray[Any], used: int) -> NDArray[Any]:
    """Return a larger array that begins with the first `used` rows: for n rows, one of ``2 * n + 2`` rows."""
    larger = np.empty((2 * rows.shape[0] + 2, rows.shape[1]), dtype=np.int64)
    for at in range(used):  # Numba takes 5 s to compile the assignment of a slice
        for column in range(rows.shape[1]):
            larger[at, column] = rows[at, column]
    return larger


@njit(cache=True, nogil=True)
def moved(
    packs: NDArray[Any],
    at: int,
    number: int,
    size: int,
    cost: int,
    copies: int,
    links: NDArray[Any],
    linked: int,
    item: int,
) -> None:
    """Write to row `number` of `packs` what packs of class `at` become when each gets `copies` sequences of `item`.

    `size` and `cost` are those of one such sequence. The new link is written to row `linked` of `links`. The caller
    sets how many packs row `number` stands for. Row `at` stays as it is, unless `number` equals `at`.
    """
    links[linked, 0], links[linked, 1], links[linked, 2] = packs[at, LINK], item, copies
    packs[number, LINK] = linked
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
    """Place sequences into the emptiest class of packs, item by item, from the last item down to item `first`.

    The emptiest class has the highest `score` for `kind` and `weight`. When a sequence does not fit into it, the
    remaining sequences of this item are not placed, even if another class has room; the next item follows. ``left[i]``
    is the number of sequences of item i to place; those placed are subtracted, in place. `limits` are the most tokens,
    cost and sequences of a pack.

    The rows in use are ``packs[:classes]`` and ``links[:linked]``. Returns ``(packs, classes, links, linked, steps)``
    after placing; the two arrays are those given, changed in place, or larger copies. A step changes or divides one
    class; the loop ends after `most` steps, and `steps` is the number of steps made.
    """
    places = 2
    while places < classes + sizes.shape[0]:
        places *= 2
    scores, winners = np.full(2 * places, -1.0), np.zeros(2 * places, dtype=np.int64)
    for number in range(classes):
        enter(scores, winners, number, score(packs[number], limits, kind, weight))
    steps = 0
    for item in range(sizes.shape[0] - 1, first - 1, -1):
        size, cost = sizes[item], costs[item]
        while left[item] > 0 and steps < most:
            at = winners[1]
            if packs[at, TOKENS] < size or packs[at, COST] < cost or packs[at, PLACES] < 1:
                break
            steps += 1
            if classes == packs.shape[0]:
                packs = grown(packs, classes)
            if linked == links.shape[0]:
                links = grown(links, linked)
            if packs[at, PACKS] > left[item]:
                moved(packs, at, classes, size, cost, 1, links, linked, item)
                packs[classes, PACKS] = left[item]
                packs[at, PACKS] -= left[item]
                enter(scores, winners, classes, score(packs[classes], limits, kind, weight))
                classes += 1
                left[item] = 0
            else:
                moved(packs, at, at, size, cost, 1, links, linked, item)
                left[item] -= packs[at, PACKS]
                enter(scores, winners, at, score(packs[at], limits, kind, weight))
            linked += 1
    return packs, classes, links, linked, steps


@njit(cache=True, nogil=True)
def raise_peak(peaks: NDArray[Any], at: int, cost: int) -> None:
    """Raise the number of shelf `at` in the tree `peaks` (see the module) to at least `cost`.

    The nodes above the shelf are updated.
    """
    node = peaks.shape[0] // 2 + at
    while node > 0 and peaks[node] < cost:
        peaks[node] = cost
        node //= 2


@njit(cache=True, nogil=True)
def lower_peak(peaks: NDArray[Any], at: int, cost: int) -> None:
    """Lower the number of shelf `at` in the tree `peaks` (see the module) to `cost`.

    The nodes above the shelf are updated.
    """
    node = peaks.shape[0] // 2 + at
    peaks[node] = cost
    while node > 1:
        node //= 2
        peaks[node] = max(peaks[2 * node], peaks[2 * node + 1])


@njit(cache=True, nogil=True)
def first_shelf(peaks: NDArray[Any], first: int, cost: int) -> int:
    """Return the first shelf, from shelf `first` on, that may hold a class with a free cost of `cost` or more.

    This is the first shelf with a number of at least `cost` in the tree `peaks` (see the module); -1 if there is none.
    """
    shelves = peaks.shape[0] // 2
    node = shelves + first
    while peaks[node] < cost:
        while node % 2:  # all nodes after this one are below the next node of a row further up
            if node & (node + 1) == 0:
                return -1
            node //= 2
        node += 1
    while node < shelves:
        node = 2 * node if peaks[2 * node] >= cost else 2 * node + 1
    return int(node - shelves)


@njit(cache=True, nogil=True)
def tightest(
    packs: NDArray[Any],
    heads: NDArray[Any],
    after: NDArray[Any],
    peaks: NDArray[Any],
    shift: int,
    size: int,
    cost: int,
) -> tuple[int, int, int, int]:
    """Find the fullest class that a sequence fits into; return ``(class, before, shelf, looks)``.

    The fullest class has the fewest free tokens. The sequence has `size` tokens and the cost `cost`. Shelf s (see the
    module) begins with the class ``heads[s]``, and ``after[c]`` is the class after class c (-1: none). If it turns out
    that all classes of a shelf have a free cost below `cost`, the number of this shelf in the tree `peaks` is lowered.

    ``before`` is the class before the found one on its shelf (-1: none). ``looks`` measures the work: one for each
    class that was examined, and more for each shelf without a fitting class. If the sequence fits into no class, the
    first three results are -1.
    """
    looks = 0
    at = first_shelf(peaks, size >> shift, cost)
    while at >= 0:
        best, before, previous, number, peak = -1, -1, -1, heads[at], np.int64(-1)
        while number >= 0:
            looks += 1
            tokens = packs[number, TOKENS]
            peak = max(peak, packs[number, COST])
            fuller = best < 0 or tokens < packs[best, TOKENS]
            if fuller and tokens >= size and packs[number, COST] >= cost:
                best, before = number, previous
            previous, number = number, after[number]
        if best >= 0:
            return best, before, at, looks
        if peak < cost:
            lower_peak(peaks, at, int(peak))
        looks += _SEARCH
        at = first_shelf(peaks, at + 1, cost) if at + 1 < heads.shape[0] else -1
    return -1, -1, -1, looks


@njit(cache=True, nogil=True)
def put(
    packs: NDArray[Any], heads: NDArray[Any], after: NDArray[Any], peaks: NDArray[Any], number: int, shift: int
) -> None:
    """Put class `number` on its shelf (see the module), unless its packs have no free place for a sequence.

    Shelf s begins with the class ``heads[s]``, and ``after[c]`` is the class after class c (-1: none).
    """
    if packs[number, PLACES] > 0:
        at = packs[number, TOKENS] >> shift
        after[number], heads[at] = heads[at], number
        raise_peak(peaks, at, packs[number, COST])


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
    """Place all sequences, those of the last item first, into the fullest class of packs with room, or into new packs.

    The fullest class has the fewest free tokens. ``left[i]`` is the number of sequences of item i to place; those
    placed are subtracted, in place. `limits` are the most tokens, cost and sequences of a pack.

    The rows in use are ``packs[:classes]`` and ``links[:linked]``. Returns ``(packs, classes, links, linked, steps)``
    after placing; the two arrays are those given, changed in place, or larger copies. `steps` counts the work of
    searching: 8 for each search, and the ``looks`` of `tightest`. After `most` steps no class is searched for any more:
    all other sequences go to new packs, which hold sequences of one item only.
    """
    items, shift, shelves = left.shape[0], 0, 1
    while limits[TOKENS] >> shift >= SHELVES:
        shift += 1
    while limits[TOKENS] >> shift >= shelves:
        shelves *= 2
    heads, after = np.full(shelves, -1, dtype=np.int64), np.empty(classes + 3 * items + 16, dtype=np.int64)
    peaks = np.full(2 * shelves, -1, dtype=np.int64)
    for number in range(classes):
        put(packs, heads, after, peaks, number, shift)
    steps = 0
    for item in range(items - 1, -1, -1):
        size, cost = sizes[item], costs[item]
        while left[item] > 0:
            number, before, at = -1, -1, -1
            if steps < most:
                number, before, at, looks = tightest(packs, heads, after, peaks, shift, size, cost)
                steps += looks + _SEARCH
            if classes + 2 > packs.shape[0]:
                packs = grown(packs, classes)
            if classes + 2 > after.shape[0]:
                longer = np.empty(2 * after.shape[0] + 2, dtype=np.int64)
                longer[: after.shape[0]] = after
                after = longer
            if linked == links.shape[0]:
                links = grown(links, linked)
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
            if rest:
                packs[classes] = packs[number]
                packs[classes, PACKS] = rest
                put(packs, heads, after, peaks, classes, shift)
                classes += 1
            moved(packs, number, number, size, cost, copies, links, linked, item)
            packs[number, PACKS] = count
            put(packs, heads, after, peaks, number, shift)
            left[item] -= count * copies
            linked += 1
    return packs, classes, links, linked, steps
