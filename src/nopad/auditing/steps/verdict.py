"""`StepVerdict`: the result of auditing a step, with loss, denominators, gradients per module and a diagnosis."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nopad.auditing.junit import Failure, junit
from nopad.auditing.verdict import Check, lines_of, short
from nopad.wording import finite

__all__ = ["Finding", "MicroBatch", "ModuleGradients", "StepVerdict"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a step.

    Attributes:
        kind: a short name, such as "mean of means"; `nopad.auditing.steps` lists them all.
        text: a description of the error, with the measured values.

    >>> from nopad.auditing import Finding
    >>> Finding("mean of means", "the loss equals the mean over labelled items within each micro-batch").kind
    'mean of means'
    """

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One micro-batch of the step that was audited.

    Attributes:
        rank, micro: number of its rank, and its own number on this rank, both from 0.
        sequences: number of sequences that the collator was given for it.
        rows: number of rows of its input_ids; None: unknown.
        items: number of its labelled tokens, or of its sequences with a label, that a right loss counts.
        loss: the loss on which ``backward()`` was called; NaN if none was computed.
    """

    rank: int
    micro: int
    sequences: int
    rows: int | None
    items: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class ModuleGradients:
    """Gradients of a module's parameters in the step and for the sequences alone, compared as two vectors.

    Attributes:
        name: name of the module: a layer, or a module outside the layers.
        norm_alone, norm: norm of the module's gradient for the sequences alone, and in the step.
        cosine: cosine of the angle between the two gradients; NaN if either is zero or not finite.
        difference: norm of the difference of the two gradients, divided by `norm_alone`, but by no less than 1e-6 of
            the norm of the whole model's gradient for the sequences alone; infinite if a gradient is not finite.
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
        passed: whether loss, gradients, sequences and labels of the step all match the sequences alone.
        model: class name of the model.
        how: what was audited: collator, loss or trainer, and the numbers of ranks and micro-batches.
        per: "token" or "sequence": which mean is right.
        loss: loss of the step: the mean over ranks of the sum over micro-batches. It is computed in float64, or in the
            model's own dtype if the step does not run in float64; NaN if it is not finite or was not computed.
        loss_alone: the right loss, from the sequences alone; NaN if it was not computed.
        denominator: the right denominator of the loss: the number of labelled items or, if `per` is "sequence", of
            sequences with a label; NaN if it was not computed.
        denominator_used: the number by which the step divided; None: there is no single one, or it is unknown.
        batches: the micro-batches, rank by rank.
        modules: differences of gradients by module, in the model's order; computed in the same dtype as `loss`.
        first_difference: name of the first module whose output differs from the output for a sequence alone; None: no
            output differs, or modules were not compared.
        checks: all measurements.
        findings: what is wrong, the likeliest cause first; empty if nothing is.
        notes: remarks for the user, such as errors that this step cannot reveal.
        error: class name of the exception in the user's code that ended the audit; "": there was none.

    The seven sequences have 55 tokens; 48 of them count, since nothing predicts the first token of a sequence:

    >>> import nopad
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)))
    >>> rows = [{"input_ids": list(range(3, 3 + n)), "labels": list(range(3, 3 + n))} for n in (7, 3, 12, 5, 9, 4, 15)]
    >>> def collate(features):
    ...     return nopad.PackedBatch.from_features(features, causal=True)
    >>> verdict = nopad.audit_step(model, rows, collate)
    >>> verdict.passed, verdict.denominator, len(verdict.batches)
    (True, 48, 4)
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
        """The texts of all findings; "" if nothing is wrong."""
        return "; ".join(finding.text for finding in self.findings)

    @property
    def difference(self) -> float:
        """Relative difference of `loss` and the right loss; infinite if either could not be computed.

        The right loss is `loss_alone`. If the step does not run in float64, the right loss is instead computed in the
        model's own dtype.
        """
        return next((check.value for check in self.checks if check.name.endswith(" loss")), math.inf)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, `diagnosis`, `difference` and `outcome` as a dict of plain values, dicts and lists.

        Numbers that are not finite become None.
        """
        found: dict[str, Any] = finite(
            {**asdict(self), "diagnosis": self.diagnosis, "difference": self.difference, "outcome": self.outcome}
        )
        return found

    def to_json(self) -> str:
        """Return the result of `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def to_junit(self) -> str:
        """Return the verdict as JUnit XML for CI systems, as text; each check and each finding is one test case."""
        raised = self.error or "Exception"
        findings = [Failure(one.kind, one.text, raised if one.kind == "raised" else "") for one in self.findings]
        return junit(f"a step of {self.model}, {self.how}", self.checks, str(self), findings)

    @property
    def outcome(self) -> str:
        """The verdict in one word: "equal", "different", or "failed".

        It is "equal" if the step passed, "failed" if an exception in the user's code ended the audit, and "different"
        otherwise.
        """
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
        return "\n".join(
            [*lines, *lines_of(self.checks), *self._batches(), *self._table(), *(f"  {note}" for note in self.notes)]
        )

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
                f"  {m.name:<{width}}  {m.norm_alone:9.3e}  {m.norm:9.3e}  {m.cosine:12.9f}  {short(m.difference):>15}"
                for m in self.modules
            ),
        ]
