"""A runner on 2,000 texts at once, beside Embedder's loop, padded batches and other libraries; and what it adds to one.

all-MiniLM-L6-v2 on docstrings and comments of the standard library of at least 40 characters, in the order in which they
come, cut at 256 tokens, float32, from texts to vectors (tokenising included). The ways take turns; the best turn of each
counts, in wall seconds and in CPU seconds of all threads, which other jobs on the machine change less. Padded batches, 32
texts in arrival order, are compared on the first 320 texts only, since they take long.

The limit is what the model's linear layers alone take for the same tokens, with the faster kernel of the two.

    python benchmarks/serve_offline.py [texts] [turns]
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from inputs import machine
from runtimes import MAKERS, missing

import nopad
from nopad.corpus import stdlib_texts
from nopad.model import fast_linear
from nopad.tasks import Embedder
from nopad.tasks.core import of_length
from nopad.tasks.embedding import _default_folder

TEXTS, PADDED, TURNS, BATCH, LONGEST = 2000, 320, 3, 32, 256
ALONE, SINGLE = 200, 200
Way = Callable[[list[str]], np.ndarray]


def the_texts(count: int) -> list[str]:
    found = [one["text"] for one in stdlib_texts() if len(one["text"]) >= 40]
    return found[:: max(len(found) // count, 1)][:count]


def best_of(
    ways: dict[str, Way], texts: list[str], turns: int
) -> tuple[dict[str, tuple[float, float]], dict[str, Any]]:
    """Return the best (wall, CPU) seconds of each way, and its vectors."""
    best, found = dict.fromkeys(ways, (float("inf"), float("inf"))), {}
    for way in ways.values():
        way(texts[:64])  # warm
    for _ in range(turns):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            found[name] = way(texts)
            spent = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = (min(best[name][0], spent[0]), min(best[name][1], spent[1]))
    return best, found


class Padded:
    """Batches of 32 texts padded to the longest of each, by anything that gives hidden states for (ids, mask)."""

    def __init__(
        self, tokenizer: Any, states: Callable[[Any, Any], Any], *, by_length: bool = False, batch: int = BATCH
    ):
        self.tokenizer, self.states, self.by_length, self.batch = tokenizer, states, by_length, batch

    def __call__(self, texts: list[str]) -> np.ndarray:
        ids = self.tokenizer(texts, truncation=True, max_length=LONGEST)["input_ids"]
        order = sorted(range(len(ids)), key=lambda at: len(ids[at])) if self.by_length else range(len(ids))
        found: list[Any] = [None] * len(ids)
        for part in batches(list(order), self.batch):
            padded = self.tokenizer.pad({"input_ids": [ids[at] for at in part]}, return_tensors="np")
            tokens, mask = padded["input_ids"].astype(np.int64), padded["attention_mask"].astype(np.int64)
            states = np.asarray(self.states(tokens, mask))
            mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            for at, vector in zip(part, mean / np.linalg.norm(mean, axis=1, keepdims=True), strict=True):
                found[at] = vector
        return np.array(found)


def batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def by_torch(model: Any) -> Callable[[Any, Any], Any]:
    def states(ids: Any, mask: Any) -> Any:
        with torch.inference_mode():
            given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            return model(**given).last_hidden_state.numpy()

    return states


def linear_alone(model: Any, tokens: int, fast: bool) -> float:
    """Return the seconds that the linear layers take for this many tokens, 4,096 at a time."""
    layers = [
        (module, torch.randn(4096, module.in_features)) for module in model.modules() if type(module) is torch.nn.Linear
    ]
    best = float("inf")
    with torch.inference_mode(), fast_linear(model) if fast else nullcontext():
        for _ in range(3):
            start = time.perf_counter()
            for layer, states in layers:
                layer(states)
            best = min(best, time.perf_counter() - start)
    return best * tokens / 4096


def peers(folder: Path, stock: Any, tokenizer: Any) -> Iterator[tuple[str, Way | str]]:
    """Give (name, way), or (name, why it is left out), of each other library."""
    for name, package, make in (
        ("sentence-transformers encode", "sentence_transformers", by_sentence_transformers),
        ("CTranslate2", "ctranslate2", lambda folder: Padded(tokenizer, by_ctranslate2(folder), by_length=True)),
    ):
        if not importlib.util.find_spec(package):
            yield name, f"not installed: {package}"
            continue
        try:
            yield name, make(folder)
        except Exception as error:
            yield name, f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
    for name, make in MAKERS.items():
        if absent := missing(name):
            yield name, f"not installed: {absent}"
            continue
        try:
            run = make(stock, torch.get_num_threads())
        except Exception as error:
            yield name, f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
            continue
        yield f"{name}, sorted", Padded(tokenizer, run, by_length=True)
        yield f"{name}, one by one", Padded(tokenizer, run, batch=1)


def by_sentence_transformers(folder: Path) -> Way:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = LONGEST
    return lambda texts: model.encode(texts, batch_size=BATCH, normalize_embeddings=True)


def by_ctranslate2(folder: Path) -> Callable[[Any, Any], Any]:
    import ctranslate2

    target = tempfile.mkdtemp()
    ctranslate2.converters.TransformersConverter(str(folder)).convert(target, force=True)
    encoder = ctranslate2.Encoder(target, device="cpu", compute_type="float32", intra_threads=torch.get_num_threads())

    def states(ids: Any, mask: Any) -> Any:
        rows = [row[: int(kept)].tolist() for row, kept in zip(ids, mask.sum(1), strict=True)]
        return encoder.forward_batch(rows).last_hidden_state

    return states


def alone_or_not(runner: Any, texts: list[str]) -> float:
    """Return the largest difference of a text's vector alone and in company, of some texts."""
    together = runner(texts)
    step = max(len(texts) // ALONE, 1)
    return max(float(np.abs(runner(text) - together[at]).max()) for at, text in enumerate(texts) if at % step == 0)


def added(runner: Any, embedder: Any, text: str) -> tuple[float, float]:
    """Return median seconds of one request: by the runner, and the same work without it."""
    by_runner, direct = [], []
    with embedder.kernels():
        for turn in range(SINGLE + 10):
            start = time.perf_counter()
            runner(text)
            middle = time.perf_counter()
            [prepared], _ = embedder.prepare([text])
            batch = nopad.PackedBatch.from_columns(embedder.joined([prepared.sequences]))
            embedder.finish(prepared, embedder.run_batch(batch))
            end = time.perf_counter()
            if turn >= 10:
                by_runner.append(middle - start)
                direct.append(end - middle)
    return statistics.median(by_runner), statistics.median(direct)


def show(best: dict[str, tuple[float, float]], count: int, base: str) -> None:
    for name, (wall, cpu) in best.items():
        print(
            f"  {name:34} {count / wall:8.1f} texts/s {cpu:8.2f} s of CPU   runner: {wall / best[base][0]:5.2f} x wall, "
            f"{cpu / best[base][1]:5.2f} x CPU"
        )


def main() -> None:
    transformers.logging.set_verbosity_error()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else TEXTS
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else TURNS
    print(machine(), f"torch {torch.__version__} on {torch.get_num_threads()} threads")
    folder, texts = _default_folder(), the_texts(count)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    stock = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    embedder = Embedder.from_folder(folder, max_tokens=LONGEST)
    lengths = [len(ids) for ids in tokenizer(texts, truncation=True, max_length=LONGEST)["input_ids"]]
    removed = sum(max(part) * len(part) for part in batches(lengths[:PADDED], BATCH)) / sum(lengths[:PADDED])
    start = time.perf_counter()
    with nopad.PackRunner(embedder) as runner:
        print(f"ready in {time.perf_counter() - start:.2f} s (warm-up); faster linear layers: {embedder.fast}")
        ways: dict[str, Way] = {
            "runner": lambda some: runner(some, over_long="truncate"),
            "Embedder's loop": lambda some: embedder.encode(some, over_long="truncate"),
        }
        best, found = best_of(ways, texts, turns)
        print(f"{len(texts):,} texts, {sum(lengths):,} tokens")
        show(best, len(texts), "runner")
        limit = linear_alone(embedder.model, sum(lengths), embedder.fast)
        print(f"  {'limit: linear layers alone':34} {len(texts) / limit:8.1f} texts/s")
        ratio = best["Embedder's loop"][0] / best["runner"][0]
        print(f"  runner against Embedder's loop: {ratio:.3f} (target 0.97)")
        print(f"  largest difference of the two: {np.abs(np.subtract(*found.values())).max():.1e}")

        first = texts[:PADDED]
        early: dict[str, Way] = {
            "runner": ways["runner"],
            "transformers padded, as they come": Padded(tokenizer, by_torch(stock)),
        }
        best, found = best_of(early, first, max(turns - 1, 1))
        print(f"first {len(first)} texts, {sum(lengths[:PADDED]):,} tokens, {BATCH} at a time when padded")
        show(best, len(first), "runner")
        padded_s, runner_s = best["transformers padded, as they come"][0], best["runner"][0]
        print(
            f"  {padded_s / runner_s:.2f} times as fast; the padding removed is {removed:.2f} times the tokens (target)"
        )

        for name, way in peers(folder, stock, tokenizer):
            if isinstance(way, str):
                print(f"  {name:34} left out: {way}")
                continue
            best, found = best_of({"runner": ways["runner"], name: way}, texts, turns)
            show(best, len(texts), "runner")
            print(f"  {'':34} largest difference {np.abs(found['runner'] - found[name]).max():.1e}")

        print(
            f"a text alone and in any company, {ALONE} texts: differ by at most {alone_or_not(runner, texts):.1e} (target 1e-6)"
        )
        short = next(text for text, length in zip(texts, lengths, strict=True) if 15 <= length <= 25)
        by_runner, direct = added(runner, embedder, short)
        print(
            f"one request of {len(embedder.tokenizer.encode([short])[0])} tokens on an idle runner: {by_runner * 1e3:.2f} ms, "
            f"without a runner {direct * 1e3:.2f} ms: {(by_runner - direct) * 1e3:+.2f} ms (target +0.5)"
        )
        seen = runner.statistics
        print(f"in all: {seen.packer.batches} packs, {seen.padding_saved:.0%} padding saved")
    first_runs(embedder)


def first_runs(embedder: Any) -> None:
    """Print what the first run of a token total costs beyond the second: what rounding totals could save."""
    found = []
    with embedder.kernels():
        for tokens in (37, 101, 259, 515, 1029, 2051):
            lengths = [tokens % 64, *[64] * (tokens // 64)] if tokens % 64 else [64] * (tokens // 64)
            batch = nopad.PackedBatch.from_columns(of_length(lengths))
            spent = []
            for _ in range(6):
                start = time.perf_counter()
                embedder.run_batch(batch)
                spent.append(time.perf_counter() - start)
            found.append(f"{tokens}: {spent[0] * 1e3:.1f} then {min(spent[1:]) * 1e3:.1f} ms")
    print("first run of a new token total, then the best of five: " + "; ".join(found))


if __name__ == "__main__":
    main()
