"""`prove_wrapper`: audit a module of one's own around a transformers model, and admit it or say what differs first."""

from __future__ import annotations

import copy
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from nopad.admitting.bad import check_forgets, check_modules, check_parts, check_rows_apart, check_steady
from nopad.admitting.in_training import check_training
from nopad.admitting.judging import Judge
from nopad.admitting.local import Run, backward_of_ones_own, crossing_outputs, first_crossing, varying
from nopad.admitting.modes import NoDropout
from nopad.admitting.probing import length_for
from nopad.admitting.substitute import NAME, Substitute, substitute
from nopad.admitting.wrapper_losses import with_labels
from nopad.auditing.failure import ModelFailedError, inside_model
from nopad.auditing.limits import apart, largest_finite
from nopad.auditing.run import audit
from nopad.auditing.subject import subject_of
from nopad.auditing.verdict import Verdict
from nopad.batch import Flat, PackedBatch, Rows
from nopad.errors import NopadError, UnsupportedModelError
from nopad.model.admission import positions_of
from nopad.model.batchwide import check_experts
from nopad.model.safety import STATE, outermost, state_of, unpacked
from nopad.model.wrappers import COLUMNS, PLAIN, Admitted, accepted, bases_of, leaves_of, outer_modules, wrap

__all__ = ["WAY_OUT", "WrapperProof", "prove_wrapper"]

log = logging.getLogger("nopad")

SHORT, LONG = 64, 400  # tokens of the longest sequence of an audit
SEQUENCES = (9, 14, 21, 27, 35, 39, 43, 47, 51, 55, 59)  # of a row with several; one is no size of a wrapper
WAY_OUT = (
    "return the states of the model inside and pool them with nopad.model.pooled, or run what mixes tokens on each "
    "sequence's states (batch.unpack_tokens)"
)
MakeBase = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class WrapperProof:
    """What is known of a wrapper: admitted, or refused with a reason.

    Attributes:
        model: name of the wrapper's class.
        kind: name of the class of the model inside.
        admitted: what packed calls may be given, and give; None: the wrapper is refused.
        reason: why it is refused; "": it is admitted.
        how: how the small copy was made, in words.
        checks: number of checks of the audits.
        worst: largest absolute difference of an output between packed and alone, in float64.
        seconds: time that it took.
        remembered: whether this was read from the cache.

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
    """Audit a small copy of a wrapper; the wrapper itself is not run and not changed.

    `make` makes a base of a copy pack-safe, in place.
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
    """Refuse what a proof would say nothing of.

    Raises:
        UnsupportedModelError: the wrapper holds several models; a module of it has a hook or a forward method of its
            own, statistics of a batch or quantised weights; or the base has several parts.
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
    """Judge a small copy; return its proof. The code is followed in `deep`, with the true `config`.

    Raises:
        UnsupportedModelError: what it gives depends on more than each token, or packs differ from alone.
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
            admitted = Admitted(columns=traced.columns, sequences=traced.sequences, why="it takes none")
            safe = _safe(copy.deepcopy(exact), admitted, make)
            try:
                differs = judge.apart(safe, state_of(safe).family.narrow) or _with_types(exact, safe, judge)
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
        raise UnsupportedModelError(f"{_why(failed)}; {WAY_OUT}")
    return WrapperProof(
        model="",
        kind="",
        admitted=admitted,
        checks=sum(len(one.checks) for one in verdicts),
        worst=max(one.max_abs_diff for one in verdicts),
    )


def _labelled(exact: Substitute, close: float, kind: str, fill: int) -> Run:
    """Return how to call the wrapper again, with its base held, and with labels that are all `fill`."""
    model = copy.deepcopy(exact)
    if kind != "classification":
        return Traced.of(model, close, labels=torch.full((1, length_for(model)), fill)).run()
    run = Traced.of(model, close, labels=torch.tensor([fill])).many()
    return replace(run, given={**run.given, "labels": torch.full((run.length,), fill)})


def _safe(made: Substitute, admitted: Admitted, make: MakeBase) -> Substitute:
    """Make a substitute pack-safe, in place; return it."""
    wrap(made.wrapped, admitted, make)
    object.__setattr__(made, STATE, vars(made.base)[STATE])
    return made


@dataclass
class Traced:
    """One call of a wrapper, with all that it and its base were given and gave.

    Attributes:
        model: the substitute, which was run.
        close: the largest relative change of an output that is rounding.
        tokens: the sequence.
        given: the wrapper's arguments.
        output: what it gave.
        base: what the base gave.
        calls: how often the base was called.
        sequences: whether some of what the wrapper gives has one entry per sequence.
    """

    model: Substitute
    close: float
    tokens: list[int]
    given: dict[str, Any]
    output: Any
    base: Any
    calls: int
    sequences: bool = False

    @classmethod
    def of(cls, model: Substitute, close: float, **more: Tensor) -> Traced:
        """Run a substitute on one sequence, with all columns that it takes and `more` arguments.

        `close` is the largest relative change of an output that is rounding.
        """
        wrapper, base, length = model.wrapped, model.base, length_for(model)
        size = model.config.get_text_config().vocab_size
        tokens = [(5 + 3 * at) % size for at in range(length)]
        made: list[Any] = []
        # Of a mapping a copy, since the wrapper may add to it.
        handle = base.register_forward_hook(lambda module, args, output: made.append(tree_map(_same, output)))
        given = {name: value for name, value in _columns(tokens).items() if name in accepted(wrapper, base)} | more
        try:
            with torch.no_grad():
                output = wrapper(**given)
        finally:
            handle.remove()
        return cls(model, close, tokens, given, output, made[0] if made else None, len(made))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the wrapper takes."""
        return tuple(name for name in COLUMNS if name in self.given)

    def run(self, **more: Any) -> Run:
        """Return how to call the wrapper again, with its base held."""
        base, length = self.model.base, len(self.tokens)
        return Run(self.model.wrapped, {**self.given, **more}, {base: self.base}, length, self.close, tuple(self.given))

    def check(self) -> None:
        """Check that each token's result depends on that token alone, and on what the base gives for it.

        Raises:
            UnsupportedModelError: it does not; the message names the first module that differs.
        """
        name, base = type(self.model).__name__, type(self.model.base).__name__
        if self.calls != 1:
            raise UnsupportedModelError(
                f"{name} calls the {base} inside {self.calls} times on one batch, and nopad follows one call of the "
                "whole of it; call it once, and compute from its states what you need"
            )
        # Zeros where other tokens are looked at, so that a mask that is read shows.
        masked = {"attention_mask": self._mask()} if "attention_mask" in self.given else {}
        run = self.run(**masked)
        crosses, handed, reads = self._followed(run)
        token = [one for one in crosses if tuple(one.shape[:2]) == (1, len(self.tokens))]
        odd = [full for full, one in self._own() if tuple(one.shape[:2]) != (1, len(self.tokens))]
        if handed:
            raise UnsupportedModelError(
                f"{name} gives {base} something that it computed of several tokens (ids, states or a mask of its own), "
                "in which nopad cannot keep sequences apart; hand input_ids and attention_mask on as they come"
            )
        if token or (odd and not self._of_sequences()):
            raise UnsupportedModelError(f"{self._first(run, odd)}; {WAY_OUT}")
        if reads:
            raise UnsupportedModelError(
                f"what {name} computes is not always the same: it reads numbers out of tensors, and may decide by "
                "them, so a proof on some sequences says nothing of others"
            )
        self.sequences = bool(odd)

    def check_always(self) -> None:
        """Check that the same is computed for rows of any length and number, and for any number of sequences.

        Raises:
            UnsupportedModelError: it is not; or gradients go through code that cannot be followed.
        """
        name = type(self.model).__name__
        for each in (self.run(), *([self.many()] if self.sequences else [])):
            varied, _ = varying(each, False, whole=True)
            if varied:
                raise UnsupportedModelError(
                    f"what {name} computes is not always the same: {varied}. A proof on some sequences says nothing "
                    "of others"
                )
        backward = backward_of_ones_own(self.run())
        if backward:
            raise UnsupportedModelError(
                f"{name} changes gradients by code of its own ({backward}), which cannot be followed; use functions of "
                "PyTorch, whose gradients are known"
            )

    def _of_sequences(self) -> bool:
        """Whether what is not per token comes of what the base gives per sequence, for each sequence by itself."""
        run = self.many()
        sizes = [one.shape for _, one in self._own() if tuple(one.shape[:2]) != (1, len(self.tokens))]
        if any(not size or size[0] != 1 for size in sizes):
            return False
        crosses, _, _ = self._followed(run)
        wanted = {(run.length, *size[1:]) for size in sizes}
        with torch.no_grad():
            made = [tuple(one.shape) for _, one in leaves_of(run.at(1, run.length)[1]) if isinstance(one, Tensor)]
        mixed = [one for one in crosses if tuple(one.shape[:2]) != (1, len(self.tokens))]
        return not mixed and all(size in made for size in wanted) and not any(tuple(size) in made for size in sizes)

    def many(self) -> Run:
        """Return how to call the wrapper on a row of several sequences, with its base held."""
        length, base = len(self.tokens), self.model.base
        many = next(one for one in SEQUENCES if one != length and not _has_size(self.model, one))

        def expanded(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.dim() or value.shape[0] != 1 or length in value.shape:
                return value
            # Each sequence gets something else, since equal entries could be exchanged.
            scale = torch.linspace(1, 2, many, dtype=torch.float64).reshape(-1, *[1] * (value.dim() - 1))
            return (value * scale).to(value.dtype)

        held = {base: tree_map(expanded, self.base)}
        return Run(self.model.wrapped, self.given, held, many, self.close, tuple(self.given), sequences=True)

    def _mask(self) -> Tensor:
        mask = torch.ones_like(self.given["attention_mask"])
        mask[:, [0, 2, 3]] = 0
        return mask

    def _followed(self, run: Run) -> tuple[list[Tensor], bool, bool]:
        try:
            return crossing_outputs(run, self.tokens)
        except Exception as error:  # a wrapper's code may raise anything
            raise UnsupportedModelError(
                f"the code of {type(self.model).__name__} cannot be followed ({type(error).__name__}: {error})"
            ) from error

    def _own(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that the wrapper made itself, by name."""
        base = {id(one) for _, one in leaves_of(self.base)}
        for full, value in leaves_of(self.output):
            if isinstance(value, Tensor) and id(value) not in base:
                yield full, value
            elif not isinstance(value, (Tensor, *PLAIN)):
                raise UnsupportedModelError(f"{full} is a {type(value).__name__}, in which nopad cannot look")

    def _first(self, run: Run, odd: list[str]) -> str:
        """Return, in words, where information moves between tokens first."""
        module, mixes = first_crossing(run, self.tokens)
        name = type(self.model).__name__
        names = {one: f"{key} ({type(one).__name__})" for key, one in self.model.wrapped.named_modules()}
        if odd and not mixes:
            where = "" if module is None else f" before {names[module]}"
            return (
                f"{odd[0]} of {name} is not per token, nor computed from what {type(self.model.base).__name__} gives "
                f"for each sequence alone: the forward method pools a row, reads some tokens of it or mixes rows{where}"
            )
        if module is None:
            return f"the forward method of {name} moves information between tokens by itself"
        if mixes:
            return f"{names[module]} of {name} moves information between tokens, across the borders of sequences"
        return f"the forward method of {name} moves information between tokens by itself, before {names[module]}"


def _same(value: Any) -> Any:
    return value


def _has_size(model: nn.Module, size: int) -> bool:
    return any(size in parameter.shape for parameter in model.parameters())


def _columns(tokens: list[int]) -> dict[str, Tensor]:
    """Return the columns of a batch of one sequence."""
    ids = torch.tensor([tokens])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.arange(len(tokens))[None] % 2,
        "position_ids": torch.arange(len(tokens))[None],
    }


def _with_types(exact: Substitute, safe: Substitute, judge: Judge) -> str:
    """Return how packs with token types differ from sequences alone; "": they do not, or there are none."""
    kinds = getattr(exact.config, "type_vocab_size", 0)
    if "token_type_ids" not in accepted(exact.wrapped, exact.base) or not kinds:
        return ""
    types = [[at % kinds for at in range(len(one))] for one in judge.sequences]
    for form in (Flat(), Rows(max(map(len, types)) + 10)):
        batch = PackedBatch.from_sequences(judge.sequences, form=form, columns={"token_type_ids": types})
        with torch.no_grad():
            made = {name: _split(batch, value) for name, value in safe(**batch).items()}
            for number, (ids, given) in enumerate(zip(judge.sequences, types, strict=True)):
                alone = exact(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([given]))
                for name, value in alone.items():
                    if apart(value[0], made[name][number]) > judge.limit * max(largest_finite(value), 1e-30):
                        return f"{name} of sequence {number} with token_type_ids differs between packs and alone"
    return ""


def _split(batch: PackedBatch, value: Tensor) -> list[Tensor]:
    per_token = tuple(value.shape[:2]) == batch.layout.shape
    return list((batch.unpack_tokens if per_token else batch.unpack_sequences)(value))


def _audited(small: Substitute, admitted: Admitted, make: MakeBase) -> list[Verdict]:
    """Audit a substitute on short sequences, and on longer ones."""
    safe = _safe(copy.deepcopy(small), admitted, make)
    family = state_of(safe).family
    limit = positions_of(safe.base, family)
    room = limit // 3 if family.narrow and limit is not None else LONG  # a flat row holds less than 3 times the longest
    short, long = min(room, SHORT), min(room, LONG)
    try:
        found = [audit(safe, capacity=None if short == SHORT else short)]
        if found[0].isolated and long > short:
            found.append(audit(safe, capacity=long, gradients=False))
    finally:
        unpacked(safe)
    return found


def _why(verdict: Verdict) -> str:
    """Return the first check that failed, in words, with the first module that differs."""
    check = next(one for one in verdict.checks if not one.passed)
    where = f"; the first module that differs is {verdict.first_difference}" if verdict.first_difference else ""
    said = check.detail if check.error else f"{check.value:.1e}, at most {check.limit:.0e}"
    return f"its small copy does not pass the audit: {check.name}: {said}{where}"
