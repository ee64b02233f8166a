"""Tokenising: the corpus pipeline on text from Parquet and JSONL, beside `encode_batch_fast` alone on the same texts.

Then how it scales: the same with one thread and with all (RAYON_NUM_THREADS), each in a process of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from inputs import machine
from tokenizers import Tokenizer as Raw

import nopad
from nopad.corpus import open_source, sequences, stdlib_texts
from nopad.corpus.tokenizer import _default_file

TURNS = 9  # in turn, and the median: the speed of a shared machine drifts by a fifth within a minute


def write(folder: Path, copies: int) -> tuple[list[str], dict[str, Path]]:
    """Write the texts in both forms; return them too."""
    texts = [entry["text"] for entry in stdlib_texts()] * copies
    forms = {"Parquet": folder / "texts.parquet", "JSONL": folder / "texts.jsonl"}
    pq.write_table(pa.table({"text": texts}), forms["Parquet"])
    forms["JSONL"].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts, forms


def pipeline(path: Path) -> tuple[float, int]:
    """Return the seconds of one pass, and its tokens."""
    tokenizer, options = nopad.load_tokenizer(), nopad.CorpusOptions(capacity=512, over_long="split")
    start = time.perf_counter()
    tokens = sum(group.counts.tokens for group in sequences(open_source(path).blocks(), tokenizer, options))
    return time.perf_counter() - start, tokens


def alone(texts: list[str]) -> tuple[float, float]:
    """Return the seconds that the library takes, in batches of 20,000 texts; without and with asking for the ids."""
    raw = Raw.from_file(str(_default_file()))
    raw.no_truncation()
    raw.no_padding()
    start = time.perf_counter()
    for at in range(0, len(texts), 20_000):
        raw.encode_batch_fast(texts[at : at + 20_000], add_special_tokens=False)
    encoding = time.perf_counter() - start
    start = time.perf_counter()
    for at in range(0, len(texts), 20_000):
        for encoded in raw.encode_batch_fast(texts[at : at + 20_000], add_special_tokens=False):
            encoded.ids  # noqa: B018 - it is made when asked for
    return encoding, time.perf_counter() - start


def scaling(path: Path) -> None:
    """Print how much faster all threads are than one: both in turn, in processes of their own."""
    rates: dict[int, list[float]] = {1: [], os.cpu_count() or 1: []}
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import tokenising; "
        f"from pathlib import Path; print(*tokenising.pipeline(Path({str(path)!r})))"
    )
    for threads in [*rates] * 5:
        environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        seconds, tokens = map(float, done.stdout.split())
        rates[threads].append(tokens / seconds / 1e6)
    for threads, found in rates.items():
        print(f"  {threads} thread{'s' if threads > 1 else ' '}: {statistics.median(found):.2f} M tokens/s")
    most = max(rates)
    times = [many / one for one, many in zip(rates[1], rates[most], strict=True)]
    print(f"  {most} threads are {statistics.median(times):.2f} x one (target >= 1.8 on 2 cores)")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        texts, forms = write(Path(folder), 3)
        print(f"tokenising: {len(texts):,} docstrings and comments; {machine()}")
        ratios: dict[str, list[float]] = {form: [] for form in forms}
        delivered: dict[str, list[float]] = {form: [] for form in forms}
        for _ in range(TURNS):
            plain, with_ids = alone(texts)
            for form, path in forms.items():
                ours, tokens = pipeline(path)
                ratios[form].append(plain / ours)
                delivered[form].append(with_ids / ours)
                print(
                    f"  {form:<8}{tokens / ours / 1e6:.2f} M tokens/s, library alone {tokens / plain / 1e6:.2f}, ratio {plain / ours:.2f}; "
                    f"with its ids as lists {tokens / with_ids / 1e6:.2f}, ratio {with_ids / ours:.2f}"
                )
        for form, found in ratios.items():
            given = statistics.median(delivered[form])
            print(
                f"  {form}: median ratio {statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f}), "
                f"to its rate with ids {given:.2f} (target >= 0.9)"
            )
        scaling(forms["Parquet"])


if __name__ == "__main__":
    main()
