"""Figures 10 and 11: sequences without a slot and slots without a sequence, by length, with and without weights.

A slot is here a place in a pack for one sequence of a certain length.

The residual is ``b - A round(x)``: b holds the number of sequences of each length, A is the packing matrix, and x says
how often each strategy is used. A residual is positive if sequences of that length found no slot, and negative if slots
found no sequence and stay padding. The depth is 3, as in the papers. Solving the problem with one set of weights takes
as long as `nnlshp` itself: 15 s at capacity 512.

Source: supplement to arXiv 2107.02027, D.4.4 and D.4.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.options import check_sizes
from nopad.planning.enumeration import check_size, full_strategies, packing_matrix
from nopad.planning.front import check_histogram
from nopad.planning.least_squares import nnls
from nopad.planning.nnlshp import SHORT_TOKENS
from nopad.study.published import RESIDUALS, has_figures

__all__ = ["Compared", "Residuals", "compare", "residuals"]

DEPTH = 3


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """Sequences without a slot (positive) and slots without a sequence (negative), by length.

    A slot is here a place in a pack for one sequence of a certain length.

    Attributes:
        values: residual of length i + 1 at index i; int64 ``[capacity]``.
        weight: weight of lengths up to 8; longer lengths have weight 1.
        packs: number of packs of the rounded solution.
        strategies: number of strategies of the rounded solution.
        strategies_with_leftovers: number of strategies if one is added for each length with a left-over sequence: this
            length and the length that fills the rest of the pack. A strategy that is there already counts once.
    """

    values: NDArray[np.int64]
    weight: float
    packs: int
    strategies: int
    strategies_with_leftovers: int

    @property
    def left_over(self) -> int:
        """Number of sequences that are left over: no pack has a place for them."""
        return int(self.values[self.values > 0].sum())

    @property
    def invented(self) -> int:
        """Number of slots without a sequence: places of sequences in packs that no sequence takes."""
        return -int(self.values[self.values < 0].sum())

    @property
    def padding_tokens(self) -> int:
        """Number of tokens in the places that no sequence takes, which stay padding."""
        lengths = np.arange(1, self.values.size + 1)
        return int(np.maximum(-self.values, 0) @ lengths)

    @property
    def padding_tokens_of_leftovers(self) -> int:
        """Number of padding tokens if each left-over sequence gets a pack alone: the sum of (capacity - length)."""
        lengths = np.arange(1, self.values.size + 1)
        return int(np.maximum(self.values, 0) @ (self.values.size - lengths))


def residuals(histogram: Histogram, capacity: int, *, weight: float = 1.0) -> Residuals:
    """Solve the least-squares problem of `nnlshp` at depth 3; return the `Residuals` of its rounded solution.

    `weight` is the weight of lengths up to 8; longer lengths have weight 1.

    Raises:
        LengthError: a length is above `capacity`.
        OptionError: `capacity` is not an integer from 1 to 2^31 - 1, or is so large that there are too many strategies.
        RuntimeError: the solver did not end within its limit on iterations.

    Nine packs hold the lengths 3 and 5, and one holds length 8. One sequence of length 5 is left over; in a pack alone,
    it would have 3 tokens of padding:

    >>> found = residuals(Histogram.from_counts({3: 9, 5: 10, 8: 1}), 8)
    >>> found.values.tolist(), found.packs, found.padding_tokens_of_leftovers
    ([0, 0, 0, 0, 1, 0, 0, 0], 10, 3)
    """
    capacity, _ = check_sizes(capacity, DEPTH)
    check_histogram(histogram, capacity)
    check_size("the study of residuals", capacity, min(DEPTH, capacity), 1, 1)
    strategies = full_strategies(capacity, min(DEPTH, capacity))
    matrix = packing_matrix(strategies, capacity)
    demand = np.zeros(capacity)
    demand[histogram.lengths - 1] = histogram.counts
    weights = np.ones(capacity)
    weights[:SHORT_TOKENS] = weight
    mixture, _ = nnls(weights[:, None] * matrix, weights * demand, maxiter=max(3 * matrix.shape[1], 1000))
    whole = np.rint(mixture)
    values = np.rint(demand - matrix @ whole).astype(np.int64)
    used = {tuple(slots[slots > 0].tolist()) for slots in strategies[whole > 0]}
    leftovers = [int(length) for length in np.flatnonzero(values > 0) + 1]
    paired = {tuple(sorted(n for n in (length, capacity - length) if n)) for length in leftovers}
    return Residuals(
        values=values,
        weight=weight,
        packs=int(whole.sum()),
        strategies=len(used),
        strategies_with_leftovers=len(used | paired),
    )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One of our figures beside the published one.

    Attributes:
        what: name of the figure.
        plain: our figure with all weights 1.
        weighted: our figure with a smaller weight for short lengths.
        published: published figure; None: there is none, or the histogram is not the paper's.
        difference: `plain` or `weighted`, whichever the paper's text is about, minus `published`. It is None if
            `published` is None; so are `tolerance` and `within`.
        tolerance: largest difference that still counts as reproduced.
        within: whether the difference is within the tolerance.
        note: remark about the published figure.
    """

    what: str
    plain: float
    weighted: float
    published: float | None = None
    difference: float | None = None
    tolerance: float | None = None
    within: bool | None = None
    note: str = ""


def compare(plain: Residuals, weighted: Residuals, histogram: Histogram) -> list[Compared]:
    """Return each of our figures, without and with weights, beside the published one if the histogram is the paper's.

    >>> histogram = Histogram.from_counts({3: 9, 5: 10, 8: 1})
    >>> found = residuals(histogram, 8)
    >>> [row.what for row in compare(found, found, histogram) if row.plain == 1]
    ['length 5', 'sequences left over']
    """
    known = has_figures(histogram, plain.values.size)
    rows = []
    light = _figures(weighted, histogram)
    for what, ours in _figures(plain, histogram).items():
        text = RESIDUALS.get(what) if known else None
        if text is None:
            rows.append(Compared(what=what, plain=ours, weighted=light[what]))
            continue
        off = None if text.value is None else (light[what] if text.weighted else ours) - text.value
        rows.append(
            Compared(
                what=what,
                plain=ours,
                weighted=light[what],
                published=text.value,
                difference=off,
                tolerance=None if off is None else text.tolerance,
                within=None if off is None else abs(off) <= text.tolerance,
                note=text.note,
            )
        )
    return rows


def _figures(found: Residuals, histogram: Histogram) -> dict[str, float]:
    """Return the residuals of the shortest and longest lengths, and several totals, as a dict by name.

    The papers state some of them (`published.RESIDUALS`).
    """
    capacity = found.values.size
    ends = sorted({*range(1, min(8, capacity) + 1), *range(max(capacity - 8, 1), capacity + 1)})
    return {
        **{f"length {length}": int(found.values[length - 1]) for length in ends},
        "sequences left over": found.left_over,
        "left over, % of all": 100 * found.left_over / max(histogram.sequences, 1),
        "slots without a sequence": found.invented,
        "padding tokens of these slots": found.padding_tokens,
        "their padding, one per pack": found.padding_tokens_of_leftovers,
        "strategies": found.strategies,
        "strategies with leftovers": found.strategies_with_leftovers,
    }
