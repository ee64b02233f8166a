"""`Listed`: packs in arrays, one by one or with a number of copies each, for steps that look at single packs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import exact_sum
from nopad.packs import take_lists
from nopad.planning.algorithm import Strategies

__all__ = ["Listed"]


@dataclass(frozen=True, eq=False)
class Listed:
    """Packs as compressed sparse rows.

    Attributes:
        lengths: lengths of the sequences, pack after pack; int32 ``[n]``.
        indptr: where each pack begins in `lengths`; int64 ``[packs + 1]``.
        copies: how often each pack occurs; int64 ``[packs]``.
    """

    lengths: NDArray[np.int32]
    indptr: NDArray[np.int64]
    copies: NDArray[np.int64]

    @classmethod
    def of(cls, strategies: Strategies) -> Listed:
        """Return strategies as arrays."""
        sizes = np.fromiter((len(lengths) for _, lengths in strategies), np.int64, len(strategies))
        indptr = np.append(0, np.cumsum(sizes))
        flat = np.fromiter(chain.from_iterable(lengths for _, lengths in strategies), np.int32, int(indptr[-1]))
        return cls(flat, indptr, np.fromiter((count for count, _ in strategies), np.int64, len(strategies)))

    @classmethod
    def joined(cls, parts: Iterable[Listed]) -> Listed:
        """Return all packs of several lists."""
        parts = list(parts)
        sizes = np.concatenate([np.diff(part.indptr) for part in parts])
        return cls(
            np.concatenate([part.lengths for part in parts]),
            np.append(0, np.cumsum(sizes)),
            np.concatenate([part.copies for part in parts]),
        )

    @cached_property
    def packs(self) -> int:
        """Number of packs, copies included."""
        return exact_sum(self.copies)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of sequences in each pack; ``[packs]``."""
        return np.diff(self.indptr)

    @cached_property
    def tokens(self) -> NDArray[np.int64]:
        """Number of tokens in each pack; ``[packs]``."""
        if not self.copies.size:
            return self.copies
        return np.add.reduceat(self.lengths, self.indptr[:-1], dtype=np.int64)

    def take(self, chosen: NDArray[np.int64], copies: NDArray[np.int64] | int = 1) -> Listed:
        """Return the packs with these numbers, each with this many copies."""
        indptr, lengths = take_lists(self.indptr, self.lengths, chosen)
        return Listed(lengths, indptr, np.broadcast_to(copies, chosen.shape).astype(np.int64))

    def strategies(self) -> Strategies:
        """Return ``(count, lengths longest first)`` pairs; equal packs are merged."""
        from nopad import _kernels

        flat = -self.lengths
        _kernels.sort_within_packs(self.indptr, flat)
        lengths, ends = (-flat).tolist(), self.indptr.tolist()
        merged: Counter[tuple[int, ...]] = Counter()
        for count, (begin, end) in zip(self.copies.tolist(), pairwise(ends), strict=True):
            merged[tuple(lengths[begin:end])] += count
        return [(count, pattern) for pattern, count in merged.items()]
