"""The lengths that `plan` and `study` use: those of a corpus as `pack` would read it, or those stored in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.cli.inputs import open_inputs, refuse_policies
from nopad.corpus import CorpusOptions, LengthsFile, ReaderOptions, Source, Tokenizer, load_tokenizer, sequences
from nopad.corpus.hub import HUB
from nopad.corpus.remote import is_url
from nopad.errors import OptionError, SourceError
from nopad.histogram import Histogram, as_lengths, read_histogram
from nopad.store import Monitor
from nopad.store.choice import check_shares, choose

__all__ = ["Given", "Shares", "read_given"]


@dataclass(frozen=True, kw_only=True)
class Given:
    """Capacity and lengths for planning.

    Attributes:
        capacity: most tokens a pack may hold.
        histogram: histogram of the lengths; not empty.
        lengths: lengths in the order of the input, any int dtype ``[n]``; None if the input is a histogram.
    """

    capacity: int
    histogram: Histogram
    lengths: NDArray[Any] | None


def read_given(
    inputs: Sequence[str],
    capacity: int | None,
    monitor: Monitor,
    *,
    tokenizer: str | None,
    policies: Mapping[str, Any],
    reader: ReaderOptions,
    shares: Shares | None = None,
) -> Given:
    """Read a histogram (.json), lengths (.npy) or a corpus; `policies` and `reader` apply only to a corpus.

    `inputs` are the words of the command line; `shares` says which records of a corpus are planned, None: all.

    Raises:
        OptionError: neither the file nor `capacity` states a capacity, a histogram is given with another input, or it
            is given with options of a corpus.
        SourceError: there is no such file, or it holds no sequences.
    """
    file, shares = inputs[0] if len(inputs) == 1 else f"{len(inputs)} inputs", shares or Shares()
    for given in inputs:
        if not _elsewhere(given) and not _named(given) and not Path(given).exists():
            raise SourceError(f"{given}: no such file or folder; check the path")
    if any(Path(given).suffix == ".json" and not _elsewhere(given) and not _named(given) for given in inputs):
        return _read_histogram(inputs, capacity, policies, reader, shares)
    source = open_inputs(inputs, reader, policies) if file.endswith(".npy") else None
    if capacity is None:
        raise OptionError(f"{file} does not say for which capacity; give --capacity")
    source = source or open_inputs(inputs, reader, policies)
    check_shares(shares.weights, shares.validation, source.names)
    if isinstance(source, LengthsFile):
        lengths = source.lengths
        if shares.validation:
            lengths = as_lengths(lengths, capacity)
            lengths = shares.of(np.arange(lengths.size), lengths, {"": lengths.size})
    else:
        options = CorpusOptions(capacity=capacity, **policies)
        loaded = None if source.kind == "ids" else load_tokenizer(tokenizer)
        lengths = _lengths(source, loaded, options, monitor, shares)
    histogram = Histogram.from_lengths(lengths)
    if not histogram.sequences:
        raise SourceError(f"{file} holds no sequences")
    return Given(capacity=capacity, histogram=histogram, lengths=lengths)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Which records are planned, if not all: weights of named sources, and a share to hold out."""

    weights: Mapping[str, float] | None = None
    validation: float = 0.0
    seed: int = 0

    def of(self, record: NDArray[np.int64], lengths: NDArray[Any], records: Mapping[str, int]) -> NDArray[Any]:
        """Return those `lengths` that are trained on, in the same order.

        Args:
            record: record number of each sequence, ascending; int64 ``[n]``.
            lengths: tokens of each sequence; ``[n]``.
            records: number of records of each named source, in reading order.
        """
        if self.weights is None and not self.validation:
            return lengths
        chosen = choose(record, lengths, records, weights=self.weights, validation=self.validation, seed=self.seed)
        left: NDArray[Any] = lengths[chosen.of("train")]
        return left


def _elsewhere(file: str) -> bool:
    return is_url(file) or file.startswith(HUB)


def _named(given: str) -> bool:
    """Whether an input has the form NAME=INPUT."""
    return "=" in given and not Path(given).exists()


def _read_histogram(
    inputs: Sequence[str],
    capacity: int | None,
    policies: Mapping[str, Any],
    reader: ReaderOptions,
    shares: Shares,
) -> Given:
    """Read a histogram; refuse any other input beside it, and options of a corpus."""
    file = inputs[0]
    if len(inputs) > 1:
        raise OptionError("a histogram stands alone; give one, or a corpus of any number of files")
    refuse_policies(file, reader, policies)
    if shares.weights is not None or shares.validation:
        raise OptionError(f"--weight and --validation choose records, and {file} is a histogram; give the corpus")
    histogram, declared = read_histogram(Path(file))
    capacity = declared if capacity is None else capacity
    if capacity is None:
        raise OptionError(f"{file} does not say for which capacity; give --capacity")
    if not histogram.sequences:
        raise SourceError(f"{file} holds no sequences")
    return Given(capacity=capacity, histogram=histogram, lengths=None)


def _lengths(
    source: Source, tokenizer: Tokenizer | None, options: CorpusOptions, monitor: Monitor, shares: Shares
) -> NDArray[np.int32]:
    """Tokenise a corpus, and return the lengths of the sequences that `shares` chooses; int32 ``[n]``.

    They are in the order of the corpus. No token is kept: this takes 12 bytes of memory per sequence.
    """
    monitor.stage("tokenising", source.total_bytes, "bytes")
    lengths, record = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
    records = dict.fromkeys(source.names, 0)
    for group in sequences(source.blocks(), tokenizer, options):
        monitor.advance(sum(block.size for block in group.blocks), group.counts.tokens)
        lengths.append(group.batch.seq_lengths)
        record.append(group.batch.values["seq_index"])
        records[group.blocks[0].source] += group.counts.records
    return shares.of(np.concatenate(record), np.concatenate(lengths), records)
