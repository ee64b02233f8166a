"""`evaluated`: run a model in evaluation mode, and leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["evaluated"]


@contextmanager
def evaluated(model: Any) -> Iterator[None]:
    """Put a model's modules into evaluation mode (no dropout) for a ``with`` block.

    After it, each module has the mode again that it had before.
    """
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
