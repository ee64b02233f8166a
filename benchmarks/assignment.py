"""Assignment of 16.28 M sequences: <= 1 s (median of 5), <= 1 GB peak, one thread; beside numpy's own steps."""

from __future__ import annotations

import resource

import numpy as np
from inputs import machine, show, shuffled_lengths, timed, wikipedia

import nopad

histogram, name = wikipedia()
lengths = shuffled_lengths(histogram)
plan = nopad.plan(histogram, 512)
print(f"assignment: {lengths.size:,} sequences, {name}, lpfhp, {plan.packs:,} packs; {machine()}")
for order in ("random", "source"):
    show(f"assign, order={order}", timed(lambda o=order: nopad.assign(plan, lengths, order=o)), "target <= 1000 ms")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
print(f"    peak resident memory of this process so far {peak:.0f} MiB (lengths included); target <= 1000 MB")
packs = nopad.assign(plan, lengths)
size = packs.indptr.nbytes + packs.sequence.nbytes
print(f"    indptr {packs.indptr.dtype} + sequence {packs.sequence.dtype}: {size / 1e6:.1f} MB")
show("greedy, lengths to packs", timed(lambda: nopad.pack(lengths, 512, algorithm="greedy", order="source"), 3))
show("numpy: stable argsort of the lengths alone", timed(lambda: np.argsort(lengths, kind="stable"), 3))
show("numpy: copy of the result", timed(lambda: packs.sequence.copy()))
