"""Online packer: PopRT's batch ratios and above, and at most 1 us per request to decide at 100 waiting.

Two parts. How many batches the published workloads take by each policy, beside the best possible; the device is never
idle for long, and `look_ahead` sees as many waiting requests as named. Then the time per request of a decision where
100 (or 1,000, 10,000) requests wait, in Python's own calls: `poll` alone, and `add` too.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from inputs import machine

from nopad.serving import Batching, OnlinePacker
from nopad.serving.batching import POLICIES
from nopad.study.serving import BATCHES, GRIDS, WAITING, Grid, best_reduction, pack_workload

REQUESTS = 50_000


def per_request(policy: str, grid: Grid, waiting: int) -> tuple[float, float]:
    """Return microseconds per request that leaves, of (`poll`, `add`), with about `waiting` requests waiting."""
    mean = grid.capacity / 2
    drawn = np.random.default_rng(0).normal(mean, mean, REQUESTS).astype(int)
    lengths = np.clip(drawn, 1, grid.capacity).tolist()
    batching = Batching(
        capacity=grid.capacity,
        rows=grid.rows,
        max_sequences=grid.max_sequences,
        policy=policy,
        max_waiting_tokens=1 << 24,
    )
    packer, at = OnlinePacker(batching), 0
    polls, taken, adds = [], [], []
    while at < REQUESTS:
        new = lengths[at : at + waiting - len(packer)]
        start = time.perf_counter_ns()
        for length in new:
            packer.add(length, at)
        end = time.perf_counter_ns()
        batch = packer.poll(at).batch
        polls.append(time.perf_counter_ns() - end)
        adds.append((end - start) / max(len(new), 1))
        taken.append(len(batch))
        at += len(new)
    # Medians, since another process may take the core in the middle of a call
    return statistics.median(polls[1:]) / statistics.mean(taken) / 1e3, statistics.median(adds[1:]) / 1e3


TARGETS = {"end_to_end": "x1.923", "first_fit": "x1.786", "next_fit": "x1.538", "look_ahead": ">= x1.95"}

if __name__ == "__main__":
    print(f"online packing; {machine()}")
    for grid in GRIDS:
        print(
            f"  {grid.name} {grid.rows}x{grid.capacity}, at most {grid.max_sequences} requests, {BATCHES} batches unpacked, at best x{best_reduction(grid):.3f}"
        )
        for policy in POLICIES:
            for waiting in WAITING if policy == "look_ahead" else (None,):
                batches = pack_workload(grid, policy, waiting).batches
                targeted = grid is GRIDS[0] and policy in TARGETS and waiting in (None, 64)
                print(
                    f"    {policy:<11}{f'{waiting} waiting' if waiting else '':>12}  {batches:>3} batches  x{BATCHES / batches:.3f}"
                    + (f"  target {TARGETS[policy]}" if targeted else "")
                )
    print("  per request that leaves (median)")
    for waiting in (100, 1_000, 10_000):
        for policy in POLICIES:
            per_request(policy, GRIDS[0], waiting)  # compile
            polled, added = per_request(policy, GRIDS[0], waiting)
            target = "  target <= 1 us" if waiting == 100 else ""
            print(
                f"    {waiting:>6,} waiting  {policy:<11} decision {polled:6.3f} us{target}; to add it {added:.3f} us"
            )
