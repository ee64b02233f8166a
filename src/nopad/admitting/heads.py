"""Find out which kind of head a model has, if nopad does not know its class: from its outputs and its loss."""

from __future__ import annotations

import copy
from typing import Any

from nopad.admitting.bad import outputs_of
from nopad.admitting.losses import KINDS, Losses
from nopad.admitting.probing import length_for
from nopad.admitting.small import ran
from nopad.errors import UnsupportedModelError
from nopad.model.calls import parameters, takes
from nopad.model.known import class_of, is_stock

__all__ = ["head_for"]


def head_for(model: Any, causal: bool) -> str | None:
    """Return the kind of head of a small model; None: the class is transformers' own, so nopad knows its head.

    The kinds are "answers", "classification", "tokens" and "causal", as in `nopad.packed`. `causal` says whether no
    token sees later ones. It decides between "causal" and "tokens" if the model takes labels per token but returns no
    loss, or one that nopad does not know.

    Raises:
        UnsupportedModelError: the model returns no floating-point tensor.
    """
    kind = class_of(model)
    if is_stock(kind):
        return None
    length = length_for(model)
    tokens = [5 + 3 * at for at in range(length)]
    made = outputs_of(ran(model, tokens))
    answers = [made[name] for name in ("start_logits", "end_logits") if name in made]
    if len(answers) == 2 and all(tuple(one.shape) == (1, length) for one in answers):
        return "answers"
    if not made:
        raise UnsupportedModelError(f"{kind.__name__} gives no tensor of numbers, so there is nothing to compare")
    logits = made["logits"] if "logits" in made else next(iter(made.values()))
    if tuple(logits.shape[:2]) != (1, length):
        return "classification"
    if not takes(model, "labels"):
        return "tokens"
    try:
        found = Losses(copy.deepcopy(model)).kind()
    except Exception:  # a model's code may raise anything; why its labels are refused is said by `why_no_labels`
        found = None
    if found in KINDS[3]:
        return found
    return "causal" if causal and "labels" in parameters(type(model).forward) else "tokens"
