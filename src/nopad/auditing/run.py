"""Run sequences alone and packed, and compare outputs, gradients, poison, layers (docs/audit.md: what each proves).

The model is copied, once a dtype: nothing of the caller's changes. In float64, outputs are compared on packs of the
capacity; what costs more, gradients and poison, and all of it in the model's own dtype, on packs of a quarter of it.
About 9 s for a base-size model on two cores.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from nopad.auditing.comparison import Found, compare
from nopad.auditing.limits import PARTLY_SINGLE
from nopad.auditing.poison import once_a_layer, poison
from nopad.auditing.shortened import layer_count, missing_kinds, shortened, window_of
from nopad.auditing.steadiness import steady
from nopad.auditing.trial import Collator, Trial
from nopad.auditing.verdict import Verdict
from nopad.errors import OptionError
from nopad.model.backends import BACKENDS
from nopad.model.safety import bare, is_packed, packed, state_of, unpacked
from nopad.options import BOOLEAN, Option

__all__ = ["audit"]


OPTIONS = {
    "backend": Option(default="auto", help="how nopad keeps sequences apart", choices=("auto", *BACKENDS)),
    "capacity": Option(default=None, help="of the packs that are tried", low=4, none=True),
    "layers": Option(default=None, help="only the first so many", none=True),
    "gradients": Option(default=True, help="compare those too", choices=BOOLEAN),
    "seed": Option(default=0, help="of what is drawn", low=0),
}
CAPACITY, WIDEST = 64, 256


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
    """Prove that sequences in a pack get what they get alone, or name the layer at which they do not.

    Args:
        model: a transformers model; made pack-safe for the audit where it is not, and no collator is given.
        collator: audit the model as it is, fed with what this makes of features (dicts with ``input_ids``): any
            function that returns the arguments of a forward call.
        capacity: of the packs that are tried; the longest sequence. None: 64, or a quarter more than the window of a
            model with local attention (up to 256): a shorter sequence does not show what a window does.
        backend: of the model that is made pack-safe here.
        layers: audit a copy with only the first so many layers, for a large model; None: all of them.
        gradients: compare those of the parameters too.
        seed: of the tokens and of what the outputs are weighed with.

    Raises:
        UnsupportedModelError: nopad refuses this model, with the reason.
        BatchError: the collator cuts, drops or changes sequences, or adds tokens.
        OptionError: a capacity below 4, more layers than there are, another backend than that of a model which is
            pack-safe already, or a model that is random even in evaluation mode.

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
    if is_packed(model) and backend not in ("auto", state_of(model).backend):
        raise OptionError(
            f"this model is pack-safe by backend {state_of(model).backend!r}, and {backend!r} is asked; leave it "
            "out, or undo it first with nopad.unpacked(model)"
        )
    dtype = next(inner.parameters()).dtype
    notes = []
    if layers is not None:
        notes.append(f"the first {layers} of {layer_count(inner.config)} layers only{missing_kinds(inner, layers)}")
        model = inner = shortened(model, layers)
    window = window_of(inner.config)
    capacity = capacity or max(CAPACITY, window + window // 4 if window <= WIDEST else 0)
    if window >= capacity:
        notes.append(f"no sequence is longer than its local attention of {window} tokens; capacity= makes them")

    def drawn(subject: Any, capacity: int, **most: int) -> Trial:
        return Trial.drawn(subject, collator, capacity, seed, **most)

    small = max(min(capacity, CAPACITY) // 4, 4)
    with torch.random.fork_rng(devices=[]):
        found, how = _in_float64(
            _subject(model, torch.float64, collator, backend), drawn, capacity, small, gradients, dtype == torch.float64
        )
        if dtype != torch.float64:
            own = drawn(_subject(model, dtype, collator, backend), small, most=4)
            theirs = compare(own, *own.forms[0], dtype, gradients, found.truth)
            for form in own.forms[1:]:
                theirs.add(compare(own, *form, dtype, gradients=False))
            found.checks += [*theirs.checks, *poison(own, dtype, theirs.kinds)]
            found.first = found.first or theirs.first
            _release(own.model)
    notes += found.notes
    if found.truth and found.truth.zero:
        notes.append(f"gradients that are zero in truth, left out: {_listed(found.truth.zero)}")
    if any(check.limit == PARTLY_SINGLE for check in found.checks if check.name.startswith("float64")):
        notes.append("this model computes some of it in float32, even in float64")
    isolated = all(check.passed for check in found.checks)
    return Verdict(
        isolated=isolated,
        max_abs_diff=found.worst,
        first_difference=None if isolated else found.first,
        model=type(inner).__name__,
        how=how,
        checks=tuple(found.checks),
        notes=tuple(notes),
    )


def _in_float64(
    subject: Any, drawn: Callable[..., Trial], capacity: int, small: int, gradients: bool, both: bool
) -> tuple[Found, str]:
    """Everything there is to check, gradients in `both` forms; and what keeps sequences apart, in words."""
    whole, part = drawn(subject, capacity), drawn(subject, small, most=4)
    partly = steady(part)
    whole, part = replace(whole, partly=partly), replace(part, partly=partly)
    found = compare(whole, *whole.forms[0], torch.float64, gradients=False)
    for form in part.forms if both else part.forms[-1:]:
        name = form[0] if part.collator is None else f"{form[0]}, short"
        found.add(compare(part, name, form[1], torch.float64, gradients=gradients))
    found.checks += poison(part, torch.float64, found.kinds)
    if part.collator is None:
        found.checks.append(once_a_layer(part, found.attended))
    how = part.how
    _release(subject)
    return found, how


def _subject(model: Any, dtype: torch.dtype, collator: Collator | None, backend: str) -> Any:
    """Copy the model, in a dtype, made pack-safe where nopad is to keep sequences apart."""
    made = copy.deepcopy(bare(model)).to(dtype).eval()
    made.requires_grad_(True)
    made.config.return_dict = True  # outputs are compared by name
    if collator is None and not is_packed(made):
        packed(made, backend=backend)
    if is_packed(made):
        state_of(made).most = None  # a limit of sequences has nothing to do with keeping them apart
    return made


def _release(subject: Any) -> None:
    """Let a copy go at once: hooks and model hold each other, and a copy is as large as the model, or twice."""
    if is_packed(subject):
        unpacked(subject)


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
