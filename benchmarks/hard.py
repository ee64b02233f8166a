"""Hard bin packing: `optimal` on the classical families of instances (`hard_families.py`), compared with `lpfhp`.

python benchmarks/hard.py [--all] [--family TEXT ...] [--algorithm NAME] [--list]

A plan with as many packs as its proven bound is proven optimal. Targets, over all families but hard28-like: at least
98 % of the instances proven optimal, and at most 10 s of CPU for each. --all plans as many instances per family as were
published.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy as np
from hard_families import FAMILIES, Family
from inputs import machine

import nopad

PROVEN, SECONDS = 0.98, 10.0


@dataclass(frozen=True)
class Outcome:
    """One planned instance.

    Attributes:
        seed: the seed it was drawn with.
        above: packs of the plan above its proven bound.
        best_fit_above: packs of best-fit decreasing (`lpfhp`) above the same bound.
        seconds: CPU seconds of the plan.
    """

    seed: int
    above: int
    best_fit_above: int
    seconds: float


def plan(family: Family, seed: int, algorithm: str) -> Outcome:
    """Plan one instance with `algorithm`, and with best-fit decreasing."""
    lengths, capacity = family.draw(seed)
    histogram = nopad.Histogram.from_lengths(lengths)
    start = time.process_time()
    made = nopad.plan(histogram, capacity, algorithm=algorithm)
    seconds = time.process_time() - start
    other = nopad.plan(histogram, capacity, algorithm="lpfhp")
    return Outcome(seed, made.packs - made.lower_bound, other.packs - made.lower_bound, seconds)


def line(name: str, outcomes: list[Outcome]) -> str:
    """Return one row of the table: the numbers of these outcomes."""
    seconds = [one.seconds for one in outcomes]
    proven = sum(one.above == 0 for one in outcomes)
    best_fit = [one.best_fit_above for one in outcomes]
    return (
        f"  {name:<24}{len(outcomes):>9}{proven:>8}{max(one.above for one in outcomes):>7}"
        f"{statistics.median(seconds):>10.3f}{max(seconds):>9.2f}"
        f"{best_fit.count(0):>12}{max(best_fit):>7}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="as many instances per family as were published")
    parser.add_argument("--family", nargs="*", default=[""], help="only families whose name contains one of these")
    parser.add_argument("--algorithm", default="optimal")
    parser.add_argument("--list", action="store_true", help="name the seeds that were not proven, or too slow")
    asked = parser.parse_args()
    print(f"hard bin packing, {asked.algorithm}; {machine()}; seconds are CPU seconds")
    print(f"  {'family':<24}instances  proven  worst    median    worst   best-fit:  worst")
    print(f"  {'':<24}           optimal    gap   seconds  seconds    optimal    gap")
    nopad.plan(np.array([5, 5, 4, 4, 3, 3, 3, 2, 2] * 9), 10, algorithm=asked.algorithm)  # compile before the clock
    nopad.plan(*FAMILIES["Falkenauer u120"].draw(999), algorithm=asked.algorithm)
    counted: list[Outcome] = []
    for name, family in FAMILIES.items():
        if not any(part in name for part in asked.family):
            continue
        number = family.every if asked.all else family.quick
        outcomes = [plan(family, seed, asked.algorithm) for seed in range(number)]
        print(line(name, outcomes), flush=True)
        missed = [one.seed for one in outcomes if one.above or one.seconds > SECONDS]
        if asked.list and missed:
            print(f"      seeds {missed}")
        if not family.open_bound:
            counted += outcomes
    if counted:
        print(line("all but hard28-like", counted))
        share = sum(one.above == 0 for one in counted) / len(counted)
        slowest = max(one.seconds for one in counted)
        met = "met" if share >= PROVEN and slowest <= SECONDS else "MISSED"
        print(f"  {share:.2%} proven optimal, {slowest:.2f} s at most; targets {PROVEN:.0%} and {SECONDS:.0f} s: {met}")


main()
