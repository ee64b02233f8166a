"""How near is near enough, by dtype."""

from __future__ import annotations

import torch

__all__ = ["EXACT", "PARTLY_SINGLE", "limit_of", "named"]

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
