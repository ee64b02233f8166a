from __future__ import annotations

from collections import Counter

import pytest

from nopad.corpus import CorpusOptions, IterableSource, PairOptions, PretrainingSource, load_tokenizer, sequences
from nopad.errors import RecordError
from nopad.study import machine_documents, pairs_at
from nopad.study.pretraining import PUBLISHED

TEXTS = [" ".join(f"Sentence {n} of {m} is here." for n in range(m % 17)) + f" The end of {m}." for m in range(80)]


def test_lengths_are_those_of_the_pairs_that_are_packed():
    tokenizer = load_tokenizer()
    found = pairs_at(IterableSource(TEXTS), tokenizer, PairOptions(seed=2), lengths=(32, 128))
    for one, length in zip(found, (32, 128), strict=True):
        options = PairOptions(seed=2, max_length=length, over_long="truncate")
        source = PretrainingSource(IterableSource(TEXTS), tokenizer, options)
        packed = list(sequences(source.blocks(), None, CorpusOptions(capacity=length)))
        counts = Counter(n for group in packed for n in group.batch.seq_lengths.tolist())
        histogram = one.lengths.histogram
        assert dict(zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True)) == counts
        assert one.lengths.theoretical == pytest.approx(length * counts.total() / sum(n * m for n, m in counts.items()))
        assert 1 <= one.lengths.factor <= one.lengths.possible <= one.lengths.theoretical
        assert one.counts["documents"] == 80
        assert one.random_share == sum(group.counts.random_next for group in packed) / counts.total()
    assert (found[0].published, found[1].published) == (None, PUBLISHED[128])
    assert (found[0].predictions, found[1].predictions) == (5, 20)


def test_the_text_of_the_machine_is_a_document_per_module():
    first = next(machine_documents())
    assert first["text"].count("\n\n") > 1


def test_nothing_to_learn_from_is_refused():
    with pytest.raises(RecordError, match="none has two sentences"):
        pairs_at(IterableSource(["One.", "Two.", "Three."]), load_tokenizer())
