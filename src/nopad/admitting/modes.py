"""Run models as in training, but without dropout.

`in_mode` covers a model's dropout modules, `NoDropout` PyTorch's dropout functions; `recording` records gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

__all__ = ["NoDropout", "in_mode", "recording"]

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


@contextmanager
def recording(model: nn.Module) -> Iterator[None]:
    """For a ``with`` block, record gradients if a model is in training mode, as in real training, and else do not.

    Code may ask for this. Warnings of PyTorch and of the model in training are ignored.
    """
    with torch.set_grad_enabled(model.training), warnings.catch_warnings():
        if model.training:
            warnings.simplefilter("ignore")  # such as of numbers that are read out of tensors with gradients
        yield
