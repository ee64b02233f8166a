"""`Chosen`: finds out which sequences of a source a dataset should hold, so that the two can be compared."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Finds out which sequences of a source a dataset should hold, if a share of the records was held out.

    The constructor takes the manifest of the dataset. `add` collects all sequences of the source. After the last one,
    `numbers`, `records` and `counts` say which sequences the dataset should hold: those of the held-out records for
    "validation", all others for "train".

    Attributes:
        partly: whether a share was held out; False: the dataset should hold all sequences.
    """

    def __init__(self, m: Manifest) -> None:
        self._validation: float = m.options.get("validation") or 0
        self._seed = m.seed
        self._split = m.options.get("split")
        self.partly = bool(self._validation)
        self._record: list[NDArray[np.int64]] = []
        self._lengths: list[NDArray[Any]] = []
        self._made: tuple[Choice, NDArray[np.int64], NDArray[Any]] | None = None

    def add(self, record: NDArray[np.int64], lengths: NDArray[Any]) -> None:
        """Store the record number and the length of each of the next sequences of the source.

        Nothing is stored if no share was held out, since all sequences are chosen then.
        """
        if self.partly:
            self._record.append(record)
            self._lengths.append(lengths)

    def present(self, batch: Sequences, content: Content, at: int) -> Sequences:
        """Return those sequences of a batch whose records occur in the dataset.

        If no share was held out, this is the whole batch. `content` has the sequences of the dataset. Its sequences
        before index `at` belong to earlier batches, and are not looked at.
        """
        if not self.partly or not len(batch):
            return batch
        record = batch.values["seq_index"]
        until = content.between(0, int(record[-1]) + 1).stop
        return batch.take(np.flatnonzero(np.isin(record, content.record(slice(at, until))))).gathered()

    def numbers(self, by_source: Mapping[str, Counts]) -> NDArray[np.int64] | slice:
        """Return the numbers in the source (from 0) of the sequences that the dataset should hold.

        They are int64 ``[chosen]``, ascending. If no share was held out, ``slice(None)`` is returned, which selects
        all. `by_source` has the `Counts` of each whole source, by the source's name.
        """
        if not self.partly:
            return slice(None)
        return self._choice(by_source)[0].of(self._split)

    def records(self, by_source: Mapping[str, Counts]) -> NDArray[np.int64]:
        """Return the record number of each sequence that the dataset should hold, in source order; int64 ``[chosen]``.

        `by_source` has the `Counts` of each whole source, by the source's name. A share must have been held out.
        """
        choice, record, _ = self._choice(by_source)
        return record[choice.of(self._split)]

    def counts(self, by_source: Mapping[str, Counts]) -> dict[str, Counts]:
        """Return the counts that the dataset should state for each source, by the source's name.

        `by_source` has the `Counts` of each whole source, before sequences were chosen. A share must have been held
        out.
        """
        choice, record, lengths = self._choice(by_source)
        return choice.counts(by_source, record, lengths, self._split)

    def _choice(self, by_source: Mapping[str, Counts]) -> tuple[Choice, NDArray[np.int64], NDArray[Any]]:
        if self._made is None:
            record, lengths = np.concatenate(self._record), np.concatenate(self._lengths)
            records = {name: counts.records for name, counts in by_source.items()}
            choice = choose(record, records, validation=self._validation, seed=self._seed)
            self._made = choice, record, lengths
        return self._made
