"""The loss that balances the experts of a mixture-of-experts model, as a part of a training step's loss.

For each expert, the loss multiplies two means over the tokens of one call: the fraction of tokens that chose this
expert, and the expert's mean probability (arXiv 2101.03961, section 2.2). The product of the means over all tokens of a
step cannot be computed from the products of its micro-batches and ranks. So each batch has a loss of its own, which a
model gives as `aux_loss`, and a step learns the weighted mean of these losses. The weight of a batch is its count of
items divided by the step's denominator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nopad.errors import OptionError
from nopad.model.routers import ASKED, routes
from nopad.model.safety import bare

__all__ = ["AUXILIARY", "auxiliary", "coefficient_of", "learned_share"]

AUXILIARY = "aux_loss"
COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")


def coefficient_of(config: Any) -> float | None:
    """Return the coefficient of the loss that balances experts; None if the configuration has none.

    The coefficient is looked for in `config`, a model's configuration, and then in its text configuration.
    """
    for one in (config, config.get_text_config()):
        for name in COEFFICIENTS:
            value = getattr(one, name, None)
            if isinstance(value, int | float):
                return float(value)
    return None


def learned_share(config: Any) -> float | None:
    """Return the coefficient of the loss that balances experts; None if training does not add this loss.

    Training adds the loss if the model's configuration sets `output_router_logits`. If the configuration sets it, but
    has no coefficient, the result is None too; in training, `auxiliary` then raises an error.
    """
    return coefficient_of(config) if routes(config) else None


def auxiliary(model: Any, outputs: Any) -> Tensor | None:
    """Return the loss that balances experts in a batch, times the coefficient in the model's configuration; a scalar.

    The result is None if the model gives no such loss (`output_router_logits` is False), or if gradients are disabled,
    as in evaluations.

    Raises:
        OptionError: the model gives the loss, and its configuration has no coefficient.
    """
    loss = outputs.get(AUXILIARY) if isinstance(outputs, Mapping) else None
    if not isinstance(loss, Tensor) or not torch.is_grad_enabled():
        return None
    inner = bare(model)
    coefficient = coefficient_of(inner.config)
    if coefficient is None:
        raise OptionError(
            f"{type(inner).__name__} gives a loss that balances experts, {AUXILIARY}, and its configuration does not "
            f"say how much of it is learned; set model.config.{COEFFICIENTS[0]}, or model.config.{ASKED} = False"
        )
    return coefficient * loss
