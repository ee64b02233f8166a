"""Compute how many slots (real tokens and padding) an epoch takes without packing: fixed, dynamic or sorted padding.

All numbers come from a histogram, so the time does not depend on the number of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nopad.errors import LengthError
from nopad.histogram import Histogram
from nopad.options import Option, check_sizes

__all__ = ["BATCH_SIZE", "Padded", "padded"]

BATCH_SIZE = Option(default=32, high=2**20, help="number of sequences in a batch")


@dataclass(frozen=True, kw_only=True)
class Padded:
    """Numbers of slots (real tokens and padding) of one epoch without packing.

    Attributes:
        tokens: number of real tokens.
        batch_size: number of sequences in a batch.
        fixed: slots if every sequence is padded to the capacity.
        dynamic: slots if batches are drawn at random and each is padded to its longest sequence; the mean over all
            random orders, rounded.
        by_length: slots if sequences are sorted by length, longest first, before they are cut into batches, each padded
            to its longest sequence.
    """

    tokens: int
    batch_size: int
    fixed: int
    dynamic: int
    by_length: int

    def share(self, slots: int) -> float:
        """Return the share of `slots` that is padding, from 0 to 1; 0.0 if there are no slots.

        `slots` is one of the attributes `fixed`, `dynamic` and `by_length`.
        """
        return 1 - self.tokens / slots if slots else 0.0


def padded(histogram: Histogram, capacity: int, batch_size: int = 32) -> Padded:
    """Return the number of slots that an epoch takes without packing, for each of three ways of padding.

    Args:
        histogram: numbers of sequences of each length.
        capacity: the length that sequences are padded to with fixed padding.
        batch_size: number of sequences in a batch, from 1 to 2^20.

    Raises:
        OptionError: `capacity` is not an integer from 1 to 2^31 - 1, or `batch_size` is not an integer from 1 to 2^20.
        LengthError: a sequence is longer than `capacity`, and so cannot be padded to it.

    >>> import nopad
    >>> found = padded(nopad.Histogram.from_lengths([1, 1, 1, 8, 8, 2]), capacity=10, batch_size=2)
    >>> found.tokens, found.fixed, found.by_length, found.dynamic
    (21, 60, 22, 32)
    """
    batch_size = BATCH_SIZE.check("batch_size", batch_size)
    capacity, _ = check_sizes(capacity, None, 0)
    if histogram.max_length > capacity:
        raise LengthError(
            f"the longest sequence has {histogram.max_length:,} tokens, and cannot be padded to {capacity:,}; take a "
            "capacity of at least its length"
        )
    lengths = histogram.lengths.astype(np.float64)
    below = np.cumsum(histogram.counts, dtype=np.float64)  # counts may add up to more than 64 bits
    n = histogram.sequences
    whole, rest = divmod(n, batch_size)
    dynamic = whole * batch_size * _longest(lengths, below, n, batch_size) if whole else 0.0
    dynamic += rest * _longest(lengths, below, n, rest) if rest else 0.0
    return Padded(
        tokens=histogram.tokens,
        batch_size=batch_size,
        fixed=n * capacity,
        dynamic=max(round(dynamic), histogram.tokens),  # rounding of floats cannot make padding negative
        by_length=_sorted(histogram, batch_size),
    )


def _longest(lengths: np.ndarray, below: np.ndarray, n: int, drawn: int) -> float:
    """Return the expected length of the longest of `drawn` sequences, drawn at random from `n` without replacement.

    ``below[i]`` of the n sequences have at most ``lengths[i]`` tokens; `lengths` ascend.
    """
    none_longer = np.ones(lengths.size)  # none_longer[i]: probability that no drawn sequence is longer than lengths[i]
    for i in range(drawn):
        none_longer *= np.maximum(below - i, 0) / (n - i)
    return float((lengths * np.diff(none_longer, prepend=0.0)).sum())


def _sorted(histogram: Histogram, batch_size: int) -> int:
    """Return the number of slots of all batches if sequences are sorted by length, longest first.

    Each batch is padded to its longest sequence. If the last batch has fewer sequences than the others, it has the
    shortest ones.
    """
    slots = longer = batches = last = 0
    for length, count in zip(histogram.lengths[::-1].tolist(), histogram.counts[::-1].tolist(), strict=True):
        longer += count
        begun = -(-longer // batch_size)  # batches whose longest sequence has at least this length
        if begun > batches:
            slots += (begun - batches) * batch_size * length
            batches, last = begun, length
    return slots - (batches * batch_size - longer) * last
