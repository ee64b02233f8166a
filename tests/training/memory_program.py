"""How much memory training takes beside the parameters: estimated, and measured. Started by test_memory.py."""

from __future__ import annotations

import ctypes
import json
import resource
import sys

import numpy as np
import torch
import transformers

import nopad
from nopad.loading import causal
from nopad.sequences import Sequences
from nopad.training import PackedTrainer
from nopad.training.memory import estimate

ROWS, CAPACITY = 8, 512
MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h


def main() -> None:
    kind, folder = sys.argv[1:]
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 65536)  # else the C library holds on to a fifth more
    train(kind, folder, rows=1, hidden_size=32, intermediate_size=64, num_hidden_layers=1)  # what libraries load once
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1]) * resource.getpagesize()
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
    found = train(kind, folder, rows=ROWS, **sizes)
    with open("/proc/self/status") as file:  # `ru_maxrss` would be that of the process that started this one, if larger
        status = dict(line.split(":", 1) for line in file)
    measured = int(status["VmHWM"].split()[0]) * 1024 - before
    print(json.dumps({"measured": measured, "estimated": found.peak}))


def train(kind: str, folder: str, *, rows: int, **sizes: int):
    causal_model = kind == "Llama"
    still = {} if causal_model else {"attention_probs_dropout_prob": 0.0}  # no kernel of a CPU drops out and is fused
    config = getattr(transformers, f"{kind}Config")(vocab_size=4000, num_attention_heads=4, **still, **sizes)
    auto = getattr(transformers, f"AutoModelFor{'CausalLM' if causal_model else 'SequenceClassification'}")
    args = transformers.TrainingArguments(
        folder,
        per_device_train_batch_size=rows,
        max_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    with torch.device("meta"):
        found = estimate(auto.from_config(config), slots=(rows, CAPACITY), args=args)
    generator = np.random.default_rng(0)
    lengths = generator.integers(20, 400, 200).astype(np.int32)
    values = {} if causal_model else {"labels": generator.integers(0, 2, 200)}
    ids = generator.integers(5, 3999, int(lengths.sum())).astype(np.int32)
    data = Sequences(seq_lengths=lengths, tokens={"input_ids": ids}, values=values)
    options = {"collate": causal} if causal_model else {}
    loader = nopad.PackedLoader(data, CAPACITY, rows=rows, prefetch=0, **options)
    PackedTrainer(nopad.packed(auto.from_config(config)), args, train_dataset=loader, quiet=True).train()
    return found


if __name__ == "__main__":
    main()
