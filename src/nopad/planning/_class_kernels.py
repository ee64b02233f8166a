"""Compiled best-fit and worst-fit decreasing; packs with the same content are handled together, as one class.

Arguments are plain arrays, and callers validate them. There are two tables; the caller chooses their numbers of rows.

A row of `classes` is one class. Its four columns:

* how many packs the class has
* the row of `contents` that was added last to the content of these packs
* how many sequences each of these packs holds
* the row of the next class on the stack of classes with the same free room (-1: none)

A row of `contents` stands for some copies of one length, added to the content of another row. Its three columns: that
other row (-1: the pack was empty before), the length, and the number of copies.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy.typing import NDArray

from nopad._bit_kernels import add, at_least, at_most, remove
from nopad.planning._fit_kernels import slot_of


@njit(cache=True, nogil=True)
def place_classes(
    lengths: NDArray[Any],
    counts: NDArray[Any],
    capacity: int,
    depth: int,
    first: int,
    words: NDArray[Any],
    keys: NDArray[Any],
    tops: NDArray[Any],
    classes: NDArray[Any],
    contents: NDArray[Any],
) -> tuple[int, int]:
    """Place ``counts[i]`` sequences of each length ``lengths[i]``; lengths descend.

    If `first` is -1, each sequence goes into the fullest pack with room for it (best-fit decreasing). If `first` is 0
    or more, each of the `first` longest sequences opens a pack, and each later one goes into the emptiest pack that has
    fewer than `depth` sequences (worst-fit decreasing). In both cases, a sequence opens a new pack if there is no such
    pack, or no room in it. A pack holds at most `capacity` tokens and `depth` sequences.

    The result is written to `classes` and `contents` (see the module). Returns how many rows of each are used, as a
    pair; (-1, -1) if one of these tables has too few rows (`classes` needs one row more than are used). A class whose
    packs all went into other classes keeps its row, with 0 packs.

    The other arrays are working memory. `words` is the set of free rooms (`nopad._bit_kernels`), all 0 at first. `keys`
    is a hash table of rooms (`slot_of`), and ``tops[slot]`` is the row of the class on top of the stack of the room
    ``keys[slot]``; `keys` and `tops` have the same size and are all -1 at first.
    """
    rows, made = 0, 0
    for i in range(lengths.shape[0]):
        length, left = int(lengths[i]), int(counts[i])
        while left > 0:
            if rows + 2 > classes.shape[0] or made + 1 > contents.shape[0]:
                return -1, -1
            room = -1
            if first <= 0:
                room = at_least(words, capacity, length) if first < 0 else at_most(words, capacity, capacity)
            if room < length:
                room, below, used = capacity, -1, 0
                copies = 1 if first > 0 else min(min(capacity // length, depth), left)
                count = min(first, left) if first > 0 else left // copies
                first -= count if first > 0 else 0
            else:
                slot = slot_of(keys, room)
                row = tops[slot]
                below, used = classes[row, 1], classes[row, 2]
                # All packs of the class for which `copies` sequences each are left take them in this one step.
                copies = min(min(room // length, depth - used), left) if first < 0 else 1
                count = min(classes[row, 0], left // copies)
                classes[row, 0] -= count
                if classes[row, 0] == 0:
                    tops[slot] = classes[row, 3]
                    if tops[slot] < 0:
                        remove(words, capacity, room)
            contents[made, 0], contents[made, 1], contents[made, 2] = below, length, copies
            classes[rows, 0], classes[rows, 1], classes[rows, 2] = count, made, used + copies
            room -= copies * length
            if room > 0 and used + copies < depth:
                slot = slot_of(keys, room)
                if tops[slot] < 0:
                    add(words, capacity, room)
                classes[rows, 3] = tops[slot]
                tops[slot] = rows
            rows += 1
            made += 1
            left -= count * copies
    return rows, made


@njit(cache=True, nogil=True)
def flatten(kept: NDArray[Any], classes: NDArray[Any], contents: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the lengths in one pack of each class to `out`, class after class; within a pack, the longest comes first.

    `kept` has the rows of the classes to write, int64 ``[k]``. `out` must have one entry for each length written. The
    module describes `classes` and `contents`.
    """
    end = 0
    for k in range(kept.shape[0]):
        end += classes[kept[k], 2]
        at, content = end, classes[kept[k], 1]
        while content >= 0:
            for _ in range(contents[content, 2]):
                at -= 1
                out[at] = contents[content, 1]
            content = contents[content, 0]
