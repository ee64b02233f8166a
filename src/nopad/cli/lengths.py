"""What `plan` and `study` look at: a file's lengths, whatever kind of file it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.corpus import CorpusOptions, LengthsFile, Source, Tokenizer, load_tokenizer, open_source, sequences
from nopad.corpus.hub import HUB
from nopad.corpus.remote import is_url
from nopad.errors import OptionError, SourceError
from nopad.histogram import Histogram, read_histogram
from nopad.store import Monitor

__all__ = ["Given", "read_given"]


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a file says.

    Attributes:
        capacity: most tokens a pack may hold.
        histogram: of the lengths; not empty.
        lengths: in order of arrival, any int dtype ``[n]``; None where the file is a histogram.
    """

    capacity: int
    histogram: Histogram
    lengths: NDArray[Any] | None


def read_given(
    file: str,
    capacity: int | None,
    monitor: Monitor,
    *,
    tokenizer: str | None,
    policies: dict[str, Any],
    reader: dict[str, Any],
) -> Given:
    """Read a histogram (.json), lengths (.npy) or a corpus; `policies` and `reader` matter only for a corpus.

    Raises:
        OptionError: the file does not say for which capacity, and `capacity` is None.
        SourceError: there is no such file, or nothing in it.
    """
    path, elsewhere = Path(file), is_url(file) or file.startswith(HUB)
    if not elsewhere and not path.exists():
        raise SourceError(f"{file}: no such file or folder; check the path")
    histogram: Histogram | None = None
    lengths: NDArray[Any] | None = None
    if path.suffix == ".json" and not elsewhere:
        histogram, declared = read_histogram(path)
        capacity = declared if capacity is None else capacity
    elif path.suffix == ".npy" and not elsewhere:
        lengths = LengthsFile(path).lengths
    if (histogram is not None or lengths is not None) and policies.get("over_long", "error") != "error":
        raise OptionError(f"--over-long is for corpora: {file} holds lengths, not records; change the lengths in it")
    if capacity is None:
        raise OptionError(f"{file} does not say for which capacity; give --capacity")
    if histogram is None and lengths is None:
        options = CorpusOptions(capacity=capacity, **policies)
        source = open_source([file], **reader)
        lengths = _lengths(source, None if source.kind == "ids" else load_tokenizer(tokenizer), options, monitor)
    if histogram is None:
        assert lengths is not None
        histogram = Histogram.from_lengths(lengths)
    if not histogram.sequences:
        raise SourceError(f"{file} holds no sequences")
    return Given(capacity=capacity, histogram=histogram, lengths=lengths)


def _lengths(
    source: Source, tokenizer: Tokenizer | None, options: CorpusOptions, monitor: Monitor
) -> NDArray[np.int32]:
    """Tokenise a corpus for its lengths only, in order of arrival: 4 bytes a sequence."""
    monitor.stage("tokenising", source.total_bytes, "bytes")
    chunks = [np.zeros(0, dtype=np.int32)]
    for group in sequences(source.blocks(), tokenizer, options):
        monitor.advance(sum(block.size for block in group.blocks), group.counts.tokens)
        chunks.append(group.batch.lengths)
    return np.concatenate(chunks)
