"""Inputs and measuring tools that the benchmark scripts share."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nopad import Histogram, load_tokenizer
from nopad.corpus import Block, Record, Source, stdlib_texts

PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "data" / "wikipedia_bert_512.json"


def wikipedia() -> tuple[Histogram, str]:
    """Return the published Wikipedia-512 histogram where it is at hand, else a seeded one of its size and mean."""
    if PUBLISHED.exists():
        return Histogram.load(PUBLISHED), "Wikipedia-512 (published histogram)"
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.1, 0.9, 16_279_552).astype(np.int64), 5, 512)
    return Histogram.from_lengths(
        lengths
    ), "synthetic, lognormal clipped to 5..512 (the published histogram is not here)"


def shuffled_lengths(histogram: Histogram, seed: int = 0) -> np.ndarray:
    """Return every sequence's length, int32, in a random order."""
    lengths = np.repeat(histogram.lengths.astype(np.int32), histogram.counts)
    np.random.default_rng(seed).shuffle(lengths)
    return lengths


def lognormal(n: int, median: float, sigma: float, most: int, seed: int = 0) -> np.ndarray:
    """Lengths from a clipped lognormal."""
    drawn = np.random.default_rng(seed).lognormal(np.log(median), sigma, n)
    return np.clip(np.round(drawn), 1, most).astype(np.int32)


def long_context() -> np.ndarray:
    """Return 100,000 lengths up to 131,072 with about 22,000 distinct values."""
    rng = np.random.default_rng(0)
    return np.clip(rng.lognormal(np.log(3000), 1.3, 100_000).astype(np.int64), 1, 131_072)


def timed(function: Callable[[], Any], repeats: int = 5) -> list[float]:
    """Return the wall seconds of each of `repeats` calls, after one call that compiles and warms."""
    function()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds


def show(name: str, seconds: list[float], target: str = "", note: str = "") -> float:
    """Print one line: median, best, worst; return the median."""
    middle = statistics.median(seconds)
    spread = f"{min(seconds) * 1e3:.1f}..{max(seconds) * 1e3:.1f}"
    print(f"  {name:<46} {middle * 1e3:>10.1f} ms  ({spread})  {target:<22} {note}")
    return middle


def status(field: str) -> int:
    """Return a size from /proc/self/status in bytes, e.g. RssAnon."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


class PeakAnonymous(threading.Thread):
    """Samples the anonymous memory of this process; a context manager, `peak` in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.1):
            self.peak = max(self.peak, status("RssAnon"))

    def __enter__(self) -> PeakAnonymous:
        self.peak = status("RssAnon")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.peak = max(self.peak, status("RssAnon"))
        self._done.set()
        self.join()


def machine() -> str:
    """Return one line about this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f}"


class RawIds(Source):
    """Ready-made ids in memory-cheap binary blocks: token ids by the real frequencies of docstrings, given lengths."""

    kind = "ids"

    def __init__(self, lengths: np.ndarray, ids: np.ndarray) -> None:
        self.lengths = lengths
        self.ids = ids
        self.total_bytes = 4 * int(lengths.sum(dtype=np.int64))

    def blocks(self) -> Iterator[Block]:
        rng = np.random.default_rng(0)
        for at in range(0, self.lengths.size, 4096):
            lengths = self.lengths[at : at + 4096].astype(np.int32)
            tokens = rng.choice(self.ids, int(lengths.sum())).astype(np.int32)
            data = np.concatenate([[lengths.size], lengths, tokens]).astype(np.int32).tobytes()
            yield Block(name="raw", data=data, decoder=_decode)


def _decode(data: bytes, first_line: int) -> Iterator[Record]:
    numbers = np.frombuffer(data, dtype=np.int32)
    n = int(numbers[0])
    for line, ids in enumerate(np.split(numbers[1 + n :], np.cumsum(numbers[1 : n + 1])[:-1]), first_line):
        yield Record(line=line, ids=ids)


def docstring_ids() -> np.ndarray:
    """Return the token ids of the standard library's docstrings and comments, in one array."""
    return np.concatenate(load_tokenizer().encode([entry["text"] for entry in stdlib_texts()]))


def wikipedia_like(tokens: int, seed: int = 0) -> np.ndarray:
    """Return lengths drawn from the Wikipedia-512 histogram, about `tokens` tokens in all; int32."""
    histogram, _ = wikipedia()
    n = tokens * histogram.sequences // histogram.tokens
    drawn = np.random.default_rng(seed).choice(histogram.lengths, n, p=histogram.counts / histogram.sequences)
    return drawn.astype(np.int32)
