"""Put a model into evaluation mode in a block (`evaluated`); find out its mode outside of blocks (`in_training`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakSet

from nopad.threads import Blocks

__all__ = ["evaluated", "in_training", "to_evaluation"]


_trained: WeakSet[Any] = WeakSet()  # modules that get training mode back


def _begin(module: Any) -> None:
    _trained.add(module)
    module.training = False


def _end(module: Any) -> None:
    if module in _trained:
        module.training = True
    _trained.discard(module)


_held = Blocks(_begin, _end)


def evaluated(model: Any) -> AbstractContextManager[None]:
    """Return a context manager that puts a model's modules into evaluation mode (no dropout) for a ``with`` block.

    After the block, each module has the mode again that it had before. Inside it, change modes only with
    `to_evaluation`. Where blocks of several threads overlap, modules stay in evaluation mode until the last block ends.
    """
    return _held.open(lambda: [module for module in model.modules() if module.training or module in _held])


def in_training(modules: Sequence[Any]) -> bool:
    """Return whether any of these modules is in training mode, or will be when the open blocks of `evaluated` end."""
    with _held.lock:
        if any(module.training for module in modules):
            return True
        return bool(len(_trained)) and any(module in _trained for module in modules)  # looked up in Python code


def to_evaluation(model: Any) -> None:
    """Put a model into evaluation mode, as its method `eval` does; it stays there when open `evaluated` blocks end."""
    with _held.lock:
        _trained.difference_update(model.modules())
        model.eval()
