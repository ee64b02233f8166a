"""Baselines on 16.28 M sequences: first_fit in <= 2.5 s; the others that walk all sequences, and what they cost in packs.

Lengths to packs, everything included. Beside them: next-fit (a single pass), and lpfhp planned and dealt out.
"""

from __future__ import annotations

import resource

from inputs import machine, show, shuffled_lengths, timed, wikipedia

import nopad
from nopad.planning.registry import ARRIVAL_ALGORITHMS

histogram, name = wikipedia()
lengths = shuffled_lengths(histogram)
print(f"baselines: {lengths.size:,} sequences, {name}, capacity 512, lengths to packs; {machine()}")
for algorithm, options, target in (
    ("first_fit", {}, "<= 2500 ms"),
    ("best_fit", {}, "<= 2500 ms"),
    ("best_fit", {"window": 64}, ""),
    ("best_fit", {"window": 1024}, ""),
    ("harmonic", {}, ""),
    ("greedy", {}, "limit: one pass"),
):
    for depth in (3, None):
        run = ARRIVAL_ALGORITHMS[algorithm].run
        packs = len(run(lengths, 512, depth, **options))
        seconds = timed(lambda r=run, d=depth, o=options: r(lengths, 512, d, **o), 3)
        what = ", ".join([algorithm, *(f"{key} {value}" for key, value in options.items()), f"depth {depth or 'max'}"])
        show(what, seconds, target, f"{packs:,} packs, {histogram.tokens / (512 * packs):.3%}")
for depth in (3, None):
    plan = nopad.plan(histogram, 512, depth=depth, algorithm="lpfhp")
    seconds = timed(lambda d=depth: nopad.pack(lengths, 512, depth=d, algorithm="lpfhp"), 3)
    show(f"lpfhp + assign, depth {depth or 'max'}", seconds, "", f"{plan.packs:,} packs, {plan.efficiency:.3%}")
print("  on the histogram, plan only:")
for algorithm, target in (("bfd", "<= 30 ms"), ("mffd", ""), ("sort", ""), ("none", "")):
    for depth in (3, None):
        plan = nopad.plan(histogram, 512, depth=depth, algorithm=algorithm)
        seconds = timed(lambda a=algorithm, d=depth: nopad.plan(histogram, 512, depth=d, algorithm=a))
        show(f"{algorithm}, depth {depth or 'max'}", seconds, target, f"{plan.packs:,} packs, {plan.efficiency:.3%}")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(f"  peak resident memory of this process {peak:.2f} GiB")
