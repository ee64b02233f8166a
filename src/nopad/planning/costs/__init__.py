"""Plans under two limits: tokens and cost, where the cost of a pack is the sum of the squares of its lengths.

`within` plans with both limits from the start, for `auto` and `optimal`; the other algorithms plan by tokens, and the
packs that are too dear are cut (`nopad.planning.conditions.within_squares`).
"""

from __future__ import annotations

import numpy as np

from nopad.histogram import Histogram
from nopad.planning.algorithm import Planned
from nopad.planning.costs.bounds import fewest
from nopad.planning.costs.spread import Load, spread

__all__ = ["bound_of", "load_of", "within"]

_UNLIMITED = 2**31 - 1
_NEAR = 10_000  # within one pack in so many of the bound is near enough for `auto`


def load_of(histogram: Histogram, capacity: int, depth: int | None, squares: int, align: int = 1) -> Load:
    """Return the sequences of a histogram, each padded to a multiple of `align`, and the limits of a pack."""
    lengths = histogram.lengths
    sizes = -(-lengths // align) * align
    limits = np.array([capacity, squares, _UNLIMITED if depth is None else depth], dtype=np.int64)
    return Load(lengths, sizes, lengths**2, histogram.counts, limits)


def bound_of(load: Load) -> int:
    """Return the lower bound on packs that needs no certificate."""
    capacity, most, depth = load.limits.tolist()
    return fewest(load.sizes, load.costs, load.counts, capacity, most, None if depth == _UNLIMITED else depth)


def within(
    histogram: Histogram, capacity: int, depth: int | None, squares: int, align: int = 1, *, work: int, exact: bool
) -> Planned:
    """Return the best plan found whose packs have at most `capacity` tokens and `squares` squared tokens.

    It looks at about `work` packs; `exact` goes on until the plan is within one pack of the bound.

    >>> made = within(Histogram.from_lengths([5, 5, 2, 2, 2, 2]), 9, None, 33, work=10**6, exact=True)
    >>> made.strategies
    [(2, (5, 2, 2))]
    """
    load = load_of(histogram, capacity, depth, squares, align)
    if not load.counts.size:
        return Planned(strategies=[])
    bound = bound_of(load)
    made, _ = spread(load, bound, bound if exact else bound + 1 + bound // _NEAR, work)
    return Planned(strategies=made.strategies(load.lengths), facts={"linear_programs": 0})
