"""`Scoped`: base class of layers that keep a copy of their weights in another order, only inside a scope.

A copy can become stale: PyTorch counts changes of a tensor in place, but not those through ``.data``. So layers keep
copies only inside the ``with`` block of `laid_out`, in which weights must not change, and make them anew in each block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from nopad.threads import new_lock

__all__ = ["Scoped", "laid_out"]

_lock = new_lock()


class Scoped(nn.Module):
    """Base class of layers that keep a copy of their weights inside `laid_out`: in the dict `_copies`.

    If `_copies` is None, the layer is in no scope, and must not keep anything. Otherwise the dict maps the name of a
    parameter to a tuple: the parameter, the same without gradient, its version, and the copy. `_scopes` counts the open
    scopes.
    """

    _copies: dict[str, tuple[Tensor, Tensor, int, Tensor]] | None = None
    _scopes: int = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the copy: an object that is copied or unpickled is in no scope."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_copies", "_scopes")}


@contextmanager
def laid_out(model: nn.Module) -> Iterator[None]:
    """In a ``with`` block, let the `Scoped` layers of a model keep copies of their weights, in every thread.

    Each layer makes its copy when it is first called in the block. At the end of the block, copies are freed, unless
    another block for the same layer is open.
    """
    layers = [module for module in model.modules() if isinstance(module, Scoped)]
    with _lock:
        for layer in layers:
            layer._scopes += 1
            if layer._copies is None:
                layer._copies = {}
    try:
        yield
    finally:
        with _lock:
            for layer in layers:
                layer._scopes -= 1
                if not layer._scopes:
                    layer._copies = None
