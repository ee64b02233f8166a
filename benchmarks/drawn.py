"""Plans of thirty random histograms per capacity: six families of lengths, five each, with 10 k to 50 M sequences.

Run: python benchmarks/drawn.py [CAPACITY ...] [--algorithm auto] [--depth N] [--only NAME ...]. Each histogram has a
line: packs above the proven bound, CPU seconds, number of linear programs, and the packs of best-fit above the same
bound. The last line of each capacity counts the plans within one pack of their bound, and names the target.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from inputs import machine

import nopad
from nopad import Histogram

COUNTS = (10_000, 100_000, 1_000_000, 10_000_000, 50_000_000)  # sequences of the five histograms of a family
# (algorithm, capacity): how many of 30 are to be within one pack, and in how many CPU seconds each
TARGETS = {
    **{("auto", capacity): (26, 3.0) for capacity in (512, 768, 1024, 2048)},
    ("auto", 4096): (20, 3.0),
    **{("optimal", capacity): (28, math.inf) for capacity in (512, 768, 1024, 2048, 4096)},
    ("optimal", 8192): (20, 30.0),
}
Shape = tuple[str, tuple[float, ...]]  # a distribution and its parameters, as shares of the capacity
FAMILIES: dict[str, list[list[tuple[float, Shape]]]] = {
    "lognormal": [
        [(1, ("lognormal", parameters))]
        for parameters in ((0.05, 1.1), (0.1, 0.8), (0.2, 0.6), (0.02, 1.3), (0.3, 0.4))
    ],
    "normal": [
        [(1, ("normal", parameters))]
        for parameters in ((0.45, 0.1), (0.33, 0.08), (0.2, 0.05), (0.45, 0.15), (0.6, 0.15))
    ],
    "uniform": [
        [(1, ("uniform", parameters))] for parameters in ((0, 1), (0.2, 0.7), (0.1, 0.4), (0, 0.5), (0.25, 0.75))
    ],
    "bimodal": [
        [(0.7, ("normal", (0.1, 0.03))), (0.3, ("normal", (0.7, 0.08)))],
        [(0.5, ("normal", (0.25, 0.05))), (0.5, ("normal", (0.55, 0.05)))],
        [(0.9, ("normal", (0.05, 0.02))), (0.1, ("normal", (0.9, 0.05)))],
        [(0.6, ("normal", (0.3, 0.04))), (0.4, ("normal", (0.6, 0.1)))],
        [(0.5, ("normal", (0.15, 0.05))), (0.5, ("normal", (0.4, 0.05)))],
    ],
    "geometric": [[(1, ("geometric", (mean,)))] for mean in (0.1, 0.2, 0.05, 0.3, 0.02)],
    "mix": [  # chat, code, and books that are longer than a pack
        [
            (chat, ("lognormal", (0.03, 0.9))),
            (code, ("lognormal", (0.15, 1.0))),
            (1 - chat - code, ("normal", (1.2, 0.5))),
        ]
        for chat, code in ((0.6, 0.3), (0.4, 0.4), (0.7, 0.2), (0.3, 0.3), (0.5, 0.45))
    ],
}


def below(shape: Shape, share: np.ndarray) -> np.ndarray:
    """Return for each of `share` the probability that a length of this shape is below ``share * capacity``."""
    kind, parameters = shape
    if kind == "uniform":
        low, high = parameters
        return np.clip((share - low) / (high - low), 0, 1)
    if kind == "geometric":
        return -np.expm1(-share / parameters[0])
    middle, spread = parameters
    z = (np.log(share / middle) if kind == "lognormal" else share - middle) / spread
    return np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z])


def chances(mixture: list[tuple[float, Shape]], capacity: int) -> np.ndarray:
    """Return the probability of each length 1..capacity in a mixture of (weight, shape) pairs; float64 ``[capacity]``.

    Longer lengths count as the capacity; lengths that round to less than 1 are left out.
    """
    edges = (np.arange(capacity + 1) + 0.5) / capacity
    total = np.zeros(capacity)
    for weight, shape in mixture:
        cumulated = below(shape, edges)
        cumulated[-1] = 1.0
        part = np.diff(cumulated)
        total += weight * part / part.sum()
    return total / total.sum()


def draw(capacity: int) -> list[tuple[str, Histogram]]:
    """Return thirty (name, histogram) pairs; seeds are fixed."""
    drawn = []
    for family, (name, mixtures) in enumerate(FAMILIES.items()):
        for number, (mixture, count) in enumerate(zip(mixtures, COUNTS, strict=True)):
            counts = np.random.default_rng([capacity, family, number]).multinomial(count, chances(mixture, capacity))
            lengths = np.flatnonzero(counts)
            drawn.append((f"{name} {number + 1}", Histogram(lengths + 1, counts[lengths])))
    return drawn


def main() -> None:
    """Print a table for each capacity."""
    parser = argparse.ArgumentParser(description="plans of thirty drawn histograms")
    parser.add_argument("capacities", nargs="*", type=int, default=[512, 768, 1024, 2048, 4096])
    parser.add_argument("--algorithm", default="auto", choices=["auto", "optimal"])
    parser.add_argument("--depth", type=int)
    parser.add_argument("--only", nargs="*")
    given = parser.parse_args()
    print(f"thirty drawn histograms, {given.algorithm}, depth {given.depth or 'unlimited'}; {machine()}")
    nopad.plan(np.arange(1, 3000).repeat(7), 4096, depth=3, algorithm="optimal")  # compile before the clock starts
    for capacity in given.capacities:
        print(f"  capacity {capacity:,}")
        near, worst, slowest = 0, 0.0, 0.0
        for name, histogram in draw(capacity):
            if given.only and name not in given.only:
                continue
            start = time.process_time()
            plan = nopad.plan(histogram, capacity, depth=given.depth, algorithm=given.algorithm)
            seconds = time.process_time() - start
            above = plan.packs - plan.lower_bound
            other = nopad.plan(histogram, capacity, depth=given.depth, algorithm="lpfhp").packs - plan.lower_bound
            near += above <= 1
            worst, slowest = max(worst, above / plan.lower_bound), max(slowest, seconds)
            print(
                f"    {name:<12} {histogram.sequences:>11,} sequences {histogram.lengths.size:>5,} lengths "
                f"{plan.packs:>11,} packs {above:>7,} above ({above / plan.lower_bound:.4%}) {seconds:>6.2f} s "
                f"{plan.facts['linear_programs']:>4} LP   best-fit {other:>9,} above"
            )
        wanted, limit = TARGETS.get((given.algorithm, capacity), (0, math.inf))
        target = f"; target {wanted}, each in {limit} s" if wanted and given.depth is None else ""
        print(f"    within one pack of the bound: {near} of 30{target}; worst {worst:.4%}, slowest {slowest:.1f} s")


if __name__ == "__main__":
    main()
