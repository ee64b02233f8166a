"""Find out why the loss or the gradients of a step differ from those of its sequences alone.

The sequences run alone, and from their losses the loss that each common mistake would give is computed. If the step's
loss equals one of these, that mistake is the cause. Otherwise, the first module whose output differs is looked for.
Losses that are not finite, and random numbers that are drawn besides dropout, are reported too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nopad.auditing.failure import ModelFailedError
from nopad.auditing.steps.compare import by_module
from nopad.auditing.steps.examples import Example
from nopad.auditing.steps.found import Micro
from nopad.auditing.steps.loop import Runner
from nopad.auditing.steps.quiet import Exact, copied, let_go
from nopad.auditing.steps.ranks import World
from nopad.auditing.steps.tracing import first_differences
from nopad.auditing.steps.truth import Alone, Gradients, Truth, borders, weighted
from nopad.auditing.steps.usual import Counted, Usual, matching, usual
from nopad.auditing.steps.verdict import Finding
from nopad.errors import FOREIGN, NopadError, OptionError
from nopad.sequences import IGNORED

__all__ = ["Case", "diagnosed"]

SAME = 1e-9  # relative difference up to which two float64 losses count as equal
ROUGHLY = 1e-5  # the same, if the model computes some results in float32


@dataclass
class Case:
    """A step whose loss or gradients differ from those of its sequences alone, with all measurements.

    Attributes:
        model: the user's model; only copies of it run.
        micros: the micro-batches of all ranks, rank by rank.
        runner: computes the losses of the micro-batches, and their gradients.
        alone: the user's function for the losses of one sequence alone; None: the model's own loss.
        ranks, accumulation: number of ranks, and of micro-batches per rank.
        per: which mean is right: "token" or "sequence".
        causal: whether a label is predicted by the token before it.
        wanted: the sequences on which the step should train, micro-batch by micro-batch.
        truth: the right loss and gradients, from the sequences alone; None: not computed.
        losses, gradients: loss of each micro-batch, and gradients of the step by parameter name.
        wide: whether the step ran with casts to float32 and narrower dtypes replaced by casts to float64.
        limit: largest relative difference that counts as equal.
        drawn: names of the operations, other than dropout, that drew random numbers.
        denominator: the number by which the sum of losses was divided; None: unknown, or there is no single one.
        first: name of the first module whose output differs; None: no output differs, or modules were not compared.
    """

    model: Any
    micros: list[Micro]
    runner: Runner
    alone: Alone | None
    ranks: int
    accumulation: int
    per: str
    causal: bool
    wanted: list[Example] = field(default_factory=list)
    truth: Truth | None = None
    losses: list[float] = field(default_factory=list)
    gradients: Gradients = field(default_factory=dict)
    wide: bool = True
    limit: float = 0.0
    drawn: list[str] = field(default_factory=list)
    denominator: float | None = None
    first: str | None = None


def diagnosed(case: Case) -> list[Finding]:
    """Return findings that explain why the step differs, the likeliest cause first.

    The case's attributes `denominator` and `first` are set to what is found.

    Raises:
        ModelFailedError: the model raised an exception on a sequence alone.
    """
    found = _not_finite(case)
    single = copied(case.model, torch.float64, plain=True)
    with Exact(case.wide):
        named = [] if found else _named(case, single)
        if not named or named[0].kind == "unknown":
            traced = _traced(case, single)
            named = [*traced, *(named if not traced else [])]
    found += named
    if case.drawn and not any(one.kind not in ("unknown", "contamination", "different from alone") for one in found):
        found.append(
            Finding("random", f"the step draws random numbers besides dropout: {', '.join(case.drawn)}; turn them off")
        )
    return found


def _not_finite(case: Case) -> list[Finding]:
    """Return a list with a finding for the first micro-batch whose loss is not finite; empty if there is none."""
    assert case.truth is not None
    begin = 0
    for micro, loss in zip(case.micros, case.losses, strict=True):
        end = begin + len(micro.examples)
        if not math.isfinite(loss):
            items = sum(case.truth.items[begin:end])
            why = "it has no label, and a mean of nothing is NaN" if not items else f"it has {items} labelled items"
            return [Finding("not finite", f"the loss of {micro.where} is {loss}: {why}")]
        begin = end
    return []


def _named(case: Case, single: Any) -> list[Finding]:
    """Find out which common mistake would give the step's loss; return findings on it, or a finding "unknown".

    The losses of the mistakes are computed for the sequences as given. If none matches, and the collator changed
    sequences or labels, these losses are computed again for the sequences as the collator left them. If the right loss
    is a sum of means, no mistake is tried.

    The list is empty if what the collator did explains the whole difference. `single` is a plain float64 copy of the
    model, on which sequences run alone.
    """
    assert case.truth is not None
    observed = math.fsum(case.losses) / case.ranks
    limit = SAME if case.wide else ROUGHLY
    made = [one for micro in case.micros for one in micro.made]
    left = any(micro.findings for micro in case.micros) and any(one is not None for one in made)
    kept = [one if left else wanted for one, wanted in zip(made, case.wanted, strict=True)]
    tried: list[Sequence[Example | None]] = [case.wanted, kept] if left else [case.wanted]
    if case.truth.further:  # the losses of common mistakes are known only for a single mean
        tried = []
    for examples in tried:
        counted = _counted(case, single, examples)
        if not any(one.items for one in counted):  # no label is left, so every mean is 0 or NaN
            if observed == 0:
                return []  # the dropped labels explain it
            continue
        values = usual(counted, case.ranks, case.accumulation, case.per)
        match = matching(observed, values, limit)
        if match is not None:
            return _explained(case, single, examples, match, of_left=examples is kept and left)
    assert case.truth.loss is not None
    ratio = observed / case.truth.loss if case.truth.loss else math.nan
    text = f"the loss is {ratio:.9g} times what it should be, and equals none of the usual mistakes"
    if case.alone is None and not any(micro.findings or micro.suspects for micro in case.micros):
        text += "; if it is not the model's own loss, say with alone= what a sequence alone gives"
    return [Finding("unknown", text)]


def _explained(
    case: Case, single: Any, examples: Sequence[Example | None], match: Usual, of_left: bool
) -> list[Finding]:
    """Return findings on `match`, the loss that equals that of the step, and set `case.denominator`.

    If `match` is the loss of a mistake, there is a finding on this mistake. If the step's gradients are not those of
    the mistake, one more finding says that they have another cause too. If `match` is the right loss (its `kind` is
    ""), the result is a finding "unknown", or an empty list if what the collator did explains the whole difference.

    Args:
        case: the step.
        single: a plain float64 copy of the model, on which sequences run alone.
        examples: the sequences for which the loss of `match` was computed.
        match: the loss that equals that of the step.
        of_left: whether `examples` are the sequences as the collator left them, not as they were given to it.
    """
    whole = [one for one in examples if one is not None]
    told = ""
    agree = True
    if match.weights is not None:
        weights = [weight for weight, one in zip(match.weights, examples, strict=True) if one is not None]
        right = weighted(single, whole, weights, case.causal, case.alone)
        agree = all(one.difference <= max(case.limit * 100, 1e-9) for one in by_module(right, case.gradients))
        told = ", and so do its gradients" if agree else ", but its gradients do not"
    case.denominator = match.denominator
    if not match.kind:
        if of_left and agree:
            return []  # what the collator did explains the whole difference
        if agree and not of_left:
            return [Finding("unknown", "the loss and gradients differ by more than rounding, and by no usual mistake")]
        return [Finding("unknown", "the loss is right, and its gradients are not")]
    of = "of what the collator left, " if of_left else ""
    said = f"{match.kind}: {of}the loss equals {match.text}{told}"
    if match.denominator is not None and case.truth is not None:
        said += f" (a denominator of {match.denominator:.10g}, not {case.truth.denominator})"
    finding = [Finding(match.kind, said)]
    return finding if agree else [*finding, Finding("unknown", "its gradients have another cause too")]


def _counted(case: Case, single: Any, examples: Sequence[Example | None]) -> list[Counted]:
    """Return a `Counted` for each sequence of the step: its loss, its numbers of tokens and labels, and its place.

    `examples` are the sequences whose losses are wanted; None stands for one that the collator dropped. If these losses
    are not known yet, the sequences run alone on `single`, a plain float64 copy of the model.
    """
    assert case.truth is not None
    if examples is case.wanted:
        sums, items = case.truth.sums, case.truth.items
    else:
        sums, items = _counts(case, single, examples)
    found, begin = [], 0
    for micro in case.micros:
        end = begin + len(micro.examples)
        rows = micro.rows() if micro.shape else [None] * len(micro.examples)
        crossing = _crossing(case, single, micro)
        seen: set[int | None] = set()
        for at in range(begin, end):
            made = micro.made[at - begin]
            row = rows[at - begin]
            labels = None if made is None or "labels" not in made.per_token else made.labels
            first = case.causal and labels is not None and int(labels[0]) != IGNORED
            fresh = row not in seen and row is not None
            seen.add(row)
            found.append(
                Counted(
                    total=sums[at],
                    items=items[at],
                    first=first,
                    border=crossing[at - begin],
                    tokens=0 if made is None else len(made.ids),
                    slots=micro.shape[1] if fresh and micro.shape else 0,
                    rank=micro.rank,
                    micro=micro.number,
                    row=-1 if row is None else row,
                )
            )
        begin = end
    return found


def _counts(case: Case, single: Any, examples: Sequence[Example | None]) -> tuple[list[float], list[int]]:
    """Run `examples` alone; return two lists: the sum of losses of each, and the number of its labelled items.

    An item is a token with a label, or a whole sequence with a label. A sequence that the collator dropped (None) has
    the sum 0 and no items. `single` is a plain float64 copy of the model, on which sequences run alone.
    """
    whole = [one for one in examples if one is not None]
    none = [0.0] * len(examples), [0] * len(examples)
    if case.alone is None and not any(one.items(case.causal) for one in whole):
        return none
    try:
        truth = Truth.of(single, whole, case.per, case.causal, case.alone)
    except OptionError:  # `alone` finds no label
        return none
    values = iter(zip(truth.sums, truth.items, strict=True))
    pairs = [(0.0, 0) if one is None else next(values) for one in examples]
    return [total for total, _ in pairs], [count for _, count in pairs]


def _crossing(case: Case, single: Any, micro: Micro) -> list[float | None]:
    """Return, for each sequence, the loss of predicting the label of its first token from the sequence right before it.

    The prediction is that of the last token of the sequence before it in the row. An entry is None if the first token
    has no label, or if no sequence ends right before it. All entries are None if labels are not predicted by the token
    before, if the batch has no ``input_ids`` or lacks a sequence, or if the losses cannot be computed. `single` is a
    plain float64 copy of the model, which computes the losses.
    """
    none: list[float | None] = [None] * len(micro.examples)
    if not case.causal or micro.shape is None or any(one is None for one in micro.made):
        return none
    try:
        return borders(single, [one for one in micro.made if one is not None], micro.before())
    except FOREIGN:  # such as of a model without logits per token
        return none


def _traced(case: Case, single: Any) -> list[Finding]:
    """Return findings for the first modules whose outputs differ, and set `case.first`.

    The micro-batches with the most sequences are searched first; the search ends at the first one in which an output
    differs. The list is empty if no output differs, or if an exception ends the search. `single` is a plain float64
    copy of the model, on which sequences run alone.
    """
    model = copied(case.model, torch.float64, plain=False)
    limit = SAME if case.wide else ROUGHLY * 10
    try:
        for micro in sorted(case.micros, key=lambda micro: -len(micro.examples)):
            world = World(case.ranks, micro.rank)

            def run(micro: Micro = micro, world: World = world) -> None:
                with world.open():
                    case.runner.take(model, micro, world)

            found = first_differences(micro, run, model, single, limit)
            if found:
                case.first = found[0][0]
                return [finding for _, finding in found]
    except (ModelFailedError, NopadError):
        return []
    finally:
        let_go(model)
    return []
