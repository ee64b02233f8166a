"""`Chosen`: choose again which sequences of a source a dataset should hold, to compare source and dataset."""

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
    """Collects the numbers and lengths of a source's sequences, and chooses which of them the dataset should hold.

    Attributes:
        partly: whether a share was held out; otherwise the dataset holds all records.
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

        Nothing is stored if no share was held out, since nothing has to be chosen then.
        """
        if self.partly:
            self._record.append(record)
            self._lengths.append(lengths)

    def present(self, batch: Sequences, content: Content, at: int) -> Sequences:
        """Return those sequences of a batch whose record is in the dataset's `content`.

        If no share was held out, this is the whole batch. `at` is the index of the first sequence of `content` that can
        be in this batch; those before it were in earlier batches.
        """
        if not self.partly or not len(batch):
            return batch
        record = batch.values["seq_index"]
        until = content.between(0, int(record[-1]) + 1).stop
        return batch.take(np.flatnonzero(np.isin(record, content.record(slice(at, until))))).gathered()

    def numbers(self, by_source: Mapping[str, Counts]) -> NDArray[np.int64] | slice:
        """Return the chosen sequences' numbers in the source, from 0, ascending; int64 ``[chosen]``.

        If no share was held out, the result is ``slice(None)``, which means all. `by_source` has the `Counts` of each
        whole source by name, as for `counts`.
        """
        if not self.partly:
            return slice(None)
        return self._choice(by_source)[0].of(self._split)

    def records(self, by_source: Mapping[str, Counts]) -> NDArray[np.int64]:
        """Return the record number of each chosen sequence, in source order; int64 ``[chosen]``.

        `by_source` has the `Counts` of each whole source by name, as for `counts`.
        """
        choice, record, _ = self._choice(by_source)
        return record[choice.of(self._split)]

    def counts(self, by_source: Mapping[str, Counts]) -> dict[str, Counts]:
        """Return the counts that the dataset should state for each source of `by_source`, by name.

        `by_source` has the `Counts` of each whole source by name, before sequences were chosen.
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
