"""A theorem on LAMB's betas, of the supplement to arXiv 2107.02027: exact for constant gradients, not for noisy ones.

With p sequences per pack, one step takes the mean of p gradients, where training without packs takes p steps. The
theorem: if the p gradients are equal, one step with beta^p gives the same moments as p steps with beta.

If each gradient has independent noise, the first moment is still the same on average: the mean gradient of a pack gets
the weight 1 - beta^p, and without packs the weights of its p gradients add up to as much. The second moment is not the
same: for p gradients with signal s and noise n, the mean square is s^2 + n^2, but the square of the mean is
s^2 + n^2 / p. So without packs the second moment is larger by a factor of ``(1 + r) / (1 + r / p)`` with
``r = (n / s)^2``, whatever beta is. With packs, Adam's steps therefore become longer. LAMB's do not, if the factor is
the same for a whole tensor: its trust ratio divides by the norm of the update, which cancels the factor.

The simulation runs many parameters at once, with signals drawn from a normal distribution. It takes under a second.

Source: supplement to arXiv 2107.02027, section E.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopad.study.draws import normal

__all__ = ["BETAS", "FACTORS", "NOISES", "LambRow", "PowerRow", "lamb_rows", "powers"]

BETAS = (0.81, 0.95)  # the supplement's beta1, and the beta2 that MLPerf's BERT uses with this beta1
FACTORS = (2, 3, 5)
NOISES = (0.0, 0.5, 1.0, 2.0)  # noise / signal
PARAMETERS = 1 << 13
STEPS = 40  # with packs; enough that the moments no longer depend on their start at 0
_PRINTED = {2.0: 0.66}

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PowerRow:
    """The betas raised to the power of a packing factor.

    Attributes:
        factor: packing factor, the mean number of sequences per pack.
        beta1, beta2: corrected betas: beta to the power of `factor`.
        printed: corrected beta1 as the supplement prints it; None: it does not print this one.
    """

    factor: float
    beta1: float
    beta2: float
    printed: float | None


@dataclass(frozen=True, kw_only=True)
class LambRow:
    """Optimiser moments with packs compared with those without, after the same sequences.

    With packs, the betas are corrected (raised to the power of `factor`) except in `first_apart_uncorrected`.

    Attributes:
        factor: sequences per pack.
        noise: noise of a gradient, as a multiple of its signal; 0: gradients are constant.
        first_apart: norm of the difference between the first moments with and without packs / norm of the first moment
            without packs.
        first_apart_uncorrected: the same ratio with uncorrected betas.
        second: mean second moment without packs / mean second moment with packs.
        expected: expected value of `second`: ``(1 + noise^2) / (1 + noise^2 / factor)``.
        largest: largest relative difference between a moment with packs and the same moment without packs, over both
            moments and all parameters.
        cosine: cosine of the angle between the updates with and without packs; m and v are the moments, and
            ``m / sqrt(v)`` is the update.
    """

    factor: int
    noise: float
    first_apart: float
    first_apart_uncorrected: float
    second: float
    expected: float
    largest: float
    cosine: float


def powers(
    factors: Sequence[float] = (1.913, 1.996, *map(float, FACTORS)), betas: tuple[float, float] = BETAS
) -> list[PowerRow]:
    """Return a `PowerRow` for each packing factor, in ascending order of the factors; `betas` are those without packs.

    >>> [(row.factor, round(row.beta1, 4), row.printed) for row in powers([2.0])]
    [(2.0, 0.6561, 0.66)]
    """
    printed = _PRINTED if betas == BETAS else {}
    return [
        PowerRow(factor=p, beta1=betas[0] ** p, beta2=betas[1] ** p, printed=printed.get(p)) for p in sorted(factors)
    ]


def lamb_rows(
    factors: Sequence[int] = FACTORS, noises: Sequence[float] = NOISES, betas: tuple[float, float] = BETAS
) -> list[LambRow]:
    """Simulate training with and without packs on the same gradients; return a row for each factor and each noise.

    Args:
        factors: packing factors, the number of sequences per pack.
        noises: the noise of a gradient as a multiple of its signal.
        betas: the optimiser's betas without packs.

    Constant gradients give equal moments. With noise as large as the signal, the second moment without packs is larger
    by a factor of 4 / 3:

    >>> constant, noisy = lamb_rows([2], [0.0, 1.0])
    >>> constant.largest < 1e-12, noisy.expected, round(noisy.second, 1)
    (True, 1.3333333333333333, 1.3)
    """
    return [_row(p, noise, betas) for p in factors for noise in noises]


def _row(p: int, noise: float, betas: tuple[float, float]) -> LambRow:
    signal = normal(PARAMETERS, 0, 0)
    gradients = signal + noise * normal(p * STEPS * PARAMETERS, p, 1).reshape(p * STEPS, PARAMETERS)
    packs = gradients.reshape(STEPS, p, PARAMETERS).mean(axis=1)
    powered = betas[0] ** p, betas[1] ** p
    m, v = _moments(gradients, betas)
    packed_m, packed_v = _moments(packs, powered)
    other_m, _ = _moments(packs, betas)
    mine, theirs = packed_m / np.sqrt(packed_v), m / np.sqrt(v)
    return LambRow(
        factor=p,
        noise=noise,
        first_apart=_size(m - packed_m) / _size(m),
        first_apart_uncorrected=_size(m - other_m) / _size(m),
        second=float(v.mean() / packed_v.mean()),
        expected=(1 + noise**2) / (1 + noise**2 / p),
        largest=float(max(np.abs(packed_m / m - 1).max(), np.abs(packed_v / v - 1).max())),
        cosine=float(mine @ theirs) / (_size(mine) * _size(theirs)),
    )


def _moments(gradients: Array, betas: tuple[float, float]) -> tuple[Array, Array]:
    """Return the first and the second moment after all steps, ``[parameters]`` each; both begin at 0.

    `gradients` are ``[steps, parameters]``.
    """
    m, v = np.zeros(gradients.shape[1]), np.zeros(gradients.shape[1])
    for gradient in gradients:
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
    return m, v


def _size(values: Array) -> float:
    return math.sqrt(float(values @ values))
