"""`python examples/balance.py`: how long 64 GPUs wait for the slowest, by how sequences are dealt to them."""

import numpy as np

from nopad import random
from nopad.balance import Attention, Balance, Shape, deal, draw, floor, report

lengths = np.clip(np.random.default_rng(0).lognormal(6, 1.2, size=100_000), 1, 2048).astype(np.int64)
costs = Attention(hidden_size=1024).of(lengths)  # tokens, and attention, which grows with the square of a length
shape = Shape(world_size=64, node_size=8, accumulation=4, per_rank=8)
for name in ("none", "quantile_node", "karmarkar_karp", "sorted_windows"):
    balance = Balance.named(name)
    order = draw(costs, shape, balance, key=random.key(7, random.STREAM_LEG, 0))
    ranks, floors = [], []
    for step in range(order.size // shape.per_step):
        units = order[step * shape.per_step :][: shape.per_step]
        dealt = units[deal(costs[units], shape, balance)]  # [ranks, micro-steps, sequences]
        ranks.append(costs[dealt].sum(axis=(1, 2)))
        floors.append(floor(costs[units], shape.world_size))
    found = report(np.stack(ranks), floors)
    print(f"{name:15} the slowest rank has {found.waste:7.2%} more to do than the mean (floor {found.floor:.2%})")
