"""Hybrids on packs beside padding: steps (forward and backward) of small models shaped like LFM2 and Falcon-H1.

The same sequences, padded to the capacity and packed flat, in turns in one process, on one thread, in seconds of CPU.
The target: 0.9 of the padding removed (slots padded over tokens). Beside it what the groups of `nopad.model.groups` gain:
a call for each length, and one call for all sequences.

Numbers near zero (denormal ones) count as zero on both sides: a scan with random weights decays to them, and this CPU
multiplies them ten times as slowly. `--denormals` keeps them.

    python benchmarks/hybrids.py [lfm2] [falcon_h1] [--capacity 512] [--sequences 12] [--turns 2] [--denormals]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from inputs import lognormal, machine

import nopad
from nopad.model import groups

TARGET = 0.9
WAYS = {"groups": groups.CALL, "one length a call": 0, "one call": 10**9}
LAYERS = ["conv", "conv", "full_attention"] * 2 + ["conv", "conv"]  # LFM2: two of three


def lfm2() -> Any:
    """LFM2-350M with 8 of its 16 layers, a quarter as wide."""
    return transformers.Lfm2Config(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        layer_types=LAYERS,
    )


def falcon_h1() -> Any:
    """Falcon-H1-0.5B, a quarter as wide, with 4 of its layers and its chunks of 128."""
    return transformers.FalconH1Config(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        mamba_d_ssm=384,
        mamba_n_heads=6,
        mamba_d_head=64,
        mamba_d_state=64,
        mamba_chunk_size=128,
    )


CONFIGS = {"lfm2": lfm2, "falcon_h1": falcon_h1}


def step(model: Any, inputs: Any) -> None:
    model.zero_grad(set_to_none=True)
    model(**inputs, use_cache=False).loss.backward()


def padded(sequences: list[np.ndarray], capacity: int) -> dict[str, torch.Tensor]:
    ids = torch.zeros(len(sequences), capacity, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.from_numpy(sequence)
        mask[row, : len(sequence)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def measure(kind: str, lengths: np.ndarray, capacity: int, turns: int) -> float:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind]()).train()
    rng = np.random.default_rng(0)
    sequences = [rng.integers(4, 2000, n) for n in lengths]
    rows = padded(sequences, capacity)
    batch = nopad.PackedBatch.from_sequences(sequences, columns={"labels": sequences})
    packed = nopad.packed(model)  # an ordinary call does what it did

    def pack(call: int) -> Callable[[], None]:
        def run() -> None:
            groups.CALL = call
            fresh = nopad.PackedBatch.from_sequences(sequences, columns={"labels": sequences})
            step(packed, fresh)

        return run

    ways: dict[str, Callable[[], None]] = {"padded": lambda: step(packed, rows)}
    ways |= {name: pack(call) for name, call in WAYS.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            begin = time.process_time()
            way()
            if turn:
                found[name].append(time.process_time() - begin)
    groups.CALL = WAYS["groups"]
    factor = len(sequences) * capacity / batch.layout.tokens
    size = f"{sum(one.numel() for one in model.parameters()) / 1e6:.0f} M parameters"
    number = len(groups.grouped(lengths.tolist(), mixed=True))
    print(f"\n{kind}, {size}, {len(sequences)} sequences of {batch.layout.tokens:,} tokens at {capacity}")
    print(f"  padding removed x{factor:.2f}; {np.unique(lengths).size} lengths in {number} groups")
    share = 0.0
    for name, each in found.items():
        times = statistics.median(slow / fast for slow, fast in zip(found["padded"], each, strict=True))
        print(
            f"  {name:<20}{statistics.median(each):8.2f} s   x{times:.2f}, {times / factor:.2f} of the padding removed"
        )
        share = times / factor if name == "groups" else share
    print(f"  target {TARGET}: {'met' if share >= TARGET else 'missed'}", flush=True)
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*CONFIGS, []], help="which; all by default")
    parser.add_argument("--capacity", type=int, default=512)
    parser.add_argument("--sequences", type=int, default=12)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--denormals", action="store_true", help="keep numbers near zero as they are")
    options = parser.parse_args()
    torch.set_flush_denormal(not options.denormals)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # seconds of CPU: fair beside other jobs
    print(f"hybrids on packs: {machine()}, {torch.get_num_threads()} thread, torch {torch.__version__}", flush=True)
    lengths = lognormal(options.sequences, options.capacity / 3, 0.8, options.capacity)
    for kind in options.kinds or CONFIGS:
        measure(kind, lengths, options.capacity, options.turns)


if __name__ == "__main__":
    main()
