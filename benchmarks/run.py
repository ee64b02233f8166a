"""Run the quick benchmarks one after the other; name some to run only those. What is not in QUICK runs only by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
QUICK = (
    "histogram",
    "planning",
    "optimal",
    "hard",
    "first",
    "packing",
    "baselines",
    "assignment",
    "tokenising",
    "stream_loading",
    "sources",
    "materialise",
    "reader",
    "sampled_rows",
    "gathering",
    "loading",
    "batch",
    "audit",
)

for name in sys.argv[1:] or QUICK:
    print(f"== benchmarks/{name}.py", flush=True)
    subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)
