"""Harmonic-k: in order of arrival, each sequence shares packs only with sequences of its own size class.

There are k size classes, numbered from 1. Class j < k has the lengths in (capacity / (j + 1), capacity / j], so its
packs hold j sequences each. The last pack may hold fewer, and a depth limit below j closes packs earlier. Class k has
all shorter lengths, and is packed by next-fit. One pack of each class is open at a time: O(n) time, O(k) memory beyond
the result.

Without a depth limit, Harmonic-k needs at most about 1.693 times as many packs as the optimum, plus a constant, at the
default k = 12 (1.691 times for large k). It is poor where many lengths are above half the capacity, since each of these
gets a pack alone: it needs 14.6 % more packs than LPFHP on Wikipedia-512, and 31 % more on SQuAD.

Source: Lee, Lee, "A simple on-line bin-packing algorithm", Journal of the ACM 32(3), 1985.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopad.packs import Packs
from nopad.planning.arrival import grouped, unplaced

__all__ = ["harmonic"]


def harmonic(lengths: NDArray[np.int32], capacity: int, depth: int | None, k: int = 12) -> Packs:
    """Return the packs of `lengths` (int32 ``[n]``, each <= `capacity`), in order of opening.

    Sequences are divided into `k` size classes; a `k` above `capacity` is lowered to it. A pack holds at most `depth`
    sequences; None: unlimited.

    >>> [p.tolist() for p in harmonic(np.array([5, 4, 3, 2, 2, 4], dtype=np.int32), 8, None)]
    [[0], [1, 2], [3, 4], [5]]
    """
    from nopad.planning import _fit_kernels

    pack_of = unplaced(lengths.size)
    most = lengths.size + 1 if depth is None else depth
    packs = _fit_kernels.harmonic(lengths, capacity, most, min(k, capacity), pack_of)
    return grouped(pack_of, packs, capacity, depth)
