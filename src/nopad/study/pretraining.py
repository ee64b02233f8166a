"""Measure BERT's pre-training pairs of any text at 128, 384 and 512 tokens, and the speed-up from packing them.

For Wikipedia, the paper states theoretical speed-ups of about 1.2, 1.7 and 2.0 at these lengths (arXiv 2107.02027,
section 2), and packing factors of 1.17, 1.70 (Table 2) and 2.00. Its histograms at 128 and 384 are not published, so no
other figures can be compared. By default the text is that of this machine's standard library: the docstrings and
comments of each module form a document. Pairs are made as BERT makes them (`nopad.corpus.pairs`), and sentences that
are too long are truncated. The text is tokenised once for all lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from nopad.corpus import PairOptions, PretrainingSource, Source, Tokenizer, stdlib_texts
from nopad.corpus.pairs import Vocabulary, pairs_of
from nopad.corpus.pretraining import tokenised_pool
from nopad.histogram import Histogram
from nopad.study.distributions import Distribution, distribution

__all__ = ["LENGTHS", "PUBLISHED", "PairsAt", "machine_documents", "pairs_at"]

LENGTHS = (128, 384, 512)
PUBLISHED: Mapping[int, tuple[float, float]] = {128: (1.2, 1.17), 384: (1.7, 1.70), 512: (2.0, 2.00)}


@dataclass(frozen=True, kw_only=True)
class PairsAt:
    """The pairs of a corpus at one maximum length.

    Attributes:
        lengths: distribution of the pairs' lengths, and the speed-ups from packing them.
        published: the paper's theoretical speed-up and packing factor for Wikipedia; None: it gives none for this
            length.
        predictions: most masked tokens to predict in a pair.
        counts: counts of documents, random next sides, lost tokens and more, by their names in `nopad.corpus.Counts`.
    """

    lengths: Distribution
    published: tuple[float, float] | None
    predictions: int
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def random_share(self) -> float:
        """Share of the pairs whose second side comes from another document, from 0 to 1."""
        return self.counts["random_next"] / self.lengths.histogram.sequences

    def document(self) -> dict[str, Any]:
        """Return all attributes as a dict for JSON.

        In place of `lengths`, the dict has the entries of its summary, and its histogram. The published numbers have
        the keys ``published_theoretical`` and ``published_factor``.
        """
        histogram = self.lengths.histogram
        return {
            **self.lengths.summary(),
            "published_theoretical": None if self.published is None else self.published[0],
            "published_factor": None if self.published is None else self.published[1],
            "predictions": self.predictions,
            "counts": dict(self.counts),
            "histogram": dict(zip(map(str, histogram.lengths.tolist()), histogram.counts.tolist(), strict=True)),
        }


def machine_documents() -> Iterator[dict[str, str]]:
    """Yield a document, ``{"text": ...}``, for each module of the standard library: its docstrings and comments.

    Each docstring or comment is a paragraph of the text.
    """
    for _, texts in groupby(stdlib_texts(), key=lambda one: one["file"]):
        yield {"text": "\n\n".join(one["text"] for one in texts)}


def pairs_at(
    source: Source,
    tokenizer: Tokenizer,
    options: PairOptions | None = None,
    lengths: tuple[int, ...] = LENGTHS,
    advance: Callable[[int], None] = lambda size: None,
) -> list[PairsAt]:
    """Make the pairs of a source at each of these maximum lengths, and measure them.

    Args:
        source: a source of texts; each record is a document.
        tokenizer: a tokenizer that has ``[CLS]``, ``[SEP]`` and ``[MASK]``.
        options: how pairs are made. Each of `lengths` replaces `max_length`, `over_long` is always "truncate", and
            `empty` always "skip".
        lengths: the maximum lengths of a pair, in tokens.
        advance: called after each block of documents, with the number of bytes read for it (`Block.progress`).

    Raises:
        SourceError: the source holds ready-made ids, has columns to pack along, has documents but fewer than two that
            are not blank, or cannot be read.
        OptionError: the vocabulary lacks what pairs need, an option of the pairs is invalid, or the source has no
            document.
        RecordError: no pairs can be made of the documents; the tokenizer makes ``[CLS]``, ``[SEP]`` or ``[MASK]`` of a
            text; or a CSV, TSV or JSON file is broken.
        FormatError: the tokenizer cannot encode a document.
    """
    given = replace(options or PairOptions(), over_long="truncate")
    every = [replace(given, max_length=length) for length in lengths]
    words = Vocabulary.of(tokenizer, given)
    counts = [np.zeros(length + 1, np.int64) for length in lengths]
    totals: list[dict[str, int]] = [{} for _ in lengths]
    for block in PretrainingSource(source, tokenizer, given).blocks():
        assert isinstance(block.data, bytes)
        pool = tokenised_pool(block.data, block.first_line, tokenizer, given)
        for number, one in enumerate(every):
            made = pairs_of(pool.sentences, pool.lines.size, pool.numbers, words, one, block.path)
            counts[number] += np.bincount(made.sequences.seq_lengths, minlength=counts[number].size)
            for name, count in made.counts.items():
                totals[number][name] = totals[number].get(name, 0) + count
        advance(block.progress)
    found = []
    for one, sizes, total in zip(every, counts, totals, strict=True):
        histogram = Histogram.from_counts({n: int(sizes[n]) for n in np.flatnonzero(sizes).tolist()})
        measured = distribution(f"{one.max_length} tokens", histogram, one.max_length)
        published = PUBLISHED.get(one.max_length)
        found.append(PairsAt(lengths=measured, published=published, predictions=one.predictions, counts=total))
    return found
