"""`prove_wrapper`: audit a wrapper, and say which arguments it may get in packed calls, or why it is refused.

A wrapper is the user's own module (`nn.Module`) around one transformers model, its base.
"""

from __future__ import annotations

import copy
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from nopad.admitting.bad import check_forgets, check_modules, check_parts, check_rows_apart, check_steady
from nopad.admitting.following import WAY_OUT, Traced
from nopad.admitting.in_training import check_training
from nopad.admitting.judging import TYPES, Judge
from nopad.admitting.local import Run
from nopad.admitting.losses import with_labels
from nopad.admitting.modes import NoDropout
from nopad.admitting.probing import length_for
from nopad.admitting.proof import LONG, SHORT, audited, room_of, why
from nopad.admitting.substitute import NAME, Substitute, substitute
from nopad.auditing.failure import ModelFailedError, inside_model
from nopad.auditing.subject import subject_of
from nopad.auditing.verdict import Verdict
from nopad.errors import NopadError, UnsupportedModelError
from nopad.model.batchwide import check_experts
from nopad.model.safety import STATE, outermost, state_of, unpacked
from nopad.model.wrapper_parts import Admitted, accepted, bases_of, outer_modules
from nopad.model.wrappers import wrap

__all__ = ["WrapperProof", "prove_wrapper"]

log = logging.getLogger("nopad")

MakeBase = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class WrapperProof:
    """The result of a wrapper's proof: admitted, or refused with a reason.

    Attributes:
        model: name of the wrapper's class.
        kind: name of the class of its base, the model inside.
        admitted: which arguments packed calls may have, and what they return; None: the wrapper is refused.
        reason: why it is refused; "": it is admitted.
        how: how the small copy was made, in words.
        checks: number of checks in the audits.
        worst: largest absolute difference of an output between packed and alone, in float64.
        seconds: time that the proof took.
        remembered: whether the proof was read from a file.

    >>> from nopad.admitting.wrapping import WrapperProof
    >>> print(WrapperProof(model="Tagger", kind="BertModel", reason="it pools", seconds=0.4))
    Tagger (around BertModel): refused, in 0.4 s: it pools
    """

    model: str
    kind: str
    admitted: Admitted | None = None
    reason: str = ""
    how: str = ""
    checks: int = 0
    worst: float = 0.0
    seconds: float = 0.0
    remembered: bool = False

    def __str__(self) -> str:
        again = "remembered" if self.remembered else f"in {self.seconds:.1f} s"
        if self.admitted is None:
            return f"{self.model} (around {self.kind}): refused, {again}: {self.reason}"
        return (
            f"{self.model} (around {self.kind}): isolated, {again}: {self.checks} checks on {self.how}; largest "
            f"difference {self.worst:.1e}"
        )


def prove_wrapper(wrapper: Any, make: MakeBase) -> WrapperProof:
    """Return the proof of a wrapper, found on small copies; the wrapper itself is not run and not changed.

    `make` is a function that makes the base of a copy, the transformers model inside, pack-safe in place. If the
    wrapper is refused, no error is raised: `WrapperProof.reason` says why.
    """
    begin = time.perf_counter()
    base = next(iter(bases_of(wrapper).values()))
    name, kind, how = type(wrapper).__name__, type(base).__name__, ""
    with torch.random.fork_rng(devices=[]):
        try:
            _check(wrapper, base)
            small, how = substitute(wrapper, base)
            deep, _ = substitute(wrapper, base, every=True)
            with inside_model(f"probing a small copy of it ({how})"):
                try:
                    proof = _proven(small, deep, base.config, make)
                except NopadError as error:
                    proof = WrapperProof(model=name, kind=kind, reason=str(error))
        except (NopadError, ModelFailedError) as error:
            proof = WrapperProof(model=name, kind=kind, reason=str(error))
    said = re.sub(rf"\b{NAME}\.", "", proof.reason)
    return replace(proof, model=name, kind=kind, reason=said, how=how, seconds=time.perf_counter() - begin)


def _check(wrapper: Any, base: Any) -> None:
    """Check that a wrapper and its base are such that a proof on a small copy holds for them.

    Raises:
        UnsupportedModelError: the wrapper holds several models; one of its modules is a batch norm or an instance norm,
            or has quantised weights; it has experts of limited capacity; an adapter adds tokens to its input; its
            forward method is not that of its class; it has a `__call__` of its own; or the base has several parts.
        OptionError: its forward method takes no `input_ids`.
    """
    name, bases = type(wrapper).__name__, bases_of(wrapper)
    if len(bases) > 1:
        said = ", ".join(f"{key} ({type(one).__name__})" for key, one in bases.items())
        raise UnsupportedModelError(
            f"{name} holds several models, {said}, and nopad follows one; make each pack-safe, and call them one after "
            "another outside of it"
        )
    accepted(wrapper, base)
    for module in outer_modules(wrapper).values():
        outermost(module)  # refuses adapters that put tokens before each row
    check_experts(wrapper)
    check_modules(name, outer_modules(wrapper))
    check_parts(base)
    if "forward" in vars(wrapper) or type(wrapper).__call__ is not nn.Module.__call__:
        raise UnsupportedModelError(
            f"{name} has a forward method that is not its class's, or a __call__ of its own; use "
            "the forward method of the class"
        )


def _proven(small: Substitute, deep: Substitute, config: Any, make: MakeBase) -> WrapperProof:
    """Judge the small copies of a wrapper, and return its proof, without names and times.

    Args:
        small: the copy that is judged and audited.
        deep: a copy with all layers of the base, if one could be built and run. The wrapper's code is followed in this
            copy too, after the configuration of the copy's base got the values of `config`.
        config: the configuration of the wrapper's base.
        make: makes the base of a copy pack-safe, in place.

    Raises:
        UnsupportedModelError: a copy does not pass one of the checks. For example, a token's result depends on other
            tokens, or outputs in packs differ from those of each sequence alone.
    """
    with subject_of(small, torch.float64, False) as exact:
        check_steady(copy.deepcopy(exact))
        with NoDropout():
            check_forgets(exact)
            judge = Judge(exact)
            if True not in judge.alone:
                raise UnsupportedModelError(
                    f"{type(small).__name__} gives one sequence two results in training, by more than dropout: it "
                    "draws random numbers, so there is nothing to compare packs with"
                )
            for each in (small, deep):
                with subject_of(each, torch.float64, False) as followed:
                    traced = Traced.of(followed, judge.close)
                    if each is deep:  # by which code may decide
                        vars(followed.base.config).update(copy.deepcopy(vars(config)))
                    traced.check()
                    if each is small:
                        check_rows_apart(copy.deepcopy(exact), judge.close)
                        check_training(copy.deepcopy(exact))
                    traced.check_always()
            columns = traced.columns
            admitted = Admitted(columns=columns, sequences=traced.sequences, why="it takes none")
            safe = _safe(copy.deepcopy(exact), admitted, make)
            try:
                narrow = state_of(safe).family.narrow
                differs = judge.apart(safe, narrow) or (judge.with_types(safe, narrow) if TYPES in columns else "")
            finally:
                unpacked(safe)
            if differs:
                raise UnsupportedModelError(f"{differs}; {WAY_OUT}")
            if "labels" in accepted(small.wrapped, small.base):

                def safe_with(told: Admitted) -> Substitute:
                    return _safe(copy.deepcopy(exact), told, make)

                admitted = with_labels(
                    admitted, copy.deepcopy(exact), safe_with, partial(_labelled, exact, judge.close)
                )
    verdicts = _audited(small, admitted, make)
    failed = next((one for one in verdicts if not one.isolated), None)
    if failed is not None:
        raise UnsupportedModelError(f"{why(failed, 'module')}; {WAY_OUT}")
    return WrapperProof(
        model="",
        kind="",
        admitted=admitted,
        checks=sum(len(one.checks) for one in verdicts),
        worst=max(one.max_abs_diff for one in verdicts),
    )


def _labelled(exact: Substitute, close: float, kind: str, fill: int) -> Run:
    """Return a call of the wrapper in a copy of `exact`, with labels that are all `fill`, as a recorded `Run`.

    `kind` is the kind of loss: "tokens", "causal" or "classification". For "classification", the call is that of
    several sequences, with one label each. When the `Run` is repeated, the model inside the wrapper returns its
    recorded output. Differences of at most `close`, relative to an output's largest value, are rounding.
    """
    model = copy.deepcopy(exact)
    if kind != "classification":
        return Traced.of(model, close, labels=torch.full((1, length_for(model)), fill)).run()
    run = Traced.of(model, close, labels=torch.tensor([fill])).many()
    return replace(run, given={**run.given, "labels": torch.full((run.length,), fill)})


def _safe(made: Substitute, admitted: Admitted, make: MakeBase) -> Substitute:
    """Make the wrapper in a `Substitute` (small copy) pack-safe, in place; return the `Substitute`.

    `admitted` says which arguments the wrapper may get, and `make` makes the model inside pack-safe.
    """
    wrap(made.wrapped, admitted, make)
    object.__setattr__(made, STATE, vars(made.base)[STATE])
    return made


def _audited(small: Substitute, admitted: Admitted, make: MakeBase) -> list[Verdict]:
    """Return the verdicts of audits of a pack-safe copy of `small`: on short sequences and then on longer ones.

    The second audit is left out if the first fails, or if the model has too few positions for longer sequences.
    `admitted` says which arguments the wrapper may get, and `make` makes the model inside pack-safe.
    """
    safe = _safe(copy.deepcopy(small), admitted, make)
    room = room_of(safe.base, state_of(safe).family)
    return audited(safe, min(room, SHORT), min(room, LONG))
