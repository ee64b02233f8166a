"""NNLSHP, non-negative least squares histogram-packing: find the mix of full packs that is nearest to the histogram.

A strategy is a list of slots; a slot is a place in a pack for a sequence of a given length. The algorithm lists every
strategy whose slots sum to exactly the capacity, and solves ``min |w (A x - b)|`` for x >= 0. Here x is how often to
use each strategy; A, the packing matrix, is how often each strategy holds each length; b is the number of sequences of
each length; and w is a weight for each length. Short lengths get a smaller weight, because an empty short slot wastes
little. The same machine and version of SciPy always give the same plan.

At depth 3, NNLSHP takes about O(capacity^5): 6 s at capacity 384, 15 s at 512. It takes more time than ``optimal``, and
needs more packs (at depth 3, 0.14 % more on Wikipedia-512 and 1.45 % more on SQuAD-384). It also needs more packs than
``lpfhp`` if counts are small or packs rarely reach the depth: rounding, and packing the remaining sequences, then costs
more packs than the better mix saves.

Errors of the papers' code are corrected: the plan covers the histogram exactly; depth 1 works, and so do remaining
sequences of the full capacity; two remaining sequences that fill a pack together share one; and if the solver reaches
its iteration limit, all sequences are packed as remaining ones.

Source: supplement to arXiv 2107.02027, D.4 (equations 2-4) and listing 3. Its table 2 used the weighting "capacity".
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.options import Option
from nopad.planning.algorithm import Planned
from nopad.planning.least_squares import OPTIONS, Choices, System, least_squares

__all__ = ["NNLSHP_OPTIONS", "nnlshp"]

SHORT_TOKENS = 8  # lengths up to this have a smaller weight in the sum of squares
SHORT_WEIGHT = 0.09

NNLSHP_OPTIONS = OPTIONS | {
    "weighting": Option(
        default="fixed",
        choices=("fixed", "capacity"),
        help="weight of lengths up to 8: 0.09, or sqrt(8 / (2 * capacity))",
    )
}


def nnlshp(
    histogram: Histogram,
    capacity: int,
    depth: int | None,
    *,
    rounding: str = "nearest",
    weighting: str = "fixed",
    remainder: str = "pad",
    granularity: int = 1,
) -> Planned:
    """Return a plan that covers `histogram` exactly; its `facts` are figures of the solution and its repair.

    Args:
        histogram: the sequences, by length.
        capacity: most tokens of a pack.
        depth: most sequences of a pack; None: unlimited.
        rounding: how a fractional number of packs becomes whole: "nearest", "ceil" or "floor".
        weighting: the weight of lengths up to 8 tokens: 0.09 with "fixed", ``sqrt(8 / (2 * capacity))`` with
            "capacity"; longer lengths weigh 1. With a `granularity` above 1, the rounded lengths are meant.
        remainder: where sequences without a slot go; a slot is a place that the solution has for a sequence in a pack.
            "pad": each into a pack of its own, with padding; but two that fill a pack exactly share one. "best_fit":
            into the fullest packs that have room, or into new packs.
        granularity: lengths are rounded up to multiples of this many tokens, so that there are fewer strategies.

    Raises:
        OptionError: there are too many strategies at this capacity, depth and granularity: the matrix would take more
            than 1 GiB.

    >>> made = nnlshp(Histogram.from_lengths([5, 4, 3, 2, 2]), 8, 3)
    >>> made.strategies
    [(1, (4, 2, 2)), (1, (5, 3))]
    """
    short = SHORT_WEIGHT if weighting == "fixed" else math.sqrt(SHORT_TOKENS / (2 * capacity))

    def system(matrix: NDArray[np.float64], demand: NDArray[np.float64]) -> System:
        weights = np.ones(len(demand))
        weights[: SHORT_TOKENS // granularity] = short
        matrix *= weights[:, None]
        return matrix, weights * demand

    choices = Choices(rounding=rounding, remainder=remainder, granularity=granularity)
    return least_squares("nnlshp", system, 1, histogram, capacity, depth, choices)
