"""Streams: the first batch within a second of starting, and text to batches at >= 0.9 of the rate of the tokenizer.

The first batch, in a new process each time: from `import nopad`, and from `PackedLoader(...)`, to the batch. The rate:
batches taken as fast as they come, beside `encode_batch_fast` alone on the same texts, with its ids asked for, in turns
in one process. Also padding, the size of a state, and how long it takes to go on from one far into the source.

python benchmarks/stream_loading.py [COPIES] [SECONDS]: the standard library's docstrings, so many times as JSON Lines.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from inputs import machine
from tokenizers import Tokenizer as Raw

import nopad
from nopad.corpus import stdlib_texts
from nopad.corpus.tokenizer import _default_file

COPIES = int(sys.argv[1]) if len(sys.argv) > 1 else 20
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
TURNS = 5
FORMS = {"512": 512, "4,096": 4096}
FIRST = """
import sys, time
begin = time.perf_counter()
import nopad
source, tokenizer = nopad.open_source(sys.argv[1]), nopad.load_tokenizer()
opened, cpu = time.perf_counter(), time.process_time()
loader = nopad.PackedLoader(source, 4096, rows=8, tokenizer=tokenizer, over_long="split", rank=0, world_size=int(sys.argv[2]))
batch = next(iter(loader))
print(time.perf_counter() - opened, time.perf_counter() - begin, time.process_time() - cpu)
"""


def loader(path: Path, capacity: int, **options: object) -> nopad.PackedLoader:
    """A loader over the texts, 32,768 slots per batch."""
    return nopad.PackedLoader(
        nopad.open_source(path),
        capacity,
        rows=32768 // capacity,
        tokenizer=nopad.load_tokenizer(),
        over_long="split",
        **options,
    )


def first(path: Path) -> None:
    """Print how long the first batch takes in a new process."""
    for world_size in (1, 64):
        rows = []
        for _ in range(7):
            command = [sys.executable, "-c", FIRST, str(path), str(world_size)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(tuple(map(float, done.stdout.split())))
        batch, whole, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"  rank 0 of {world_size}: first batch (8 x 4,096) {batch:.2f} s after PackedLoader(...), "
            f"{cpu:.2f} s of CPU; {whole:.2f} s after `import nopad` (target <= 1 s; {min(row[0] for row in rows):.2f} to "
            f"{max(row[0] for row in rows):.2f} s)"
        )


def alone(texts: list[str]) -> float:
    """Tokens per second of the library by itself, in batches of 2,000 texts, with its ids."""
    raw = Raw.from_file(str(_default_file()))
    raw.no_truncation()
    raw.no_padding()
    start, tokens = time.perf_counter(), 0
    for at in range(0, len(texts), 2000):
        for encoded in raw.encode_batch_fast(texts[at : at + 2000], add_special_tokens=False):
            tokens += len(encoded.ids)
        if time.perf_counter() - start > SECONDS:
            break
    return tokens / (time.perf_counter() - start)


def ours(made: nopad.PackedLoader) -> float:
    """Tokens per second of batches, special tokens included; the first ten are not counted."""
    batches = iter(made)
    _ = list(islice(batches, 10))
    start, tokens = time.perf_counter(), 0
    for batch in batches:
        tokens += batch.layout.tokens
        if time.perf_counter() - start > SECONDS:
            break
    return tokens / (time.perf_counter() - start)


def resumed(path: Path) -> None:
    """Print the size of states, and how long going on takes."""
    for held in (16, 64):
        made = loader(path, 4096, buffer_tokens=held * 4096)
        _ = list(islice(made, 120))
        state = made.state_dict()
        begin = time.perf_counter()
        other = loader(path, 4096, buffer_tokens=held * 4096)
        other.load_state_dict(json.loads(json.dumps(state)))
        next(iter(other))
        print(
            f"  {held} packs held back: a state of {len(json.dumps(state)) / 1e3:,.0f} kB; "
            f"the next batch {time.perf_counter() - begin:.2f} s after opening, {state['cursor']['at'][1] / 1e6:,.0f} MB in"
        )


def main() -> None:
    print(f"stream_loading: {machine()}")
    texts = [entry["text"] for entry in stdlib_texts()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts * COPIES))
        print(f"  {len(texts) * COPIES:,} texts, {path.stat().st_size / 1e6:,.0f} MB")
        first(path)
        for name, capacity in FORMS.items():
            ratios = []
            for _ in range(TURNS):
                limit, made = alone(texts * 4), loader(path, capacity)
                found = ours(made)
                ratios.append(found / limit)
            slots = made.summary()
            print(
                f"  capacity {name}: {found / 1e6:.2f} M tokens/s, library alone {limit / 1e6:.2f}, median ratio "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}; target >= 0.9), "
                f"padding {1 - slots.tokens / slots.slots:.3%}"
            )
        resumed(path)


if __name__ == "__main__":
    main()
