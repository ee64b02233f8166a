"""`Scoped`: base class of layers that keep a copy of their weights in another order, only inside a scope.

A copy can become stale: PyTorch counts changes of a tensor in place, but not those through ``.data``. So layers keep
copies only inside the ``with`` block of `laid_out`, in which weights must not change, and make them anew in each block.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from nopad.threads import Blocks

__all__ = ["Scoped", "laid_out"]


class Scoped(nn.Module):
    """Base class of layers that keep copies of their weights in another order, inside a ``with`` block of `laid_out`.

    The copies are in the dict `_copies`. If it is None, no such block is open for the layer, which must not keep
    anything. Otherwise it maps the name of a parameter to a tuple of four: the parameter, the detached parameter, its
    version when the copy was made, and the copy.
    """

    _copies: dict[str, tuple[Tensor, Tensor, int, Tensor]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without `_copies`: a layer that was copied or unpickled is in no scope."""
        return {name: value for name, value in self.__dict__.items() if name != "_copies"}


def _begin(layer: Scoped) -> None:
    layer._copies = {}


def _end(layer: Scoped) -> None:
    layer._copies = None


_scopes = Blocks(_begin, _end)


def laid_out(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context manager: in its ``with`` block, the `Scoped` layers of a model keep copies of their weights.

    This holds in every thread. Each layer makes its copy when it is first called in the block. At the end of the block,
    copies are freed, unless another block for the same layer is open.
    """
    return _scopes.open(lambda: [module for module in model.modules() if isinstance(module, Scoped)])
