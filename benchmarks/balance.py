"""Balance: 16,384 units to 1,024 ranks <= 1 ms (median), an epoch of 16.28 M drawn <= 1 s; one thread, warm."""

from __future__ import annotations

import numpy as np
from inputs import machine, show, shuffled_lengths, timed, wikipedia

from nopad.balance import (
    METHODS,
    Attention,
    Shape,
    Tokens,
    cut_under_cap,
    deal,
    deal_step_under_cap,
    deal_under_cap,
    draw,
)

histogram, name = wikipedia()
lengths = shuffled_lengths(histogram)
shape = Shape(world_size=1024, node_size=8, accumulation=1, per_rank=16)
print(f"balance: {lengths.size:,} sequences, {name}; a step is {shape.per_step:,} to {shape.world_size:,}; {machine()}")
for model in (Tokens(), Attention(hidden_size=1024)):
    costs = model.of(lengths)
    step = costs[: shape.per_step]
    for method in ("karmarkar_karp", "quantile_node", "local_presort"):
        show(
            f"deal, {method}, {model}", timed(lambda s=step, m=method: deal(s, shape, METHODS[m]), 50), "target <= 1 ms"
        )
    for method in ("karmarkar_karp", "quantile_node", "sorted"):
        show(
            f"draw, {method}, {model}", timed(lambda c=costs, m=method: draw(c, shape, METHODS[m], 1), 3), "<= 1000 ms"
        )
cap = int(lengths[: shape.per_step].sum()) // shape.world_size
tokens = lengths.astype(np.int64)
bounds = cut_under_cap(tokens, shape, cap)
step = tokens[: bounds[1]]
filled = np.add.reduceat(tokens, bounds[:-1])[:-1].mean() / shape.world_size / cap
show(f"cut_under_cap, the mean as the cap: {filled:.1%} full", timed(lambda: cut_under_cap(tokens, shape, cap), 3))
balance = METHODS["karmarkar_karp"]
show("deal_step_under_cap", timed(lambda: deal_step_under_cap(step, step, shape, balance, cap), 20))
show("numpy: stable argsort of one step", timed(lambda: np.argsort(lengths[: shape.per_step], kind="stable"), 50))
long = np.minimum(lengths[:8192].astype(np.int64) ** 2 // 8 + 1, 32_768)
costs = Attention(hidden_size=4096).of(long)
show("deal_under_cap, 8,192 to 64 ranks", timed(lambda: deal_under_cap(costs, long, 64, int(long.sum()) // 32), 20))
