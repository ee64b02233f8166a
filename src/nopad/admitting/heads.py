"""Find out which kind of head a model has, if nopad does not know its class: from its outputs and its loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nopad.admitting.bad import outputs_of
from nopad.admitting.probing import length_for
from nopad.admitting.small import ran
from nopad.errors import UnsupportedModelError
from nopad.model.calls import parameters
from nopad.model.known import class_of, is_stock

__all__ = ["CLOSE", "head_for", "same_loss"]

CLOSE = 1e-5  # relative; losses are often computed in float32


def head_for(model: Any, causal: bool) -> str | None:
    """Return the kind of head of a small model; None: the class is transformers' own, so nopad knows its head.

    The kinds are "answers", "classification", "tokens" and "causal", as in `nopad.packed`. `causal` says whether no
    token sees later ones. It decides between "causal" and "tokens" if the model takes labels per token but returns no
    loss.

    Raises:
        UnsupportedModelError: the model returns no floating-point tensor, does not run with labels per token, or its
            loss is not the mean cross entropy of these labels.
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
    if "labels" not in parameters(type(model).forward):
        return "tokens"
    return _by_loss(model, tokens, logits, causal)


def _by_loss(model: Any, tokens: list[int], logits: Tensor, causal: bool) -> str:
    """Return "causal" if the model's loss shifts labels, "tokens" if it does not.

    If the model returns no loss, the result is "causal" if `causal` is true, else "tokens". `tokens` are the ids of a
    sequence, and `logits` is what the model returns for it without labels, ``[1, L, classes]``.

    Raises:
        UnsupportedModelError: the model does not run with labels per token, or its loss is not the mean cross entropy
            of these labels.
    """
    labels = torch.arange(len(tokens))[None] % max(logits.shape[-1] - 1, 1)
    try:
        loss = getattr(ran(model, tokens, labels=labels), "loss", None)
    except Exception as error:  # a model's code may raise anything
        raise UnsupportedModelError(
            f"{type(model).__name__} does not run with labels per token ({type(error).__name__}: {error}); leave "
            "labels out of its forward method, and compute the loss outside of it"
        ) from error
    if loss is None:
        return "causal" if causal else "tokens"
    flat, wanted = logits[0].double(), labels[0]
    if same_loss(loss, cross_entropy(flat[:-1], wanted[1:])):
        return "causal"
    if same_loss(loss, cross_entropy(flat, wanted)):
        return "tokens"
    raise UnsupportedModelError(
        f"the loss of {type(model).__name__} is not the mean cross entropy of its labels, shifted or not, so nopad "
        "cannot tell what it would be on packs; compute it outside of the model, from outputs, and leave labels out of "
        "its forward method"
    )


def same_loss(loss: Tensor, wanted: Tensor) -> bool:
    """Return whether a loss is the wanted one, up to rounding in float32."""
    return abs(float(loss) - float(wanted)) <= CLOSE * max(abs(float(wanted)), 1e-30)
