"""A runner on rows of one shape, compiled and as they are, beside flat batches; how far their results are apart.

MiniLM in float32 on token ids of seeded random lengths, all waiting at once. The ways take turns, and the fastest turn of
each counts, in wall seconds and in CPU seconds of all threads. Compiling is before the first turn. On a GPU, one more way
runs CUDA graphs ("reduce-overhead"). Results are compared with those of flat batches.

    python benchmarks/compiled_rows.py [--requests 300] [--turns 4] [--capacity 256] [--rows 8]
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from inputs import lognormal, machine

import nopad
from nopad.serving import Batching
from nopad.tasks.folder import default_folder, quiet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--capacity", type=int, default=256)
    parser.add_argument("--rows", type=int, default=8)
    options = parser.parse_args()
    from transformers import AutoModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with quiet():
        model: Any = AutoModel.from_pretrained(default_folder(), add_pooling_layer=False).eval().to(device)
    nopad.packed(model)
    lengths = lognormal(options.requests, 40.0, 0.9, options.capacity)
    rng = np.random.default_rng(0)
    requests = [{"input_ids": rng.integers(1000, 20_000, size=n)} for n in lengths.tolist()]
    rows = Batching(capacity=options.capacity, rows=options.rows)
    ends = Batching(capacity=options.capacity, rows=options.rows, policy="end_to_end")
    ways: dict[str, tuple[Batching, dict[str, Any]]] = {
        "flat": (Batching(capacity=rows.slots), {}),
        "rows": (rows, {"fast": False}),
        "rows, faster linear layers": (rows, {}),
        "rows, compiled": (rows, {"compile": True}),
        "end to end, compiled": (ends, {"compile": True}),
    }
    if device == "cuda":
        ways["rows, CUDA graphs"] = (rows, {"compile": "reduce-overhead"})
    print(f"{machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, {device}")
    print(f"{len(requests)} requests of {lengths.min()} to {lengths.max()} tokens, {lengths.sum():,} in all")
    with ExitStack() as stack:
        runners, states, best = {}, {}, {}
        for name, (batching, how) in ways.items():
            begin = time.perf_counter()
            runners[name] = stack.enter_context(nopad.PackRunner(model, batching, **how))
            best[name] = (float("inf"), float("inf"))
            print(f"  {name:<28}ready after {time.perf_counter() - begin:6.1f} s", flush=True)
        for _ in range(options.turns):
            for name, runner in runners.items():
                begin, used = time.perf_counter(), time.process_time()
                found = runner(requests)
                spent = time.perf_counter() - begin, time.process_time() - used
                best[name] = (min(best[name][0], spent[0]), min(best[name][1], spent[1]))
                states[name] = [one["last_hidden_state"].cpu() for one in found]
        for name, (wall, cpu) in best.items():
            packer = runners[name].statistics.packer
            apart = max(float((a - b).abs().max()) for a, b in zip(states[name], states["flat"], strict=True))
            print(
                f"  {name:<28}{len(requests) / wall:8.1f} requests/s  {wall:6.2f} s, CPU {cpu:6.2f} s  "
                f"{packer.batches / options.turns:5.1f} batches  within {apart:.1e} of flat"
            )


if __name__ == "__main__":
    main()
