"""ENNLSHP, extended NNLSHP: minimise padding tokens, with at least one slot for every sequence.

A slot is a place in a pack for a sequence of a given length. Let A be the packing matrix (how often each strategy holds
each length), x how often each strategy is used, and b the number of sequences of each length. The surplus slots of each
length, r = A x - b, become separate unknowns that must be at least 0: ``min |w (A x - b)|^2 + |W (A x - b - r)|^2`` for
x, r >= 0, with w = length and W = 10^6. Since W is so large, the solution gives every length at least as many slots as
it has sequences, apart from a tiny error. (Rounding the solution may undo this.) Under this condition, the solution
minimises the sum over all lengths of the squared number of padding tokens (surplus slots times length). The matrix has
twice as many rows as that of NNLSHP, and solving takes 3 to 6 times as long. ENNLSHP needs more packs and time than
``optimal``, but fewer packs than NNLSHP: 0.11 % more than ``optimal`` on Wikipedia-512, 0.2 % more on SQuAD-384, both
at depth 3.

The lower right block of the matrix is a negative identity, as in equation 24. The paper's listing 9 has a block of ones
there, which makes its plans worse than those of SPFHP (an efficiency of 96.96 % instead of 98.61 % on SQuAD-384).

Source: supplement to arXiv 2107.02027, G.1 (equations 23 and 24).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.algorithm import Planned
from nopad.planning.least_squares import OPTIONS, Choices, System, least_squares

__all__ = ["ENNLSHP_OPTIONS", "ennlshp"]

COVER_WEIGHT = 1e6

ENNLSHP_OPTIONS = OPTIONS


def ennlshp(
    histogram: Histogram,
    capacity: int,
    depth: int | None,
    *,
    rounding: str = "nearest",
    remainder: str = "pad",
    granularity: int = 1,
) -> Planned:
    """Return a plan that covers `histogram` exactly.

    `rounding` ("nearest", "ceil" or "floor") says how a fractional number of packs becomes whole. `remainder` says
    where sequences without a slot go. With "pad", each goes into a pack of its own; but two that fill a pack exactly
    share one. With "best_fit", they go into the fullest packs with room, or into new packs. Lengths are rounded up to
    multiples of `granularity`. A `depth` of None is unlimited. The result's `facts` are figures of the solution and its
    repair.

    Raises:
        OptionError: there are too many strategies at this capacity, depth and granularity: the matrix would take more
            than 1 GiB.

    >>> ennlshp(Histogram.from_lengths([5, 4, 3, 2, 2]), 8, 3).strategies
    [(1, (4, 2, 2)), (1, (5, 3))]
    """
    choices = Choices(rounding=rounding, remainder=remainder, granularity=granularity)
    return least_squares("ennlshp", _extended, 2, histogram, capacity, depth, choices)


def _extended(matrix: NDArray[np.float64], demand: NDArray[np.float64]) -> System:
    """Return the matrix and the target of the paper's equation 24; the unknowns are x, then r (see the module).

    The upper half of the rows is the problem with weights w, the lower half is ``A x - r = b`` with the weight W.
    `matrix` is A, float64 ``[units, strategies]``; row i is for the length i + 1, counted in multiples of the
    granularity. `demand` is b, float64 ``[units]``. The matrix returned is float64 ``[2 units, strategies + units]``,
    and the target float64 ``[2 units]``.
    """
    units, strategies = matrix.shape
    padding = np.arange(1.0, units + 1)  # what an empty slot costs
    extended = np.zeros((2 * units, strategies + units))
    extended[:units, :strategies] = padding[:, None] * matrix
    extended[units:, :strategies] = COVER_WEIGHT * matrix
    extended[units:, strategies:] = -COVER_WEIGHT * np.eye(units)
    return extended, np.concatenate([padding * demand, COVER_WEIGHT * demand])
