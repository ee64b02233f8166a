"""Planning: spfhp and lpfhp in <= 30 ms at capacity 512, <= 0.25 s at 131,072 with 22,000 distinct lengths."""

from __future__ import annotations

from inputs import long_context, machine, show, timed, wikipedia

import nopad
from nopad import Histogram

wiki, name = wikipedia()
long = Histogram.from_lengths(long_context())
print(f"planning; {machine()}")
for histogram, capacity, target in ((wiki, 512, "<= 30 ms"), (long, 131_072, "<= 250 ms")):
    what = name if capacity == 512 else f"lognormal, {long.lengths.size:,} distinct lengths"
    print(f"  capacity {capacity:,}: {histogram.sequences:,} sequences, {what}")
    for algorithm in ("spfhp", "lpfhp", "ffd"):
        for depth in (3, 8, None):
            plan = nopad.plan(histogram, capacity, depth=depth, algorithm=algorithm)
            seconds = timed(
                lambda a=algorithm, d=depth, h=histogram, c=capacity: nopad.plan(h, c, depth=d, algorithm=a)
            )
            note = f"{plan.packs:,} packs, bound {plan.lower_bound:,}, {plan.efficiency:.3%}"
            show(f"{algorithm}, depth {depth or 'max'}", seconds, target if algorithm != "ffd" else "", note)
