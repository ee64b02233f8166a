"""`audit_step`: one real training step of a user's model, collator and loss, against its sequences alone.

Cost: the sequences forward and backward twice (alone, and in the step) in float64, and twice in the model's own dtype;
a step that differs costs up to four times as much, for the diagnosis. The model is copied, 8 bytes per parameter, twice
with gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from nopad.auditing.failure import ModelFailedError
from nopad.auditing.limits import EXACT, LIMITS, PARTLY_SINGLE, named
from nopad.auditing.steps.compare import by_module, largest_difference
from nopad.auditing.steps.diagnose import Case, diagnosed
from nopad.auditing.steps.examples import Example, examples_of, shifts_labels
from nopad.auditing.steps.found import Micro, looked_up
from nopad.auditing.steps.loop import Collate, Loop, Loss, Runner, as_trainer, collated, whole_step
from nopad.auditing.steps.quiet import Exact, copied, inner, let_go, untouched
from nopad.auditing.steps.truth import Alone, Gradients, Truth
from nopad.auditing.steps.verdict import Finding, MicroBatch, ModuleGradients, StepVerdict
from nopad.auditing.verdict import Check
from nopad.batch import PackedBatch
from nopad.errors import OptionError
from nopad.losses.checks import check_per
from nopad.options import Option

__all__ = ["audit_step"]

_RANKS = Option(default=2, low=1, high=64, help="ranks of the step")
_ACCUMULATION = Option(default=2, low=1, high=1024, help="micro-batches of a rank")
MOST = 4096  # sequences
TIMES_ALONE = 4  # allowed rounding, relative to that of the sequences alone


def audit_step(
    model: Any = None,
    sequences: Sequence[Mapping[str, Any]] | None = None,
    collate: Collate | None = None,
    loss: Loss | None = None,
    *,
    trainer: Any = None,
    alone: Alone | None = None,
    accumulation: int | None = None,
    ranks: int = 2,
    per: str = "token",
    causal: bool | None = None,
    seed: int = 0,
) -> StepVerdict:
    """Audit one training step: loss, denominators and gradients against the same sequences alone.

    The step runs on copies of the model, in float64 (casts to narrower floats give float64 too) and in its own dtype,
    in training mode with dropout off. Ranks take turns in this process: `torch.distributed`'s number of ranks,
    all_reduce and all_gather give what they would give, and gradients are averaged over ranks, as DDP does.

    Args:
        model: the model, as it is trained; a nopad model, a stock one, PEFT around either.
        sequences: the examples, one dict per sequence, as the dataset holds them: ``input_ids``, ``labels``, ...; at
            least one per micro-batch, better three. They are dealt in unequal numbers.
        collate: a list of them -> a batch; None: ``nopad.PackedBatch.from_features``.
        loss: ``(model, batch, step)`` or ``(model, batch)`` -> the scalar that the training loop calls ``backward()``
            on, divided by accumulation and multiplied by ranks if the loop does that; `step` is a
            `nopad.auditing.Step`. None: what transformers' Trainer computes.
        trainer: instead of all these, a transformers Trainer (TRL's and nopad's too), whose own collator, data,
            ``get_batch_samples`` and ``training_step`` are called for one step; it is left as it was.
        alone: what is right for one sequence, where that is not the model's own loss: ``(model, inputs)`` -> the losses
            of its items, ``[n]``; `inputs` are the example's columns as tensors ``[1, ...]``.
        accumulation: micro-batches of each rank; None: 2, or the trainer's.
        ranks: how many ranks; 1: no simulation.
        per: the mean that is right: "token", over all labelled items of the step; "sequence", over each sequence's
            items first.
        causal: whether labels are of the next token; None: as the model's own loss.
        seed: of what the model draws, dropout left out.

    Returns:
        A verdict; whatever the user's code raises is in it.

    Raises:
        OptionError: arguments contradict each other, there are too few sequences, or none has a label.
        BatchError: a sequence is no dict with ``input_ids``, or the model gives no loss of a sequence alone.
    """
    ranks = _RANKS.check("ranks", ranks)
    check_per(per)
    _check_functions({"alone": alone})
    if trainer is not None:
        given = {"model": model, "sequences": sequences, "collate": collate, "loss": loss}
        for name, value in given.items():
            if value is not None:
                raise OptionError(f"{name} and trainer are given; the trainer has its own: leave {name} out")
        if not hasattr(trainer, "training_step") or not hasattr(trainer, "get_batch_samples"):
            raise OptionError(f"trainer is {type(trainer).__name__}; give a Trainer of transformers, or one made of it")
        from nopad.auditing.steps.trainer import opened

        model = inner(trainer.model)
        causal = shifts_labels(model) if causal is None else causal
        if accumulation not in (None, trainer.args.gradient_accumulation_steps):
            raise OptionError(
                f"accumulation is {accumulation}, and the trainer's gradient_accumulation_steps is "
                f"{trainer.args.gradient_accumulation_steps}; leave accumulation out"
            )
        accumulation = int(trainer.args.gradient_accumulation_steps)
        with _random_kept():
            try:
                opening = opened(trainer, ranks)
                with opening as (micros, runner, how, notes):
                    plan = _Plan(model, micros, runner, alone, ranks, accumulation, per, causal, seed, how, notes)
                    return _judged(plan)
            except ModelFailedError as error:
                how = f"{type(trainer).__name__}, {_times(ranks, accumulation)}"
                return _failed(model, how, per, error, [])
    _check_given(model, sequences, {"collate": collate, "loss": loss})
    assert sequences is not None
    accumulation = _ACCUMULATION.check("accumulation", 2 if accumulation is None else accumulation)
    causal = shifts_labels(model) if causal is None else causal
    features = list(sequences)
    examples = examples_of(features)
    if len(examples) != len(features):
        raise OptionError("a dict has seq_lengths, so it holds several sequences; give one dict per sequence")
    collate = _nopad(causal) if collate is None else collate
    how = f"{_name(collate)}, {'as a Trainer' if loss is None else _name(loss)}, {_times(ranks, accumulation)}"
    with _random_kept():
        torch.manual_seed(seed)
        try:
            micros = collated(features, examples, collate, ranks, accumulation)
        except ModelFailedError as error:
            return _failed(model, how, per, error, [])
        loop = Loop(micros, loss or as_trainer, ranks, accumulation, shifts_labels(model))
        return _judged(_Plan(model, micros, loop, alone, ranks, accumulation, per, causal, seed, how, []))


def _check_given(model: Any, sequences: Any, functions: Mapping[str, Any]) -> None:
    """Refuse what cannot be audited, before anything runs."""
    if model is None or sequences is None:
        raise OptionError("give a model and sequences, or a trainer")
    if not isinstance(model, torch.nn.Module) or next(model.parameters(), None) is None:
        raise OptionError(f"model is {type(model).__name__}; give a torch module with parameters, as it is trained")
    if isinstance(sequences, str | Mapping) or not hasattr(sequences, "__len__") or not hasattr(sequences, "__iter__"):
        raise OptionError(f"sequences are {type(sequences).__name__}; give a list of dicts, one per sequence")
    if len(sequences) > MOST:
        raise OptionError(f"{len(sequences)} sequences are more than a step; give at most {MOST}, such as the first 16")
    _check_functions(functions)


def _check_functions(functions: Mapping[str, Any]) -> None:
    for name, value in functions.items():
        if value is not None and not callable(value):
            raise OptionError(f"{name} is {type(value).__name__}, which cannot be called; give a function")


@dataclass
class _Plan:
    """What is audited, and what is known of it so far."""

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
    wide: bool = True
    checks: list[Check] = field(default_factory=list)

    def truth(self, dtype: torch.dtype | None, examples: Sequence[Example]) -> Truth:
        """Run the sequences alone; in float64 with all casts wide, unless the model does not run like that."""
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
        self.notes.append("some of the model computes in float32 whatever its dtype, so the limit is 1e-05")
        return found

    def step(self, dtype: torch.dtype | None) -> tuple[list[float], Gradients, Exact]:
        """Take the step."""
        made = copied(self.model, dtype, plain=False)
        exact = Exact(self.wide and dtype == torch.float64)
        try:
            losses, gradients = whole_step(made, self.micros, self.runner, self.ranks, exact, self.seed)
        finally:
            let_go(made)
        return losses, gradients, exact


def _judged(plan: _Plan) -> StepVerdict:
    """Audit a step whose batches are made; the model itself is left as it is."""
    with untouched(plan.model):
        return _compared(plan)


def _compared(plan: _Plan) -> StepVerdict:
    plan.micros = [looked_up(micro, plan.causal) for micro in plan.micros]
    wanted = [one for micro in plan.micros for one in _wanted(micro, plan.causal)]
    found = [finding for micro in plan.micros for finding in micro.findings]
    plan.notes += dict.fromkeys(note for micro in plan.micros for note in micro.notes)
    plan.checks.append(_whole(found))
    try:
        truth = plan.truth(torch.float64, wanted)
        odd = [number for number, value in enumerate(truth.sums) if not math.isfinite(value)]
        if odd:
            text = f"the loss of sequence {odd[0]} is {truth.sums[odd[0]]} even alone, so there is nothing to compare"
            return _verdict(plan, truth, [], [], None, [*found, Finding("not finite", text)])
        losses, gradients, exact = plan.step(torch.float64)
    except ModelFailedError as error:
        return _failed(plan.model, plan.how, plan.per, error, found, plan)
    modules = by_module(truth.gradients, gradients)
    loss = math.fsum(losses) / plan.ranks if all(map(math.isfinite, losses)) else math.nan
    limit = EXACT if plan.wide else PARTLY_SINGLE
    plan.checks += _checks("float64", loss, truth.loss, modules, limit, limit, _limits(modules, limit))
    if all(check.passed for check in plan.checks[-2:]):
        _own_dtype(plan, wanted, truth, found)
        if exact.drawn:
            plan.notes.append(f"the model draws random numbers besides dropout ({', '.join(sorted(exact.drawn))})")
        _notes(plan, truth)
        return _verdict(plan, truth, losses, modules, None, found)
    case = Case(plan.model, plan.micros, plan.runner, plan.alone, plan.ranks, plan.accumulation, plan.per, plan.causal)
    case.wanted, case.truth, case.losses, case.gradients = wanted, truth, losses, gradients
    case.wide, case.drawn, case.limit = plan.wide, sorted(exact.drawn), limit
    try:
        said = diagnosed(case)
    except ModelFailedError as error:
        said = [Finding("unknown", f"the cause was not found, for {error}")]
    return _verdict(plan, truth, losses, modules, case, [*said, *found])


def _own_dtype(plan: _Plan, wanted: list[Example], truth: Truth, found: list[Finding]) -> None:
    """Compare in the model's own dtype too; a difference becomes a finding."""
    dtype = next(plan.model.parameters()).dtype
    if dtype == torch.float64:
        return
    try:
        single = plan.truth(None, wanted)
        losses, gradients, _ = plan.step(None)
    except ModelFailedError as error:
        found.append(Finding("raised", f"in {named(dtype)}: {error}"))
        return
    most = LIMITS.get(dtype, 1e-2)
    modules = by_module(single.gradients, gradients)
    rounding = {one.name: one.difference for one in by_module(truth.gradients, single.gradients)}
    limits = [max(most, TIMES_ALONE * rounding[one.name]) for one in modules]
    loss = math.fsum(losses) / plan.ranks if all(map(math.isfinite, losses)) else math.nan
    mine = max(most, TIMES_ALONE * abs(single.loss - truth.loss) / max(abs(truth.loss), 1e-300))
    plan.checks += _checks(named(dtype), loss, single.loss, modules, mine, most, limits)
    for check in plan.checks[-2:]:
        if not check.passed:
            found.append(Finding("own dtype", f"{check.name} differ by {check.value:.1e}, which float64 does not"))


def _checks(
    dtype: str,
    loss: float,
    right: float,
    modules: list[ModuleGradients],
    loss_limit: float,
    limit: float,
    limits: list[float],
) -> list[Check]:
    apart = abs(loss - right) / max(abs(right), 1e-300) if math.isfinite(loss) else math.inf
    worst, where = largest_difference(modules)
    over = [one for one, most in zip(modules, limits, strict=True) if not one.difference <= most]
    if not over and worst > limit:
        limit, where = worst, f"{where}, where rounding does as much to the sequences alone"
    return [
        Check(name=f"{dtype} loss", passed=apart <= loss_limit, value=apart, limit=loss_limit),
        Check(name=f"{dtype} gradients", passed=not over, value=worst, limit=limit, detail=where),
    ]


def _limits(modules: list[ModuleGradients], limit: float) -> list[float]:
    return [limit] * len(modules)


def _whole(found: list[Finding]) -> Check:
    said = ", ".join(dict.fromkeys(finding.kind for finding in found))
    return Check(name="sequences and labels", passed=not found, value=len(found), limit=0, detail=said)


def _wanted(micro: Micro, causal: bool) -> Iterator[Example]:
    """Return the sequences of a micro-batch as they should be trained on.

    That is as they were given; with the collator's labels, if there were none; masked, if the collator masks tokens.
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


def _notes(plan: _Plan, truth: Truth) -> None:
    """Say what a step that passed cannot have shown."""
    if all(len(micro.examples) < 2 for micro in plan.micros):
        plan.notes.append("no micro-batch held two sequences, so none could see another: give more")
    counts: dict[tuple[int, int], int] = {}
    begin = 0
    for micro in plan.micros:
        counts[micro.rank, micro.number] = sum(truth.items[begin : begin + len(micro.examples)])
        begin += len(micro.examples)
    if len(counts) > 1 and len(set(counts.values())) == 1:
        plan.notes.append("every micro-batch has equally many labels, so a mean of means could not show: give others")
    for micro in plan.micros:
        if micro.findings == [] and counts[micro.rank, micro.number] == 0:
            plan.notes.append(f"{micro.where} has no label")


def _verdict(
    plan: _Plan,
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


def _failed(
    model: Any, how: str, per: str, error: ModelFailedError, found: list[Finding], plan: _Plan | None = None
) -> StepVerdict:
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


@contextmanager
def _random_kept() -> Iterator[None]:
    """Leave torch's random numbers as they were."""
    with torch.random.fork_rng():
        yield


def _nopad(causal: bool) -> Collate:
    def from_features(features: list[Any]) -> PackedBatch:
        return PackedBatch.from_features(features, causal=causal)

    return from_features


def _times(ranks: int, accumulation: int) -> str:
    return f"{ranks} rank{'s' * (ranks > 1)} x {accumulation} micro-batch{'es' * (accumulation > 1)}"


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
