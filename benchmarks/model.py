"""Models on packs beside padding, real tokens a second, in one run on the same texts and weights.

Forward: all-MiniLM-L6-v2 on docstrings and comments of the standard library (at least 40 characters, an order drawn by
seed 0): the first 320 as they come, then 2,000. Forward and backward: a BERT-base on lengths drawn from Wikipedia's
histogram. What nopad's own code costs: building batches, and hooks, beside a forward of 4,096 tokens.

    python benchmarks/model.py [path/to/wikipedia-histogram.json]
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from inputs import machine

import nopad
from nopad.batch import PackedBatch
from nopad.corpus import stdlib_texts
from nopad.histogram import read_histogram
from nopad.model.embedding import _default_folder, _within
from nopad.random import key, shuffle

TURNS = 3
BUDGET = 4096
LEAST = 40


def docstrings(count: int) -> list[np.ndarray]:
    """Token ids of texts, at most 512 each, special tokens included."""
    tokenizer = nopad.load_tokenizer()
    texts = [entry["text"] for entry in stdlib_texts() if len(entry["text"]) >= LEAST]
    order = list(range(len(texts)))
    shuffle(order, key(0))
    ids = tokenizer.encode([texts[at] for at in order[:count]])
    return [np.concatenate([tokenizer.prefix, one[:510], tokenizer.suffix]) for one in ids]


def padded(model: Any, sequences: list[np.ndarray], width: int | None = None, batch: int = 32) -> None:
    """Run batches of 32, padded to their longest, or to `width`."""
    for at in range(0, len(sequences), batch):
        part = sequences[at : at + batch]
        longest = width or max(map(len, part))
        ids = torch.zeros(len(part), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(part):
            ids[row, : len(sequence)] = torch.from_numpy(sequence)
            mask[row, : len(sequence)] = 1
        model(input_ids=ids, attention_mask=mask)


def by_length(sequences: list[np.ndarray]) -> list[np.ndarray]:
    return sorted(sequences, key=len)


def flat(model: Any, sequences: list[np.ndarray]) -> None:
    for part in _within(sequences, BUDGET):
        model(**PackedBatch.from_sequences(part))


def rows(model: Any, sequences: list[np.ndarray]) -> None:
    for part in _within(sequences, BUDGET):
        model(**PackedBatch.from_sequences(part, form="rows", capacity=512))


def seconds(function: Callable[[], Any], turns: int = TURNS) -> float:
    """The median of a few passes."""
    taken = []
    for _ in range(turns):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def forward() -> None:
    """Print real tokens a second of each way, and how nopad compares."""
    kind = transformers.BertModel
    stock, on_mask, on_segments = (
        kind.from_pretrained(_default_folder(), add_pooling_layer=False).eval() for _ in range(3)
    )
    nopad.packed(on_mask, backend="mask")
    nopad.packed(on_segments, backend="segments")
    for count in (320, 2000):
        sequences = docstrings(count)
        tokens = sum(map(len, sequences))
        print(f"\nMiniLM forward, {count:,} docstrings, {tokens:,} tokens, longest {max(map(len, sequences))}")
        ways: dict[str, Callable[[], Any]] = {
            "padded to 512 (64 texts)": lambda s=sequences: padded(stock, s[:64], 512),
            "padded, as they come": lambda s=sequences: padded(stock, s),
            "padded, sorted": lambda s=sequences: padded(stock, by_length(s)),
            "nopad rows, mask": lambda s=sequences: rows(on_mask, s),
            "nopad flat, segments": lambda s=sequences: flat(on_segments, s),
        }
        rates = {}
        with torch.inference_mode():
            flat(on_segments, sequences[:64])
            for name, way in ways.items():
                real = sum(map(len, sequences[:64])) if "64" in name else tokens
                turns = 1 if "512" in name or (count > 1000 and "come" in name) else TURNS
                rates[name] = real / seconds(way, turns)
                print(f"  {name:<26}{rates[name]:8,.0f} tokens/s")
        best = rates["nopad flat, segments"]
        for name in list(rates)[:3]:
            print(f"  nopad flat is {best / rates[name]:5.2f} x {name}")


def overhead() -> None:
    """Print what batch construction and hooks cost beside a forward pass."""
    model = nopad.packed(transformers.BertModel.from_pretrained(_default_folder(), add_pooling_layer=False).eval())
    part = next(iter(_within(docstrings(400), BUDGET)))
    batch = PackedBatch.from_sequences(part)
    with torch.inference_mode():
        whole = seconds(lambda: model(**batch), 7)
        build = seconds(lambda: PackedBatch.from_sequences(part), 21)
        state = model._nopad_state
        bare = seconds(lambda: _hooks(model, state, part), 21)
    print(f"\nown code beside a forward of {batch.layout.tokens:,} tokens in {batch.layout.sequences} sequences")
    print(f"  forward {whole * 1e3:.1f} ms, batch {build * 1e3:.2f} ms, hooks {bare * 1e3:.2f} ms")
    print(f"  together {(build + bare) / whole:.2%} (target < 3 %)")


def _hooks(model: Any, state: Any, part: list[np.ndarray]) -> None:
    """What the outer and the inner hook do, without the model."""
    batch = PackedBatch.from_sequences(part)
    state._enter(model, (), dict(batch))
    state.call.placed.mask()
    state._leave(model, (), {}, None)


def training(histogram: Path) -> None:
    """Print forward and backward of a BERT-base on lengths of Wikipedia: padded to 512, rows, flat."""
    torch.manual_seed(0)
    config = transformers.BertConfig()
    model = transformers.BertForMaskedLM(config).train()
    found, _ = read_histogram(histogram)
    rng = np.random.default_rng(0)
    weights = found.counts / found.counts.sum()
    lengths = rng.choice(found.lengths, 16, p=weights)
    sequences = [rng.integers(999, 30_000, n) for n in lengths]
    tokens = int(lengths.sum())
    print(f"\nBERT-base forward and backward, 16 sequences of Wikipedia's lengths, {tokens:,} tokens")

    def step(**inputs: Any) -> None:
        model.zero_grad(set_to_none=True)
        model(**inputs).loss.backward()

    ids = torch.zeros(16, 512, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = labels[row, : len(sequence)] = torch.from_numpy(sequence)
        mask[row, : len(sequence)] = 1
    rates = {"padded to 512": tokens / seconds(lambda: step(input_ids=ids, attention_mask=mask, labels=labels), 2)}
    for name, backend, how in (
        ("nopad rows, mask", "mask", {"form": "rows", "capacity": 512}),
        ("nopad flat, segments", "segments", {"form": "flat"}),
    ):
        nopad.packed(model, backend=backend)
        batch = PackedBatch.from_sequences(sequences, columns={"labels": sequences}, **how)
        rates[name] = tokens / seconds(lambda batch=batch: step(**batch), 2)
        nopad.unpacked(model)
    for name, rate in rates.items():
        print(f"  {name:<26}{rate:8,.0f} tokens/s   {rate / rates['padded to 512']:.2f} x padded")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"models on packs: {machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    forward()
    overhead()
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "wikipedia_bert_512.json"
    histogram = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    if histogram.is_file():
        training(histogram)
    else:
        print("\n(no histogram of Wikipedia: give its path for the training part)")


if __name__ == "__main__":
    main()
