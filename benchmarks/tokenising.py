"""Tokenising: the corpus pipeline beside `encode_batch_fast` alone on the same texts."""

from __future__ import annotations

import statistics
import time

from inputs import machine
from tokenizers import Tokenizer as Raw

import nopad
from nopad.corpus import IterableSource, sequences, stdlib_texts
from nopad.corpus.tokenizer import _default_file

texts = [entry["text"] for entry in stdlib_texts()] * 3
print(f"tokenising: {len(texts):,} docstrings and comments; {machine()}")
raw = Raw.from_file(str(_default_file()))
raw.no_truncation()
raw.no_padding()
tokenizer, options = nopad.load_tokenizer(), nopad.CorpusOptions(capacity=512, over_long="split")
source = IterableSource(texts)
ratios = []
for _ in range(5):
    start = time.perf_counter()
    for at in range(0, len(texts), 20_000):
        raw.encode_batch_fast(texts[at : at + 20_000], add_special_tokens=False)
    plain = time.perf_counter() - start
    start = time.perf_counter()
    tokens = sum(group.counts.tokens for group in sequences(source.blocks(), tokenizer, options))
    ours = time.perf_counter() - start
    ratios.append(plain / ours)
    print(
        f"  pipeline {tokens / ours / 1e6:.2f} M tokens/s, encode_batch_fast alone {tokens / plain / 1e6:.2f} M tokens/s, ratio {plain / ours:.2f}"
    )
print(f"  median ratio {statistics.median(ratios):.2f}")
