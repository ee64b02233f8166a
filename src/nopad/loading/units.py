"""`Units`: an index of what an epoch deals to ranks: packs, rows, single sequences, or groups of sequences.

All sequences of a unit go to one step and one rank; only with `Units.apart` may they go to several ranks of the step.
Below 2^31 sequences, each array of the index has 4 bytes per entry: `sequence` has one entry per sequence, `indptr` and
`order` one per unit. The lengths take 1 to 4 bytes per sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nopad.balance import CostModel
from nopad.errors import CorruptError
from nopad.loading import _kernels

__all__ = ["Taken", "Units", "narrow"]


class Taken(NamedTuple):
    """Some units (packs, rows, single sequences or groups) of an epoch, and the sequences in them.

    Attributes:
        units: numbers of the units; int64 ``[units]``. If the units of a step are dealt to ranks sequence by sequence
            (`Units.apart`), a rank's share has the numbers of its sequences here instead.
        sequences: numbers of the sequences in these units, unit after unit; int64 ``[k]``.
        sizes: number of sequences of each unit; int64 ``[units]``.
    """

    units: NDArray[np.int64]
    sequences: NDArray[np.int64]
    sizes: NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Units:
    """The units of one epoch: packs, rows, single sequences or groups of sequences, which are dealt to ranks.

    Attributes:
        seq_lengths: length of each sequence in tokens; integers ``[sequences]``, as narrow as `narrow` makes them.
        indptr: where units begin and end: unit u holds ``sequence[indptr[u]:indptr[u + 1]]``; ``[units + 1]``. None:
            unit u is sequence u.
        sequence: sequence numbers, unit after unit; ``[k]``. In an epoch of a mixture, a sequence may occur several
            times, or not at all. None: if there is an `indptr`, unit u holds the sequences from ``indptr[u]`` to
            ``indptr[u + 1]`` (exclusive).
        order: unit numbers in the epoch's random order; in an epoch of a mixture, a unit may occur several times, or
            not at all. None: the units in the order of their numbers.
        apart: whether the sequences of a unit are dealt to ranks one by one, so that they may go to different ranks of
            a step.
        phased: whether steps must take the units exactly in the order that `order` gives, since a source of a mixture
            runs out during the epoch.

    >>> lengths = np.array([5, 3, 4], np.int32)
    >>> units = Units(seq_lengths=lengths, indptr=np.array([0, 2, 3]), sequence=np.array([0, 2, 1]))
    >>> len(units), units.tokens(np.array([1, 0])).tolist()  # unit 1 is sequence 1; unit 0 is sequences 0 and 2
    (2, [3, 9])
    """

    seq_lengths: NDArray[Any]
    indptr: NDArray[Any] | None = None
    sequence: NDArray[Any] | None = None
    order: NDArray[Any] | None = None
    apart: bool = False
    phased: bool = False

    def __len__(self) -> int:
        """Number of units of the epoch."""
        if self.order is not None:  # the order of a mixture has some sequences several times, or not at all
            return self.order.size
        return self.seq_lengths.size if self.indptr is None else self.indptr.size - 1

    @property
    def parts(self) -> int:
        """Number of parts in which each unit is dealt: with `apart`, the number of sequences per unit; else 1."""
        return self.members(np.zeros(1, dtype=np.int64))[0].size if self.apart else 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return, by name, those of `seq_lengths`, `indptr`, `sequence` and `order` that are not None."""
        found = {name: getattr(self, name) for name in ("seq_lengths", "indptr", "sequence", "order")}
        return {name: array for name, array in found.items() if array is not None}

    def members(self, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sequences of the chosen units, unit after unit, and how many sequences each of these units has.

        Both are int64: the numbers of the sequences ``[k]``, and the sizes of the units ``[chosen]``.
        """
        if self.indptr is None:
            return chosen, np.ones(chosen.size, dtype=np.int64)
        sizes = np.empty(chosen.size, dtype=np.int64)
        numbers = np.empty(_kernels.sizes_of(self.indptr, chosen, sizes), dtype=np.int64)
        _kernels.members_of(self.indptr, _ASCENDING if self.sequence is None else self.sequence, chosen, numbers)
        return numbers, sizes

    def taken(self, dealt: NDArray[np.int64]) -> Taken:
        """Return the units with the numbers `dealt`, and their sequences.

        With `apart`, `dealt` holds numbers of sequences; the result then has these as both its units and its sequences.
        """
        if self.apart:
            return Taken(dealt, dealt, np.ones(dealt.size, dtype=np.int64))
        return Taken(dealt, *self.members(dealt))

    def check_lengths(self, taken: Taken, seq_lengths: NDArray[np.int32]) -> None:
        """Check that the sequences that were read have the lengths by which they were dealt.

        Args:
            taken: which sequences were dealt.
            seq_lengths: the lengths of the sequences that were read, in the same order.

        Raises:
            CorruptError: more or fewer sequences were read than dealt, or a length differs.
        """
        same = seq_lengths.size == taken.sequences.size
        if not (same and _kernels.are_at(self.seq_lengths, taken.sequences, seq_lengths)):
            raise CorruptError(
                "the data have changed: sequences are not as long as when they were opened; open them again"
            )

    def tokens(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of tokens of each chosen unit; int64 ``[chosen]``."""
        numbers, sizes = self.members(chosen)
        if numbers is chosen:
            return self.seq_lengths[numbers].astype(np.int64)
        return _sums(self.seq_lengths[numbers].astype(np.int64), sizes)

    def sizes_dealt(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of tokens of each chosen unit or, with `apart`, of each of its sequences.

        The result is int64 ``[chosen * parts]``.
        """
        if self.apart:
            return self.seq_lengths[self.members(chosen)[0]].astype(np.int64)
        return self.tokens(chosen)

    def costs(self, chosen: NDArray[np.int64], model: CostModel) -> NDArray[np.int64]:
        """Return the cost of each of the chosen units under `model`; int64 ``[chosen]``.

        Raises:
            BalanceError: `model` did not return one integer of at least 0 for each sequence, or costs are too large for
                sums of 64 bits.
        """
        return self.costs_of(*self.members(chosen), model)

    def costs_of(self, numbers: NDArray[np.int64], sizes: NDArray[np.int64], model: CostModel) -> NDArray[np.int64]:
        """Return the cost of each of some units under `model`; int64 ``[units]``.

        Args:
            numbers: numbers of the sequences in the units, unit after unit, as from `members`.
            sizes: number of sequences of each unit.
            model: the cost model.

        Raises:
            BalanceError: `model` did not return one integer of at least 0 for each sequence, or costs are too large for
                sums of 64 bits.
        """
        if numbers.size == sizes.size:  # one sequence each
            return model.checked(self.seq_lengths[numbers])
        bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        return model.of_packs(bounds, self.seq_lengths[numbers])


_ASCENDING = np.zeros(0, dtype=np.int32)


def narrow(seq_lengths: NDArray[Any]) -> NDArray[Any]:
    """Return the lengths in the narrowest unsigned type that holds all of them."""
    return seq_lengths.astype(np.min_scalar_type(int(seq_lengths.max(initial=0))))


def _sums(values: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of consecutive runs of `values`; int64 ``[runs]``.

    Run i has the next ``sizes[i]`` values, at least one.
    """
    if not sizes.size:
        return np.zeros(0, dtype=np.int64)
    sums: NDArray[np.int64] = np.add.reduceat(values, np.cumsum(sizes) - sizes)
    return sums
