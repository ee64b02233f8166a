"""Several capacities and two kinds of size: the price above the proven bound, CPU seconds, two simple ways beside.

The simple ways, where there are several capacities: the largest alone, and every sequence in the smallest that holds it,
both packed as well as nopad can. Fixed seeds. `python several.py 10` takes an effort
of 10; `python several.py 3 ladder` only the inputs whose names contain "ladder".
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from inputs import lognormal, machine

import nopad

EFFORT = int(sys.argv[1]) if len(sys.argv) > 1 else 3
ONLY = sys.argv[2] if len(sys.argv) > 2 else ""
LADDER = [2048, 8192, 32_768]


def normal() -> np.ndarray:
    """200 k lengths around 2,800: hardly any short ones."""
    return np.clip(np.round(np.random.default_rng(0).normal(2800, 700, 200_000)), 1, 8192).astype(np.int64)


def images(draw: Callable[[np.random.Generator], np.ndarray]) -> np.ndarray:
    """100 k samples of tokens and images."""
    return np.stack([lognormal(100_000, 900, 1.0, 8192), draw(np.random.default_rng(1))], axis=1)


def few() -> np.ndarray:
    return images(lambda rng: np.minimum(16, rng.geometric(0.3, 100_000) - 1))


def graphs() -> np.ndarray:
    """100 k graphs: nodes, and edges that go with them."""
    rng = np.random.default_rng(2)
    nodes = rng.integers(10, 201, 100_000)
    return np.stack([nodes, np.clip((nodes * rng.uniform(1.5, 4, 100_000)).astype(int), 20, 600)], axis=1)


# name, sizes, capacities, prices, share above the bound to reach
INPUTS: list[tuple[str, Callable[[], np.ndarray], list, list | None, float]] = [
    (
        "ladder 1 : 4.3 : 19, 1 M lognormal(350, 1.1)",
        lambda: lognormal(1_000_000, 350, 1.1, 32_768),
        LADDER,
        [1, 4.3, 19],
        0.001,
    ),
    (
        "ladder 1 : 4.3 : 19, 1 M lognormal(900, 1.5)",
        lambda: lognormal(1_000_000, 900, 1.5, 32_768),
        LADDER,
        [1, 4.3, 19],
        0.001,
    ),
    (
        "ladder 1 : 5 : 30, 1 M lognormal(900, 1.5)",
        lambda: lognormal(1_000_000, 900, 1.5, 32_768),
        LADDER,
        [1, 5, 30],
        0.001,
    ),
    ("ladder by slots, 1 M lognormal(900, 1.5)", lambda: lognormal(1_000_000, 900, 1.5, 32_768), LADDER, None, 0.001),
    (
        "ladder 1 : 3.5 : 12, 1 M lognormal(900, 1.5)",
        lambda: lognormal(1_000_000, 900, 1.5, 32_768),
        LADDER,
        [1, 3.5, 12],
        0.001,
    ),
    ("ladder 1 : 2.1 : 4.4, 200 k normal(2800, 700)", normal, [4096, 8192, 16_384], [1, 2.1, 4.4], 0.001),
    (
        "tokens, images 0 to 16, alike",
        lambda: images(lambda rng: rng.integers(0, 17, 100_000)),
        [(8192, 32)],
        None,
        0.005,
    ),
    ("tokens, images 0 to 16, mostly few", few, [(8192, 32)], None, 0.005),
    ("nodes, edges", graphs, [(1024, 4096)], None, 0.005),
    ("nodes, edges, both tight", graphs, [(1024, 2400)], None, 0.005),
    ("ladder of tokens, images 1 : 4.2", few, [(2048, 16), (8192, 32)], [1, 4.2], 0.005),
    ("ladder of nodes, edges 1 : 4.2", graphs, [(256, 1024), (1024, 4096)], [1, 4.2], 0.005),
]


def largest(sizes: np.ndarray, capacities: list, prices: list) -> float | None:
    """The price of the largest capacity alone; None if no capacity holds everything."""
    for capacity, price in sorted(zip(capacities, prices, strict=True), key=lambda one: -one[1]):
        if (sizes.max(axis=0) <= np.array(capacity)).all():
            return nopad.plan_several(sizes, [capacity], effort=EFFORT).price * price
    return None


def smallest(sizes: np.ndarray, capacities: list, prices: list) -> float:
    """The price of every sequence in the cheapest capacity that holds it."""
    own = sizes.reshape(len(sizes), -1)
    left, total = np.ones(len(sizes), dtype=bool), 0.0
    for capacity, price in sorted(zip(capacities, prices, strict=True), key=lambda one: one[1]):
        held = left & (own <= np.array(capacity)).all(axis=1)
        left &= ~held
        if held.any():
            total += nopad.plan_several(sizes[held], [capacity], effort=EFFORT).price * price
    return total


def _above(price: float | None, bound: float) -> str:
    return "-" if price is None else f"{price / bound - 1:.2%}"


def main() -> None:
    print(f"several capacities, effort {EFFORT}; {machine()}")
    small = np.arange(1, 900)  # compile before the clock starts
    nopad.plan_several(np.tile(small, 40), [256, 1024], [1, 4.4])
    nopad.plan_several(np.stack([small, small % 9], axis=1), [(256, 16), (1024, 30)], [1, 4.4])
    print(
        f"  {'input':<48}{'price':>12}{'bound':>12}  {'above':>8}{'':>8}   packs; the largest alone, the smallest that holds it"
    )
    for name, make, capacities, prices, allowed in INPUTS:
        if ONLY not in name:
            continue
        sizes = make()
        start = time.process_time()
        plan = nopad.plan_several(sizes, capacities, prices, effort=EFFORT)
        seconds = time.process_time() - start
        costs = list(plan.prices)
        ways = (largest, smallest) if len(capacities) > 1 else ()
        beside = ", ".join(_above(way(sizes, capacities, costs), plan.lower_bound) for way in ways)
        print(
            f"  {name:<48}{plan.price:>12,.1f}{plan.lower_bound:>12,.1f}  {plan.gap_share:>8.4%}{seconds:>6.1f} s   "
            f"{' + '.join(f'{n:,}' for n in plan.packs.values())}{'; ' if beside else ''}{beside}"
            f"{'' if plan.gap_share <= allowed else f'   MISSED {allowed:.1%}'}",
            flush=True,
        )


main()
