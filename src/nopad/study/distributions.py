"""Figure 1: how lengths are distributed, and the theoretical and achieved speed-up of packing.

The theoretical speed-up is capacity x sequences / tokens, which assumes no padding and no overhead. The achieved
speed-up is the packing factor. The lower bound on the number of packs gives an upper bound on the packing factor of any
plan. The difference between that upper bound and the packing factor of the papers' algorithm (`spfhp` without a depth
limit) is the most that a better plan could gain. The computation takes milliseconds to seconds per corpus.

Source: arXiv 2107.02027, section 2 and figure 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import OptionError
from nopad.histogram import Histogram
from nopad.planning import plan
from nopad.report.wording import median_of

__all__ = ["Distribution", "distribution"]


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Lengths and speed-ups of one corpus.

    Attributes:
        name: name of the corpus, for display.
        capacity: capacity in tokens.
        histogram: histogram of the corpus's lengths.
        theoretical: speed-up over one sequence per row if packs had no padding: capacity x sequences / tokens.
        spfhp: packing factor of the papers' algorithm, without a depth limit.
        factor: packing factor of nopad's default algorithm, without a depth limit.
        possible: a packing factor that no plan exceeds: sequences / lower bound on the number of packs.
    """

    name: str
    capacity: int
    histogram: Histogram
    theoretical: float
    spfhp: float
    factor: float
    possible: float

    @property
    def padding(self) -> float:
        """Share of padding with one sequence per row, from 0 to 1."""
        return 1 - self.histogram.tokens / (self.histogram.sequences * self.capacity)

    @property
    def full(self) -> float:
        """Share of sequences that fill the capacity, from 0 to 1."""
        return float(self.histogram.counts[self.histogram.lengths == self.capacity].sum()) / self.histogram.sequences

    @property
    def mean(self) -> float:
        """Mean length in tokens."""
        return self.histogram.tokens / self.histogram.sequences

    @property
    def median(self) -> int:
        """Median length in tokens; of two middle lengths, the shorter."""
        return median_of(self.histogram)

    def bars(self, bins: int) -> NDArray[np.float64]:
        """Return the share of sequences in each of `bins` ranges of length, from 1 to the capacity.

        The ranges are as equally wide as integers allow. The result is float64 ``[bins]``.

        >>> distribution("two", Histogram.from_counts({1: 3, 8: 1}), 8).bars(2).tolist()
        [0.75, 0.25]
        """
        place = (self.histogram.lengths - 1) * bins // self.capacity
        return np.bincount(place, weights=self.histogram.counts, minlength=bins) / self.histogram.sequences

    def summary(self) -> dict[str, Any]:
        """Return all attributes except the histogram, and all properties, as a dict that is ready for JSON.

        Instead of the histogram, its numbers of sequences and tokens are included.
        """
        return {
            "name": self.name,
            "capacity": self.capacity,
            "sequences": self.histogram.sequences,
            "tokens": self.histogram.tokens,
            "mean": self.mean,
            "median": self.median,
            "full": self.full,
            "padding": self.padding,
            "theoretical": self.theoretical,
            "spfhp": self.spfhp,
            "factor": self.factor,
            "possible": self.possible,
        }


def distribution(name: str, histogram: Histogram, capacity: int) -> Distribution:
    """Plan a corpus with `auto` and with `spfhp`, and return its `Distribution`.

    Raises:
        LengthError: a length is above `capacity`.
        OptionError: `capacity` is not an integer from 1 to 2^31 - 1, or the histogram holds no sequence.

    Lengths 3 and 5 fill a pack of 8 tokens together, so without packing half of the slots are padding, and with packing
    none:

    >>> found = distribution("pairs", Histogram.from_counts({3: 2, 5: 2}), 8)
    >>> found.theoretical, found.factor, found.padding
    (2.0, 2.0, 0.5)
    """
    if not histogram.sequences:
        raise OptionError(f"{name} holds no sequence, so it has no distribution of lengths")
    best = plan(histogram, capacity)
    return Distribution(
        name=name,
        capacity=capacity,
        histogram=histogram,
        theoretical=best.limit,
        spfhp=plan(histogram, capacity, algorithm="spfhp").packing_factor,
        factor=best.packing_factor,
        possible=histogram.sequences / best.lower_bound,
    )
