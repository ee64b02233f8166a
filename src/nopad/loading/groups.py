"""Groups of sequences that stay together, such as preference pairs, or several answers to one prompt.

Where sequences are packed, the sequences of a group share a pack. Elsewhere they share a rank or only a step, as the
loader's argument `together` says. If ranks take a fixed number of sequences, all groups must have the same size.
Sorting n sequences by group takes O(n log n).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.balance import round_up
from nopad.errors import OptionError
from nopad.options import shown
from nopad.packs import Packs, index_dtype, take_lists

__all__ = ["Groups", "Together"]

Together = Literal["step", "rank", "pack"]


@dataclass(frozen=True, eq=False)
class Groups:
    """A partition of n sequences into groups.

    Attributes:
        indptr: where groups begin and end: group g is ``sequence[indptr[g]:indptr[g + 1]]``; ``[groups + 1]``.
        sequence: sequence numbers, group after group, ascending within each group; ``[n]``.

    >>> groups = Groups.of([7, 3, 7, 3, 3], 5)  # sequences 1, 3 and 4 are in group 3; 0 and 2 in group 7
    >>> len(groups), groups.sizes.tolist(), groups.sequence.tolist()
    (2, [3, 2], [1, 3, 4, 0, 2])
    """

    indptr: NDArray[Any]
    sequence: NDArray[Any]

    @classmethod
    def of(cls, given: int | ArrayLike, sequences: int) -> Groups:
        """Return the groups of `sequences` sequences, in ascending order of the groups' numbers.

        Args:
            given: the number of each sequence's group, integers ``[n]``; or one integer k: every k consecutive
                sequences are a group.
            sequences: number of sequences, n.

        Raises:
            OptionError: `given` does not have one integer per sequence; or k is below 1, or does not divide the number
                of sequences.
        """
        dtype = index_dtype(sequences)
        if isinstance(given, int | np.integer) and not isinstance(given, bool):
            size = int(given)
            if size < 1 or sequences % size:
                raise OptionError(
                    f"groups of {shown(size)} are given, and there are {sequences:,} sequences, which are no "
                    "multiple of it; give the group of each sequence"
                )
            return cls(np.arange(0, sequences + 1, size, dtype=dtype), np.arange(sequences, dtype=dtype))
        try:
            ids = np.asarray(given)
        except (TypeError, ValueError, RuntimeError) as error:  # rows of unequal sizes, a tensor on another device
            raise OptionError(f"groups cannot be read ({error}); give an integer for each sequence") from error
        if ids.shape != (sequences,) or ids.dtype.kind not in "iu":
            found = f"{ids.dtype} {list(ids.shape)}" if ids.ndim else shown(given)
            raise OptionError(f"groups are {found}; expected an integer for each of {sequences:,} sequences")
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
        """SHA-256, in hex, of `indptr` and `sequence`."""
        digest = hashlib.sha256(b"nopad.groups.v1\0")
        for array in (self.indptr, self.sequence):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    def one_size(self) -> int:
        """Return the number of sequences per group, which must be the same for all groups.

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
        """Return how many slots (tokens and padding) each group takes; int64 ``[groups]``.

        Every sequence is padded to a multiple of `align`.
        """
        slots = round_up(seq_lengths, align)[self.sequence]
        sums: NDArray[np.int64] = np.add.reduceat(slots, self.indptr[:-1])
        return sums

    def expanded(self, packs: Packs) -> tuple[NDArray[Any], NDArray[Any]]:
        """Turn packs of groups into packs of sequences; return ``(indptr, sequence)``.

        Pack p holds the sequences with the numbers ``sequence[indptr[p]:indptr[p + 1]]``. The entries of
        ``packs.sequence`` are numbers of groups; each is replaced by the sequences of its group, in order.
        """
        bounds, sequence = take_lists(self.indptr, self.sequence, packs.sequence.astype(np.int64))
        return bounds[packs.indptr], sequence
