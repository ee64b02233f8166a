"""Refuse models in which a layer, in training, adds a loss of its own or keeps statistics; outputs show neither.

Some mixtures of experts do both: an autograd function adds the gradient of a loss that balances experts, and a buffer
counts the tokens that each expert got. Both are computed from all slots of a batch, padding included.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from nopad.admitting.bad import outputs_of
from nopad.admitting.modes import in_mode
from nopad.admitting.probing import length_for
from nopad.admitting.small import two_rows, uncached
from nopad.errors import UnsupportedModelError

__all__ = ["check_training"]


def check_training(model: Any) -> None:
    """Check that no layer of a small model adds a loss to the gradients by itself, or keeps statistics of a batch.

    Raises:
        UnsupportedModelError: a layer does so; the message names the parameter that gets the gradient, or the buffer
            that holds the statistics.
    """
    rows = two_rows(model, length_for(model))
    name = _moved_by_nothing(copy.deepcopy(model), rows)  # states that it keeps would have a history of gradients
    if name is not None:
        raise UnsupportedModelError(
            f"{name} of {type(model).__name__} gets a gradient in training even if nothing is learned from the "
            "outputs: a layer adds a loss of its own (such as one that balances experts), over all slots of a batch, "
            "padding included; return that loss as an output (aux_loss), and add it where the loss is computed"
        )
    name = _kept(model, rows)
    if name is not None:
        raise UnsupportedModelError(
            f"{name} of {type(model).__name__} is a buffer that keeps statistics of a batch in training (such as how "
            "many tokens each expert got), and would count the padding of rows; keep them outside of forward, from "
            "the outputs: router_logits are of real tokens only"
        )


def _moved_by_nothing(model: Any, rows: Tensor) -> str | None:
    """Return the name of a parameter whose gradient is not 0 in training, although all outputs get a gradient of 0.

    The result is None if there is no such parameter. Of several, the last is returned: it is nearest to the layer that
    adds a loss, from which the gradient flows back to earlier layers. Values that are not finite do not count. `rows`
    are token ids, the input.
    """
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    with in_mode(model, True), torch.enable_grad():
        made = [one for one in outputs_of(model(input_ids=rows, **uncached(model))).values() if one.requires_grad]
        if not made or not named:
            return None
        nothing = [torch.zeros_like(one) for one in made]
        slopes = torch.autograd.grad(made, [one for _, one in named], nothing, allow_unused=True)
    moved = [name for (name, _), slope in zip(named, slopes, strict=True) if slope is not None and _any(slope)]
    return moved[-1] if moved else None


def _any(slope: Tensor) -> bool:
    return bool(slope.nan_to_num(0.0, 0.0, 0.0).any())


def _kept(model: Any, rows: Tensor) -> str | None:
    """Return the name of a buffer whose value after a call in training depends on the batch; None: there is none.

    The model is called with each of two rows of token ids, `rows`, and with both rows. The first such buffer is
    returned.
    """
    one, other, both = (_buffers_after(model, ids) for ids in (rows[:1], rows[1:], rows))
    for name, value in one.items():
        for others in (other, both):
            after = others.get(name)
            if after is not None and after.shape == value.shape and not torch.equal(value, after):
                return name
    return None


def _buffers_after(model: Any, ids: Tensor) -> dict[str, Tensor]:
    made = copy.deepcopy(model)
    with in_mode(made, True), torch.no_grad():
        made(input_ids=ids, **uncached(made))
    return {name: one.nan_to_num() if one.is_floating_point() else one for name, one in made.named_buffers()}
