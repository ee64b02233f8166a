"""Plans with a proof: packs above the proven bound and seconds, against the targets, best-fit beside each.

Real histograms are read from a folder (`../shared/data` beside the repository, or the first argument) and left out when
absent; the others are drawn here with fixed seeds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from inputs import lognormal, machine, status

import nopad
from nopad import Histogram

DATA = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "shared" / "data")
NONE = None
# file, capacity, {depth: (packs to reach, bound to prove, seconds)}
REAL = [
    (
        "wikipedia_bert_512.json",
        512,
        {
            2: (10_099_081, 10_099_081, 0.1),
            3: (8_143_829, 8_143_829, 2),
            4: (8_135_727, 8_135_727, 2),
            8: (8_135_727, 8_135_727, 3),
            16: (8_135_727, 8_135_727, 3),
            NONE: (8_135_727, 8_135_727, 3),
        },
    ),
    (
        "squad_1_1_bert_384.json",
        384,
        {2: (45_335, 45_335, 0.1), 3: (40_195, 40_195, 0.2), NONE: (40_195, 40_195, 0.2)},
    ),
]


def normal(seed: int) -> np.ndarray:
    """200 k lengths around 2,800."""
    return np.clip(np.round(np.random.default_rng(seed).normal(2800, 700, 200_000)), 1, 8192).astype(np.int64)


def uniform(seed: int) -> np.ndarray:
    """200 k lengths from 2,000 to 6,000."""
    return np.random.default_rng(seed).integers(2000, 6001, 200_000)


# name, lengths, capacity, {depth: (share above the bound, or packs when whole; seconds)}
DRAWN = [
    (
        "1 M lognormal(350, 1.1)",
        lambda: lognormal(1_000_000, 350, 1.1, 8192),
        8192,
        {NONE: (1, 0.5), 3: (0.0001, 3), 4: (0.0001, 3), 8: (0.0005, 3), 16: (0.005, 6)},
    ),
    ("200 k normal(2800, 700)", lambda: normal(0), 8192, {3: (0.002, 5), NONE: (0.002, 5)}),
    ("200 k uniform(2k, 6k)", lambda: uniform(0), 9216, {3: (0.004, 5), NONE: (0.004, 5)}),
    (
        "20 k lognormal(2500, 0.7)",
        lambda: lognormal(20_000, 2500, 0.7, 8192),
        8192,
        {3: (0.006, 5), 4: (0.005, 5), 8: (0.004, 5), NONE: (0.002, 5)},
    ),
    (
        "100 k lognormal(3000, 1.3)",
        lambda: lognormal(100_000, 3000, 1.3, 131_072),
        131_072,
        {NONE: (1, 1), 8: (1, 5), 16: (1, 5)},
    ),
]


def row(name: str, histogram: Histogram, capacity: int, depth: int | None, algorithm: str) -> tuple[nopad.Plan, float]:
    """Plan once, print a line."""
    start = time.perf_counter()
    plan = nopad.plan(histogram, capacity, depth=depth, algorithm=algorithm)
    seconds = time.perf_counter() - start
    other = nopad.plan(histogram, capacity, depth=depth, algorithm="lpfhp").packs
    above = plan.packs - plan.lower_bound
    print(
        f"  {name:<27}{'none' if depth is None else depth:>5} {algorithm:<8}{plan.packs:>11,}{plan.lower_bound:>11,}"
        f"{above:>6,} {above / plan.lower_bound:>8.4%} {seconds:>6.2f} s {plan.facts['linear_programs']:>4} LP"
        f"   best-fit {other - plan.lower_bound:>9,} above",
        end="",
    )
    return plan, seconds


def main() -> None:
    print(f"optimal plans; {machine()}")
    head = "depth algorithm   packs     bound above              time"
    print(f"  {'input':<27}{head}")
    for algorithm in ("auto", "optimal"):
        nopad.plan(np.arange(1, 60).repeat(7), 64, depth=3, algorithm=algorithm)  # compile before the clock starts
        nopad.plan(np.arange(1, 3000).repeat(7), 4096, depth=3, algorithm=algorithm)
        for file, capacity, cells in REAL:
            if not (DATA / file).exists():
                print(f"  {file}: not in {DATA}, left out")
                continue
            counts = json.loads((DATA / file).read_text())["histogram"]
            histogram = Histogram.from_counts({i + 1: c for i, c in enumerate(counts) if c})
            for depth, (packs, bound, limit) in cells.items():
                plan, seconds = row(file.split("_")[0], histogram, capacity, depth, algorithm)
                good = plan.packs <= packs and plan.lower_bound >= bound and seconds <= limit
                print("" if good else f"   MISSED: {packs:,} packs, bound {bound:,}, {limit} s")
        for name, make, capacity, targets in DRAWN:
            histogram = Histogram.from_lengths(make())
            for depth, (allowed, limit) in targets.items():
                plan, seconds = row(name, histogram, capacity, depth, algorithm)
                above = plan.packs - plan.lower_bound
                most = allowed if allowed >= 1 else allowed * plan.lower_bound
                print("" if above <= most and seconds <= limit else f"   MISSED: {most:,.0f} above, {limit} s")
    print(f"  peak memory {status('VmHWM') / 1e6:.0f} MB")


main()
