"""Run sequences alone and packed, and compare outputs, gradients, poison, layers (docs/audit.md: what each proves).

The model is copied, once a dtype: nothing of the caller's changes. In float64, outputs are compared on packs of the
capacity; what costs more, gradients and poison, and all of it in the model's own dtype, on packs of a quarter of it.
About 9 s for a base-size model on two cores.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from nopad.auditing.comparison import Found, compare
from nopad.auditing.limits import PARTLY_SINGLE
from nopad.auditing.poison import once_a_layer, poison
from nopad.auditing.shortened import layer_count, missing_kinds, shortened
from nopad.auditing.trial import Collator, Trial
from nopad.auditing.verdict import Verdict
from nopad.errors import OptionError
from nopad.model.safety import bare, is_packed, packed

__all__ = ["audit"]


def audit(
    model: Any,
    *,
    collator: Collator | None = None,
    capacity: int = 64,
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
        capacity: of the packs that are tried; the longest sequence.
        backend: of the model that is made pack-safe here.
        layers: audit a copy with only the first so many layers, for a large model; None: all of them.
        gradients: compare those of the parameters too.
        seed: of the tokens and of what the outputs are weighed with.

    Raises:
        UnsupportedModelError: nopad refuses this model, with the reason.
        BatchError: the collator cuts, drops or changes sequences.
        OptionError: a capacity below 4, or more layers than there are.

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
    inner = bare(model)
    if capacity < 4:
        raise OptionError(f"an audit needs a capacity of at least 4, got {capacity}")
    dtype = next(inner.parameters()).dtype
    notes = []
    if layers is not None:
        notes.append(f"the first {layers} of {layer_count(inner.config)} layers only{missing_kinds(inner, layers)}")
        model = inner = shortened(model, layers)

    def drawn(subject: Any, capacity: int, **most: int) -> Trial:
        return Trial.drawn(subject, collator, capacity, seed, **most)

    small = max(capacity // 4, 4)
    with torch.random.fork_rng(devices=[]):
        found, how = _in_float64(_subject(model, torch.float64, collator, backend), drawn, capacity, small, gradients)
        if dtype != torch.float64:
            own = drawn(_subject(model, dtype, collator, backend), small, most=4)
            theirs = compare(own, *own.forms[0], dtype, gradients, found.truth)
            found.checks += [*theirs.checks, *poison(own, dtype)]
            found.first = found.first or theirs.first
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
    subject: Any, drawn: Callable[..., Trial], capacity: int, small: int, gradients: bool
) -> tuple[Found, str]:
    """Everything there is to check; and what keeps sequences apart, in words."""
    whole, part = drawn(subject, capacity), drawn(subject, small, most=4)
    found = compare(whole, *whole.forms[0], torch.float64, gradients=False)
    found.add(compare(part, *part.forms[-1], torch.float64, gradients=gradients))
    found.checks += poison(part, torch.float64)
    if part.collator is None:
        found.checks.append(once_a_layer(part))
    return found, part.how


def _subject(model: Any, dtype: torch.dtype, collator: Collator | None, backend: str) -> Any:
    """Copy the model, in a dtype, made pack-safe where nopad is to keep sequences apart."""
    made = copy.deepcopy(bare(model)).to(dtype).eval()
    made.requires_grad_(True)
    if collator is None and not is_packed(made):
        packed(made, backend=backend)
    return made


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
