"""Call functions with the outputs of a model's modules while it runs, to trace models and training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

__all__ = ["on_outputs", "states_of", "within"]


@contextmanager
def on_outputs(model: nn.Module, seen: Callable[[str, Any], None]) -> Iterator[None]:
    """Inside this context, call ``seen(name, output)`` each time that a module of the model finishes.

    The model itself has the name "".
    """

    def after(name: str, _: nn.Module, args: Any, output: Any) -> None:
        seen(name, output)

    handles = [module.register_forward_hook(partial(after, name)) for name, module in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def within(name: str, parts: Iterable[str]) -> bool:
    """Return whether the module called `name` is one of `parts`, names of modules, or inside one of them."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def states_of(output: Any) -> Tensor | None:
    """Return a module's output as a tensor, detached from the autograd graph.

    If the output is a tuple or list, its first entry is returned. The result is None if the output (or this entry) is
    not a floating-point tensor with at least 2 dimensions.
    """
    value = output[0] if isinstance(output, tuple | list) and output else output
    kept = isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2
    return value.detach() if kept else None
