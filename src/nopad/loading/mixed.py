"""The feed of a `Mixture`: the sequences of each source are chosen and planned anew for every epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad import _kernels, random
from nopad.assignment import assign
from nopad.loading.feeds import Feed, check_fits
from nopad.loading.mixture import Mixture
from nopad.loading.units import Taken, Units, narrow
from nopad.packs import index_dtype
from nopad.planning import plan
from nopad.sequences import Sequences

__all__ = ["MixedTokens"]


class MixedTokens(Feed):
    """Lists what a loader deals from a `Mixture`: packs, or single sequences.

    Sequences of several sources may share a pack.
    """

    steady = False

    def __init__(self, mixture: Mixture, capacity: int | None, *, seed: int = 0, **options: Any) -> None:
        """Keep the arguments; with a capacity, check the options and the lengths of the sequences.

        Args:
            mixture: the sources and their shares.
            capacity: maximum number of tokens per pack; None: the sequences are not packed.
            seed: the seed of all random choices.
            options: options of the plans, as in `nopad.plan`; a new plan is made in every epoch.

        Raises:
            LengthError: a sequence is longer than `capacity`.
            OptionError: there is a capacity, and an option has an invalid value.
        """
        self._mixture, self._capacity, self.seed = mixture, capacity, seed
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
        self._options = dict(sorted(plain.items()))  # sorted, since a state holds them as text, and texts are compared
        lengths = mixture.seq_lengths
        if capacity is not None:
            check_fits(lengths, capacity, "sequence")
            plan(lengths[:1], capacity, **options)  # refuses invalid options now
        self.unit = "sequence" if capacity is None else "pack"
        self.capacity = int(lengths.max()) if capacity is None else capacity
        self.sequences = lengths.size
        self.phased = mixture.exhausted == "drop"

    def facts(self) -> dict[str, Any]:
        """Return, by name, what a saved run and the run that resumes it must share.

        These are the kind of the units ("pack" or "sequence"), the seed, the facts of the mixture and, if sequences are
        packed, the capacity and the options of the plans.
        """
        packing = {} if self._capacity is None else {"capacity": self._capacity, "plan options": repr(self._options)}
        return {"unit": self.unit, "seed": self.seed, **self._mixture.facts(), **packing}

    def notes(self, epoch: int) -> tuple[str, ...]:
        """Return one line for each source, saying what it contributes to the epoch."""
        return self._mixture.chosen(self.seed, epoch).notes

    def units(self, epoch: int) -> Units:
        """Choose the sequences of each source for an epoch, and return them as units: packs, or single sequences.

        They are packed phase by phase or, without a capacity, shuffled within each phase. A phase is a part of the
        epoch in which the shares of the sources are constant (`Chosen.phases`).
        """
        lengths, chosen = self._mixture.seq_lengths, self._mixture.chosen(self.seed, epoch)
        dtype = index_dtype(max(lengths.size, chosen.numbers.size))
        bounds: list[NDArray[Any]] = [np.zeros(1, dtype=dtype)]
        parts: list[NDArray[Any]] = []
        for phase, (begin, end) in enumerate(zip(chosen.phases, chosen.phases[1:], strict=False)):
            numbers = chosen.numbers[begin:end]
            key = random.key(self.seed, random.STREAM_EPOCH, epoch, phase)
            if self._capacity is None:
                numbers = numbers.copy()
                _kernels.shuffle(numbers, np.uint64(key))
                parts.append(numbers)
                continue
            packs = assign(plan(lengths[numbers], self._capacity, **self._options), lengths[numbers], seed=key)
            bounds.append(packs.indptr[1:].astype(dtype) + begin)
            parts.append(numbers[packs.sequence])
        sequence = np.concatenate(parts)
        self._mixture.release()
        if self._capacity is None:
            return Units(seq_lengths=narrow(lengths), order=sequence, phased=self.phased)
        return Units(seq_lengths=narrow(lengths), indptr=np.concatenate(bounds), sequence=sequence, phased=self.phased)

    def gather(self, taken: Taken) -> Sequences:
        """Return the sequences of the units in `taken`, unit after unit.

        Their per-sequence columns include ``seq_source`` and ``seq_index``. ``seq_source`` is the index of each
        sequence's source in the mixture. ``seq_index`` is the source's column of that name if it has one, else the
        sequence's number within its source.

        Raises:
            SourceError: the tokens changed since the sources were opened, or are damaged.
            BatchError: a finite float64 in the data is too large for float32.
            PlanMismatchError: for an index-only dataset, a sequence has other tokens than those that were packed.
        """
        return self._mixture.gather(taken.sequences)

    def check_unchanged(self) -> None:
        """Refuse tokens that changed since the sources were opened.

        Raises:
            SourceError: a file changed; the message names it.
        """
        self._mixture.check_unchanged()
