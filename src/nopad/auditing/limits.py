"""The largest differences that are allowed in each dtype, and functions that measure how far two tensors differ."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["EXACT", "LIMITS", "PARTLY_SINGLE", "apart", "largest_finite", "limit_of", "named"]

EXACT = 1e-12  # in float64, relative to the largest value
PARTLY_SINGLE = 1e-5  # the same, if the model computes some results in float32
LIMITS = {torch.float64: EXACT, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def limit_of(measured: float, dtype: torch.dtype, partly: bool = False) -> float:
    """Return the largest relative difference that is allowed for results in `dtype`.

    The limit is 1e-12 for float64, 1e-5 for float32, 5e-2 for bfloat16, and 1e-2 for any other dtype. Only a float64
    model that computes some results in float32 (`partly`) has two limits: 1e-5 if the difference that was `measured` is
    above 1e-12 and at most 1e-5, else 1e-12.
    """
    if dtype == torch.float64 and partly and EXACT < measured <= PARTLY_SINGLE:
        return PARTLY_SINGLE
    return LIMITS.get(dtype, 1e-2)


def named(dtype: torch.dtype) -> str:
    """Return a dtype's short name, such as "float64"."""
    return str(dtype).removeprefix("torch.")


def apart(before: Tensor, after: Tensor) -> float:
    """Return the largest absolute difference between the values of two tensors of the same shape; 0 if they are empty.

    Equal infinities, and NaN in both tensors, count as equal; any other infinity or NaN is an infinite difference.
    """
    same = (before == after) | (before.isnan() & after.isnan())
    difference = (before - after).detach().abs().masked_fill(same.detach(), 0)
    if not difference.numel():
        return 0.0
    return float(difference.max()) if bool(difference.isfinite().all()) else float("inf")


def largest_finite(values: Tensor) -> float:
    """Return the largest absolute value among the finite values of a tensor; 0 if none is finite."""
    finite = values.detach()[values.detach().isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
