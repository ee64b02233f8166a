"""`audit`: compare sequences run packed and alone, and check that none changes the results of its neighbours.

docs/audit.md says what this proves. Only copies of the model run, so the caller's model does not change. In float64,
outputs and gradients are compared on packs of the full capacity. All other checks use packs of a quarter of this
capacity, but of at least 4 and at most 16 tokens. Among them are the more expensive neighbour checks (`poison`), and
the checks in the model's own dtype, if that is not float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from nopad.auditing.alone import Alone, listed
from nopad.auditing.comparison import Found, compare
from nopad.auditing.failure import ModelFailedError
from nopad.auditing.gradients import Truth
from nopad.auditing.limits import PARTLY_SINGLE, named
from nopad.auditing.pictured import DRAWN, audit_pictured
from nopad.auditing.poison import once_a_layer, poison, unseen
from nopad.auditing.shortened import layer_count, missing_kinds, shortened, window_of
from nopad.auditing.shown import takes_pictures, tokens_of
from nopad.auditing.steadiness import looked_for, steady
from nopad.auditing.subject import compiled_layers, recompiled, room_to_compile, subject_of
from nopad.auditing.tokens import Tokens
from nopad.auditing.trial import Collator, Trial
from nopad.auditing.verdict import Verdict
from nopad.errors import BatchError, OptionError
from nopad.model.backends import BACKENDS
from nopad.model.families import FRONTS, IMAGES
from nopad.model.safety import bare, is_packed, state_of
from nopad.options import BOOLEAN, Option

__all__ = ["audit", "backend_for", "check_model", "how_of", "refuse_capacity"]


OPTIONS = {
    "backend": Option(default="auto", help="how nopad keeps sequences apart", choices=("auto", *BACKENDS)),
    "capacity": Option(default=None, help="capacity of the packs that are tried", low=4, none=True),
    "layers": Option(default=None, help="audit only the first so many layers", none=True),
    "gradients": Option(default=True, help="compare gradients too", choices=BOOLEAN),
    "seed": Option(default=0, help="random seed of what is drawn", low=0),
}
CAPACITY, WIDEST = 64, 256
EXACT_BACKEND = "segments"  # audited in float64 in place of kernels that do not support float64


def audit(
    model: Any,
    *,
    collator: Collator | None = None,
    capacity: int | None = None,
    backend: str = "auto",
    layers: int | None = None,
    gradients: bool = True,
    seed: int = 0,
) -> Verdict:
    """Check that sequences get the same results in a pack as alone; if not, name the first module whose output differs.

    Args:
        model: a transformers model; the audit runs copies of it. Without a collator, the copies are made pack-safe if
            the model is not. If it takes images, the audit draws some, by its configuration.
        collator: any function from features to the arguments of a forward call. Features are dicts with ``input_ids``
            and ``labels``; if the function fails on labels, they have ``input_ids`` alone. If the model takes images,
            they also have the columns of images that its processor gives. With a collator, the model is audited as it
            is, in batches of this collator. None: nopad builds the batches.
        capacity: capacity of the packs, and length of the longest sequence; both are smaller if the model has too few
            positions. None: 64, or a quarter more than the model's local attention window if this has 52 to 256 tokens;
            shorter sequences would not test the window.
        backend: attention backend with which the copies are made pack-safe, as in `nopad.packed`.
        layers: audit a copy with only the first `layers` layers, for example of a very large model; None: all layers.
        gradients: also compare the gradients of the parameters.
        seed: random seed of the tokens and images, and of the weights with which outputs are summed for gradients.

    Returns:
        A `nopad.auditing.Verdict`; `isolated` says whether all checks passed. An exception in the model is not raised
            here: it is a failed check with the exception's name.

    Raises:
        UnsupportedModelError: nopad refuses this model, or cannot cut it to its first layers; the message gives the
            reason.
        BatchError: the collator fails, or cuts, drops or changes sequences, or adds tokens.
        OptionError: an option is not valid (an unknown backend, a capacity below 4, `layers` below 1 or more than the
            model has); the model is not one of transformers, is already pack-safe with another backend, has a part that
            is pack-safe by itself, has no vocabulary to draw from, or is random even in evaluation mode; or it takes
            images, and `capacity` is given; or it makes its tokens from images (ViT), and `collator` is given.

    nopad keeps the sequences apart. With the collator of transformers, they see each other in the first attention
    layer, since the default attention of this model ignores where sequences begin:

    >>> import nopad
    >>> from transformers import BertConfig, BertModel, DataCollatorWithFlattening
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = BertModel(BertConfig(**sizes))
    >>> nopad.audit(model).isolated
    True
    >>> stock = nopad.audit(model, collator=DataCollatorWithFlattening(return_tensors="pt"))
    >>> stock.isolated, stock.first_difference
    (False, 'encoder.layer.0.attention.self')
    """
    given = {"backend": backend, "capacity": capacity, "layers": layers, "gradients": gradients, "seed": seed}
    for name, value in given.items():
        OPTIONS[name].check(name, value)
    inner = bare(model)
    check_model(model, backend, collator is not None)
    notes = []
    if layers is not None:
        whole = ", and its vision tower whole" if getattr(inner.config, "model_type", "") in IMAGES else ""
        part = f"the first {layers} of {layer_count(inner.config)} layers only"
        notes.append(f"{part}{missing_kinds(inner, layers)}{whole}")
        model = inner = shortened(model, layers)
    if takes_pictures(model):
        refuse_capacity(inner, capacity)
        if collator is None:
            chosen = partial(backend_for, model, backend)
            pictured = audit_pictured(model, chosen, gradients, seed, how_of(model, None, backend))
            return replace(pictured, notes=(*notes, *pictured.notes))
        notes.append(DRAWN)
    window = window_of(inner.config)
    capacity = capacity or max(CAPACITY, window + window // 4 if window <= WIDEST else 0)
    if window >= capacity:
        notes.append(f"no sequence is longer than its local attention of {window} tokens; a larger capacity makes them")
    tokens = tokens_of(inner)
    with torch.random.fork_rng(devices=[]):
        found = _Task(model, collator, capacity, backend, gradients, seed, tokens).run_best()
    notes += found.notes
    if any(check.limit == PARTLY_SINGLE for check in found.checks if check.name.startswith("float64")):
        notes.append("this model computes some of it in float32, even in float64")
    isolated = all(check.passed for check in found.checks)
    return Verdict(
        isolated=isolated,
        max_abs_diff=found.worst,
        first_difference=None if isolated else found.first,
        model=type(inner).__name__,
        how=how_of(model, collator, backend),
        checks=tuple(found.checks),
        notes=tuple(notes),
        unseen=found.unseen is True,
    )


def check_model(model: Any, backend: str, foreign: bool) -> None:
    """Check that a model can be audited with this backend, and with a collator if `foreign` is True.

    Raises:
        OptionError: the model makes its tokens from images, and there is a collator; or it is pack-safe with another
            backend than `backend`, and `backend` is not "auto".
    """
    _check_backend(model, backend)
    if foreign and getattr(bare(model).config, "model_type", "") in FRONTS:
        raise OptionError(
            f"{type(bare(model)).__name__} makes its tokens from images, and a collator of token ids has none; audit "
            "it without a collator, or give nopad.audit_samples some images, and how they are run alone and packed"
        )


def _check_backend(model: Any, backend: str) -> None:
    """Raise an `OptionError` if `backend` is not "auto", and the model is pack-safe with another backend."""
    if is_packed(model) and backend not in ("auto", state_of(model).backend):
        raise OptionError(
            f"this model is pack-safe by backend {state_of(model).backend!r}, and {backend!r} is asked; leave it "
            "out, or undo it first with nopad.unpacked(model)"
        )


def refuse_capacity(model: Any, capacity: int | None) -> None:
    """Raise an `OptionError` if a capacity is given for `model`, which takes images.

    Call this only for such a model: its sequences have fixed sizes, so they cannot have a capacity. `model` is only
    named in the message.

    Raises:
        OptionError: `capacity` is not None.
    """
    if capacity is not None:
        raise OptionError(
            f"capacity is {capacity}, and {type(model).__name__} takes images: its sequences have fixed sizes, by the "
            "tokens of their images; leave capacity out"
        )


def backend_for(model: Any, backend: str, dtype: torch.dtype) -> str:
    """Return the name of the attention backend with which a model is audited in `dtype`.

    This is the model's own backend if the model is pack-safe, and `backend` otherwise. If `dtype` is float64, and the
    kernel of this backend does not support it on the model's device, it is "segments" instead.
    """
    asked = state_of(model).backend if is_packed(model) else backend
    on_gpu = next(bare(model).parameters()).device.type != "cpu"
    lacks = asked == "varlen" or (asked == "flex" and on_gpu)
    return EXACT_BACKEND if lacks and dtype == torch.float64 else asked


def how_of(model: Any, collator: Collator | None, backend: str) -> str:
    """Return as text what keeps sequences apart: the name of the collator, or nopad's backend if `collator` is None."""
    if collator is not None:
        return f"as it is, with {getattr(collator, '__name__', type(collator).__name__)}"
    return f"nopad, backend {state_of(model).backend if is_packed(model) else backend!r}"


@dataclass
class _Task:
    """The arguments and state of one audit.

    Attributes:
        model: the user's model; only copies of it run.
        collator: the user's function that builds batches; None: nopad builds them.
        capacity: capacity of the packs, and length of the longest sequence, in tokens.
        backend: attention backend with which the copies are made pack-safe.
        gradients: whether gradients are compared too.
        seed: random seed of the tokens, and of the weights with which outputs are summed for gradients.
        tokens: the token ids to draw from.
        truth: float64 gradients of the sequences that are audited in the model's own dtype, each run alone; None: not
            computed (yet).
    """

    model: Any
    collator: Collator | None
    capacity: int
    backend: str
    gradients: bool
    seed: int
    tokens: Tokens
    truth: Truth | None = None

    def run_best(self) -> Found:
        """Run the audit on sequences that suit the collator, if there is one, and return the results.

        Some collators find the borders of sequences by eos. So with a collator, if the configuration has an eos,
        sequences end with it, and begin with bos if bos differs from eos and pad.

        If eos has the same id as pad, some collators take eos for padding. So if the first run then fails a check, or
        raises BatchError, there is a second run, on sequences without special tokens. Its results are returned if all
        its checks passed, or if the first run raised BatchError. Otherwise those of the first run are returned.

        Raises:
            BatchError: the collator fails, or cuts, drops or changes sequences, or adds tokens. If there is a second
                run, it is the one that raises this.
        """
        eos, pad = (self.tokens.special.get(name) for name in ("eos", "pad"))
        if self.collator is None or eos is None:
            return self.run()
        bordered = replace(self, tokens=self.tokens.bordered())
        note = f"each sequence that was tried ends with eos ({eos}); a collator may mark borders by it"
        if eos != pad:
            found = bordered.run()
            found.note(note)
            return found
        try:
            found = bordered.run()
            failed: BatchError | None = None
            found.note(note)
        except BatchError as error:
            failed = error
        if failed is None and all(check.passed for check in found.checks):
            return found
        plain = self.run()
        if failed is not None or all(check.passed for check in plain.checks):
            plain.note(f"no sequence that was tried holds eos ({eos}), which is the pad too: with it, this is not so")
            return plain
        return found

    def run(self) -> Found:
        """Audit in float64, in the model's own dtype, and with compiled layers, if any; return the results."""
        own = next(bare(self.model).parameters()).dtype
        found = Found()
        self._attempt(found, torch.float64, "", lambda subject: self._in_float64(subject, own))
        if own != torch.float64:
            self._attempt(found, own, "", lambda subject: self._in_own(subject, own))
        if self._backend(own) != self._backend(torch.float64):
            asked = self._backend(own)
            found.note(f"the kernel of {asked!r} has no float64: what is measured there is {EXACT_BACKEND!r}")
        layers = compiled_layers(self.model)
        if layers:
            with room_to_compile():
                self._attempt(found, own, ", compiled", lambda subject: self._compiled(subject, own, layers))
        if found.row:
            found.note(f"the longest row that was tried has {found.row:,} slots")
        return found

    def _attempt(self, found: Found, dtype: torch.dtype, label: str, measure: Callable[[Any], Found]) -> None:
        """Copy the model in a dtype, call `measure` on the copy, and add its result to `found`.

        If the model raises an exception, a failed check is added instead; `label` is appended to the name of this
        check.
        """

        def lent() -> Found:
            with subject_of(self.model, dtype, self.collator is None, self._backend(dtype)) as subject:
                return measure(subject)

        found.attempt(f"{named(dtype)} outputs, alone{label}", lent)

    def _backend(self, dtype: torch.dtype) -> str:
        return backend_for(self.model, self.backend, dtype)

    def _drawn(self, subject: Any, tokens: Tokens, capacity: int | None = None, partly: bool = False) -> Trial:
        """Return a `Trial` of random sequences for the model's copy `subject`.

        If `capacity` is given, the trial has up to 6 sequences, for packs of `capacity` tokens. If it is None, the
        trial is small. It then has up to 4 sequences, for packs of a quarter of the audit's capacity, but of at least 4
        and at most 16 tokens. `tokens` says which ids are drawn. `partly` says whether the model computes some of its
        results in float32 although its dtype is float64.
        """
        size = max(min(self.capacity, CAPACITY) // 4, 4) if capacity is None else capacity
        most = 4 if capacity is None else 6
        return replace(Trial.drawn(subject, self.collator, size, self.seed, tokens, most), partly=partly)

    def _in_float64(self, subject: Any, own: torch.dtype) -> Found:
        """Run all checks in float64, and return the results; `subject` is the copy of the model in float64.

        This may set the task's attributes `tokens` and `truth`, which the later checks in `own`, the model's own dtype,
        use.
        """
        found, first, apart = Found(), self._drawn(subject, self.tokens), {}
        partly = steady(first)
        if self.collator is None:
            apart = looked_for(first, self.tokens)
            self.tokens = self.tokens.including([name for name in self.tokens.special if name not in apart])
        whole = Alone(self._drawn(subject, self.tokens, self.capacity, partly), self.gradients)
        found.add(_compared(whole, torch.float64))
        if found.names and self.gradients and (zero := Truth.of(whole, found.names).zero):
            found.note(f"gradients that are zero in truth, left out: {listed(zero)}")
        del whole  # its gradients are as large as the model
        short = Alone(self._drawn(subject, self.tokens, None, partly), self.gradients and own != torch.float64)
        if found.names and short.graph:
            self.truth = Truth.of(short, found.names)
        _poisoned(found, short, torch.float64)
        for name, token in apart.items():
            found.add(self._with(subject, name, token, partly))
        if self.collator is None and found.names:
            found.checks.append(once_a_layer(short.trial, found.attended))
        return found

    def _with(self, subject: Any, name: str, token: int, partly: bool) -> Found:
        """Compare the outputs, packed and alone, of random sequences that contain the id `token`.

        The model looks for this token in its input, as some models look for eos to find the end of a sequence. Each
        sequence of at least 3 tokens has the token at one random place, and the last sequence also ends with it.

        Args:
            subject: the copy of the model to run.
            name: the token's name, such as "eos".
            token: its id.
            partly: whether the model computes some results in float32, even in float64.
        """
        trial = self._drawn(subject, replace(self.tokens, inside=(token,)), None, partly)
        trial.sequences[-1][-1] = token
        found = compare(Alone(trial, False), torch.float64, forms=trial.forms[:2], label=f", with {name}")
        found.note(f"this model looks for {name} ({token}) itself, alone and packed; it was tried by itself")
        return found

    def _in_own(self, subject: Any, dtype: torch.dtype) -> Found:
        alone = Alone(self._drawn(subject, self.tokens), self.gradients)
        found = _compared(alone, dtype, self.truth)
        _poisoned(found, alone, dtype)
        return found

    def _compiled(self, subject: Any, dtype: torch.dtype, layers: dict[str, Any]) -> Found:
        """Compile parts of the model's copy `subject`, compare outputs packed and alone, and return the results.

        `layers` has the names of the parts that are compiled in the user's model, each with its ``torch.compile``
        context. If no compiler works here, the result has only a note that says so.
        """
        found = Found()
        recompiled(subject, layers)
        try:
            alone = Alone(self._drawn(subject, self.tokens), False)
        except ModelFailedError as error:
            found.note(f"compiled layers were not audited, for no compiler works here: {error.kind}: {error.reason}")
            return found
        found.add(compare(alone, dtype, label=f", {len(layers)} parts compiled"))
        return found


def _compared(alone: Alone, dtype: torch.dtype, truth: Truth | None = None) -> Found:
    """Compare sequences packed and alone (`compare`), and return the results.

    If outputs differ, the attribute `unseen` of the results is set too. It says whether they differ although no
    sequence sees another. `alone` has the results of the sequences, each run alone, and `dtype` is the model's dtype.
    `truth` has the float64 gradients of the same sequences; without it, only float64 gradients are compared.
    """
    found = compare(alone, dtype, truth)
    odd = [check for check in found.checks if not check.passed and not check.error and " outputs, " in check.name]
    if odd:  # an infinite difference is that of a result which is missing, or is a row's
        found.unseen = all(math.isfinite(check.value) for check in odd) and unseen(alone, dtype)
    return found


def _poisoned(found: Found, alone: Alone, dtype: torch.dtype) -> None:
    """Run the checks of `poison`, which change one sequence and look at the others, and add them to `found`.

    If `found.unseen` is True, it becomes False when one of these checks fails, or when none can be run.
    """
    checks = poison(alone, dtype)
    if found.unseen is not None:
        found.unseen = found.unseen and bool(checks.checks) and all(check.passed for check in checks.checks)
    found.add(checks)
