"""How near is near enough, by dtype; and how far apart two tensors are."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["EXACT", "LIMITS", "PARTLY_SINGLE", "apart", "largest_finite", "limit_of", "named"]

EXACT = 1e-12  # float64, of the largest value
PARTLY_SINGLE = 1e-5  # the same where the model itself computes some of it in float32
LIMITS = {torch.float64: EXACT, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def limit_of(measured: float, dtype: torch.dtype, partly: bool = False) -> float:
    """The most a relative difference may be; models that compute `partly` in float32 even in float64 get that."""
    if dtype == torch.float64 and partly and EXACT < measured <= PARTLY_SINGLE:
        return PARTLY_SINGLE
    return LIMITS.get(dtype, 1e-2)


def named(dtype: torch.dtype) -> str:
    """A dtype's short name."""
    return str(dtype).removeprefix("torch.")


def apart(before: Tensor, after: Tensor) -> float:
    """Largest difference; the same infinity in both is none, nor is NaN in both; other infinities are infinite."""
    same = (before == after) | (before.isnan() & after.isnan())
    difference = (before - after).detach().abs().masked_fill(same.detach(), 0)
    if not difference.numel():
        return 0.0
    return float(difference.max()) if bool(difference.isfinite().all()) else float("inf")


def largest_finite(values: Tensor) -> float:
    """Largest of the finite values, by magnitude; 0 where there is none."""
    finite = values.detach()[values.detach().isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
