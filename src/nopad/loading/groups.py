"""Groups of sequences that stay together: preference pairs, answers to one prompt.

A group is dealt as one: to one step, to one rank, or into one pack. If ranks take a fixed number of sequences, all
groups must have the same size. Sorting the sequences by group takes O(sequences).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.balance import round_up
from nopad.errors import OptionError
from nopad.packs import Packs, index_dtype, take_lists

__all__ = ["Groups", "Together"]

Together = Literal["step", "rank", "pack"]


@dataclass(frozen=True, eq=False)
class Groups:
    """n sequences in groups.

    Attributes:
        indptr: where each group begins in `sequence`; ``[groups + 1]``.
        sequence: sequence numbers, group after group, ascending in each; ``[n]``.

    >>> groups = Groups.of([7, 3, 7, 3, 3], 5)
    >>> len(groups), groups.sizes.tolist(), groups.sequence.tolist()
    (2, [3, 2], [1, 3, 4, 0, 2])
    """

    indptr: NDArray[Any]
    sequence: NDArray[Any]

    @classmethod
    def of(cls, given: int | ArrayLike, sequences: int) -> Groups:
        """Return the groups of `sequences` sequences.

        Args:
            given: the group of each sequence, integers ``[n]``; or one number k: every k sequences, in the order in
                which they are stored, are a group.
            sequences: number of sequences.

        Raises:
            OptionError: there is not one number per sequence, or k does not divide the number of sequences.
        """
        dtype = index_dtype(sequences)
        if isinstance(given, int | np.integer) and not isinstance(given, bool):
            size = int(given)
            if size < 1 or sequences % size:
                raise OptionError(
                    f"groups of {size} are given, and there are {sequences:,} sequences, which are no "
                    f"multiple of {size}; give the group of each sequence"
                )
            return cls(np.arange(0, sequences + 1, size, dtype=dtype), np.arange(sequences, dtype=dtype))
        ids = np.asarray(given)
        if ids.shape != (sequences,) or ids.dtype.kind not in "iu":
            raise OptionError(
                f"groups are {ids.dtype} {list(ids.shape)}; expected an integer for each of {sequences:,} sequences"
            )
        order = np.argsort(ids, kind="stable").astype(dtype)
        ordered = ids[order]
        begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        return cls(np.append(begins, sequences).astype(dtype), order)

    def __len__(self) -> int:
        """Number of groups."""
        return self.indptr.size - 1

    @property
    def sizes(self) -> NDArray[Any]:
        """Number of sequences in each group; ``[groups]``."""
        return np.diff(self.indptr)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of which sequences share a group."""
        digest = hashlib.sha256(b"nopad.groups.v1\0")
        for array in (self.indptr, self.sequence):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    def one_size(self) -> int:
        """Return the number of sequences that every group has.

        Raises:
            OptionError: groups differ in size.
        """
        sizes = self.sizes
        least, most = int(sizes.min()), int(sizes.max())
        if least != most:
            raise OptionError(
                f"groups have {least} to {most} sequences; ranks that take a number of sequences need groups of one "
                "size: let them take tokens, or rows of a capacity, instead"
            )
        return most

    def slots(self, seq_lengths: NDArray[np.int32], align: int = 1) -> NDArray[np.int64]:
        """Return the slots that each group takes if sequences take multiples of `align` slots; int64 ``[groups]``."""
        slots = round_up(seq_lengths, align)[self.sequence]
        sums: NDArray[np.int64] = np.add.reduceat(slots, self.indptr[:-1])
        return sums

    def expanded(self, packs: Packs) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return packs of groups as packs of sequences: ``(indptr, sequence)``."""
        bounds, sequence = take_lists(self.indptr, self.sequence, packs.sequence.astype(np.int64))
        return bounds[packs.indptr], sequence
