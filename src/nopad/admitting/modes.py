"""`in_mode`: put a model into training or evaluation mode, with dropout off, for a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["in_mode"]


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
