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
from nopad.auditing.trial import Collator, Kinds, Trial, kinds_of, outputs, per_sequence
from nopad.auditing.verdict import Check
from nopad.model.attention import watched
from nopad.model.safety import bare

__all__ = ["Found", "apart", "compare", "largest_finite"]


@dataclass
class Found:
    """What was measured so far.

    Attributes:
        checks: with their numbers.
        worst: largest difference of an output.
        first: module whose output differs first; None: none does.
        truth: the gradients, if they were compared.
        kinds: which outputs are per token, and which per sequence.
        notes: what is good to know.
        attended: how often each layer asked nopad's attention, in the packed run.
    """

    checks: list[Check] = field(default_factory=list)
    worst: float = 0.0
    first: str | None = None
    truth: Truth | None = None
    kinds: Kinds = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    attended: dict[int, int] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        """Take over what another comparison measured."""
        self.checks += other.checks
        self.worst = max(self.worst, other.worst)
        self.first = self.first or other.first
        self.truth = self.truth or other.truth
        self.notes += [note for note in other.notes if note not in self.notes]


def compare(
    trial: Trial, form: str, collate: Collator, dtype: torch.dtype, gradients: bool, truth: Truth | None = None
) -> Found:
    """Run alone and packed, and compare outputs, and gradients where wanted; `truth` is what those are in float64."""
    out, label = Found(), named(dtype)
    batch, places = trial.batch(collate, trial.sequences)
    with torch.set_grad_enabled(gradients):
        alone = [outputs(trial.alone(sequence)) for sequence in trial.sequences]
        out.kinds = kinds_of(alone, trial.sequences)
        with watched(lambda module: out.attended.update({id(module): out.attended.get(id(module), 0) + 1})):
            given = trial.model(**batch)
        together = per_sequence(given, places, out.kinds)
    worst, scale = 0.0, 1e-30
    for name, parts in together.items():
        for part, single in zip(parts, alone, strict=True):
            worst = max(worst, _distance(part, single[name]))
            scale = max(scale, largest_finite(single[name]))
    of_rows = [name for name in outputs(given) if name in out.kinds and name not in together]
    if trial.collator is not None and "pooler_output" in of_rows and together:
        of_rows.remove("pooler_output")  # of a base model, whose states are what others use
        out.notes.append("pooler_output is not compared: it is a row's, and no sequence's")
    if of_rows or not together:
        worst = float("inf")
    limit = limit_of(worst / scale, dtype, trial.partly)
    detail = (
        f"{', '.join(of_rows)}: of a row, whatever is in it, and of no sequence" if of_rows else ", ".join(together)
    )
    check = Check(
        name=f"{label} outputs, {form}",
        passed=worst <= limit * scale,
        value=worst / scale,
        limit=limit,
        detail=detail or "the model gives nothing to compare",
    )
    out.worst, out.checks = worst, [check]
    if not check.passed:
        out.first = _first_difference(trial, collate, limit)
    if gradients and together:
        check, out.truth = compare_gradients(trial, alone, together, dtype, truth)
        out.checks.append(replace(check, name=f"{label} gradients, {form}"))
    return out


def _distance(packed_value: Tensor, alone: Tensor) -> float:
    """Largest difference; what is behind the end of a sequence (minus infinity) does not count."""
    wanted = alone[0]
    got = packed_value
    if got.shape != wanted.shape:
        got = got[: wanted.shape[0]] if got.dim() == wanted.dim() else got
    return float("inf") if got.shape != wanted.shape else apart(wanted, got)


def apart(before: Tensor, after: Tensor) -> float:
    """Largest difference; the same infinity in both is none, anything else that is not finite is infinite."""
    difference = (before - after).detach().abs().masked_fill((before == after).detach(), 0)
    return float(difference.max()) if bool(difference.isfinite().all()) else float("inf")


def largest_finite(values: Tensor) -> float:
    """Largest of the finite values, by magnitude; 0 where there is none."""
    finite = values.detach()[values.detach().isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


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
                trial.alone(sequence)
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
