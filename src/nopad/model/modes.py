"""Run a model in evaluation mode and leave it as it was (`evaluated`); ask for its own mode (`in_training`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from nopad.threads import new_lock

__all__ = ["evaluated", "in_training"]

_held: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # modules in evaluation mode: by how many blocks
_lock = new_lock()


@contextmanager
def evaluated(model: Any) -> Iterator[None]:
    """Put a model's modules into evaluation mode (no dropout) for a ``with`` block.

    After it, each module has the mode again that it had before. Where blocks of several threads overlap, modules stay
    in evaluation mode until the last block ends.
    """
    with _lock:
        mine = [module for module in model.modules() if module.training or module in _held]
        for module in mine:
            module.training = False
            _held[module] = _held.get(module, 0) + 1
    try:
        yield
    finally:
        with _lock:
            for module in mine:
                _held[module] -= 1
                if not _held[module]:
                    del _held[module]
                    module.training = True


def in_training(modules: Iterable[Any]) -> bool:
    """Return whether a module is in training mode, or will be again after blocks of `evaluated` that now run."""
    with _lock:
        return any(module.training or (_held and module in _held) for module in modules)
