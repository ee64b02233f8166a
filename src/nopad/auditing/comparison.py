"""Packed against alone: outputs, gradients, and the first module that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nopad.auditing.gradients import Truth, compare_gradients
from nopad.auditing.limits import limit_of, named
from nopad.auditing.trial import Collator, Trial, outputs, per_sequence, run_alone
from nopad.auditing.verdict import Check
from nopad.model.safety import bare

__all__ = ["Found", "compare"]


@dataclass
class Found:
    """What was measured so far.

    Attributes:
        checks: with their numbers.
        worst: largest difference of an output.
        first: module whose output differs first; None: none does.
        truth: the gradients, if they were compared.
    """

    checks: list[Check] = field(default_factory=list)
    worst: float = 0.0
    first: str | None = None
    truth: Truth | None = None

    def add(self, other: Found) -> None:
        """Take over what another comparison measured."""
        self.checks += other.checks
        self.worst = max(self.worst, other.worst)
        self.first = self.first or other.first
        self.truth = self.truth or other.truth


def compare(
    trial: Trial, form: str, collate: Collator, dtype: torch.dtype, gradients: bool, truth: Truth | None = None
) -> Found:
    """Run alone and packed, and compare outputs, and gradients where wanted; `truth` is what those are in float64."""
    model, out = trial.model, Found()
    batch, places = trial.batch(collate, trial.sequences)
    label = named(dtype)
    with torch.set_grad_enabled(gradients):
        alone = [outputs(run_alone(model, sequence)) for sequence in trial.sequences]
        together = per_sequence(model(**batch), places)
    names = [name for name in together if name in alone[0]]
    worst, scale = 0.0 if names else float("inf"), 1e-30
    for name in names:
        for part, single in zip(together[name], alone, strict=True):
            worst = max(worst, _distance(part, single[name]))
            scale = max(scale, float(single[name].detach().abs().max()))
    limit = limit_of(worst / scale, dtype)
    passed = worst <= limit * scale
    out.worst = worst
    detail = ", ".join(names) or "no output has a part for each sequence: what it gives for a row is of all in it"
    out.checks.append(
        Check(name=f"{label} outputs, {form}", passed=passed, value=worst / scale, limit=limit, detail=detail)
    )
    if not passed:
        out.first = _first_difference(trial, collate, limit)
    if gradients and names:
        check, out.truth = compare_gradients(trial, alone, together, dtype, truth)
        out.checks.append(replace(check, name=f"{label} gradients, {form}"))
    return out


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
