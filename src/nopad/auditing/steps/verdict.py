"""What an audit of a step finds: loss, denominators, gradients per module, and a diagnosis in words."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nopad.auditing.verdict import Check

__all__ = ["Finding", "MicroBatch", "ModuleGradients", "StepVerdict"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a step.

    Attributes:
        kind: a short name: "mean of means", "label across a border", ... (see `nopad.auditing.steps`).
        text: what was found, with numbers.
    """

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One micro-batch of the step that was audited.

    Attributes:
        rank, micro: whose it is, and which.
        sequences: how many sequences it was made of.
        rows: rows of its input_ids; None: not known.
        items: labelled tokens or sequences that a right loss counts.
        loss: what its loss gave, as it was differentiated.
    """

    rank: int
    micro: int
    sequences: int
    rows: int | None
    items: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class ModuleGradients:
    """Gradients of a module's parameters, of the step and of the sequences alone, as one vector each.

    Attributes:
        name: the module: a layer, or what is beside the layers.
        norm_alone, norm: length of either vector.
        cosine: of the angle between them; NaN if either is zero.
        difference: length of their difference, relative to that of the sequences alone.
    """

    name: str
    norm_alone: float
    norm: float
    cosine: float
    difference: float


@dataclass(frozen=True, kw_only=True)
class StepVerdict:
    """The result of `audit_step`.

    Attributes:
        passed: whether the step is what the sequences alone give.
        model: class name of the model.
        how: what was audited.
        per: "token" or "sequence": which mean is right.
        loss: what is differentiated: the mean over ranks of the sum over micro-batches, in float64 (in the model's own
            dtype, if the step does not run in that).
        loss_alone: the same of the sequences alone.
        denominator: labelled tokens or sequences by which the sum is to be divided.
        denominator_used: by what it was divided; None: by no single number, or not known.
        batches: the micro-batches.
        modules: gradients by module, in the dtype of `loss`, in the model's order.
        first_difference: the first module whose output differs from that of a sequence alone; None: no module's.
        checks: all measurements.
        findings: what is wrong, the likeliest cause first.
        notes: remarks.
        error: class name of an exception of the user's code that ended the audit; "": there was none.
    """

    passed: bool
    model: str
    how: str
    per: str
    loss: float
    loss_alone: float
    denominator: float
    denominator_used: float | None
    batches: Sequence[MicroBatch]
    modules: Sequence[ModuleGradients]
    first_difference: str | None
    checks: Sequence[Check]
    findings: Sequence[Finding]
    notes: Sequence[str] = ()
    error: str = ""

    @property
    def diagnosis(self) -> str:
        """What is wrong, in words; "": nothing."""
        return "; ".join(finding.text for finding in self.findings)

    @property
    def difference(self) -> float:
        """Relative difference of the losses, in float64 if the step runs in it; infinite if there is none."""
        return next((check.value for check in self.checks if check.name.endswith(" loss")), math.inf)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts and lists; numbers that are not finite become None."""
        found: dict[str, Any] = _plain(
            {**asdict(self), "diagnosis": self.diagnosis, "difference": self.difference, "outcome": self.outcome}
        )
        return found

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    @property
    def outcome(self) -> str:
        """The verdict in a word: "equal", "different", or "failed" (something raised an exception)."""
        return "equal" if self.passed else "failed" if self.error else "different"

    def __str__(self) -> str:
        said = {"equal": "equal to its sequences alone", "different": "DIFFERENT", "failed": "FAILED"}[self.outcome]
        lines = [f"a step of {self.model}, {self.how}: {said}"]
        lines += [f"  ✗ {finding.text}" for finding in self.findings]
        if not math.isnan(self.loss):
            used = "" if self.denominator_used is None else f", divided by {self.denominator_used:.10g}"
            per = "labelled items" if self.per == "token" else "sequences with a label"
            lines.append(
                f"  loss {self.loss:.12g}{used}; alone {self.loss_alone:.12g}, over {self.denominator:g} {per}"
            )
        width = max((len(check.name) for check in self.checks), default=0)
        lines += [
            f"  {'✓' if c.passed else '✗'} {c.name:<{width}}  {_short(c.value):>7}  (at most {_short(c.limit, 0)})"
            + (f"  {c.detail}" if c.detail else "")
            for c in self.checks
        ]
        return "\n".join([*lines, *self._batches(), *self._table(), *(f"  {note}" for note in self.notes)])

    def _batches(self) -> list[str]:
        if not self.batches:
            return []
        head = f"  {'rank':>4} {'micro':>5} {'sequences':>9} {'rows':>4} {'items':>6}  loss"
        return [
            head,
            *(
                f"  {b.rank:>4} {b.micro:>5} {b.sequences:>9} {'?' if b.rows is None else b.rows:>4} {b.items:>6}  "
                f"{b.loss:.10g}"
                for b in self.batches
            ),
        ]

    def _table(self) -> list[str]:
        if not self.modules:
            return []
        width = max(len("gradients of"), *(len(module.name) for module in self.modules))
        head = f"  {'gradients of':<{width}}  {'alone':>9}  {'step':>9}  {'cosine':>12}  {'rel. difference':>15}"
        return [
            head,
            *(
                f"  {m.name:<{width}}  {m.norm_alone:9.3e}  {m.norm:9.3e}  {m.cosine:12.9f}  {_short(m.difference):>15}"
                for m in self.modules
            ),
        ]


def _short(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}e}" if value else "0"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
