"""Run models without dropout: `in_mode` covers a model's dropout modules, `NoDropout` PyTorch's dropout functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

__all__ = ["NoDropout", "in_mode"]

ATTENTION = "scaled_dot_product_attention"
RATE = 4  # place of its argument dropout_p


class NoDropout(TorchFunctionMode):
    """A PyTorch function mode in which no dropout happens, also where code calls a function of PyTorch for it.

    Functions whose names end in "dropout", or in a form of it such as "dropout2d", return their input.
    scaled_dot_product_attention gets a dropout_p of 0.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", "")
        if name.rstrip("_123d").endswith("dropout") and (args or "input" in kwargs):
            return args[0] if args else kwargs["input"]
        if name == ATTENTION:
            args = (*args[:RATE], *((0.0,) if len(args) > RATE else ()), *args[RATE + 1 :])
            kwargs |= {"dropout_p": 0.0} if len(args) <= RATE else {}
        return function(*args, **kwargs)


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """For a ``with`` block, put a model into training or evaluation mode, with the rate of its dropout modules at 0.

    Afterwards, each module has the mode and the rate that it had before.
    """
    before = {module: module.training for module in model.modules()}
    rates = {module: module.p for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)}
    for module in before:
        module.training = training
    for module in rates:
        module.p = 0.0
    try:
        yield
    finally:
        for module, was in before.items():
            module.training = was
        for module, rate in rates.items():
            module.p = rate
