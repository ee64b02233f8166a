"""Do budgets hold? Plans of inputs on which the search is slow: CPU seconds, operations charged, packs above the bound.

python benchmarks/budgets.py [--algorithm optimal] [--only TEXT ...]

Each plan is made in a process of its own with one thread. The inputs are lengths near a third, a fourth and a fifth of
the capacity, two normal distributions, ten thousand distinct lengths, triplets, and depths that bind. Target: at most
the effort in CPU seconds (`auto` 3, `optimal` 30).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import nopad
from nopad import Histogram

EFFORT = {"auto": 3, "optimal": 30}
CAPACITIES = (2048, 8192, 32_768, 131_072)
Drawn = tuple[Histogram, int | None, int | None]  # lengths, depth, limit on squares


def drawn(lengths: np.ndarray, most: int, times: int = 1) -> Histogram:
    histogram = Histogram.from_lengths(np.clip(np.round(lengths), 1, most).astype(np.int64))
    return Histogram(histogram.lengths, histogram.counts * times)


def near(rng: np.random.Generator, most: int, parts: tuple[int, ...], spread: float, n: int) -> np.ndarray:
    """Return lengths near ``most / part`` for each of `parts`."""
    return np.concatenate([most / part * (1 + rng.uniform(-spread, spread, n // len(parts))) for part in parts])


def distinct(rng: np.random.Generator, most: int, low: float, high: float, copies: int) -> Histogram:
    """Return up to ten thousand distinct lengths, with 1 to `copies` sequences each."""
    possible = np.arange(int(low * most), int(high * most))
    lengths = np.sort(rng.choice(possible, min(10_000, possible.size * 3 // 4), replace=False))
    return Histogram(lengths, rng.integers(1, copies + 1, lengths.size))


def triplets(rng: np.random.Generator, most: int) -> np.ndarray:
    one = rng.integers(int(0.38 * most), int(0.49 * most), 400)
    other = rng.integers(int(0.25 * most), (most - one) // 2 + 1)
    return np.concatenate([one, other, most - one - other])


def two_limits(rng: np.random.Generator, most: int) -> Drawn:
    histogram = drawn(rng.normal(0.34 * most, 0.09 * most, 200_000), most // 2)
    cost = int(histogram.counts @ histogram.lengths**2)
    return histogram, None, max(int(1.1 * cost / -(-histogram.tokens // most)), histogram.max_length**2)


INPUTS: dict[str, Callable[[np.random.Generator, int], Drawn]] = {
    "thirds": lambda r, c: (drawn(near(r, c, (3,), 0.3, 200_000), c), None, None),
    "thirds, fourths": lambda r, c: (drawn(near(r, c, (3, 4), 0.1, 200_000), c), None, None),
    "thirds to fifths, depth 4": lambda r, c: (drawn(near(r, c, (3, 4, 5), 0.3, 20_000), c, 50), 4, None),
    "10 k lengths, few": lambda r, c: (distinct(r, c, 0.1, 0.6, 10), None, None),
    "10 k lengths, many": lambda r, c: (distinct(r, c, 0.15, 0.45, 100_000), None, None),
    "bimodal": lambda r, c: (
        drawn(np.append(r.normal(0.3 * c, 0.04 * c, 100_000), r.normal(0.6 * c, 0.1 * c, 100_000)), c, 50),
        None,
        None,
    ),
    "triplets": lambda r, c: (drawn(triplets(r, c), c), None, None),
    "depth 3": lambda r, c: (drawn(r.lognormal(np.log(0.25 * c), 0.5, 100_000), c), 3, None),
    "depth 8": lambda r, c: (drawn(r.lognormal(np.log(0.1 * c), 0.8, 1_000_000), c), 8, None),
    "two limits": two_limits,
}


def one(name: str, capacity: int, algorithm: str) -> None:
    """Plan one input in this process, and print its line."""
    nopad.plan(np.arange(1, 3000).repeat(7), 4096, depth=3, algorithm="optimal", effort=1)  # compile before the clock
    for options in ({}, {"max_squares": 3500}):
        nopad.plan(np.arange(1, 60).repeat(7), 64, algorithm="optimal", **options)
    histogram, depth, squares = INPUTS[name](np.random.default_rng(7), capacity)
    start = time.process_time()
    plan = nopad.plan(histogram, capacity, depth=depth, algorithm=algorithm, max_squares=squares)
    seconds = time.process_time() - start
    late = "" if seconds <= EFFORT[algorithm] else f"   ABOVE {EFFORT[algorithm]} s"
    print(
        f"  {name:<27}{capacity:>8,} {histogram.lengths.size:>7,} lengths {seconds:>6.1f} s   {plan.gap:>6,} above "
        f"({plan.gap / plan.lower_bound:.4%}){late}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="optimal", choices=list(EFFORT))
    parser.add_argument("--only", nargs="*", default=[""], help="only inputs whose name contains one of these")
    parser.add_argument("--capacities", nargs="*", type=int, default=list(CAPACITIES))
    parser.add_argument("--one", action="store_true", help="a single input, in this process")
    asked = parser.parse_args()
    if asked.one:
        one(asked.only[0], asked.capacities[0], asked.algorithm)
        return
    print(f"budgets of {asked.algorithm}, CPU seconds")
    for name in INPUTS:
        for capacity in asked.capacities:
            if any(text in name for text in asked.only):
                command = [sys.executable, str(Path(__file__)), "--one", "--only", name]
                command += ["--capacities", str(capacity), "--algorithm", asked.algorithm]
                subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
