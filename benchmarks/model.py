"""Models on packs beside padding and other runtimes: real tokens per second, in one run, on the same texts and weights.

`embed`: all-MiniLM-L6-v2 forward on docstrings and comments of the standard library (at least 40 characters, an order
drawn by seed 0): the first 320, then 2,000. `sizes`: encoders of MiniLM's and BERT-base's sizes, on docstrings and on
sequences as long as Wikipedia's, forward, and forward and backward. `overhead`: what nopad's own code costs: building
batches, and hooks, beside a forward of 4,096 tokens. OpenVINO and ONNX Runtime run beside every forward where they are
installed (`pip install --group bench`).

    python benchmarks/model.py [embed] [sizes] [overhead] [--histogram wikipedia_bert_512.json]
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from inputs import machine
from runtimes import runtimes

import nopad
from nopad.batch import PackedBatch
from nopad.corpus import stdlib_texts
from nopad.histogram import read_histogram
from nopad.model import fast_linear
from nopad.random import key, shuffle
from nopad.tasks.folder import default_folder

BUDGET = 4096
BATCH = 32
LEAST = 40
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "wikipedia_bert_512.json"
# dropout draws random numbers on one core, and takes SDPA off its fast path on a CPU: left out, on every side
BASE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MINILM = {**BASE, "hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
FLAT, ROWS, ARRIVAL, SORTED = "nopad flat, segments", "nopad rows, mask", "padded, as they come", "padded, sorted"

Ways = dict[str, Callable[[], Any]]


def docstrings(count: int) -> list[np.ndarray]:
    """Token ids of texts, at most 512 each, special tokens included."""
    tokenizer = nopad.load_tokenizer()
    texts = [entry["text"] for entry in stdlib_texts() if len(entry["text"]) >= LEAST]
    order = list(range(len(texts)))
    shuffle(order, key(0))
    ids = tokenizer.encode([texts[at] for at in order[:count]])
    return [np.concatenate([tokenizer.prefix, one[:510], tokenizer.suffix]) for one in ids]


def wikipedia(histogram: Path, count: int) -> list[np.ndarray]:
    """Random ids, as long as the middles of `count` equal parts of a histogram: no luck of the draw in the padding."""
    found, _ = read_histogram(histogram)
    rng = np.random.default_rng(0)
    middles = (np.arange(count) + 0.5) / count * found.counts.sum()
    lengths = found.lengths[np.searchsorted(np.cumsum(found.counts), middles)]
    return [rng.integers(999, 30_000, n) for n in rng.permutation(lengths)]


def batches(sequences: list[np.ndarray], width: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and masks of batches of 32, padded to their longest, or to `width`."""
    for at in range(0, len(sequences), BATCH):
        part = sequences[at : at + BATCH]
        ids = np.zeros((len(part), width or max(map(len, part))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, sequence in enumerate(part):
            ids[row, : len(sequence)] = sequence
            mask[row, : len(sequence)] = 1
        yield ids, mask


def by_length(sequences: list[np.ndarray]) -> list[np.ndarray]:
    return sorted(sequences, key=len)


def within(sequences: list[np.ndarray], budget: int) -> Iterator[list[np.ndarray]]:
    """Lists of consecutive sequences of at most `budget` tokens, or of one longer sequence."""
    part: list[np.ndarray] = []
    for sequence in sequences:
        if part and sum(map(len, part)) + len(sequence) > budget:
            yield part
            part = []
        part.append(sequence)
    if part:
        yield part


def packs(sequences: list[np.ndarray], **how: Any) -> Iterator[PackedBatch]:
    """Batches of about 4,096 tokens, in order."""
    for part in within(sequences, BUDGET):
        yield PackedBatch.from_sequences(part, **how)


def forward(model: Any, batches: Iterator[PackedBatch]) -> None:
    with fast_linear(model):
        for batch in batches:
            model(**batch)


def rates(ways: Ways, tokens: int, turns: int, once: tuple[str, ...] = ()) -> dict[str, list[float]]:
    """Real tokens per second, all ways in turn; those in `once` only in the first."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        for name, way in ways.items():
            if turn == 0 or name not in once:
                start = time.perf_counter()
                way()
                found[name].append(tokens / (time.perf_counter() - start))
    return found


def show(found: dict[str, list[float]], beside: tuple[str, ...]) -> dict[str, float]:
    """Print medians and how `FLAT` compares, turn by turn; return the comparisons' medians."""
    for name, each in found.items():
        spread = f"   ({min(each):,.0f} to {max(each):,.0f})" if len(each) > 1 else ""
        print(f"  {name:<26}{statistics.median(each):8,.0f} tokens/s{spread}")
    times = {
        name: statistics.median(ours / other for ours, other in zip(found[FLAT], found[name], strict=False))
        for name in beside
        if name in found
    }
    print("  " + FLAT + " is " + ", ".join(f"{by:.2f} x {name}" for name, by in times.items()), flush=True)
    return times


def embed(_: Path | None) -> None:
    """MiniLM forward, beside padding and other runtimes."""
    kind = transformers.BertModel
    stock, on_mask, on_segments = (
        kind.from_pretrained(default_folder(), add_pooling_layer=False).eval() for _ in range(3)
    )
    nopad.packed(on_mask, backend="mask")
    nopad.packed(on_segments, backend="segments")
    others = yardsticks(stock)
    for count, turns in ((320, 5), (2000, 3)):
        sequences = docstrings(count)
        tokens = sum(map(len, sequences))
        print(f"\nMiniLM forward, {count:,} docstrings, {tokens:,} tokens, longest {max(map(len, sequences))}")
        slots = [sum(ids.size for ids, _ in batches(s)) / tokens for s in (sequences, by_length(sequences))]
        print(f"  slots per token: {slots[0]:.2f} as they come, {slots[1]:.2f} sorted")
        ways: Ways = {
            "padded to 512": lambda s=sequences: [stock(*_tensors(b)) for b in batches(s, 512)],
            ARRIVAL: lambda s=sequences: [stock(*_tensors(b)) for b in batches(s)],
            SORTED: lambda s=sequences: [stock(*_tensors(b)) for b in batches(by_length(s))],
            ROWS: lambda s=sequences: forward(on_mask, packs(s, form=nopad.Rows(512))),
            FLAT: lambda s=sequences: forward(on_segments, packs(s)),
        }
        for name, run in others.items():
            ways[name] = lambda s=sequences, run=run: [run(*b) for b in batches(by_length(s))]
        if count > 1000:
            del ways["padded to 512"]
        with torch.inference_mode():
            on_segments(**next(packs(sequences)))
            for run in others.values():
                run(*next(batches(sequences[:32])))
            found = rates(ways, tokens, turns, once=("padded to 512",) if count < 1000 else (ARRIVAL,))
        show(found, (ARRIVAL, SORTED, *others))


def yardsticks(model: Any) -> dict[str, Any]:
    """Other runtimes of an encoder, by name; what cannot run is said."""
    found = {}
    for name, made in runtimes(model, torch.get_num_threads()):
        if isinstance(made, str):
            print(f"({name}: {made})")
        else:
            found[f"{name}, sorted"] = made
    return found


def _tensors(batch: tuple[np.ndarray, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(batch[0]), torch.from_numpy(batch[1])


def sizes(histogram: Path | None) -> None:
    """Encoders of two sizes on two distributions of lengths."""
    torch.manual_seed(0)
    for size, sizing, many in (("MiniLM", MINILM, 4), ("BERT-base", BASE, 1)):
        model = transformers.BertModel(transformers.BertConfig(**sizing), add_pooling_layer=False).eval()
        others = yardsticks(model)
        for source in ("docstrings", "wikipedia"):
            if source == "wikipedia" and histogram is None:
                print("\n(no histogram of Wikipedia: give its path by --histogram)")
                continue
            sequences = docstrings(32 * many) if histogram is None or source == "docstrings" else None
            sequences = sequences or wikipedia(histogram, 16 * many)  # type: ignore[arg-type]
            for backward in (False, True):
                _one_size(f"{size}, {source}", model, sequences, backward, {} if backward else others)


def _one_size(title: str, model: Any, sequences: list[np.ndarray], backward: bool, others: dict[str, Any]) -> None:
    tokens = sum(map(len, sequences))
    print(f"\n{title}, forward{' and backward' if backward else ''}: {len(sequences)} sequences, {tokens:,} tokens")

    def step(inputs: Any) -> None:
        with torch.set_grad_enabled(backward):
            states = model(**inputs).last_hidden_state
            if backward:
                states.square().mean().backward()

    def pad(ordered: list[np.ndarray], width: int | None = None) -> None:
        model.zero_grad(set_to_none=True)
        for batch in batches(ordered, width):
            ids, mask = _tensors(batch)
            step({"input_ids": ids, "attention_mask": mask})

    def pack(backend: str, **how: Any) -> None:
        model.zero_grad(set_to_none=True)
        nopad.packed(model, backend=backend)
        try:
            with nullcontext() if backward else fast_linear(model):
                for batch in packs(sequences, **how):
                    step(batch)
        finally:
            nopad.unpacked(model)

    ways: Ways = {
        "padded to 512": lambda: pad(sequences, 512),
        ARRIVAL: lambda: pad(sequences),
        SORTED: lambda: pad(by_length(sequences)),
        ROWS: lambda: pack("mask", form=nopad.Rows(512)),
        FLAT: lambda: pack("segments"),
    }
    for name, run in others.items():
        ways[name] = lambda run=run: [run(*b) for b in batches(by_length(sequences))]
        run(*next(batches(sequences)))
    pack("segments")
    once = ("padded to 512",) if "docstrings" in title else ()  # most of it is padding, and a pass takes minutes
    show(rates(ways, tokens, 2, once), ("padded to 512", ARRIVAL, SORTED, *others))


def overhead(_: Path | None) -> None:
    """Print what batch construction and hooks cost beside a forward pass."""
    model = nopad.packed(transformers.BertModel.from_pretrained(default_folder(), add_pooling_layer=False).eval())
    part = next(iter(within(docstrings(400), BUDGET)))
    batch = PackedBatch.from_sequences(part)
    with torch.inference_mode(), fast_linear(model):
        whole = seconds(lambda: model(**batch), 7)
        build = seconds(lambda: PackedBatch.from_sequences(part), 21)
        bare = seconds(lambda: _hooks(model, model._nopad_state, part), 21)
    print(f"\nown code beside a forward of {batch.layout.tokens:,} tokens in {batch.layout.sequences} sequences")
    print(f"  forward {whole * 1e3:.1f} ms, batch {build * 1e3:.2f} ms, hooks {bare * 1e3:.2f} ms")
    print(f"  together {(build + bare) / whole:.2%} (target < 3 %)", flush=True)


def _hooks(model: Any, state: Any, part: list[np.ndarray]) -> None:
    """What the outer and the inner hook do, without the model."""
    batch = PackedBatch.from_sequences(part)
    state._enter(model, (), dict(batch))
    state.call.placed.mask()
    state._leave(model, (), {}, None)


def seconds(function: Callable[[], Any], turns: int) -> float:
    """The median of a few passes."""
    taken = []
    for _ in range(turns):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


PARTS = {"embed": embed, "overhead": overhead, "sizes": sizes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which; all by default")
    parser.add_argument("--histogram", type=Path, default=SHARED if SHARED.is_file() else None)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("nopad").setLevel(logging.INFO)
    warnings.filterwarnings("ignore")  # of exporters, of what they cannot know
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"models on packs: {machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}", flush=True)
    for part in options.parts or PARTS:
        PARTS[part](options.histogram)


if __name__ == "__main__":
    main()
