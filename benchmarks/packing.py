"""Lengths to the pack of each: all of `nopad.pack`, histogram, plan, proof and assignment included.

Three inputs that packers are compared on, with the targets of each; best-fit decreasing alone (`lpfhp`) beside it in
the same run. Median of 5 after a first call; peak memory is that of the process with all inputs.
"""

from __future__ import annotations

import time

import numpy as np
from inputs import lognormal, machine, shuffled_lengths, status, wikipedia

import nopad


def median_seconds(lengths: np.ndarray, capacity: int, algorithm: str) -> tuple[float, int]:
    """Return the median time of five calls, and the packs."""
    packs, taken = nopad.pack(lengths, capacity, algorithm=algorithm), []
    for _ in range(5):
        start = time.perf_counter()
        packs = nopad.pack(lengths, capacity, algorithm=algorithm)
        taken.append(time.perf_counter() - start)
    packs.check(lengths)
    return sorted(taken)[2], len(packs)


def main() -> None:
    print(f"packing, lengths to the pack of each; {machine()}")
    inputs = (
        ("long: 100 k, capacity 131,072", lognormal(100_000, 3000, 1.3, 131_072), 131_072, 0.05),
        ("SFT-like: 1 M, capacity 8,192", lognormal(1_000_000, 350, 1.1, 8192), 8192, 0.3),
        ("Wikipedia: 16.28 M, capacity 512", shuffled_lengths(wikipedia()[0]), 512, 3.0),
    )
    for name, lengths, capacity, limit in inputs:
        bound = nopad.plan(lengths, capacity).lower_bound
        for algorithm in ("auto", "lpfhp"):
            seconds, packs = median_seconds(lengths, capacity, algorithm)
            target = f"(target <= {limit} s)" if algorithm == "auto" else ""
            print(
                f"  {name:<34}{algorithm:<7}{packs:>10,} packs, {packs - bound:>6,} above the proven minimum "
                f"{seconds:>7.3f} s {target}"
            )
    print(f"  peak memory of the process {status('VmHWM') / 1e6:.0f} MB (target <= 1,000)")


main()
