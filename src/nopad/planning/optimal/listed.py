"""`Listed`: packs as arrays, each with a number of copies, for those steps of a search that handle single packs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram, exact_sum
from nopad.packs import take_lists
from nopad.planning.algorithm import Strategies
from nopad.planning.lpfhp import placed
from nopad.properties import cached_property

__all__ = ["Listed"]


@dataclass(frozen=True, eq=False)
class Listed:
    """A list of packs as compressed sparse rows; equal packs may be one entry with several copies, or several entries.

    Attributes:
        lengths: lengths of the sequences, entry after entry; int32 ``[n]``.
        indptr: entry e holds ``lengths[indptr[e]:indptr[e + 1]]``; int64 ``[entries + 1]``.
        copies: how many packs each entry stands for; int64 ``[entries]``.
    """

    lengths: NDArray[np.int32]
    indptr: NDArray[np.int64]
    copies: NDArray[np.int64]

    @classmethod
    def of(cls, strategies: Strategies) -> Listed:
        """Return a list with one entry for each ``(count, lengths)`` pair, in the same order."""
        sizes = np.fromiter((len(lengths) for _, lengths in strategies), np.int64, len(strategies))
        indptr = np.append(0, np.cumsum(sizes))
        flat = np.fromiter(chain.from_iterable(lengths for _, lengths in strategies), np.int32, int(indptr[-1]))
        return cls(flat, indptr, np.fromiter((count for count, _ in strategies), np.int64, len(strategies)))

    @classmethod
    def placed(cls, histogram: Histogram, capacity: int, depth: int | None, first: int = -1) -> Listed:
        """Return the packs that `nopad.planning.lpfhp.placed` makes for `histogram`.

        If `first` is -1, this is best-fit decreasing. Otherwise each of the `first` longest sequences opens a pack at
        the start, and each later one goes into the emptiest open pack, or into a new one if it does not fit there.
        """
        flat, indptr, copies = placed(histogram.lengths, histogram.counts, capacity, depth, first)
        return cls(flat.astype(np.int32), indptr, copies)

    @classmethod
    def joined(cls, parts: Iterable[Listed]) -> Listed:
        """Return one list with the entries of all `parts`, in their order."""
        parts = list(parts)
        sizes = np.concatenate([np.diff(part.indptr) for part in parts])
        return cls(
            np.concatenate([part.lengths for part in parts]),
            np.append(0, np.cumsum(sizes)),
            np.concatenate([part.copies for part in parts]),
        )

    @cached_property
    def packs(self) -> int:
        """Number of packs: the sum of all copies."""
        return exact_sum(self.copies)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of sequences in one pack of each entry; int64 ``[entries]``."""
        return np.diff(self.indptr)

    @cached_property
    def tokens(self) -> NDArray[np.int64]:
        """Number of tokens in one pack of each entry; int64 ``[entries]``."""
        if not self.copies.size:
            return self.copies
        return np.add.reduceat(self.lengths, self.indptr[:-1], dtype=np.int64)

    def take(self, chosen: NDArray[np.int64], copies: NDArray[np.int64] | int = 1) -> Listed:
        """Return the entries with the indices `chosen`, in this order; `copies` replaces their own numbers of copies.

        `copies` is one number for all entries, or int64 ``[chosen]``.
        """
        indptr, lengths = take_lists(self.indptr, self.lengths, chosen)
        return Listed(lengths, indptr, np.broadcast_to(copies, chosen.shape).astype(np.int64))

    def strategies(self) -> Strategies:
        """Return ``(count, lengths longest first)`` pairs, one per distinct pack."""
        from nopad import _kernels
        from nopad.planning import _fit_kernels

        keys = np.empty(self.copies.size, dtype=np.uint64)
        _fit_kernels.multiset_keys(self.indptr, np.arange(self.lengths.size), self.lengths, keys)
        _, first, entry = np.unique(keys, return_index=True, return_inverse=True)
        counts = np.zeros(first.size, dtype=np.int64)
        np.add.at(counts, entry, self.copies)
        distinct = self.take(first)
        flat = -distinct.lengths
        _kernels.sort_within_packs(distinct.indptr, flat)  # ascending order of the negated lengths is longest first
        lengths = (-flat).tolist()
        return [
            (count, tuple(lengths[begin:end]))
            for count, (begin, end) in zip(counts.tolist(), pairwise(distinct.indptr.tolist()), strict=True)
        ]
