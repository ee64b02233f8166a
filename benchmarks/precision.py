"""Embeddings in lower precision: how much faster, and how far from float32.

MiniLM on docstrings of the standard library, by `Embedder`, in float32, bfloat16 and int8. The ways take turns; each line
has the fastest turn, the smallest cosine of a text's vector with that in float32, and the largest difference of a
component alone and in company. Beside them, as the limit: one linear layer of the model's most frequent size, 1,024 tokens.

    OMP_NUM_THREADS=1 python benchmarks/precision.py [--texts 400] [--turns 4]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from inputs import machine

from nopad.corpus import stdlib_texts
from nopad.tasks import Embedder

ALONE = 50  # texts that are embedded by themselves, too
TOKENS, WIDTH = 1024, 384


def fastest(way: Callable[[], Any], turns: int = 5) -> float:
    best = float("inf")
    for _ in range(turns):
        begin = time.perf_counter()
        way()
        best = min(best, time.perf_counter() - begin)
    return best


def limits() -> None:
    """Print what a linear layer takes in each precision."""
    states, weight = torch.randn(TOKENS, WIDTH), torch.randn(WIDTH, WIDTH)
    eight, other = (torch.randint(-127, 127, (n, WIDTH), dtype=torch.int8) for n in (TOKENS, WIDTH))
    half, light = states.bfloat16(), weight.bfloat16()
    with torch.inference_mode():
        wide = fastest(lambda: torch.nn.functional.linear(states, weight))
        brain = fastest(lambda: torch.nn.functional.linear(half, light))
        byte = fastest(lambda: torch._int_mm(eight, other))
    print(f"one linear layer, {TOKENS} x {WIDTH} x {WIDTH}: float32 {wide * 1e3:.2f} ms, ", end="")
    print(f"bfloat16 {wide / brain:.1f} x, int8 without its rounding {wide / byte:.1f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--turns", type=int, default=4)
    options = parser.parse_args()
    print(f"{machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    limits()
    texts = [entry["text"] for entry in stdlib_texts()]
    texts = [texts[at] for at in np.random.default_rng(0).permutation(len(texts))[: options.texts]]
    ways: list[Any] = [None, "bfloat16", "int8"]
    embedders = {way: Embedder.from_folder(precision=way) for way in ways}
    best, vectors = dict.fromkeys(ways, float("inf")), {}
    for turn in range(options.turns + 1):
        for way, embedder in embedders.items():
            begin = time.perf_counter()
            vectors[way] = embedder.encode(texts, over_long="truncate")
            if turn:  # the first one warms up
                best[way] = min(best[way], time.perf_counter() - begin)
    for way, embedder in embedders.items():
        cosine = float((vectors[None] * vectors[way]).sum(1).min())
        alone = np.concatenate([embedder.encode([text], over_long="truncate") for text in texts[:ALONE]])
        apart = float(np.abs(alone - vectors[way][:ALONE]).max())
        print(
            f"{way or 'float32':<9}{best[way]:7.2f} s  {len(texts) / best[way]:6.0f} texts/s  {best[None] / best[way]:5.2f} x  "
            f"smallest cosine {cosine:.5f}  alone and in company within {apart:.1e}"
        )


if __name__ == "__main__":
    main()
