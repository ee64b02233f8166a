"""Which sequences of its source a dataset is made of, chosen again to be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.corpus import Counts
from nopad.sequences import Sequences
from nopad.store.choice import Choice, choose
from nopad.store.manifest import Manifest
from nopad.store.verification.content import Content

__all__ = ["Chosen"]


class Chosen:
    """Which sequences of the source a dataset is made of: gathered while the source is read, where it is not of all.

    Attributes:
        partly: there were weights, or a share was held out.
    """

    def __init__(self, m: Manifest) -> None:
        self._weights: Mapping[str, float] | None = m.options.get("weights")
        self._validation: float = m.options.get("validation") or 0
        self._seed = m.seed
        self._split = m.options.get("split")
        self.partly = bool(self._weights or self._validation)
        self._record: list[NDArray[np.int64]] = []
        self._lengths: list[NDArray[Any]] = []
        self._made: tuple[Choice, NDArray[np.int64], NDArray[Any]] | None = None

    def misnamed(self, parts: Iterable[str]) -> bool:
        """Whether there are weights, and not those of these sources."""
        return bool(self._weights) and set(self._weights or ()) != set(parts)

    def add(self, record: NDArray[np.int64], lengths: NDArray[Any]) -> None:
        """Remember what the source gives."""
        if self.partly:
            self._record.append(record)
            self._lengths.append(lengths)

    def present(self, batch: Sequences, content: Content, at: int) -> Sequences:
        """Return the sequences of a batch whose records are packed; `content` from `at` on was not seen yet."""
        if not self.partly or not len(batch):
            return batch
        record = batch.values["seq_index"]
        until = content.between(0, int(record[-1]) + 1).stop
        return batch.take(np.flatnonzero(np.isin(record, content.record(slice(at, until))))).gathered()

    def numbers(self, parts: Mapping[str, Counts]) -> NDArray[np.int64] | slice:
        """Return the numbers of the chosen sequences, or all."""
        if not self.partly:
            return slice(None)
        return self._choice(parts)[0].of(self._split)

    def records(self, parts: Mapping[str, Counts]) -> NDArray[np.int64]:
        """Return the record of each chosen sequence."""
        choice, record, _ = self._choice(parts)
        return record[choice.of(self._split)]

    def counts(self, parts: Mapping[str, Counts]) -> dict[str, Counts]:
        """Return what became of the records of each part."""
        choice, record, lengths = self._choice(parts)
        return choice.counts(parts, record, lengths, self._split)

    def _choice(self, parts: Mapping[str, Counts]) -> tuple[Choice, NDArray[np.int64], NDArray[Any]]:
        if self._made is None:
            record, lengths = np.concatenate(self._record), np.concatenate(self._lengths)
            records = {name: counts.records for name, counts in parts.items()}
            how: dict[str, Any] = {"weights": self._weights, "validation": self._validation, "seed": self._seed}
            self._made = choose(record, lengths, records, **how), record, lengths
        return self._made
