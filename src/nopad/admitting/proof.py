"""`prove`: derive how a model of an unknown type can be run on packs, and audit this on a small copy.

What is derived is a `Family`, the facts about one model type (`nopad.model.families`).
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from nopad.admitting.bad import check_forgets, check_model, check_rows_apart, check_steady
from nopad.admitting.deriving import Derived, base_of, derive
from nopad.admitting.heads import head_for
from nopad.admitting.in_training import check_training
from nopad.admitting.judging import TYPES, Judge
from nopad.admitting.losses import check_numbers, why_no_labels
from nopad.admitting.small import deep_copy, own_parts, small_copy
from nopad.auditing.failure import ModelFailedError, inside_model
from nopad.auditing.run import audit
from nopad.auditing.subject import subject_of
from nopad.auditing.verdict import Verdict
from nopad.errors import NopadError, UnsupportedModelError
from nopad.model.admission import positions_of
from nopad.model.calls import parameters, takes
from nopad.model.families import FAMILIES, Family, family_of
from nopad.model.own import foreign, is_own_call
from nopad.model.safety import packed, unpacked
from nopad.model.wrapper_parts import COLUMNS, Admitted, label_names

__all__ = ["LONG", "SHORT", "Proof", "audited", "prove", "room_of", "why"]

log = logging.getLogger("nopad")

# Tokens of the longest sequence: in the first audit, and in the second one, which compares outputs only
SHORT, LONG = 64, 400
LOOPED = 110  # in the second audit, if the model computes token by token, which takes long
TINY, MANY = 24, 4000  # in the only audit, if a sequence of 29 tokens takes more than 4,000 operations
AUDITS = 3  # lines that are audited at most


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The result of a proof of a transformers model on a small copy: it is admitted, or refused with a reason.

    Attributes:
        kind: the model type, or the name of the class if the configuration has none.
        model: name of the model's class.
        admitted: whether the small copy passed the audit.
        family: the facts about the model type with which the model runs on packs; None: the model is refused.
        each: for each class of modules that mix tokens (move information between them), by the class's name: the list
            ``[modules, calls]``, the number of these modules in the copy and of their calls when the copy runs once.
            None: the model is refused.
        head: the kind of head, as `nopad.packed` takes it; None: the class is transformers' own, and nopad knows its
            head; or the model is refused.
        covers: which arguments packed calls may have; None: the class is transformers' own, or the model is refused.
        reason: why the model is refused; "": it is admitted.
        how: how the small copy was made, in words.
        checks: number of checks of the audits.
        worst: largest absolute difference of an output between packed and alone, in float64.
        seconds: how long the proof took.
        remembered: whether this was read from the cache.

    >>> from nopad.admitting import Proof
    >>> print(Proof(kind="mine", model="MyModel", admitted=False, reason="it draws random numbers", seconds=0.4))
    MyModel (mine): refused, in 0.4 s: it draws random numbers
    """

    kind: str
    model: str
    admitted: bool
    family: Family | None = None
    each: dict[str, list[int]] | None = None
    head: str | None = None
    covers: Admitted | None = None
    reason: str = ""
    how: str = ""
    checks: int = 0
    worst: float = 0.0
    seconds: float = 0.0
    remembered: bool = False

    def of(self, model: Any) -> Family:
        """Return the `Family` (facts about a model type) for `model`, which may have more layers than the small copy.

        `admitted` must be True.
        """
        assert self.family is not None
        return Derived(self.family, self.each or {}).of(model)

    def __str__(self) -> str:
        again = "remembered" if self.remembered else f"in {self.seconds:.1f} s"
        if not self.admitted:
            return f"{self.model} ({self.kind}): refused, {again}: {self.reason}"
        return (
            f"{self.model} ({self.kind}): isolated, {again}: {self.checks} checks on {self.how}; largest difference "
            f"{self.worst:.1e}"
        )


def prove(model: Any, head: str | None = None) -> Proof:
    """Derive and audit how a transformers model can be run on packs, on a small copy; return the `Proof`.

    The model itself is not run and not changed; it must have no wrappers, such as PEFT's. `head` is the kind of head
    that the user names; None: it is found out. If the model is refused, no error is raised: `Proof.reason` says why.
    """
    begin = time.perf_counter()
    kind = getattr(model.config, "model_type", "") or type(model).__name__
    name, how = type(model).__name__, ""
    with torch.random.fork_rng(devices=[]):
        try:
            check_model(model)
            small, how = small_copy(model)
            with inside_model(f"probing a small copy of it ({how})"):
                try:
                    proof = _proven(model, small, head)
                except NopadError as error:
                    proof = Proof(kind=kind, model=name, admitted=False, reason=str(error))
        except (NopadError, ModelFailedError) as error:
            proof = Proof(kind=kind, model=name, admitted=False, reason=str(error))
    return replace(proof, kind=kind, model=name, how=how, seconds=time.perf_counter() - begin)


def _proven(model: Any, small: Any, head: str | None) -> Proof:
    """Return a proof with the first `Family` (facts about a model type) that passes two tests.

    The first test is the comparison with the stock model (`Judge`), the second is the audit. At most 3 families are
    audited. `small` is the small copy. The proof still lacks the kind and name of the model.

    Raises:
        UnsupportedModelError: no `Family` passes, or no proof would be valid; the message names the reason.
    """
    with subject_of(small, torch.float64, False) as exact:
        fresh = copy.deepcopy(exact)
        check_steady(fresh)
        check_forgets(exact)
        judge = Judge(exact)
        check_rows_apart(fresh, judge.close)
        check_training(fresh)
        reasons: list[str] = []
        failures = 0
        for derived in _lines(model, fresh, judge.close):
            named = head if head is not None else head_for(fresh, derived.family.causal)
            line = derived.of(fresh)
            reason = judge.differs(line, named)
            covers = None if reason or named is None else _covered(fresh, line, named)
            log.debug(f"{line}: {reason or 'as alone'}")
            if reason:
                reasons.append(reason)
                continue
            verdicts = _audited(small, line, named, judge)
            failed = next((one for one in verdicts if not one.isolated), None)
            if failed is None:
                return Proof(
                    kind="",
                    model="",
                    admitted=True,
                    family=derived.family,
                    each=derived.each,
                    head=named,
                    covers=covers,
                    checks=sum(len(one.checks) for one in verdicts),
                    worst=max(one.max_abs_diff for one in verdicts),
                )
            reasons.insert(failures, why(failed))
            failures += 1
            if failures == AUDITS:
                break
    raise UnsupportedModelError(reasons[0] if reasons else "no line of the family table fits it")


def _covered(exact: Any, line: Family, head: str) -> Admitted:
    """Return which arguments packed calls of a model of the user's own class may have, and whether labels are accepted.

    `exact` is the small copy in float64, which is not run. It runs on packs with the facts `line` and this kind of
    `head`, and gives what each sequence gets alone. If the forward method is transformers' own, all its arguments are
    allowed, except labels.

    Raises:
        UnsupportedModelError: a number in the output, such as a loss, is on packs not that of the sequences in rows of
            their own (`check_numbers`).
    """
    made: list[Any] = []

    def make(model: Any) -> Any:
        made.append(packed(model, head=head, family=line))
        return model

    try:
        check_numbers(exact, make)
        why = why_no_labels(exact, head, make)
    finally:
        for one in made:
            unpacked(one)
    forward = type(exact).forward
    if is_own_call(forward):
        typed = getattr(exact.config, "type_vocab_size", 0)
        columns = tuple(one for one in COLUMNS if takes(exact, one) and (one != TYPES or typed))
    else:
        names = (*parameters(forward), *parameters(type(base_of(exact)).forward))
        columns = tuple(one for one in dict.fromkeys(names) if one not in label_names(head))
    return Admitted(columns, None if why else head, why)


def _lines(model: Any, exact: Any, close: float) -> Iterator[Derived]:
    """Yield each way in which a small copy could run on packs, as a `Derived`, the likeliest first.

    If nopad's tables have the model's type, and none of the user's own modules mixes tokens, the first one has the
    `Family` (facts about a model type) of the tables. All others are derived. `exact` is the small copy in float64. A
    model with classes of the user's own is probed in another copy instead, which has more layers (`deep_copy`). But
    `exact` is used if that copy cannot be made, or if the model was changed after it was built. Differences of at most
    `close`, relative to an output's largest value, are rounding.
    """
    kind = getattr(model.config, "model_type", "")
    deep = deep_copy(model) if foreign(model) and not own_parts(model) else None
    if deep is not None:
        with subject_of(deep, torch.float64, False) as exact:
            yield from derive(exact, close, family_of(model.config) if kind in FAMILIES else None)
        return
    yield from derive(exact, close, family_of(model.config) if kind in FAMILIES else None)


def _audited(small: Any, line: Family, head: str | None, judge: Judge) -> list[Verdict]:
    """Make a small model pack-safe with the facts `line`, audit it, and return the verdicts; then undo the change.

    The first audit has short sequences. If it passes, a second one has longer sequences, and compares no gradients. The
    second audit is left out if the model runs too many operations, or has too few positions for longer sequences.
    """
    packed(small, head=head, family=line)
    room = room_of(small, line)
    many = judge.operations > MANY
    short = min(room, TINY if many else SHORT)
    long = 0 if many else min(room, LOOPED if judge.looped else LONG)
    return audited(small, short, long)


def room_of(model: Any, family: Family) -> int:
    """Return the largest length of a sequence in an audit of a model: 400 tokens, or less if rows are limited.

    Rows are limited if they must not be longer than the model's number of positions (`Family.narrow`). Then the length
    is at most a third of this number, so that all sequences of the audit fit into one flat row.
    """
    limit = positions_of(model, family)
    return min(limit // 3, LONG) if family.narrow and limit is not None else LONG  # rows hold less than 3 times that


def audited(safe: Any, short: int, long: int) -> list[Verdict]:
    """Audit a pack-safe copy on sequences of up to `short` tokens, and then of up to `long`; return the verdicts.

    If `short` is 64, the first audit has the default capacity of `nopad.audit`, which is larger than 64 for some models
    with local attention. The second audit compares no gradients. It is left out if the first fails, or if `long` is at
    most `short`. At the end, the copy is not pack-safe any more.
    """
    try:
        found = [audit(safe, capacity=None if short == SHORT else short)]
        if found[0].isolated and long > short:
            found.append(audit(safe, capacity=long, gradients=False))
    finally:
        unpacked(safe)
    return found


def why(verdict: Verdict, part: str = "layer") -> str:
    """Return a sentence on the first check that failed, and on the first layer (or other `part`) that differs."""
    check = next(one for one in verdict.checks if not one.passed)
    where = f"; the first {part} that differs is {verdict.first_difference}" if verdict.first_difference else ""
    said = check.detail if check.error else f"{check.value:.1e}, at most {check.limit:.0e}"
    return f"its small copy does not pass the audit: {check.name}: {said}{where}"
