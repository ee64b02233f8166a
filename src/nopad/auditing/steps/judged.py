"""Audit a step after collation: compare it with its sequences alone, in float64 and in the model's own dtype.

Only this module makes verdicts; an exception in the user's code also becomes a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nopad.auditing.failure import ModelFailedError
from nopad.auditing.limits import EXACT, LIMITS, PARTLY_SINGLE, named
from nopad.auditing.steps.compare import by_module, largest_difference
from nopad.auditing.steps.diagnose import Case, diagnosed
from nopad.auditing.steps.examples import Example, merged
from nopad.auditing.steps.found import Micro, looked_up
from nopad.auditing.steps.loop import Runner, whole_step
from nopad.auditing.steps.quiet import Exact, copied, inner, let_go, parameters_of, untouched
from nopad.auditing.steps.truth import Alone, Gradients, Truth
from nopad.auditing.steps.verdict import Finding, MicroBatch, ModuleGradients, StepVerdict
from nopad.auditing.verdict import Check
from nopad.errors import OptionError

__all__ = ["Plan", "failed", "judged"]

TIMES_ALONE = 4  # allowed rounding, relative to that of the sequences alone
EXPERTS = "the loss that balances experts is left out: it is of a whole batch, whatever shares it"
SINGLE = "some of this computes in float32 whatever the model's dtype, so the limit in float64 is 1e-05"


@dataclass
class Plan:
    """The step to audit, and the measurements so far.

    Attributes:
        model: the user's model; only copies of it run.
        micros: the micro-batches of all ranks, rank by rank.
        runner: computes the losses of the micro-batches, and their gradients.
        alone: the user's function for the losses of one sequence alone; None: the model's own loss.
        ranks, accumulation: number of ranks, and of micro-batches per rank.
        per: which mean is right: "token" or "sequence", as in `nopad.auditing.audit_step`.
        causal: whether a label is predicted by the token before it.
        seed: seed of torch's random numbers.
        how: what is audited, as text.
        notes: remarks for the user.
        ends: ids that end a text, besides those of the model's configuration.
        wide: whether, while the model runs in float64, casts to float32 and narrower dtypes are replaced by casts to
            float64. It becomes False if the user's code fails with this.
        checks: the measurements so far.
    """

    model: Any
    micros: list[Micro]
    runner: Runner
    alone: Alone | None
    ranks: int
    accumulation: int
    per: str
    causal: bool
    seed: int
    how: str
    notes: list[str]
    ends: frozenset[int] = frozenset()
    wide: bool = True
    checks: list[Check] = field(default_factory=list)

    def truth(self, dtype: torch.dtype | None, examples: Sequence[Example]) -> Truth:
        """Run the sequences `examples` alone in `dtype` (None: the model's own); return their losses and gradients.

        If `dtype` is float64 and `wide` is true, casts to narrower floats give float64 too. If the model or the user's
        function fails then, `wide` becomes False, and the sequences run again with ordinary casts. If this succeeds, a
        note is added.

        Raises:
            ModelFailedError: the model or the user's function raised an exception.
            OptionError: no sequence has a label.
            BatchError: the model gives no loss, or `alone` does not return losses.
        """
        made = copied(self.model, dtype, plain=True)
        exact = Exact(self.wide and dtype == torch.float64)
        try:
            with exact:
                torch.manual_seed(self.seed)
                return Truth.of(made, examples, self.per, self.causal, self.alone)
        except ModelFailedError:
            if not exact.wide:
                raise
        self.wide = False
        found = self.truth(dtype, examples)
        self.notes.append(SINGLE)
        return found

    def step(self, dtype: torch.dtype | None) -> tuple[list[float], Gradients, Exact]:
        """Run the step in `dtype` (None: the model's own).

        Returns:
            Three things: the loss of each micro-batch; the gradients of the step by parameter name; and the PyTorch
                mode in which it ran (`Exact`), which has recorded the random operations and the casts.

        Raises:
            ModelFailedError: the user's model, loss or trainer raised an exception.
        """
        made = copied(self.model, dtype, plain=False)
        exact = Exact(self.wide and dtype == torch.float64)
        try:
            losses, gradients = whole_step(made, self.micros, self.runner, self.ranks, exact, self.seed)
        finally:
            let_go(made)
        return losses, gradients, exact


def judged(plan: Plan) -> StepVerdict:
    """Audit a training step whose batches are collated already, and return the verdict.

    Only copies of the model are run; the model itself does not change. An exception in the user's code becomes part of
    the verdict.

    Raises:
        OptionError: no parameter of the model is trained, no sequence has a label, or running a copy gave gradients to
            the model itself, such as by a hook that refers to it (`untouched`).
        BatchError: the model gives no loss for a sequence alone, or `Plan.alone` does not return losses.
    """
    with untouched(plan.model):
        return _compared(plan)


def _compared(plan: Plan) -> StepVerdict:
    if not parameters_of(inner(plan.model)):
        raise OptionError("no parameter of the model is trained (requires_grad), so a step would change nothing")
    plan.micros = [looked_up(micro, plan.causal) for micro in plan.micros]
    wanted = [one for micro in plan.micros for one in _wanted(micro, plan.causal)]
    found = [finding for micro in plan.micros for finding in micro.findings]
    plan.notes += dict.fromkeys(note for micro in plan.micros for note in micro.notes)
    if getattr(getattr(inner(plan.model), "config", None), "output_router_logits", False):
        plan.notes.append(EXPERTS)
    plan.checks.append(_whole(found))
    try:
        truth = plan.truth(torch.float64, wanted)
        odd = [number for number, value in enumerate(truth.sums) if not math.isfinite(value)]
        if odd:
            text = f"the loss of sequence {odd[0]} is {truth.sums[odd[0]]} even alone, so there is nothing to compare"
            return _verdict(plan, truth, [], [], None, [*found, Finding("not finite", text)])
        double, truth, (losses, gradients, exact) = _stepped(plan, truth, wanted)
        single = truth if double else plan.truth(None, wanted)
    except ModelFailedError as error:
        return failed(plan.model, plan.how, plan.per, error, found, plan)
    modules = by_module(single.gradients, gradients)
    limit = EXACT if plan.wide else PARTLY_SINGLE
    if double:
        loss = math.fsum(losses) / plan.ranks if all(map(math.isfinite, losses)) else math.nan
        plan.checks += _checks("float64", loss, truth, modules, limit, limit, [limit] * len(modules))
    else:
        _in_own_dtype(plan, (truth, single), (losses, modules), exact)
    if all(check.passed for check in plan.checks[-2:]):
        if double:
            _own_dtype(plan, wanted, truth, found)
        if exact.drawn:
            plan.notes.append(f"the model draws random numbers besides dropout ({', '.join(sorted(exact.drawn))})")
        _notes(plan, truth)
        return _verdict(plan, truth, losses, modules, None, found)
    found += [finding for micro in plan.micros for finding in micro.suspects]
    case = Case(plan.model, plan.micros, plan.runner, plan.alone, plan.ranks, plan.accumulation, plan.per, plan.causal)
    case.wanted, case.truth, case.losses, case.gradients = wanted, truth, losses, gradients
    case.wide, case.drawn, case.limit = plan.wide, sorted(exact.drawn), limit
    try:
        said = diagnosed(case)
    except ModelFailedError as error:
        said = [Finding("unknown", f"the cause was not found, for {error}")]
    if found and all(finding.kind == "unknown" for finding in said):
        return _verdict(plan, truth, losses, modules, case, [*found, *said])
    return _verdict(plan, truth, losses, modules, case, [*said, *found])


def _stepped(
    plan: Plan, truth: Truth, wanted: Sequence[Example]
) -> tuple[bool, Truth, tuple[list[float], Gradients, Exact]]:
    """Run the step, in float64 if possible.

    Returns three things: whether it ran in float64; the results of the sequences alone in float64; and a tuple of the
    loss of each micro-batch, the gradients of the step by parameter name, and the PyTorch mode in which it ran.
    `wanted` are the sequences on which the step should train, and `truth` has their results from before the step.

    Up to three ways are tried, each only if the user's code fails in the one before. First, casts to narrower floats
    give float64 (`Plan.wide`). Second, such casts give the narrower dtype; the sequences then run alone again, in the
    same way. Third, the step runs in the model's own dtype.

    Raises:
        ModelFailedError: the user's code fails in each of these ways, or nopad refuses the batch.
    """
    try:
        return True, truth, plan.step(torch.float64)
    except ModelFailedError as error:
        if error.refused:
            raise
    plan.wide = False
    try:
        found = plan.step(torch.float64)
    except ModelFailedError as error:
        dtype = next(plan.model.parameters()).dtype
        if dtype == torch.float64:
            raise
        own = plan.step(None)
        plan.notes.append(f"in {named(dtype)} only, where what is small does not show: in float64, {error}")
        return False, truth, own
    plan.notes.append(SINGLE)
    return True, plan.truth(torch.float64, wanted), found


def _own_dtype(plan: Plan, wanted: list[Example], truth: Truth, found: list[Finding]) -> None:
    """Compare the step with its sequences alone (`wanted`) in the model's own dtype too.

    `truth` has the results of the sequences alone in float64. A finding is added to `found` if the results differ, or
    if the step raises an exception. If the sequences alone do not run in this dtype, only a note is added to the plan.
    If the model's dtype is float64, nothing is done.
    """
    dtype = next(plan.model.parameters()).dtype
    if dtype == torch.float64:
        return
    try:
        single = plan.truth(None, wanted)
    except ModelFailedError as error:
        plan.notes.append(f"not audited in {named(dtype)}: {error}")
        return
    try:
        losses, gradients, exact = plan.step(None)
    except ModelFailedError as error:
        found.append(Finding("raised", f"in {named(dtype)}: {error}"))
        return
    modules = by_module(single.gradients, gradients)
    _in_own_dtype(plan, (truth, single), (losses, modules), exact)
    for check in plan.checks[-2:]:
        if not check.passed:
            found.append(Finding("own dtype", f"{check.name} differ by {check.value:.1e}, which float64 does not"))


def _in_own_dtype(
    plan: Plan, right: tuple[Truth, Truth], step: tuple[list[float], list[ModuleGradients]], exact: Exact
) -> None:
    """Add to `plan` the checks of the step in the model's own dtype, and a note if autocast widens their limit.

    `right` holds the results of the sequences alone: first in float64, then in the model's dtype. `step` holds results
    of the step in the model's dtype. These are the loss of each micro-batch, and how far each module's gradients differ
    from those of the sequences alone in this dtype. `exact` is the PyTorch mode in which the step ran; it has recorded
    the casts of autocast.
    """
    truth, single = right
    losses, modules = step
    dtype = next(plan.model.parameters()).dtype
    most = max(LIMITS.get(one, 1e-2) for one in (dtype, *exact.casts))
    if most > LIMITS.get(dtype, 1e-2):
        said = ", ".join(sorted(map(named, exact.casts)))
        plan.notes.append(
            f"the step computes in {said} too, as autocast does, so the limit in {named(dtype)} is {most:g}"
        )
    rounding = {one.name: one.difference for one in by_module(truth.gradients, single.gradients)}
    limits = [max(most, TIMES_ALONE * rounding[one.name]) for one in modules]
    loss = math.fsum(losses) / plan.ranks if all(map(math.isfinite, losses)) else math.nan
    mine = max(most, TIMES_ALONE * abs(single.loss - truth.loss) / truth.scale)
    plan.checks += _checks(named(dtype), loss, single, modules, mine, most, limits)


def _checks(
    dtype: str,
    loss: float,
    right: Truth,
    modules: list[ModuleGradients],
    loss_limit: float,
    limit: float,
    limits: list[float],
) -> list[Check]:
    apart = abs(loss - right.loss) / right.scale if math.isfinite(loss) else math.inf
    worst, where = largest_difference(modules)
    over = [one for one, most in zip(modules, limits, strict=True) if not one.difference <= most]
    if not over and worst > limit:
        limit, where = worst, f"{where}, where rounding does as much to the sequences alone"
    return [
        Check(name=f"{dtype} loss", passed=apart <= loss_limit, value=apart, limit=loss_limit),
        Check(name=f"{dtype} gradients", passed=not over, value=worst, limit=limit, detail=where),
    ]


def _whole(found: list[Finding]) -> Check:
    said = ", ".join(dict.fromkeys(finding.kind for finding in found))
    return Check(name="sequences and labels", passed=not found, value=len(found), limit=0, detail=said)


def _wanted(micro: Micro, causal: bool) -> Iterator[Example]:
    """Yield the sequences of a micro-batch as the step should train on them.

    * If the collator changes tokens, as masking does, each sequence in the batch is taken as it is there.
    * A sequence that was given without labels gets those that the collator made for it, unless the collator cut it.
    * If there are no such labels, and `causal` is true, the ids of the sequence become its labels.
    * All other sequences are taken as they were given to the collator.
    """
    changed = any("changed tokens" in note for note in micro.notes)
    for example, made in zip(micro.examples, micro.made, strict=True):
        whole = made is not None and made.labels is not None and len(made.ids) == len(example.ids)
        if made is not None and (changed or (example.labels is None and whole)):
            yield made
        elif example.labels is None and causal:
            yield example.with_columns({"labels": example.ids}, ["labels"])
        else:
            yield example


def _notes(plan: Plan, truth: Truth) -> None:
    """Add notes to `plan`: on errors that this step cannot reveal, even if it passes, and on harmless oddities.

    For example, a step in which no micro-batch holds two sequences cannot show whether one sees another.
    """
    if plan.causal:
        plan.notes += merged(plan.model, [one for micro in plan.micros for one in micro.examples], plan.ends)
    suspects = [finding for micro in plan.micros for finding in micro.suspects]
    plan.notes += [finding.text for finding in suspects if finding.kind == "tokens added"]
    if all(len(micro.examples) < 2 for micro in plan.micros):
        plan.notes.append("no micro-batch held two sequences, so none could see another: give more")
    counts: dict[tuple[int, int], int] = {}
    begin = 0
    for micro in plan.micros:
        counts[micro.rank, micro.number] = sum(truth.items[begin : begin + len(micro.examples)])
        begin += len(micro.examples)
    even = []
    for name, at in (("micro-batches", None), ("ranks", 0), ("accumulation steps", 1)):
        totals: dict[object, int] = {}
        for key, count in counts.items():
            group = key if at is None else key[at]
            totals[group] = totals.get(group, 0) + count
        if len(totals) > 1 and len(set(totals.values())) == 1:
            even.append(name)
    if even:
        said = ", ".join(even)
        plan.notes.append(
            f"equally many labels in all {said}, so a mean of means over these could not show: give others"
        )
    for micro in plan.micros:
        if micro.findings == [] and counts[micro.rank, micro.number] == 0:
            plan.notes.append(f"{micro.where} has no label")


def _verdict(
    plan: Plan,
    truth: Truth,
    losses: list[float],
    modules: list[ModuleGradients],
    case: Case | None,
    found: list[Finding],
) -> StepVerdict:
    begin, batches = 0, []
    for at, micro in enumerate(plan.micros):
        end = begin + len(micro.examples)
        batches.append(
            MicroBatch(
                rank=micro.rank,
                micro=micro.number,
                sequences=len(micro.examples),
                rows=None if micro.shape is None else micro.shape[0],
                items=sum(truth.items[begin:end]),
                loss=losses[at] if losses else math.nan,
            )
        )
        begin = end
    loss = math.fsum(losses) / plan.ranks if losses and all(map(math.isfinite, losses)) else math.nan
    passed = not found and all(check.passed for check in plan.checks) and bool(losses)
    return StepVerdict(
        passed=passed,
        model=type(inner(plan.model)).__name__,
        how=plan.how,
        per=plan.per,
        loss=loss,
        loss_alone=truth.loss,
        denominator=truth.denominator,
        denominator_used=float(truth.denominator) if passed else case.denominator if case else None,
        batches=tuple(batches),
        modules=tuple(modules),
        first_difference=case.first if case else None,
        checks=tuple(plan.checks),
        findings=tuple(found),
        notes=tuple(dict.fromkeys(plan.notes)),
    )


def failed(
    model: Any, how: str, per: str, error: ModelFailedError, found: list[Finding], plan: Plan | None = None
) -> StepVerdict:
    """Return the verdict of a step that was ended by an exception in the user's code, `error`.

    `found` are the findings until then. `model` is the user's model, `how` is text on what was audited, and `per` says
    which mean is right ("token" or "sequence"). If `plan` is given, its checks and notes are in the verdict too.
    """
    return StepVerdict(
        passed=False,
        model=type(inner(model)).__name__,
        how=how,
        per=per,
        loss=math.nan,
        loss_alone=math.nan,
        denominator=math.nan,
        denominator_used=None,
        batches=(),
        modules=(),
        first_difference=None,
        checks=tuple(plan.checks) if plan else (),
        findings=(*found, Finding("raised", str(error))),
        notes=tuple(plan.notes) if plan else (),
        error=error.kind,
    )
