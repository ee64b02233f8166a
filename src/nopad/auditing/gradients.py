"""Gradients of all parameters, packed against alone, of one random weighing of all outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nopad.auditing.limits import limit_of
from nopad.auditing.trial import Trial
from nopad.auditing.verdict import Check

__all__ = ["Truth", "compare_gradients"]

TIMES_ALONE = 4  # how much further from the truth packed may be than alone is, where rounding is most of a gradient


@dataclass(frozen=True)
class Truth:
    """Gradients in float64, of the sequences alone; and the names of those that are zero.

    A key's bias shifts all scores of a query alike. Only float64 tells that from a gradient that is small.
    """

    alone: dict[str, Tensor | None]
    zero: tuple[str, ...]


def compare_gradients(
    trial: Trial,
    alone: list[dict[str, Tensor]],
    together: dict[str, list[Tensor]],
    dtype: torch.dtype,
    truth: Truth | None = None,
) -> tuple[Check, Truth]:
    """Compare; each tensor's largest difference is measured against its own largest value.

    In another dtype than float64, a tensor whose gradient is small among all may also be off by a few times what
    rounding does to the sequences alone, as the `truth` tells: some are small sums of large numbers (DeBERTa's keys'
    biases).
    """
    parameters = dict(trial.model.named_parameters())
    single = {name: [outputs[name][0] for outputs in alone] for name in together if name in alone[0]}
    mine, theirs = (_of(parameters, _weighed(trial, single, parts)) for parts in (single, together))
    sizes = {name: 0.0 if value is None else _largest(value) for name, value in mine.items()}
    largest = max(filter(math.isfinite, sizes.values()), default=0.0)
    zero = truth.zero if truth else tuple(name for name, size in sizes.items() if size <= largest * 1e-12)
    worst = (0.0, 0.0, limit_of(0.0, dtype), "")  # share of what is allowed; relative difference, its limit, where
    for name, value in mine.items():
        if not math.isfinite(sizes[name]):
            worst = (math.inf, math.inf, limit_of(0.0, dtype), f", not finite at {name}, of the sequences alone")
            break
        scale = max(largest if name in zero else sizes[name], 1e-30)
        difference = _apart(value, theirs[name]) / scale
        limit, why = limit_of(difference, dtype, trial.partly), ""
        if difference > limit and value is not None and truth is not None and truth.alone[name] is not None:
            rounding = _apart(truth.alone[name], value.double()) / scale
            small = limit * largest / scale  # rounding is no excuse for a tensor that weighs much
            limit = max(limit, min(TIMES_ALONE * rounding, small))
            why = f", where rounding alone does {rounding:.1e}"
        if difference / limit > worst[0]:
            worst = (difference / limit, difference, limit, f", most at {name}{why}")
    share, difference, limit, where = worst
    detail = f"{len(parameters) - len(zero)} tensors{where}"
    return Check(name="gradients", passed=share <= 1, value=difference, limit=limit, detail=detail), Truth(mine, zero)


def _weighed(trial: Trial, single: dict[str, list[Tensor]], parts: dict[str, list[Tensor]]) -> Any:
    """One number of all outputs, each weighed at random: the same weights for alone and packed."""
    total: Any = 0
    for number in range(len(trial.sequences)):
        generator = torch.Generator().manual_seed(trial.seed * 1000 + number)
        for name, values in single.items():
            shape = values[number].shape
            weights = torch.randn(shape, generator=generator, dtype=torch.float64).to(values[number])
            part = parts[name][number]
            total = total + (part[: shape[0]] if part.shape != shape else part).mul(weights).sum()
    return total


def _of(parameters: dict[str, Tensor], objective: Tensor) -> dict[str, Tensor | None]:
    found = torch.autograd.grad(objective, list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, found, strict=True))


def _apart(mine: Tensor | None, other: Tensor | None) -> float:
    """Largest difference; overwrites `other`. One that has none, or is no number, is infinitely far."""
    if mine is None or other is None:
        return 0.0 if mine is other else float("inf")
    return _largest(other.sub_(mine))


def _largest(values: Tensor) -> float:
    least, most = torch.aminmax(values)  # six times as fast as a norm
    largest = float(torch.maximum(-least, most))
    return math.inf if math.isnan(largest) else largest
