"""greedy (next-fit): fill one pack in order of arrival; when a sequence does not fit, close the pack and open the next.

This is the usual baseline, an arrival-order algorithm: one pack is open at a time, and earlier packs are never used
again. It takes O(n) time, and reaches an efficiency of about 78 % on Wikipedia-512.

Source: the papers' baseline GREEDY (arXiv 2107.02027, section 4).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopad.packs import Packs, index_dtype

__all__ = ["greedy"]


def greedy(lengths: NDArray[np.int32], capacity: int, depth: int | None) -> Packs:
    """Return the packs of `lengths` (int32 ``[n]``, each <= `capacity`); packs and sequences are in order of arrival.

    A pack holds at most `depth` sequences; None: unlimited.

    >>> [p.tolist() for p in greedy(np.array([5, 4, 3, 2, 2], dtype=np.int32), 8, None)]
    [[0], [1, 2], [3, 4]]
    """
    from nopad.planning import _fit_kernels

    dtype = index_dtype(lengths.size)
    indptr = np.empty(lengths.size + 1, dtype=dtype)
    packs = _fit_kernels.next_fit(lengths, capacity, lengths.size + 1 if depth is None else depth, indptr)
    return Packs(capacity, depth, indptr[: packs + 1].copy(), np.arange(lengths.size, dtype=dtype))
