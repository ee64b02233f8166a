"""`find_step_fix`: try changes of a training step's collator, model and loss, and name the fewest that mend it.

Cost: one audit of the step for each set of changes that is tried. What the audit found decides which are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from nopad.auditing.fixes.changes import (
    LOSS,
    OURS,
    SUMMED,
    Changed,
    Layout,
    changed_loss,
    changed_model,
    groups_for,
    nopads_own,
    sets_of,
    without_first_labels,
)
from nopad.auditing.fixes.fix import Change, Fix
from nopad.auditing.probes import find
from nopad.auditing.steps import StepVerdict, audit_step
from nopad.auditing.steps.examples import examples_of, shifts_labels
from nopad.auditing.steps.loop import Collate, Loss
from nopad.auditing.steps.quiet import inner
from nopad.batch import PackedBatch
from nopad.errors import FOREIGN, NopadError
from nopad.model.safety import bare, is_packed, packed

__all__ = ["find_step_fix"]

SEEN = ("contamination", "head fed with rows", "raised", "unknown")
COUNTED = ("mean of means", "wrong denominator", "wrong scale", "per sequence", "first token counted")
ACROSS = ("label across a border", "first token counted")
MOST = 2  # changes at a time


def find_step_fix(
    model: Any = None,
    sequences: Sequence[Mapping[str, Any]] | None = None,
    collate: Collate | None = None,
    loss: Loss | None = None,
    *,
    trainer: Any = None,
    **options: Any,
) -> Fix:
    """Find the fewest changes of collator, model and loss with which `nopad.audit_step` passes.

    As in `find_fix`, each change is a line of code, the lines are run on copies, and only changes with which the step
    passes are named. For a step there are two more: labels of first tokens, and the loss with one denominator. Two at a
    time are tried. Of a trainer, only the collator is changed; it is left as it was.

    Args:
        model: as in `nopad.audit_step`.
        sequences: as in `nopad.audit_step`.
        collate: as in `nopad.audit_step`.
        loss: as in `nopad.audit_step`.
        trainer: as in `nopad.audit_step`.
        options: further arguments of `nopad.audit_step`: ranks, accumulation, per, alone, causal, seed.

    Returns:
        A `nopad.auditing.Fix`. Without changes: the step passes as it is, if `Fix.found`, or nothing helps.

    Raises:
        OptionError, BatchError, LengthError: as `nopad.audit_step`.

    >>> import nopad.auditing
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)))
    >>> rows = [{"input_ids": list(range(3, 3 + n)), "labels": list(range(3, 3 + n))} for n in (7, 3, 12, 5, 9, 4, 15)]
    >>> def collate(features):
    ...     return nopad.PackedBatch.from_features(features, causal=True)
    >>> def mean_of_means(model, batch, step):
    ...     return model(**batch).loss / step.accumulation
    >>> nopad.auditing.find_step_fix(model, rows, collate, mean_of_means).changes[0].name
    'denominator'
    """
    step = _Step(model, sequences, collate, loss, trainer, options)
    before = step.audited(())
    if before.passed:
        return Fix(changes=(), verdict=before, tried=0)
    tried = 0
    for changes in step.sets(before):
        tried += 1
        try:
            verdict = step.audited(changes)
        except (NopadError, ValueError, ImportError, AttributeError):  # these changes do not go with this step
            continue
        if verdict.passed:
            return Fix(changes=changes, verdict=verdict, tried=tried)
    return Fix(changes=(), verdict=before, tried=tried)


class _Step:
    """A step that is audited with changes; the arguments are those of `find_step_fix`."""

    def __init__(
        self, model: Any, sequences: Any, collate: Any, loss: Any, trainer: Any, options: dict[str, Any]
    ) -> None:
        self.model, self.sequences, self.collate, self.loss = model, sequences, collate, loss
        self.trainer, self.options = trainer, options

    def audited(self, changes: Sequence[Change]) -> StepVerdict:
        """Audit the step with these changes."""
        if self.trainer is not None:
            with self._lent(changes):
                return audit_step(trainer=self.trainer, **self.options)
        if not changes:
            return audit_step(self.model, self.sequences, self.collate, self.loss, **self.options)
        loss = changed_loss(changes) or self.loss
        if any(change.name == OURS for change in changes):
            safe = self.model if is_packed(self.model) else packed(copy.deepcopy(self.model))
            return audit_step(safe, self.sequences, None, loss, **self.options)
        model = self.model
        if any(change.where == "model" for change in changes):
            model = copy.deepcopy(model)
            changed_model(model, changes)
        collate = self.collate or PackedBatch.from_features
        inside = any(change.where == "collator" for change in changes)
        return audit_step(
            model, self.sequences, Changed(collate, changes, model) if inside else self.collate, loss, **self.options
        )

    def sets(self, before: StepVerdict) -> Iterator[tuple[Change, ...]]:
        """Yield the sets of changes to try, the smallest first; `before` is the verdict without any."""
        kinds = {finding.kind for finding in before.findings}
        sample = self._sample()
        model = inner(self.trainer.model) if self.trainer is not None else self.model
        groups: list[list[Change]] = []
        if sample is not None:
            batch, layout = sample
            if kinds & set(SEEN) and not is_packed(model):
                groups += groups_for(model, batch, layout, shifts_labels(model))
            if kinds & {*ACROSS, *SEEN} and isinstance(batch.get("labels"), torch.Tensor) and shifts_labels(model):
                groups.append([without_first_labels(layout)])
        losses: list[Change] = []
        if self.trainer is None and kinds & {*COUNTED, *SEEN}:
            losses = [LOSS] * (self.loss is not None) + [SUMMED] * (not shifts_labels(model))
            groups = [losses, *groups] if losses else groups
        if self.trainer is not None:
            groups = [kept for group in groups if (kept := [change for change in group if change.where == "collator"])]
        yield from sets_of(groups, MOST)
        if self.trainer is None:
            ours = nopads_own(shifts_labels(model), is_packed(model))
            yield (ours,)
            yield from ((ours, loss) for loss in losses)

    def _sample(self) -> tuple[Mapping[str, Any], Layout] | None:
        """Return a batch of a few sequences and its layout; None: it cannot be had, or nopad made it."""
        if self.trainer is None:
            features, collate = list(self.sequences)[:4], self.collate
        else:
            data = getattr(self.trainer, "train_dataset", None)
            if data is None or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
                return None
            features, collate = [data[at] for at in range(min(len(data), 4))], self.trainer.data_collator
        if collate is None:
            return None
        try:
            batch = collate(copy.deepcopy(features))
            if isinstance(batch, PackedBatch) or not isinstance(batch, Mapping):
                return None
            return batch, Layout.of(batch, find(batch, [one.ids.tolist() for one in examples_of(features)]))
        except FOREIGN:  # a foreign collator may raise anything
            return None

    @contextmanager
    def _lent(self, changes: Sequence[Change]) -> Iterator[None]:
        """Inside this context, the trainer's collator has these changes."""
        own = self.trainer.data_collator
        if changes:
            self.trainer.data_collator = Changed(own, changes, bare(self.trainer.model))
        try:
            yield
        finally:
            self.trainer.data_collator = own
