"""Run a model in evaluation mode and leave it as it was (`evaluated`); ask for its own mode (`in_training`)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from nopad.threads import Blocks

__all__ = ["evaluated", "in_training"]


def _set(module: Any, training: bool) -> None:
    module.training = training


_held = Blocks(lambda module: _set(module, False), lambda module: _set(module, True))


def evaluated(model: Any) -> AbstractContextManager[None]:
    """Return a context manager that puts a model's modules into evaluation mode (no dropout) for a ``with`` block.

    After it, each module has the mode again that it had before: do not change it meanwhile. Where blocks of several
    threads overlap, modules stay in evaluation mode until the last block ends.
    """
    return _held.open(lambda: [module for module in model.modules() if module.training or module in _held])


def in_training(modules: Iterable[Any]) -> bool:
    """Return whether a module is in training mode, or will be again after blocks of `evaluated` that now run."""
    with _held.lock:
        return any(module.training or module in _held for module in modules)
