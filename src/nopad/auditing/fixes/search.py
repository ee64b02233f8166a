"""`Search`: find, with few audits, the changes that mend a training step, which may have several faults.

A change that removes a finding is kept, and the next change is chosen by what the audit finds then, since one fault may
hide another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nopad.auditing.fixes.changes import sets_of, trying
from nopad.auditing.fixes.fix import Change, Fix
from nopad.auditing.inputs import input_of
from nopad.auditing.steps import StepVerdict
from nopad.errors import NopadError
from nopad.store.monitor import Monitor

__all__ = ["Search"]

# How much of the rest a finding hides: what is wrong in the model hides what is wrong in the loss
HIDES = {"raised": 4, "contamination": 3, "head fed with rows": 3, "different from alone": 2, "unknown": 2}
IN_LOSS = ("labels of first tokens", "denominator", "denominator, summed by hand")
LABELS = ("label across a border", "first token counted")
OF_INPUT = {"positions": ("position_ids", "position_ids after padding_idx"), "token types": ("token_type_ids",)}
DEEP, PAIRS = 4, 2  # changes of a set that is built finding by finding, and of all others


class Search:
    """Tries sets of changes of a training step; each set is audited once.

    Attributes:
        audited: function that takes changes, audits the step with them, and returns the verdict.
        before: the verdict without changes; it did not pass.
        groups: the changes, in groups; at most one change of a group is made at a time. The changes of a collator run
            in the order of their groups.
        last: sets of changes that are tried last.
        monitor: object that is told which set is tried, to show progress.
        seen: the verdict for each set that was tried; None: these changes cannot be made in this step.
        most: number of single changes, pairs, and sets of `last`; the monitor shows it as the number of sets to try.
    """

    def __init__(
        self,
        audited: Callable[[Sequence[Change]], StepVerdict],
        before: StepVerdict,
        groups: Sequence[Sequence[Change]],
        last: Sequence[tuple[Change, ...]],
        monitor: Monitor,
    ) -> None:
        self.audited, self.before, self.groups, self.last, self.monitor = audited, before, groups, last, monitor
        self.seen: dict[tuple[Change, ...], StepVerdict | None] = {(): before}
        self.most = len(self._pairs()) + len(last)

    def fix(self) -> Fix:
        """Return a `Fix` whose changes make the step pass; none of them can be left out.

        There may be a smaller set of other changes that was not tried. If no set makes the step pass, the result has no
        changes, but the changes that remove most of what is wrong as `Fix.nearest`.
        """
        nearest: tuple[Change, ...] = ()
        for changes in self._sets():
            verdict = self._verdict(changes)
            if verdict is not None and verdict.passed:
                return self._needed(changes, verdict)
            if verdict is not None and _less(self._known(nearest), verdict):
                nearest = changes
        tried = len(self.seen) - 1
        if not nearest:
            return Fix(changes=(), verdict=self.before, tried=tried)
        return Fix(changes=(), verdict=self.before, tried=tried, nearest=nearest, nearly=self._nearly(nearest))

    def _sets(self) -> Iterator[tuple[Change, ...]]:
        """Yield the sets of changes to try; the caller stores each one's verdict in `seen` before it takes the next.

        First, a set is built by adding one change at a time, up to 4. In each round, all changes that could be added
        are tried, and the one that removes most of what is wrong is kept. A round ends early when a change removes
        something, and only labels or the loss can still be wrong. Then follow the single changes and pairs of `_pairs`
        that were not tried yet, and then the sets of `last`.
        """
        kept: tuple[Change, ...] = ()
        while len(kept) < DEEP:
            best: tuple[Change, ...] = ()
            for change in self._next(kept):
                changes = self._ordered((*kept, change))
                yield changes
                verdict = self.seen[changes]
                if verdict is None or not _less(self._known(kept), verdict):
                    continue
                if not best or _hidden(verdict) < _hidden(self._known(best)):
                    best = changes
                if _in_loss(verdict):
                    break
            if not best:
                break
            kept = best
        yield from (changes for changes in self._pairs() if changes not in self.seen)
        yield from self.last

    def _pairs(self) -> list[tuple[Change, ...]]:
        """Return the sets of one or two changes that may be tried.

        If only labels or the loss can be wrong, these are only changes of labels and loss.
        """
        groups = self.groups
        if _in_loss(self.before):
            groups = [[one for one in group if one.name in IN_LOSS] for group in groups]
        return list(sets_of([group for group in groups if group], PAIRS))

    def _next(self, kept: Sequence[Change]) -> list[Change]:
        """Return the changes that may be added to those `kept`, the most promising first.

        The findings of the audit with the changes in `kept` decide the order. If, by these findings, only labels or the
        loss can be wrong, the result has only changes of labels and loss.
        """
        verdict = self._known(kept)
        table = OF_INPUT.get(input_of(verdict.first_difference), ())
        in_loss = _in_loss(verdict)
        labels = bool(set(_kinds(verdict)) & set(LABELS))

        def order(change: Change) -> int:
            if change.name in IN_LOSS:
                return (0 if labels == (change.name == IN_LOSS[0]) else 1) if in_loss else 3
            return 1 if change.name in table else 2

        left = [change for group in self.groups if not set(group) & set(kept) for change in group]
        return sorted((change for change in left if not in_loss or change.name in IN_LOSS), key=order)

    def _ordered(self, changes: Sequence[Change]) -> tuple[Change, ...]:
        return tuple(change for group in self.groups for change in group if change in changes)

    def _known(self, changes: Sequence[Change]) -> StepVerdict:
        return self.seen[tuple(changes)] or self.before

    def _verdict(self, changes: tuple[Change, ...]) -> StepVerdict | None:
        if changes not in self.seen:
            number = len(self.seen)
            self.monitor.stage(trying(number, max(self.most, number)), None, "")
            try:
                self.seen[changes] = self.audited(changes)
            except (NopadError, ValueError, ImportError, AttributeError):  # these changes do not go with this step
                self.seen[changes] = None
        return self.seen[changes]

    def _needed(self, changes: tuple[Change, ...], verdict: StepVerdict) -> Fix:
        """Return the fix with those of `changes` that are needed: a change is left out if the step passes without it.

        Of the changes that remain, none can be left out. If `changes` is one of the sets in `last`, it stays whole.
        `verdict` is the verdict with all of `changes`.
        """
        at = 0
        while changes not in self.last and len(changes) > 1 and at < len(changes):
            fewer = changes[:at] + changes[at + 1 :]
            without = self._verdict(fewer)
            at += 1
            if without is not None and without.passed:
                changes, verdict, at = fewer, without, 0
        return Fix(changes=changes, verdict=verdict, tried=len(self.seen) - 1)

    def _nearly(self, nearest: Sequence[Change]) -> str:
        first, left = self.before.first_difference, self._known(nearest)
        removed = [kind for kind in _kinds(self.before) if kind not in _kinds(left)]
        gone = f"the finding at {first}" if first not in (None, left.first_difference) else ", ".join(removed)
        there = f" at {left.first_difference}" if left.first_difference else ""
        named = " and ".join(change.name for change in nearest)
        verb, these = ("remove", "these changes") if len(nearest) > 1 else ("removes", "this change")
        return f"{named} {verb} {gone}; what remains: {', '.join(_kinds(left))}{there}. Make {these}, then audit again"


def _in_loss(verdict: StepVerdict) -> bool:
    """Return whether only labels or the loss can be wrong: no finding says that an output of the model is wrong.

    A step that raises an exception, or has the finding "unknown", counts as one with wrong outputs.
    """
    return not set(_kinds(verdict)) & set(HIDES)


def _kinds(verdict: StepVerdict) -> list[str]:
    return list(dict.fromkeys(finding.kind for finding in verdict.findings))


def _less(before: StepVerdict, after: StepVerdict) -> bool:
    """Return whether less is wrong with a step in `after` than in `before`; both are verdicts of audits.

    The answer is True if the step passes in `after`. Otherwise the gravest finding of each verdict decides. An
    exception is the gravest. Next are one sequence that sees another, and a head that is fed with rows; then other
    wrong outputs; and last, findings on labels or the loss. If both are equally grave, a verdict is graver if the first
    module that differs in it embeds an input of the model. If this decides nothing either, the answer is whether
    a finding of `before` is gone in `after`, or is there at another module.
    """
    if after.passed:
        return True
    first, second = _hidden(before), _hidden(after)
    return second < first or (second == first and bool(set(_places(before)) - set(_places(after))))


def _hidden(verdict: StepVerdict) -> tuple[int, bool]:
    most = max((HIDES.get(finding.kind, 1) for finding in verdict.findings), default=1)
    return most, bool(input_of(verdict.first_difference))


def _places(verdict: StepVerdict) -> list[tuple[str, str | None]]:
    """Return a pair (kind, module) for each kind of finding in a verdict.

    The module is the name of the first one that differs. It is None for findings on labels and loss.
    """
    return [(kind, verdict.first_difference if kind in HIDES else None) for kind in _kinds(verdict)]
