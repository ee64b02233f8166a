"""Best-fit: in order of arrival, each sequence goes into the fullest pack that has room; optionally, with look-ahead.

Without a window, every pack stays open until no sequence fits any more, or until it holds `depth` sequences. Among
equally full packs the one used last is taken, since its memory is cached. This takes O(n log64 capacity) for n
sequences.

With ``window=w``, for streams, one pack is open at a time, and sequences are taken from a buffer of the next w
arrivals. The oldest sequence in the buffer opens the pack. Then the longest one that fits is added (the oldest of
these, if several are equally long), until none fits or the pack holds `depth` sequences. The buffer is refilled after
each sequence. So no sequence waits longer than w packs, packs are in the order of their first members, and only w
sequences are held back at a time; ``window=1`` is next-fit. This takes O(n log64 capacity) too.

Numbers of packs compared with LPFHP, which sees all lengths before it starts. The window, if there is one, is 1,024:

* Wikipedia-512: 0.6 % more packs without the window, 0.25 % more with it
* SQuAD: 3.7 % more packs without the window; 6.6 % more with it, because the oldest sequence opens each pack
* Wikipedia-512 at depth 3: 7 % fewer packs without the window, 9 % fewer with it

With neither a window nor a depth limit, best-fit needs at most 1.7 times as many packs as the optimum.

Source: Johnson et al. 1974, as for `nopad.planning.first_fit`; for the bound, Dosa, Sgall, ICALP 2014. The window is
not from a paper.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopad.packs import Packs
from nopad.planning.arrival import empty_table, grouped, unplaced

__all__ = ["best_fit"]


def best_fit(lengths: NDArray[np.int32], capacity: int, depth: int | None, window: int | None = None) -> Packs:
    """Return the packs of `lengths` (int32 ``[n]``, each <= `capacity`), in order of opening.

    A pack holds at most `depth` sequences (None: unlimited). With a `window` of None there is no look-ahead: each
    sequence goes into the fullest pack that has room, and packs stay open as long as they can take a sequence.
    Otherwise, `window` is the number of sequences in the look-ahead buffer, from which one pack after another is
    filled.

    In the example, a window of 2 gives the same packs as none:

    >>> lengths = np.array([5, 4, 3, 2, 2, 8], dtype=np.int32)
    >>> [p.tolist() for p in best_fit(lengths, 8, None)]
    [[0, 2], [1, 3, 4], [5]]
    >>> [p.tolist() for p in best_fit(lengths, 8, None, window=2)]
    [[0, 2], [1, 3, 4], [5]]
    """
    from nopad._bit_kernels import empty_set
    from nopad.planning import _fit_kernels

    pack_of = unplaced(lengths.size)
    most = lengths.size + 1 if depth is None else depth
    rooms, keys = empty_set(capacity), empty_table(lengths.size, capacity)
    if window is None:
        shortest = int(lengths.min(initial=capacity))
        packs = _fit_kernels.best_fit(lengths, capacity, most, shortest, rooms, keys, pack_of)
    else:
        packs = _fit_kernels.look_ahead(lengths, capacity, most, window, rooms, keys, pack_of)
    return grouped(pack_of, packs, capacity, depth)
