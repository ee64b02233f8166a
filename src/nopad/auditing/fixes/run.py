"""`find_fix`: try changes of a collator's batch and of the model, and return a small set with which the audit passes.

Cost: a whole audit without changes; then, for each set of changes, one run of at most four short sequences in float64,
and a whole audit if these get the right outputs. If no set helps, two more whole audits follow: with nopad's own
batches, and with one sequence per row. There are at most 80 sets, and usually far fewer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from nopad.auditing.alone import Alone
from nopad.auditing.comparison import same_outputs
from nopad.auditing.failure import ModelFailedError, inside_model
from nopad.auditing.fixes.changes import (
    OURS,
    PADDED,
    Changed,
    Layout,
    changed_model,
    groups_for,
    nopads_own,
    sets_of,
    trying,
)
from nopad.auditing.fixes.fix import Change, Fix
from nopad.auditing.limits import apart
from nopad.auditing.run import audit
from nopad.auditing.shortened import shortened
from nopad.auditing.shown import tokens_of
from nopad.auditing.steps.examples import shifts_labels
from nopad.auditing.subject import subject_of
from nopad.auditing.tokens import Tokens
from nopad.auditing.trial import Collator, Trial
from nopad.auditing.verdict import Verdict
from nopad.errors import BatchError, NopadError, OptionError
from nopad.model.safety import bare, is_packed
from nopad.store.monitor import Monitor, Silent

__all__ = ["find_fix", "is_causal"]

SHORT, LONG = 16, 64  # capacities of the sequences tried first, and of those whose layout is looked at


def find_fix(
    model: Any,
    *,
    collator: Collator,
    capacity: int | None = None,
    layers: int | None = None,
    gradients: bool = True,
    seed: int = 0,
    monitor: Monitor | None = None,
) -> Fix:
    """Find a few changes of your own collator or model with which `nopad.audit` passes.

    Each change is a few lines of code for the collator (position_ids, a block-diagonal mask, no mask, no cache, ...) or
    for the model (its attention implementation). They run on the collator's batches and on copies of the model: first
    single changes, then two and three together. The first set with which the whole audit passes is returned. If there
    is none, nopad's own batches are tried, then batches with one sequence per row.

    Args:
        model: a transformers model that is not pack-safe; only copies of it are changed.
        collator: any function from features (dicts with ``input_ids``) to the arguments of a forward call.
        capacity: length of the longest sequence that the audits try; None: chosen as in `nopad.audit`, mostly 64.
        layers: use a copy with only the first `layers` layers; None: all layers.
        gradients: also compare the gradients of the parameters in the audits.
        seed: random seed of the tokens.
        monitor: object that is told which set of changes is tried (see `nopad.store.monitor`); None: no progress is
            shown.

    Returns:
        A `nopad.auditing.Fix`. If its `changes` are empty, either the audit passes without any (`Fix.found` is true),
            or no changes help.

    Raises:
        BatchError: the collator fails, or cuts, drops or changes sequences, or adds tokens; code that runs after the
            collator cannot mend this.
        OptionError: the model is pack-safe already, `collator` is None, or an option is one that `nopad.audit` refuses.
        UnsupportedModelError: the model cannot be cut to its first layers, or does not say which module embeds its
            ``input_ids``.

    One change is enough for this model and collator, a mask that keeps sequences apart:

    >>> import nopad.auditing
    >>> from transformers import BertConfig, BertModel, DataCollatorWithFlattening
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> fix = nopad.auditing.find_fix(
    ...     BertModel(BertConfig(**sizes)), collator=DataCollatorWithFlattening(return_tensors="pt")
    ... )
    >>> [change.name for change in fix.changes]
    ['block-diagonal attention_mask']
    """
    if is_packed(model):
        raise OptionError("this model is pack-safe, and a fix is for others; undo it first with nopad.unpacked(model)")
    if collator is None:
        raise OptionError("there is no collator to mend; nopad's own batches are audited by nopad.audit(model)")
    asked: dict[str, Any] = {"capacity": capacity, "gradients": gradients, "seed": seed}
    before = audit(model, collator=collator, layers=layers, **asked)
    if before.isolated:
        return Fix(changes=(), verdict=before, tried=0)
    model = model if layers is None else shortened(model, layers)
    tried, monitor = 0, monitor or Silent()
    with ExitStack() as stack, torch.random.fork_rng(devices=[]):
        quick = _Quick(model, collator, seed, stack)
        sets = list(quick.sets())
        for changes in sets:
            tried += 1
            monitor.stage(trying(tried, len(sets) + 2), None, "")
            if quick.passes(changes):
                verdict = _audited(model, collator, changes, asked)
                if verdict is not None and verdict.isolated:
                    return Fix(changes=changes, verdict=verdict, tried=tried)
    for last in (nopads_own(shifts_labels(model)), PADDED):
        tried += 1
        monitor.stage(trying(tried, len(sets) + 2), None, "")
        verdict = _audited(model, collator, (last,), asked)
        if verdict is not None and verdict.isolated:
            return Fix(changes=(last,), verdict=verdict, tried=tried)
    return Fix(changes=(), verdict=before, tried=tried)


def _audited(model: Any, collator: Collator, changes: Sequence[Change], asked: dict[str, Any]) -> Verdict | None:
    """Return the verdict of the whole audit with `changes`; None: they cannot be made on this model or batch.

    `asked` holds the further arguments of `audit`, such as `capacity`, by name.
    """
    try:
        if changes[0].name == OURS:
            return audit(model, **asked)
        changed = model
        if any(change.where == "model" for change in changes):
            changed = copy.deepcopy(bare(model))
            changed_model(changed, changes)
        return audit(changed, collator=Changed(collator, changes, changed), **asked)
    except (NopadError, ValueError, ImportError, AttributeError):  # an attention that this model does not have, say
        return None


class _Quick:
    """A quick test of changes, before a whole audit.

    It runs at most four short sequences in float64, packed and alone, and compares their outputs, but no gradients.
    """

    def __init__(self, model: Any, collator: Collator, seed: int, stack: ExitStack) -> None:
        self.model, self.collator, self.seed, self.stack = model, collator, seed, stack
        self.alone: dict[tuple[str, ...], Alone | None] = {}

    def sets(self) -> Iterator[tuple[Change, ...]]:
        """Yield the sets of changes to try, the smallest first; none if the model does not run on a sequence alone."""
        alone = self._alone(())
        if alone is None:
            return
        trial = alone.trial
        drawn = Trial.drawn(trial.model, self.collator, LONG, self.seed, _tokens(trial.model))
        try:
            batch, places = drawn.batch(drawn.forms[-1], drawn.sequences)
        except BatchError:
            batch, places = trial.batch(trial.forms[-1], trial.sequences)
        layout = Layout.of(batch, places)
        yield from sets_of(groups_for(self.model, batch, layout, is_causal(trial)))

    def passes(self, changes: Sequence[Change]) -> bool:
        """Return whether packed sequences have the outputs that they have alone, with these changes.

        The result is False too if the model or the collator fails with them.
        """
        key = tuple(change.code for change in changes if change.where == "model")
        alone = self._alone(key)
        if alone is None:
            return False
        changed = copy.copy(alone)
        changed.trial = replace(alone.trial, collator=Changed(self.collator, changes, alone.trial.model))
        try:
            return same_outputs(changed, torch.float64)
        except (ModelFailedError, BatchError):
            return False

    def _alone(self, lines: tuple[str, ...]) -> Alone | None:
        """Return the outputs of each sequence alone, from a copy of the model on which these `lines` of code were run.

        The result is None if the lines or the copy fail. Results are kept, one for each tuple of lines.
        """
        if lines not in self.alone:
            self.alone[lines] = None
            try:
                subject = self.stack.enter_context(subject_of(self.model, torch.float64, safe=False))
                with inside_model("a change of the model"):
                    changed_model(subject, [Change("", "", line, "model") for line in lines])
                trial = Trial.drawn(subject, self.collator, SHORT, self.seed, _tokens(subject), 4)
                self.alone[lines] = Alone(trial, False)
            except ModelFailedError:
                return None
        return self.alone[lines]


def _tokens(model: Any) -> Tokens:
    return tokens_of(model).for_collators()


def is_causal(trial: Trial) -> bool:
    """Return whether the model is causal: the first token's outputs do not change when the last token is replaced.

    This is tried on the longest sequence. The result is False if no output has values per token.
    """
    longest = max(range(len(trial.sequences)), key=lambda number: len(trial.sequences[number]))
    mine, plain = trial.sequences[longest], trial.others[longest]
    other = [*mine[:-1], next((token for token in plain if token != mine[-1]), mine[-1])]
    with torch.no_grad():
        first, second = (replace(trial, sequences=[ids], others=[ids], targets=None).alone(0) for ids in (mine, other))
    shared = [name for name in first if first[name].dim() > 2 and name in second]
    return bool(shared) and all(apart(first[name][0, 0], second[name][0, 0]) == 0 for name in shared)
