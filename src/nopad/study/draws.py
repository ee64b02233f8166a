"""Random numbers of the studies: each call with the same arguments gives the same numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.errors import OptionError
from nopad.histogram import Histogram

__all__ = ["SEED", "check_any", "normal", "shuffled", "uniform"]

SEED = 0


def check_any(histogram: Histogram) -> None:
    """Check that there is a length to draw.

    Raises:
        OptionError: the histogram holds no sequence.
    """
    if not histogram.sequences:
        raise OptionError("the histogram holds no sequence, and this study draws from it; give one with lengths")


def uniform(size: int, *parts: int) -> NDArray[np.float64]:
    """Return random numbers between 0 and 1, both excluded; float64 ``[size]``.

    `parts` are any integers; they choose the numbers. Other `parts` give other numbers.
    """
    bits = random.keys(np.arange(size), SEED, random.STREAM_LEG, *parts)
    drawn = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53
    return np.minimum(drawn, 1 - 2**-53)  # the largest of these numbers is rounded to 1


def normal(size: int, *parts: int) -> NDArray[np.float64]:
    """Return draws from the standard normal distribution; float64 ``[size]``.

    `parts` are any integers; they choose the numbers. Other `parts` give other numbers.
    """
    from scipy.special import ndtri

    return np.asarray(ndtri(uniform(size, *parts)), dtype=np.float64)


def shuffled(counts: NDArray[np.int64], *parts: int) -> NDArray[np.int32]:
    """Return an int32 array with each index i of `counts`, ``counts[i]`` times, in random order.

    `parts` are any integers; they choose the order. Other `parts` give another order.
    """
    from nopad import _kernels

    everything = np.repeat(np.arange(counts.size, dtype=np.int32), counts)
    _kernels.shuffle(everything, np.uint64(random.key(SEED, random.STREAM_LEG, *parts)))
    return everything
