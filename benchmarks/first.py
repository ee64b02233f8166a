"""Start-up times: the first plan after an installation, the first pack of a process, the start of the command line.

python benchmarks/first.py [RUNS]

Every run is a new process; printed are medians of RUNS runs (default 7). Commands: wall and CPU seconds of the whole
process. Packing: from `import nopad` to the packs, after NumPy is imported and the lengths are loaded. With an "empty
cache" NUMBA_CACHE_DIR is a new folder, so all loops that a plan needs are compiled first.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from inputs import lognormal, machine

import nopad

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 7
PACK = """
import sys, time
import numpy as np
lengths = np.load(sys.argv[1])
wall, cpu = time.perf_counter(), time.process_time()
import nopad
nopad.pack(lengths, int(sys.argv[2]))
print(time.perf_counter() - wall, time.process_time() - cpu)
"""
NUMBA = """
import time
import numpy as np
wall, cpu = time.perf_counter(), time.process_time()
import numba
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def process(arguments: list[str], cache: str | None) -> tuple[float, float, str]:
    """Run Python once with these arguments; return (wall seconds, CPU seconds, what it printed).

    `cache` is its NUMBA_CACHE_DIR; None: the usual one.
    """
    environment = os.environ | ({} if cache is None else {"NUMBA_CACHE_DIR": cache})
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def row(name: str, runs: list[tuple[float, float]], limit: float | None = None) -> None:
    """Print one line for (wall, CPU) seconds of several runs: medians, range of the wall seconds, and the target."""
    wall, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
    target = "" if limit is None else f"target {limit} s: {'met' if wall <= limit else 'MISSED'}"
    spread = f"({min(one for one, _ in runs):.2f}..{max(one for one, _ in runs):.2f})"
    print(f"  {name:<52}{wall:>6.2f} s {spread:<13} CPU {cpu:>5.2f} s  {target}", flush=True)


def command(name: str, arguments: list[str], limit: float | None, *, empty: bool = False) -> None:
    """Measure whole processes of a nopad command, and print a line; `empty`: each starts with an empty Numba cache."""
    runs = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as cache:
            runs.append(process(["-m", "nopad", *arguments], cache if empty else None)[:2])
    row(name, runs, limit)


def printed(name: str, arguments: list[str], limit: float | None) -> None:
    """Run a script that prints its own wall and CPU seconds, and print a line of the medians.

    The first run fills Numba's cache and does not count.
    """
    out = [process(arguments, None)[2] for _ in range(RUNS + 1)][1:]
    row(name, [(float(wall), float(cpu)) for wall, cpu in map(str.split, out)], limit)


def main() -> None:
    print(f"the first of everything; {machine()}; medians of {RUNS} processes")
    with tempfile.TemporaryDirectory() as folder:
        histogram = str(Path(folder) / "histogram.json")
        nopad.Histogram.from_lengths(lognormal(1_000_000, 150, 0.9, 512)).save(histogram)
        plan = ["plan", histogram, "--capacity", "512", "--json", "--all"]
        command("nopad --version", ["--version"], 0.5)
        for depth in ("none", "3"):
            one = [*plan, "--algorithm", "auto", "--depth", depth]
            command(f"nopad plan, auto, depth {depth}, empty cache", one, 5, empty=True)
            command(f"nopad plan, auto, depth {depth}, warm cache", one, None)
        command("nopad plan, the table of 5 x 7 plans, empty cache", plan, None, empty=True)
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = (
                sum(line["seconds"] for line in json.loads(process(["-m", "nopad", *plan], cache)[2])["plans"])
                for _ in range(2)
            )
        print(f"  sum of its column of seconds: {cold:.2f} s with an empty cache, {warm:.2f} s with a warm one")
        for capacity in (512, 2048, 8192):
            lengths = str(Path(folder) / f"{capacity}.npy")
            np.save(lengths, lognormal(1_000_000, 350, 1.1, capacity))
            printed(f"first nopad.pack, 1 M lengths at {capacity:,}", ["-c", PACK, lengths, str(capacity)], 0.6)
        printed("plain limit: importing numba", ["-c", NUMBA], None)


main()
