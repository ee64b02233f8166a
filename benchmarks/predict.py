"""Predicting through packs beside padded batches sorted by length: the same model, records and predictions.

all-MiniLM-L6-v2 on docstrings and comments of the standard library, cut at 256 tokens: embeddings, and classes of a head
of random weights. From records to predictions, tokenising included, in CPU seconds, the ways in turn; the best of each
counts. Padded batches hold 32 records, and all of them are sorted by length first, which a stream could not do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from inputs import machine

from nopad.corpus import stdlib_texts
from nopad.model import unpacked
from nopad.tasks import Classification, Embedding, Predictor, Task
from nopad.tasks.folder import default_folder

RECORDS, BATCH, TURNS, LONGEST = 2000, 32, 3, 256


def padded(task: Task, model: Any, records: list[dict[str, str]]) -> list[list[float]]:
    """Predictions from batches of records of like length, padded to the longest of each."""
    texts = [one["text"] for one in records]
    ids = task.tokenizer(texts, truncation=True, max_length=LONGEST)["input_ids"]
    order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
    found: list[list[float]] = [[]] * len(ids)
    with torch.inference_mode():
        for first in range(0, len(order), BATCH):
            part = order[first : first + BATCH]
            inputs = task.tokenizer.pad({"input_ids": [ids[at] for at in part]}, return_tensors="pt")
            mask = inputs["attention_mask"]
            if isinstance(task, Embedding):
                states = model(**inputs).last_hidden_state
                mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
                rows = torch.nn.functional.normalize(mean, dim=-1).tolist()
            else:
                rows = torch.softmax(model(**inputs).logits.double(), -1).tolist()
            for at, row in zip(part, rows, strict=True):
                found[at] = row
    return found


def timed(function: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def compare(task: Task, column: str, records: list[dict[str, str]]) -> None:
    model = task.model(default_folder())
    stock = task.model(default_folder()).eval()
    stock.load_state_dict(model.state_dict())
    packed = Predictor(task, model, fast=False)
    fast = Predictor(task, model, fast=True)
    ways: dict[str, Callable[[], list[Any]]] = {
        "padded, sorted": lambda: padded(task, stock, records),
        "packed": lambda: [one[column] for one in packed(records)],  # type: ignore[index]
        "packed, faster linear layers": lambda: [one[column] for one in fast(records)],  # type: ignore[index]
    }
    for way in ways.values():
        way()  # warm
    best: dict[str, float] = {}
    results: dict[str, list[Any]] = {}
    for _ in range(TURNS):
        for name, way in ways.items():
            seconds, results[name] = timed(way)
            best[name] = min(best.get(name, seconds), seconds)
    judged = torch.tensor(results["padded, sorted"])
    print(f"{task.name}: {len(records):,} records, {packed.run(records).tokens:,} tokens")
    for name, seconds in best.items():
        apart = (torch.tensor(results[name]) - judged).abs().max().item()
        ratio = best["padded, sorted"] / seconds
        print(f"  {name:30} {len(records) / seconds:7.1f} records/s of CPU   {ratio:4.2f} x   apart {apart:.0e}")
    unpacked(model)


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print(machine())
    count = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    texts = [one["text"] for one in stdlib_texts() if len(one["text"]) >= 40]
    records = [{"text": text} for text in texts[:: max(len(texts) // count, 1)][:count]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_folder())
    cut: dict[str, Any] = {"max_length": LONGEST, "over_long": "truncate"}
    torch.manual_seed(0)
    compare(Classification(tokenizer, 3, **cut), "probabilities", records)
    compare(Embedding(tokenizer, **cut), "embedding", records)


if __name__ == "__main__":
    main()
