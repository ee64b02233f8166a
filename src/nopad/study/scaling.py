"""Speed-up of un-padding and of packing over padding on many devices: the supplement's estimate, recomputed.

Un-padding means that a device computes only the real tokens of its batch, so devices take different times, and all wait
for the slowest.

The supplement fits a Gumbel distribution to the speed-up of un-padding on 8 GPUs, deduces the distribution on one
device from it, and takes minima over several devices. Its single-device scale, 0.108, does not satisfy its own
equations 19 and 20. With ``z(s) = -ln(-ln(1 - s))``, the value that a standard Gumbel variable exceeds with probability
s, these equations are linear, and give 0.318:

* ``beta_1 = -beta_8 ln(ln 2) / (z(0.5^(1/8)) - z((1 - 1/e)^(1/8)))``
* ``alpha_1 = alpha_8 - beta_1 z((1 - 1/e)^(1/8))``

Besides, the minimum of such speed-ups is not Gumbel-distributed. But if times are Gumbel-distributed, so is the time of
the slowest device. So a second estimate fits a Gumbel distribution to the time of the slowest of 8 GPUs, by the moments
of the same data. On n GPUs, the location of this distribution is higher by ``scale ln(n / 8)``.

Both estimates assume random batches. The simulation draws batches of 32 sequences from the histogram, and assumes that
time is proportional to the number of tokens. With balance, each rank still takes 32 sequences, chosen so that all ranks
have nearly the same number of tokens.

Source: supplement to arXiv 2107.02027, section F and listing 2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopad.balance import Balance, Shape, deal
from nopad.histogram import Histogram
from nopad.planning import plan
from nopad.study.draws import check_any, shuffled

__all__ = [
    "ALPHA_8",
    "BETA_8",
    "DEVICES",
    "PACKING",
    "PRINTED",
    "ScalingRow",
    "crossing",
    "of_one_device",
    "scaling",
    "speed_up_by_time",
    "speed_up_of_minimum",
]

ALPHA_8, BETA_8 = 1.6038, 0.1288  # listing 2
PRINTED = (1.94, 0.108)
PACKING = 1.913  # measured with the overhead of packing; the plan alone gives more
BATCH = 32
DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_POINTS = 1 << 17  # points of each numerical integral: enough for three decimals


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """Expected speed-up over padding on a number of devices.

    Un-padding means that a device computes only the real tokens of its batch; all devices wait for the slowest.

    Attributes:
        devices: number of devices.
        printed: speed-up of un-padding, by the printed constants.
        corrected: speed-up of un-padding, by the constants that satisfy the equations.
        by_time: speed-up of un-padding, by a Gumbel distribution of times.
        simulated: speed-up of un-padding with random batches, simulated from the histogram; None: the histogram holds
            too few sequences.
        balanced: speed-up of un-padding with balance, simulated: Karmarkar-Karp deals the sequences of each step, 32 to
            each device, so that all devices have nearly the same number of tokens; None: the histogram holds too few
            sequences.
        packing: speed-up of packing: the packing factor, the same on any number of devices.
    """

    devices: int
    printed: float
    corrected: float
    by_time: float
    simulated: float | None
    balanced: float | None
    packing: float


def of_one_device(alpha: float = ALPHA_8, beta: float = BETA_8, devices: int = 8) -> tuple[float, float]:
    """Return (location, scale) of the Gumbel distribution of the speed-up on one device, by equations 19 and 20.

    `alpha` and `beta` are location and scale of the minimum speed-up over `devices` devices.

    >>> [round(value, 3) for value in of_one_device()]
    [1.941, 0.318]
    """
    median, mode = (_z(1 - survival ** (1 / devices)) for survival in (0.5, 1 - math.exp(-1)))
    beta_1 = -beta * math.log(math.log(2)) / (median - mode)
    return alpha - beta_1 * mode, beta_1


def _z(p: float) -> float:
    """Return the `p`-quantile of the standard Gumbel distribution."""
    return -math.log(-math.log(p))


def speed_up_of_minimum(alpha: float, beta: float, devices: int) -> float:
    """Return the expected minimum of `devices` Gumbel-distributed speed-ups with location `alpha` and scale `beta`.

    >>> round(speed_up_of_minimum(1.94, 0.108, 1024), 3)
    1.724
    """
    below = (np.arange(_POINTS) + 0.5) / _POINTS
    return alpha + beta * float(_quantile(-np.expm1(np.log1p(-below) / devices)).mean())


def speed_up_by_time(devices: int, alpha: float = ALPHA_8, beta: float = BETA_8) -> float:
    """Return the speed-up of un-padding on `devices` devices, if times are Gumbel-distributed.

    It is 1 / the expected time of the slowest device. The distribution of times is fitted by its moments to the
    speed-up on 8 GPUs (location `alpha`, scale `beta`).

    >>> round(speed_up_by_time(8), 2)
    1.66
    """
    times = 1 / (alpha + beta * _quantile((np.arange(_POINTS) + 0.5) / _POINTS))
    scale = float(times.std()) * math.sqrt(6) / math.pi
    return 1 / (float(times.mean()) + scale * math.log(devices / 8))


def _quantile(p: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(-np.log(-np.log(p)))


def scaling(histogram: Histogram, devices: Sequence[int] = DEVICES) -> list[ScalingRow]:
    """Return the expected speed-up over padding on each number of devices; one row for each number.

    A device takes 32 sequences per step, drawn from the histogram.

    Raises:
        OptionError: the histogram holds no sequence.

    With balance, the slowest device has fewer tokens, so the speed-up is higher:

    >>> [row] = scaling(Histogram.from_counts({1: 500, 3: 500}), [2])
    >>> row.balanced > row.simulated > 1
    True
    """
    check_any(histogram)
    lengths = histogram.lengths.astype(np.int32)[shuffled(histogram.counts)]
    batches = lengths.size // BATCH
    of_batches = lengths[: batches * BATCH].reshape(batches, BATCH).sum(axis=1, dtype=np.int64)
    padded = BATCH * histogram.max_length
    corrected = of_one_device()
    factor = plan(histogram, histogram.max_length, algorithm="lpfhp").packing_factor
    rows = []
    for n in devices:
        steps = batches // n
        simulated = balanced = None
        if steps:
            simulated = float((padded / of_batches[: steps * n].reshape(steps, n).max(axis=1)).mean())
            balanced = float(
                np.mean([padded / most for most in _most_balanced(lengths, n, min(steps, max(50, 8192 // n)))])
            )
        rows.append(
            ScalingRow(
                devices=n,
                printed=speed_up_of_minimum(*PRINTED, n),
                corrected=speed_up_of_minimum(*corrected, n),
                by_time=speed_up_by_time(n),
                simulated=simulated,
                balanced=balanced,
                packing=factor,
            )
        )
    return rows


def _most_balanced(lengths: NDArray[np.int32], devices: int, steps: int) -> NDArray[np.int64]:
    """Return the number of tokens on the device with the most, for each step; int64 ``[steps]``.

    The sequences of a step are dealt to the devices with balance.
    """
    shape = Shape(devices, 1, 1, BATCH)
    of_steps = lengths[: steps * shape.per_step].astype(np.int64).reshape(steps, -1)
    return np.array([costs[deal(costs, shape, Balance())].sum(axis=(1, 2)).max() for costs in of_steps])


def crossing(rows: Sequence[ScalingRow], curve: str, level: float) -> float | None:
    """Return the number of devices above which a falling curve is below `level`; None if it never is.

    `curve` is the name of an attribute of the rows. Between rows, the curve is interpolated linearly over the logarithm
    of the number of devices. If the first row is below `level` already, the result is that row's number of devices.
    """
    values = [(row.devices, value) for row in rows if (value := getattr(row, curve)) is not None]
    if values and values[0][1] < level:
        return float(values[0][0])
    for (few, above), (many, below) in itertools.pairwise(values):
        if below < level <= above:
            return float(few * (many / few) ** ((above - level) / (above - below)))
    return None
