"""Plans with a limit on the squared lengths of a pack, and plans of even packs: packs above the bound, CPU seconds.

The cost of a pack is the sum of its squared lengths. Each limit on cost is a multiple of the mean cost of a pack, and
at least the square of the longest sequence. The column "before" is the simple way: plan by tokens, then cut the packs
above the limit. Seeds are fixed; Wikipedia-512 is read from `../shared/data` beside the repository, and left out when
absent. `python squares.py optimal` measures that algorithm instead of `auto`; `python squares.py auto "to 4,200" 1.05`
only the inputs whose names have these words, at limits of so many times the mean cost, without even packs.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from inputs import PUBLISHED, lognormal, machine

import nopad
from nopad import Histogram
from nopad.planning.conditions import within_squares

ALGORITHM = sys.argv[1] if len(sys.argv) > 1 else "auto"
WORDS = sys.argv[2] if len(sys.argv) > 2 else ""
SHARES = tuple(float(share) for share in sys.argv[3:]) or (1.05, 1.25, 1.5, 2.0)
NONE = None


def normal(most: int) -> np.ndarray:
    """Return 200 k normal lengths around 2,800, cut to 1..most; int64."""
    return np.clip(np.round(np.random.default_rng(0).normal(2800, 700, 200_000)), 1, most).astype(np.int64)


def mix(most: int) -> np.ndarray:
    """Return 200 k lengths as of chat, code and books, cut to 1..most; int64."""
    rng = np.random.default_rng(0)
    chat, code = rng.lognormal(np.log(400), 0.9, 140_000), rng.lognormal(np.log(1500), 1.2, 50_000)
    books = rng.lognormal(np.log(20_000), 1.0, 10_000)
    return np.clip(np.round(np.concatenate([chat, code, books])), 1, most).astype(np.int64)


# name, lengths, capacity, share above the bound to reach
DRAWN = [
    ("1 M lognormal(350, 1.1) to 2,048", lambda: lognormal(1_000_000, 350, 1.1, 2048), 8192, 0.001),
    ("1 M lognormal(350, 1.1) to 4,096", lambda: lognormal(1_000_000, 350, 1.1, 4096), 8192, 0.001),
    ("200 k normal(2800, 700)", lambda: normal(8192), 8192, 0.001),
    ("200 k normal(2800, 700) to 4,200", lambda: normal(4200), 8192, 0.001),
    ("chat + code + books to 4,096", lambda: mix(4096), 8192, 0.001),
    ("100 k lognormal(3000, 1.3) to 32 k", lambda: lognormal(100_000, 3000, 1.3, 32_768), 131_072, 0.005),
    ("100 k lognormal(3000, 1.3) to 64 k", lambda: lognormal(100_000, 3000, 1.3, 65_536), 131_072, 0.005),
    ("chat + code + books to 32 k", lambda: mix(32_768), 131_072, 0.005),
]


def timed(histogram: Histogram, capacity: int, **options: object) -> tuple[nopad.Plan, float]:
    """Return the plan of `ALGORITHM` and its CPU seconds."""
    start = time.process_time()
    plan = nopad.plan(histogram, capacity, algorithm=ALGORITHM, **options)
    return plan, time.process_time() - start


def two_limits() -> None:
    """Print one line for each input, limit on cost and depth."""
    print(f"  {'input':<35}{'limit':>6}{'depth':>6}{'packs':>9}{'bound':>9}  {'above':>8}{'':>9}   before")
    for name, make, capacity, allowed in DRAWN:
        if WORDS not in name:
            continue
        histogram = Histogram.from_lengths(make())
        cost = int(histogram.counts @ histogram.lengths**2)
        mean = cost / -(-histogram.tokens // capacity)
        longest = histogram.max_length**2
        limits = sorted({max(int(share * mean), longest) for share in SHARES})
        for depth in (NONE, 16):
            free, before = timed(histogram, capacity, depth=depth)
            for limit in limits:
                if limit >= capacity**2:
                    continue
                plan, seconds = timed(histogram, capacity, depth=depth, max_squares=limit)
                start = time.process_time()
                cut = sum(count for count, _ in within_squares(free.strategies, capacity, depth, limit))
                bound = plan.lower_bound
                above = plan.packs / bound - 1
                print(
                    f"  {name:<35}{limit / mean:>6.2f}{depth or 'none':>6}{plan.packs:>9,}{bound:>9,}  {above:>8.3%}"
                    f"{seconds:>7.2f} s   {cut / bound - 1:.3%}, {before + time.process_time() - start:.2f} s"
                    f"{'' if above <= allowed else f'   MISSED {allowed:.1%}'}",
                    flush=True,
                )


def even() -> None:
    """Print how alike packs are in cost and in number of sequences, without the option `even` and with it."""
    print("  even packs: highest cost / mean (least: no plan can be below), most sequences / mean; before -> after")
    inputs = [("Wikipedia-512", lambda: None, 512, 0.0), *DRAWN]
    inputs.append(("100 k lognormal(3000, 1.3)", lambda: lognormal(100_000, 3000, 1.3, 131_072), 131_072, 0.0))
    inputs.append(("chat + code + books", lambda: mix(131_072), 131_072, 0.0))
    for name, make, capacity, _ in inputs:
        if name == "Wikipedia-512" and not PUBLISHED.exists():
            print(f"  {name}: not here, left out")
            continue
        histogram = Histogram.load(PUBLISHED) if name == "Wikipedia-512" else Histogram.from_lengths(make())
        plan, seconds = timed(histogram, capacity, even=True)
        facts = plan.facts["even"]
        before, after = facts["before"], facts["after"]
        least = after["cost_to_mean"] * facts["least_cap"] / after["cap"]
        print(
            f"  {name:<35} cost {before['cost_to_mean']:.3f} -> {after['cost_to_mean']:.3f} (least {least:.3f})   depth "
            f"{before['depth_to_mean']:.2f} ({before['depth']}) -> {after['depth_to_mean']:.2f} ({after['depth']})   "
            f"packs {before['packs']:,} -> {after['packs']:,}   {seconds:.2f} s",
            flush=True,
        )


def main() -> None:
    print(f"two limits, {ALGORITHM}; {machine()}")
    small = np.arange(1, 60).repeat(7)  # compile before the clock starts
    for options in ({}, {"max_squares": 3500}, {"max_squares": 3500, "depth": 3}, {"even": True}):
        nopad.plan(small, 64, algorithm=ALGORITHM, **options)
    nopad.plan(np.arange(1, 3000).repeat(7), 4096, algorithm=ALGORITHM, max_squares=3000**2)
    two_limits()
    if not WORDS:
        even()


main()
