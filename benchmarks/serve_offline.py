"""A runner on texts and pairs at once, beside Embedder's loop, padded batches and other libraries; and what it adds to one.

Docstrings and comments of the standard library of at least 40 characters, in the order in which they come, cut at 256
tokens, from texts to vectors or scores (tokenising included). The ways take turns; the best turn of each counts, in wall
seconds and in CPU seconds of all threads, which other jobs on the machine change less. Four parts:

- `minilm`: all-MiniLM-L6-v2 in float32. Padded batches, 32 texts in arrival order, are compared on the first 320 texts
  only, since they take long. Then what a runner adds to one request, and a text alone and in company.
- `bert`: the shape of BERT-base with random weights, in float32, on the first 48 texts.
- `pairs`: reranking and classification of 320 pairs (a cross-encoder of MiniLM's shape), which come 32 at a time.
- `precision`: MiniLM in bfloat16 and in int8, each beside libraries in the same precision only, on the first 600 texts,
  or the first 30 where the CPU has no instructions for bfloat16 (PyTorch takes eight times as long there as in float32).

The limit is what the model's linear layers alone take for the same tokens, with the faster kernel of the two.

    python benchmarks/serve_offline.py [texts] [turns] [--parts minilm,bert,pairs,precision]
"""

from __future__ import annotations

import argparse
import itertools
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from inputs import machine
from serve_peers import BATCH, LONGEST, Padded, Way, batches, by_torch, cross_encoder, peers

import nopad
from nopad.corpus import stdlib_texts
from nopad.model import fast_linear
from nopad.tasks import Classification, Embedder, Predictor, Regression
from nopad.tasks.core import of_length
from nopad.tasks.folder import default_folder

TEXTS, TURNS, PADDED, OF_BERT, PAIRS, LOWERED, EMULATED = 2000, 2, 320, 48, 320, 600, 30
ALONE, SINGLE = 200, 200
FEWEST_TURNS = 5  # of short parts: the first turns of a runner try lanes
RUNNER, LOOP, STOCK = "runner", "Embedder's loop", "transformers padded, as they come"
Times = dict[str, tuple[float, float]]


def the_texts(count: int) -> list[str]:
    found = [one["text"] for one in stdlib_texts() if len(one["text"]) >= 40]
    return found[:: max(len(found) // count, 1)][:count]


def best_of(ways: dict[str, Callable[[Any], Any]], given: Any, turns: int) -> tuple[Times, dict[str, Any]]:
    """Return the best (wall, CPU) seconds of each way, and its results."""
    best, found = dict.fromkeys(ways, (float("inf"), float("inf"))), {}
    for way in ways.values():
        way(given[:64])  # warm
    for _ in range(turns):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            found[name] = way(given)
            spent = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = (min(best[name][0], spent[0]), min(best[name][1], spent[1]))
    return best, found


def show(best: Times, found: dict[str, Any], count: int, unit: str = "texts") -> None:
    """Print each way beside the first one: rates, seconds of CPU, ratios, and how far its results are."""
    (base, mine), *_ = best.items()
    for name, (wall, cpu) in best.items():
        apart = "" if name == base else f", differs by {np.abs(np.subtract(found[base], found[name])).max():.0e}"
        print(
            f"  {name:34} {count / wall:8.1f} {unit}/s {cpu:8.2f} s of CPU   {base}: {wall / mine[0]:5.2f} x wall, "
            f"{cpu / mine[1]:5.2f} x CPU{apart}"
        )


def others(precision: str, folder: Path, stock: Any, tokenizer: Any, texts: list[str]) -> dict[str, Way]:
    """Return the other libraries that can run, each in its fastest mode; print the trials, and what is left out."""
    found = {}
    for name, ways in peers(precision, folder, stock, tokenizer):
        if isinstance(ways, str):
            print(f"  {name:34} left out: {ways}")
            continue
        best, _ = best_of(ways, texts, 1)
        fastest = min(best, key=lambda mode: best[mode][0])
        rates = "; ".join(f"{mode} {len(texts) / wall:.1f}" for mode, (wall, _) in best.items())
        print(f"  {name:34} texts/s in a first turn: {rates}")
        found[f"{name}, {fastest}"] = ways[fastest]
    return found


def lengths_of(tokenizer: Any, texts: list[str]) -> list[int]:
    return [len(ids) for ids in tokenizer(texts, truncation=True, max_length=LONGEST)["input_ids"]]


def removed(lengths: list[int]) -> float:
    """Return the tokens of padded batches in arrival order / tokens."""
    return sum(max(part) * len(part) for part in batches(lengths)) / sum(lengths)


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


def in_float32(
    folder: Path, texts: list[str], turns: int, padded: int, more: Callable[[Any, Any, list[str]], None] | None = None
) -> None:
    """Compare everything in float32 on these texts, and padded batches on the first `padded`; then call `more`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    stock = stock_of(folder)
    embedder = Embedder.from_folder(folder, max_tokens=LONGEST)
    lengths = lengths_of(tokenizer, texts)
    start = time.perf_counter()
    with nopad.PackRunner(embedder) as runner:
        print(f"  ready in {time.perf_counter() - start:.2f} s (warm-up); faster linear layers: {embedder.fast}")
        ways: dict[str, Way] = {
            RUNNER: lambda some: runner(some, over_long="truncate"),
            LOOP: lambda some: embedder.encode(some, over_long="truncate"),
        }
        both = {RUNNER: ways[RUNNER], STOCK: Padded(tokenizer, by_torch(stock))}
        best, found = best_of(both, texts[:padded], max(turns - 1, 1))
        print(f"  first {padded} texts, {sum(lengths[:padded]):,} tokens, {BATCH} at a time when padded")
        show(best, found, padded)
        print(
            f"  {best[STOCK][0] / best[RUNNER][0]:.2f} times as fast (target: the padding removed, "
            f"{removed(lengths[:padded]):.2f} times the tokens)"
        )
        ways |= others("float32", folder, stock, tokenizer, texts)
        best, found = best_of(ways, texts, turns)
        print(f"  {len(texts):,} texts, {sum(lengths):,} tokens (targets: {LOOP} 0.97, CTranslate2 1.1, others 1.0)")
        show(best, found, len(texts))
        limit = linear_alone(embedder.model, sum(lengths), embedder.fast)
        print(f"  {'limit: linear layers alone':34} {len(texts) / limit:8.1f} texts/s")
        if more is not None:
            more(runner, embedder, texts)


def stock_of(folder: Path) -> Any:
    return transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()


def singles(runner: Any, embedder: Any, texts: list[str]) -> None:
    """Print what a runner adds to one request, and how much a vector depends on its company."""
    apart = alone_or_not(runner, texts)
    print(f"  a text alone and in any company, {ALONE} texts: differ by at most {apart:.1e} (target 1e-6)")
    short = next(text for text in texts if 15 <= len(embedder.tokenizer.encode([text])[0]) <= 25)
    (wall, cpu), (plain_wall, plain_cpu) = added(runner, embedder, short)
    print(
        f"  one short request on an idle runner: {wall * 1e3:.2f} ms, without a runner {plain_wall * 1e3:.2f} ms: "
        f"{(wall - plain_wall) * 1e3:+.2f} ms (target +0.5), and {(cpu - plain_cpu) * 1e3:+.2f} ms of CPU"
    )
    seen = runner.statistics
    print(f"  in all: {seen.packer.batches} packs, {seen.padding_saved:.0%} padding saved")
    first_runs(embedder)


def minilm(texts: list[str], turns: int) -> None:
    print("all-MiniLM-L6-v2, float32")
    in_float32(default_folder(), texts, turns, PADDED, singles)


def bert(texts: list[str], turns: int) -> None:
    print("BERT-base's shape, random weights, float32")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        config = transformers.BertConfig(position_embedding_type="absolute")  # which CTranslate2 asks for
        transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(default_folder()).save_pretrained(folder)
        step = max(len(texts) // OF_BERT, 1)
        in_float32(Path(folder), texts[::step][:OF_BERT], turns, OF_BERT)


def pairs(texts: list[str], turns: int) -> None:
    """Compare with a CrossEncoder: 32 pairs at a time, of a few words and a text, as they come."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_folder())
    made = [(" ".join(one.split()[:8]), other) for one, other in itertools.pairwise(texts)]
    made = [pair for pair in made if len(tokenizer(*pair)["input_ids"]) <= LONGEST][:PAIRS]
    lengths = [len(tokenizer(*pair)["input_ids"]) for pair in made]
    for name, classes in (("reranking", 1), ("classification in 3 classes", 3)):
        print(f"{name}, MiniLM's shape, float32: {len(made)} pairs, {sum(lengths):,} tokens, {BATCH} at a time")
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            model = transformers.AutoModelForSequenceClassification.from_pretrained(
                default_folder(), num_labels=classes
            )
            model.eval().save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            options = {"text": "query", "pair": "document"}
            task = Regression(tokenizer, **options) if classes == 1 else Classification(tokenizer, classes, **options)
            runner = stack.enter_context(nopad.PackRunner(Predictor(task, model)))
            ways: dict[str, Any] = {RUNNER: as_they_come(lambda some, run=runner: scores(run(some)))}
            if isinstance(other := cross_encoder(Path(folder), classes), str):
                print(f"  {'CrossEncoder.predict':34} left out: {other}")
            else:
                ways["CrossEncoder.predict"] = as_they_come(other)
            best, found = best_of(ways, made, turns)
        show(best, found, len(made), "pairs")
        print(f"  target: the padding removed, {removed(lengths):.2f} times the tokens")


def as_they_come(way: Callable[[list[Any]], np.ndarray]) -> Callable[[list[Any]], np.ndarray]:
    return lambda given: np.concatenate([way(part) for part in batches(given)])


def scores(predictions: list[dict[str, Any]]) -> np.ndarray:
    """Return the score of each pair, or the probabilities of its classes."""
    if "score" in predictions[0]:
        return np.array([one["score"] for one in predictions])
    return np.array([one["probabilities"] for one in predictions])


def precision(texts: list[str], turns: int) -> None:
    """Compare lower precisions with the same of other libraries; print how far each is from float32."""
    supported: Any = torch.ops.mkldnn._is_mkldnn_bf16_supported
    folder, texts = default_folder(), texts[: LOWERED if supported() else EMULATED]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    stock = stock_of(folder)
    exact = Embedder.from_folder(folder, max_tokens=LONGEST).encode(texts, over_long="truncate")
    for kind in ("bfloat16", "int8"):
        print(f"all-MiniLM-L6-v2, {kind}: {len(texts)} texts (target: 1.0 of each, where the CPU multiplies in {kind})")
        with nopad.PackRunner(Embedder.from_folder(folder, max_tokens=LONGEST, precision=kind)) as runner:
            ways: dict[str, Way] = {RUNNER: lambda some, run=runner: run(some, over_long="truncate")}
            best, found = best_of(ways | others(kind, folder, stock, tokenizer, texts), texts, max(turns, FEWEST_TURNS))
        show(best, found, len(texts))
        cosines = {name: float((exact * vectors).sum(1).min()) for name, vectors in found.items()}
        print("  smallest cosine with float32: " + ", ".join(f"{name} {at:.5f}" for name, at in cosines.items()))


def alone_or_not(runner: Any, texts: list[str]) -> float:
    """Return the largest difference of a text's vector alone and in company, of some texts."""
    together = runner(texts, over_long="truncate")
    step = max(len(texts) // ALONE, 1)
    return max(
        float(np.abs(runner(text, over_long="truncate") - together[at]).max())
        for at, text in enumerate(texts)
        if at % step == 0
    )


def added(runner: Any, embedder: Any, text: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return median (wall, CPU) seconds of one request: by the runner, and of the same work without it."""
    by_runner, direct = [], []
    with embedder.kernels():
        for turn in range(SINGLE + 10):
            marks = [(time.perf_counter(), time.process_time())]
            runner(text)
            marks.append((time.perf_counter(), time.process_time()))
            [prepared], _ = embedder.prepare([text])
            batch = nopad.PackedBatch.from_columns(embedder.joined([prepared.sequences]))
            embedder.finish(prepared, embedder.run_batch(batch))
            marks.append((time.perf_counter(), time.process_time()))
            if turn >= 10:
                by_runner.append(np.subtract(marks[1], marks[0]))
                direct.append(np.subtract(marks[2], marks[1]))
    middle = [tuple(np.median(one, axis=0).tolist()) for one in (by_runner, direct)]
    return middle[0], middle[1]


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


PARTS = {"minilm": minilm, "bert": bert, "pairs": pairs, "precision": precision}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=int, nargs="?", default=TEXTS)
    parser.add_argument("turns", type=int, nargs="?", default=TURNS)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of %(default)s")
    options = parser.parse_args()
    if odd := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"no part is named {min(odd)}; there are {', '.join(PARTS)}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")  # other libraries' exporters
    logging.disable(logging.WARNING)
    print(machine(), f"torch {torch.__version__} on {torch.get_num_threads()} threads")
    texts = the_texts(options.texts)
    for part in options.parts.split(","):
        start = time.perf_counter()
        PARTS[part](texts, options.turns)
        print(f"  ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
