"""Compiled loops of `nopad.planning.costs.few`: find valuable packs of up to four sequences, and fill in real lengths.

Item i stands for all sequences of the length ``lengths[i]``, ascending. Such a sequence takes ``sizes[i]`` tokens, a
multiple of `align`, costs its squared length, and is worth ``values[i]``. ``upto[n]`` is the number of items whose
length is at most n. `limits` are a pack's most tokens, cost and sequences.

An item is available if sequences of it are left. The arrays `below` and `above` link positions; position i + 1 stands
for item i. The position of an available item links to itself. Any other position links towards the next shorter
available item (`below`) or the next longer one (`above`). For k items, positions 0 and k + 1 mean that there is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad.planning.costs._guide_kernels import root
from nopad.planning.optimal._kernels import linked

FINE = 512  # parts of half a pack, in the table of pairs


@njit(cache=True, nogil=True)
def _fitting(room: int, space: int, upto: NDArray[Any], align: int) -> Any:
    """Return how many items fit singly into a free room of `room` tokens and a free cost of `space`.

    They are the shortest items: items 0 up to this number (exclusive).
    """
    return upto[min(room // align * align, root(space), upto.size - 1)]


@njit(cache=True, nogil=True)
def price(
    lengths: NDArray[Any],
    sizes: NDArray[Any],
    values: NDArray[Any],
    chosen: NDArray[Any],
    upto: NDArray[Any],
    limits: NDArray[Any],
    align: int,
    out: NDArray[Any],
    worth: NDArray[Any],
) -> None:
    """For each p, find a valuable pack that holds the item ``chosen[p]``, and write its items (up to four) to `out`.

    ``out[p]`` gets the item numbers, ``chosen[p]`` first, and -1 for each place that stays empty; int64 ``[n, 4]`` for
    n items in `chosen`. The items of a pack are not sorted: the last two may be longer than the others. ``worth[p]``
    gets their total value. `chosen` has item numbers, ascending.

    Each item of `chosen` that is not longer than ``chosen[p]`` is tried as the second item of the pack. The most
    valuable of all packs tried is written. After the second item there are two ways to go on, within `limits`:

    * one more item: of all items, the longest that fits and is not longer than the second item
    * two more items of `chosen`, of any length, from a table of the pairs that take at most half of each limit; sizes
      in this table are rounded up, so the pair surely fits
    """
    n = chosen.size
    parts = limits[0] // 2 // FINE + 1, limits[1] // 2 // FINE + 1
    table = np.zeros((FINE + 1, FINE + 1))
    pair = np.full((FINE + 1, FINE + 1), -1, dtype=np.int64)
    for a in range(n if limits[2] > 3 else 0):
        i = chosen[a]
        for b in range(a + 1):
            j = chosen[b]
            tokens, cost = sizes[i] + sizes[j], lengths[i] * lengths[i] + lengths[j] * lengths[j]
            if tokens > limits[0] // 2 or cost > limits[1] // 2:
                break
            r, q = -(-tokens // parts[0]), -(-cost // parts[1])
            if values[i] + values[j] > table[r, q]:
                table[r, q], pair[r, q] = values[i] + values[j], a * n + b
    for r in range(FINE + 1):
        for q in range(FINE + 1):
            if r and table[r - 1, q] > table[r, q]:
                table[r, q], pair[r, q] = table[r - 1, q], pair[r - 1, q]
            if q and table[r, q - 1] > table[r, q]:
                table[r, q], pair[r, q] = table[r, q - 1], pair[r, q - 1]
    out[:] = -1
    for a in range(n):
        i = chosen[a]
        out[a, 0], worth[a] = i, values[i]
        for b in range(a + 1 if limits[2] > 1 else 0):
            j = chosen[b]
            room = limits[0] - sizes[i] - sizes[j]
            space = limits[1] - lengths[i] * lengths[i] - lengths[j] * lengths[j]
            if room < 0 or space < 0:
                break
            held, last = values[i] + values[j], -1
            if limits[2] > 2:
                last = min(_fitting(room, space, upto, align) - 1, j)
            more = held + values[last] if last >= 0 else held
            if more > worth[a]:
                worth[a], out[a, 1], out[a, 2], out[a, 3] = more, j, last, -1
            r, q = min(room // parts[0], FINE), min(space // parts[1], FINE)
            if pair[r, q] >= 0 and held + table[r, q] > worth[a]:
                worth[a], out[a, 1] = held + table[r, q], j
                out[a, 2], out[a, 3] = chosen[pair[r, q] // n], chosen[pair[r, q] % n]


@njit(cache=True, nogil=True)
def _nearest(
    wanted: int, most: int, upto: NDArray[Any], lengths: NDArray[Any], below: NDArray[Any], above: NDArray[Any]
) -> int:
    """Return the position of the available item whose length is nearest to `wanted`; 0 if there is none.

    Only positions up to `most` are looked at. Of two items that are equally near, the shorter one is chosen. The module
    describes positions, `below` and `above`.
    """
    at = min(most, upto[min(max(wanted, 0), upto.size - 1)])
    shorter, longer = linked(below, at), linked(above, at + 1)
    if longer > most or (shorter > 0 and wanted - lengths[shorter - 1] <= lengths[longer - 1] - wanted):
        return shorter
    return longer


@njit(cache=True, nogil=True)
def _last_two(
    wanted: int,
    room: int,
    space: int,
    width: int,
    lengths: NDArray[Any],
    sizes: NDArray[Any],
    values: NDArray[Any],
    upto: NDArray[Any],
    align: int,
    left: NDArray[Any],
    below: NDArray[Any],
    above: NDArray[Any],
) -> int:
    """Return the position of the item for the last slot but one of a pack; 0 if no available item fits.

    The pack has `room` free tokens and a free cost of `space`. The candidates are the available items nearest in length
    to the length `wanted`: the nearest one that fits, `width` - 1 items that follow below it, and `width` items above
    it. Each is valued together with the longest available item that then fits into the last slot, and the best
    candidate is returned. ``left[i]`` is the number of sequences of item i that are left. The module describes
    positions and the other arguments.
    """
    most = _fitting(room, space, upto, align)
    shorter = _nearest(wanted, most, upto, lengths, below, above)
    longer = linked(above, shorter + 1) if shorter < most else most + 1
    best, found = -1.0, 0
    for k in range(2 * width):
        at = shorter if k % 2 else longer
        if at < 1 or at > most:
            continue
        length = lengths[at - 1]
        last = linked(below, _fitting(room - sizes[at - 1], space - length * length, upto, align))
        if last == at and left[at - 1] < 2:
            last = linked(below, last - 1)
        worth = values[at - 1] + (values[last - 1] if last else 0.0)
        if worth > best:
            best, found = worth, at
        if k % 2:
            shorter = linked(below, shorter - 1)
        else:
            longer = linked(above, longer + 1) if longer < most else most + 1
    return found


@njit(cache=True, nogil=True)
def fill(
    slots: NDArray[Any],
    indptr: NDArray[Any],
    copies: NDArray[Any],
    width: int,
    least: float,
    lengths: NDArray[Any],
    sizes: NDArray[Any],
    values: NDArray[Any],
    upto: NDArray[Any],
    limits: NDArray[Any],
    align: int,
    left: NDArray[Any],
    below: NDArray[Any],
    above: NDArray[Any],
    held: NDArray[Any],
    ends: NDArray[Any],
) -> int:
    """Make up to ``copies[p]`` packs like each pattern p, of sequences that are left; return the number of packs.

    Pattern p has slots for the items ``slots[indptr[p]:indptr[p + 1]]``, longest first. A slot takes the available item
    that fits and is nearest in length. If this item is longer than planned, the next slot looks for a shorter one, and
    the other way round. The last two slots are filled otherwise: the last takes the longest available item that fits,
    and the one before it takes the item with which both are worth most (`_last_two`; `width` is its argument). No more
    packs are made like a pattern once the next one would be empty or worth less than `least`.

    Pack n holds the items ``held[ends[n]:ends[n + 1]]``. ``left[i]`` is the number of sequences of item i that are
    left. The module describes the other arguments. The arrays `held`, `ends`, `left`, `below` and `above` are changed.
    """
    packs = at = 0
    ends[0] = 0
    for p in range(copies.size):
        for _ in range(copies[p]):
            room, space, carried, worth = limits[0], limits[1], 0, 0.0
            for s in range(indptr[p], indptr[p + 1]):
                wanted, slots_left = lengths[slots[s]] + carried, indptr[p + 1] - s
                fitting = _fitting(room, space, upto, align)
                if slots_left == 2:
                    found = _last_two(
                        wanted, room, space, width, lengths, sizes, values, upto, align, left, below, above
                    )
                elif slots_left == 1:
                    found = linked(below, fitting)
                else:
                    found = _nearest(wanted, fitting, upto, lengths, below, above)
                if found == 0:
                    continue
                i = found - 1
                held[at] = i
                at += 1
                room, space = room - sizes[i], space - lengths[i] * lengths[i]
                carried, worth = wanted - lengths[i], worth + values[i]
                left[i] -= 1
                if left[i] == 0:
                    below[found], above[found] = found - 1, found + 1
            if at == ends[packs] or worth < least:
                for k in range(ends[packs], at):
                    left[held[k]] += 1
                    below[held[k] + 1] = above[held[k] + 1] = held[k] + 1
                at = ends[packs]
                break
            packs += 1
            ends[packs] = at
    return packs
