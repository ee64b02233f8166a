"""Two promises of `auto`: more depth never costs packs, and no other algorithm needs fewer.

Run: python benchmarks/monotone.py [CAPACITY ...] [--depths N ...] [--only NAME ...]. For each of the thirty histograms of
`drawn.py`: packs above the proven bound at every depth and without a limit, the depths at which a smaller one needs
fewer packs, and the fewest packs of any other algorithm less those of `auto`. Histogram algorithms see the histogram;
arrival-order algorithms and the streaming packer see three shuffles, of histograms of up to a million sequences.
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np
from drawn import draw
from inputs import machine

import nopad
from nopad import Histogram

HISTOGRAM = ("spfhp", "lpfhp", "ffd", "mffd", "sort")
ARRIVAL = ("best_fit", "first_fit", "harmonic", "greedy")
MOST_SHUFFLED = 1_000_000


def others(histogram: Histogram, capacity: int, depth: int | None) -> int:
    """Return the fewest packs of any other algorithm, the streaming packer among them."""
    made = [nopad.plan(histogram, capacity, depth=depth, algorithm=name).packs for name in HISTOGRAM]
    lengths = np.repeat(histogram.lengths, histogram.counts if histogram.sequences <= MOST_SHUFFLED else 0)
    for seed in range(3 if lengths.size else 0):
        np.random.default_rng(seed).shuffle(lengths)
        made += [nopad.plan(lengths, capacity, depth=depth, algorithm=name).packs for name in ARRIVAL]
        packer = nopad.StreamPacker(capacity, depth=depth)
        made.append(len(packer.push(lengths)) + len(packer.finish()))
    return min(made)


def main() -> None:
    """Print a line for each histogram, and the number of broken promises."""
    parser = argparse.ArgumentParser(description="auto at every depth, beside every other algorithm")
    parser.add_argument("capacities", nargs="*", type=int, default=[512, 2048])
    parser.add_argument("--depths", nargs="*", type=int, default=[2, 3, 4, 8, 16])
    parser.add_argument("--only", nargs="*")
    given = parser.parse_args()
    print(f"auto at depths {given.depths} and without a limit; {machine()}")
    nopad.plan(np.arange(1, 3000).repeat(7), 4096, depth=3, algorithm="optimal")  # compile before the clock starts
    broken, beaten, plans, slowest, widest = 0, 0, 0, 0.0, 0.0
    for capacity in given.capacities:
        for name, histogram in draw(capacity):
            if given.only and name not in given.only:
                continue
            packs, above, best = [], [], []
            for depth in [*given.depths, None]:
                start = time.process_time()
                plan = nopad.plan(histogram, capacity, depth=depth)
                slowest = max(slowest, time.process_time() - start)
                packs.append(plan.packs)
                above.append(plan.packs - plan.lower_bound)
                best.append(others(histogram, capacity, depth) - plan.packs)
                if above[-1] > 1:
                    widest = max(widest, above[-1] / plan.lower_bound)
            worse = [more - less for less, more in itertools.pairwise(packs) if more > less]
            broken, beaten, plans = broken + len(worse), beaten + sum(n < 0 for n in best), plans + len(packs)
            print(f"    {capacity:>6,} {name:<12} above {above}  dearer by {worse or 0}  others {best}", flush=True)
    print(
        f"    of {plans} plans {broken} need more packs than one of a smaller depth, {beaten} more than another algorithm;"
    )
    print(
        f"    gap of those more than one pack above their bound: at most {widest:.4%}; slowest {slowest:.1f} s of CPU"
    )


if __name__ == "__main__":
    main()
