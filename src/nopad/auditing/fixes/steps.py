"""`find_step_fix`: try changes of a training step's collator, model and loss, and name those that mend the step.

Cost: one audit of the step for each set of changes that is tried. What an audit finds decides what is tried next.
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
    without_first_labels,
)
from nopad.auditing.fixes.fix import Change, Fix
from nopad.auditing.fixes.search import Search
from nopad.auditing.probes import find
from nopad.auditing.steps import StepVerdict, audit_step
from nopad.auditing.steps.examples import examples_of, predicts_next, shifts_labels
from nopad.auditing.steps.loop import Collate, Loss
from nopad.auditing.steps.quiet import inner
from nopad.batch import PackedBatch
from nopad.errors import FOREIGN
from nopad.model.safety import is_packed
from nopad.store.monitor import Monitor, Silent

__all__ = ["find_step_fix"]


def find_step_fix(
    model: Any = None,
    sequences: Sequence[Mapping[str, Any]] | None = None,
    collate: Collate | None = None,
    loss: Loss | None = None,
    *,
    trainer: Any = None,
    monitor: Monitor | None = None,
    **options: Any,
) -> Fix:
    """Find a few changes of collator, model and loss with which `nopad.audit_step` passes.

    Each change is a few lines of code. There are those of `find_fix` (position_ids, a block-diagonal mask, no cache,
    ...) and two more: no label on the first token of each sequence, and a loss with one denominator for the step. They
    are tried on the collator's batches and on copies of the model. Only changes with which the whole step passes are
    returned; none of these can be left out.

    A change that removes a finding is kept, and what the audit finds then decides what is tried next, up to four
    changes. If these do not suffice, each change and each pair is tried (only those of labels and loss, if nothing else
    can be wrong), and at last nopad's own batches. If `trainer` is given, only changes of its collator are tried, and
    the trainer has its own collator again afterwards.

    Args:
        model: the model that you train; only copies of it are changed.
        sequences: the examples, one dict per sequence (``input_ids``, ``labels``, ...), as in `nopad.audit_step`.
        collate: function from a list of these dicts to a batch; None: ``nopad.PackedBatch.from_features``.
        loss: ``loss(model, batch, step)`` or ``loss(model, batch)``, the scalar on which the training loop calls
            ``backward()``; None: the loss that transformers' Trainer computes.
        trainer: a transformers Trainer, in place of the four arguments above.
        monitor: object that is told which set of changes is tried (see `nopad.store.monitor`); None: no progress is
            shown.
        options: further arguments of `nopad.audit_step`: `ranks`, `accumulation`, `per`, `alone`, `causal`, `seed`.

    Returns:
        A `nopad.auditing.Fix`. If its `changes` are empty, either the step passes without any (`Fix.found` is true), or
            no changes make it pass; then `Fix.nearest` has those that remove most of what is wrong.

    Raises:
        OptionError: `nopad.audit_step` refuses an argument, for example because there are too few sequences.
        BatchError: a sequence is not a dict with ``input_ids``, the model gives no loss for a sequence alone, or
            `alone` returns something other than losses.
        LengthError: a sequence has no tokens.

    The loss below is a mean of the micro-batches' means. The change that mends it gives the step one denominator:

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
    return Search(step.audited, before, step.groups(), step.last(), monitor or Silent()).fix()


class _Step:
    """A training step that is audited again and again, with changes of its collator, model or loss.

    It holds the arguments of `find_step_fix`: model, sequences, collator and loss, or a trainer; and, by name, the
    further arguments of `nopad.audit_step` (`options`).
    """

    def __init__(
        self, model: Any, sequences: Any, collate: Any, loss: Any, trainer: Any, options: dict[str, Any]
    ) -> None:
        self.model, self.sequences, self.collate, self.loss = model, sequences, collate, loss
        self.trainer, self.options = trainer, options
        self.causal = self._causal()

    def _causal(self) -> bool:
        """Return whether a label is predicted by the token before it, decided in the same way as in `audit_step`."""
        given = self.options.get("causal")
        if given is not None or self.trainer is not None:
            return shifts_labels(self._model()) if given is None else bool(given)
        return predicts_next(self.model, examples_of(self.sequences))

    def audited(self, changes: Sequence[Change]) -> StepVerdict:
        """Audit the step with these changes, which may be none, and return the verdict."""
        if self.trainer is not None:
            with self._lent(changes):
                return audit_step(trainer=self.trainer, **self.options)
        if not changes:
            return audit_step(self.model, self.sequences, self.collate, self.loss, **self.options)
        loss = changed_loss(changes) or self.loss
        if any(change.name == OURS for change in changes):
            from nopad.admitting import packed  # which audits models itself

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

    def groups(self) -> list[list[Change]]:
        """Return the changes that may help, in groups; at most one change of a group is made at a time.

        Changes of the collator run in the order of their groups. If a trainer is audited, only changes of the collator
        are returned.
        """
        sample, model = self._sample(), self._model()
        groups: list[list[Change]] = []
        if sample is not None:
            batch, layout = sample
            if not is_packed(model):
                groups += groups_for(model, batch, layout, self.causal)
            if isinstance(batch.get("labels"), torch.Tensor) and self.causal:
                groups.append([without_first_labels(layout)])
        if self.trainer is not None:
            return [kept for group in groups if (kept := [change for change in group if change.where == "collator"])]
        losses = self._losses()
        return [losses, *groups] if losses else groups

    def last(self) -> list[tuple[Change, ...]]:
        """Return the sets of changes that are tried last: nopad's own batches, alone and with each change of the loss.

        The list is empty if a trainer is given.
        """
        if self.trainer is not None:
            return []
        ours = nopads_own(self.causal, is_packed(self.model))
        return [(ours,), *((ours, loss) for loss in self._losses())]

    def _model(self) -> Any:
        return inner(self.trainer.model) if self.trainer is not None else self.model

    def _losses(self) -> list[Change]:
        return [LOSS] * (self.loss is not None) + [SUMMED] * (not self.causal)

    def _sample(self) -> tuple[Mapping[str, Any], Layout] | None:
        """Return the collator's batch of the first 4 sequences, and its layout.

        The result is None if there is no collator, if a trainer's dataset cannot be indexed, if the batch is a
        `PackedBatch` or no mapping, or if the collator fails, or the sequences are not found in its batch.
        """
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
        """Inside this context, the trainer's collator also makes these changes; afterwards, it is as before.

        Without changes, the collator stays as it is.
        """
        own = self.trainer.data_collator
        if changes:
            self.trainer.data_collator = Changed(own, changes, self.trainer.model)
        try:
            yield
        finally:
            self.trainer.data_collator = own
