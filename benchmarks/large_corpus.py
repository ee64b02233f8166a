"""A corpus of >= 2 GB raw text through `nopad pack` under a memory limit of 1 GB: <= 1.5 GB + 16 B a sequence.

The child process may not map more than LIMIT bytes of private memory (RLIMIT_DATA); its peak of anonymous memory is
sampled from /proc. Takes about ten minutes: nearly all of it is the tokenizer.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from inputs import machine

from nopad.corpus import stdlib_texts

TEXT_BYTES = int(float(sys.argv[1])) if len(sys.argv) > 1 else 2_100_000_000
LIMIT = 1_000_000_000


def generate(folder: Path) -> int:
    """Write JSONL files of documents made of real docstrings in random order; return the bytes of text."""
    texts = [entry["text"] for entry in stdlib_texts()]
    rng = np.random.default_rng(0)
    text_bytes, number = 0, 0
    while text_bytes < TEXT_BYTES:
        with open(folder / f"part-{number:04d}.jsonl", "w", encoding="utf-8") as file:
            for size in rng.integers(1, 60, 20_000):
                text = "\n".join(texts[i] for i in rng.integers(0, len(texts), size))
                file.write(json.dumps({"text": text}) + "\n")
                text_bytes += len(text.encode())
                if text_bytes >= TEXT_BYTES:
                    break
        number += 1
    return text_bytes


def peak_anonymous(process: subprocess.Popen[bytes]) -> int:
    """Sample the child until it ends; return its peak RssAnon in bytes."""
    peak = 0
    while process.poll() is None:
        try:
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    peak = max(peak, int(line.split()[1]) * 1024)
        except OSError:
            pass
        time.sleep(0.05)
    return peak


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-") as name:
        folder = Path(name)
        (folder / "corpus").mkdir()
        text_bytes = generate(folder / "corpus")
        print(
            f"large corpus: {text_bytes:,} bytes of text, private memory limited to {LIMIT:,}; {machine()}", flush=True
        )
        command = [sys.executable, "-m", "nopad", "pack", str(folder / "corpus"), "-o", str(folder / "packed")]
        command += ["--capacity", "512", "--over-long", "split"]
        start = time.perf_counter()
        process = subprocess.Popen(command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT)))
        peak = peak_anonymous(process)
        seconds = time.perf_counter() - start
        assert process.returncode == 0, f"nopad pack failed with exit code {process.returncode}"
        manifest = json.loads((folder / "packed" / "nopad.json").read_text())
        allowed = 1_500_000_000 + 16 * manifest["sequences"]
        print(
            f"  {manifest['sequences']:,} sequences, {manifest['tokens']:,} tokens in {seconds:.0f} s "
            f"({manifest['tokens'] / seconds / 1e6:.2f} M tokens/s); peak anonymous memory {peak / 1e6:,.0f} MB, "
            f"target <= {allowed / 1e6:,.0f} MB"
        )
        verified = subprocess.run([sys.executable, "-m", "nopad", "verify", str(folder / "packed")], check=True)
        assert verified.returncode == 0


main()
