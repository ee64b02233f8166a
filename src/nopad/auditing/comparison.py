"""Packed against alone: outputs, gradients, and the first module that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nopad.auditing.trial import Collator, Trial, outputs, per_sequence, run_alone
from nopad.auditing.verdict import Check
from nopad.model.safety import bare

__all__ = ["EXACT", "PARTLY_SINGLE", "Found", "compare"]

EXACT = 1e-12  # float64, of the largest value
PARTLY_SINGLE = 1e-5  # the same where the model itself computes some of it in float32
LIMITS = {torch.float64: EXACT, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass
class Found:
    """What was measured so far."""

    checks: list[Check] = field(default_factory=list)
    worst: float = 0.0
    first: str | None = None
    skipped: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Take over what another comparison measured."""
        self.checks += other.checks
        self.worst = max(self.worst, other.worst)
        self.first = self.first or other.first
        self.skipped += [name for name in other.skipped if name not in self.skipped]


def compare(trial: Trial, form: str, collate: Collator, dtype: torch.dtype, gradients: bool) -> Found:
    """Run alone and packed, and compare outputs, and gradients where wanted."""
    model, out = trial.model, Found()
    batch, places = trial.batch(collate, trial.sequences)
    label = str(dtype).removeprefix("torch.")
    with torch.set_grad_enabled(gradients):
        alone = [outputs(run_alone(model, sequence)) for sequence in trial.sequences]
        together = per_sequence(model(**batch), places)
    worst, scale = 0.0, 0.0
    for name, parts in together.items():
        for number, part in enumerate(parts):
            if name in alone[number]:
                worst = max(worst, _distance(part, alone[number][name]))
                scale = max(scale, float(alone[number][name].detach().abs().max()))
    limit = _limit(worst / max(scale, 1e-30), dtype)
    passed = worst <= limit * max(scale, 1e-30)
    out.worst = worst
    out.checks.append(
        Check(
            name=f"{label} outputs, {form}",
            passed=passed,
            value=worst / max(scale, 1e-30),
            limit=limit,
            detail=", ".join(together) or "no output that sequences have a part of",
        )
    )
    if not passed or not together:
        out.first = _first_difference(trial, collate, limit)
    if gradients:
        out.add(_gradients(trial, alone, together, label, form))
    return out


def _limit(measured: float, dtype: torch.dtype) -> float:
    """How near is near enough; models that compute partly in float32 even in float64 get that."""
    if dtype == torch.float64 and EXACT < measured <= PARTLY_SINGLE:
        return PARTLY_SINGLE
    return LIMITS.get(dtype, 1e-2)


def _distance(packed_value: Tensor, alone: Tensor) -> float:
    """Largest difference; what is behind the end of a sequence (minus infinity) does not count."""
    wanted = alone[0]
    got = packed_value
    if got.shape != wanted.shape:
        got = got[: wanted.shape[0]] if got.dim() == wanted.dim() else got
    if got.shape != wanted.shape:
        return float("inf")
    difference = (got - wanted).detach().abs()
    return float(difference.max()) if not difference.isnan().any() else float("inf")


def _largest(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values, torch.inf))


def _gradients(
    trial: Trial, alone: list[dict[str, Tensor]], together: dict[str, list[Tensor]], label: str, form: str
) -> Found:
    """Compare the gradients of one random weighing of all outputs."""
    out = Found()
    names = [name for name in together if name in alone[0]]

    def objective(parts: Callable[[int, str], Tensor]) -> Any:
        total: Any = 0
        for number in range(len(trial.sequences)):
            generator = torch.Generator().manual_seed(trial.seed * 1000 + number)
            for name in names:
                value = alone[number][name][0]
                weights = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
                part = parts(number, name)
                total = total + (part[: value.shape[0]] if part.shape != value.shape else part).mul(weights).sum()
        return total

    parameters = dict(trial.model.named_parameters())
    ways: list[Callable[[int, str], Tensor]] = [lambda n, name: alone[n][name][0], lambda n, name: together[name][n]]
    both: list[Any] = [
        torch.autograd.grad(objective(way), list(parameters.values()), allow_unused=True) for way in ways
    ]
    sizes = [0.0 if gradient is None else _largest(gradient) for gradient in both[0]]
    largest = max(sizes, default=0.0)
    worst, where = 0.0, ""
    for name, size, mine, other in zip(parameters, sizes, *both, strict=True):
        if mine is None or other is None:
            difference = 0.0 if mine is other else float("inf")
        else:
            difference = _largest(mine.sub_(other))
        zero = size <= largest * 1e-12  # in truth: a key's bias shifts all scores of a query alike
        if zero:
            out.skipped.append(name)
        relative = difference / max(largest if zero else size, 1e-30)
        if relative > worst:
            worst, where = relative, name
    limit = _limit(worst, torch.float64)
    out.checks.append(
        Check(
            name=f"{label} gradients, {form}",
            passed=worst <= limit,
            value=worst,
            limit=limit,
            detail=f"{len(parameters) - len(out.skipped)} tensors" + (f", most at {where}" if where else ""),
        )
    )
    return out


@contextmanager
def _traced(model: Any, trace: dict[str, Any], keep: Callable[[Tensor], Any]) -> Iterator[None]:
    """Keep the first tensor that each module gives, in the order in which modules finish."""
    handles = []

    def hook(name: str) -> Callable[..., None]:
        def after(_: nn.Module, args: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple | list) and output else output
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2:
                kept = keep(value.detach())
                if isinstance(kept, tuple):
                    trace.setdefault(name, {}).setdefault(*kept)
                elif kept is not None and name not in trace:
                    trace[name] = kept

        return after

    for name, module in bare(model).named_modules():
        if name:
            handles.append(module.register_forward_hook(hook(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_difference(trial: Trial, collate: Collator, limit: float) -> str | None:
    """Run again with hooks, and name the first module to finish whose outputs differ."""
    batch, places = trial.batch(collate, trial.sequences)
    single: dict[str, Any] = {}
    packs: dict[str, Any] = {}
    with torch.no_grad():
        for number, sequence in enumerate(trial.sequences):
            with _traced(trial.model, single, partial(_numbered, number)):
                run_alone(trial.model, sequence)
        with _traced(trial.model, packs, places.split):
            trial.model(**batch)
    for name, parts in packs.items():
        alone = single.get(name, {})
        for number, part in enumerate(parts):
            wanted = alone.get(number)
            if wanted is None or wanted.shape[1:] != part.shape:
                continue
            scale = max(float(wanted.abs().max()), 1e-30)
            if float((part - wanted[0]).abs().max()) > max(limit, 1e-9) * scale:
                return name
    return None


def _numbered(number: int, value: Tensor) -> tuple[int, Tensor]:
    return number, value
