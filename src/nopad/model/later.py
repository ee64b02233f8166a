"""Watch for the user's own code that changes a model after it was made pack-safe, since nopad has not tried that code.

A hook that changes nothing may be added at any time, such as one that records states. A hook that changes what its
module gets or returns could mix tokens, so it makes a packed call raise an error. So does a replaced forward method, or
a hook that PyTorch runs for all modules. Changes that the model had before were tried when it was made pack-safe
(`nopad.admitting.changed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nopad.errors import UnsupportedModelError
from nopad.model.calls import Cell
from nopad.model.own import of_all_modules, of_module, said

__all__ = ["take_off_judges", "watch_changes"]


@dataclass(eq=False)
class Judged:
    """Stands in for a user's hook that was added later, and raises an error if it changes something in a packed call.

    Attributes:
        cell: tells whether a packed call is running.
        judged: the user's hook.
    """

    cell: Cell
    judged: Any

    def __call__(self, *args: Any) -> Any:
        """Run the user's hook, and return what it returns.

        Raises:
            UnsupportedModelError: in a packed call, it returns other arguments or another output than it was given.
        """
        found = self.judged(*args)
        if found is not None and not _same(found, args) and self.cell.call is not None:
            raise _refused("the hook", self.judged, args[0])
        return found


def watch_changes(modules: Sequence[nn.Module], kinds: Iterable[type], known: Sequence[Any], cell: Cell) -> None:
    """Before a packed call, replace the user's hooks that were added later by `Judged`.

    Args:
        modules: all modules of the model, the model first.
        kinds: their classes.
        known: the user's code that changed the model when it was made pack-safe.
        cell: the state that the model's hooks share.

    Raises:
        UnsupportedModelError: a forward method was replaced, or a hook was added for all modules, since then.
    """
    for what, call in of_all_modules(kinds):
        if not _among(call, known):
            raise _refused(what, call, modules[0])
    for module in modules:
        if not (module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__):
            continue
        for what, call in list(of_module(module)):
            if isinstance(call, Judged) or _among(call, known):
                continue
            if what != "the hook":
                raise _refused(what, call, module)
            for table in _tables(module):
                table.update({number: Judged(cell, call) for number, one in table.items() if one is call})


def take_off_judges(modules: Iterable[nn.Module]) -> None:
    """Put the user's hooks back in place of `Judged`."""
    for module in modules:
        for table in _tables(module):
            table.update({number: one.judged for number, one in table.items() if isinstance(one, Judged)})


def _tables(module: nn.Module) -> tuple[dict[int, Any], dict[int, Any]]:
    return module._forward_pre_hooks, module._forward_hooks


def _among(call: Any, known: Sequence[Any]) -> bool:
    return any(call is one or call == one for one in known)  # methods are made anew each time they are read


def _same(found: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a hook returned what it was given, or an equal copy of it.

    `args` are the hook's arguments, with the module first. It may return the output, all arguments, or the only
    argument.
    """
    given = args[1:] if len(args) > 2 else args[1]
    single = len(given) == 1 and _equal(found, given[0]) if isinstance(given, tuple) else False
    return single or _equal(found, given) or _equal(found, args[-1])


def _equal(one: Any, other: Any) -> bool:
    """Return whether two nested values are equal; tensors are compared by value, also between devices.

    In tensors, NaN counts as 0, and infinity as the largest finite number.
    """
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and torch.equal(one.detach().to(other.device).nan_to_num(), other.detach().nan_to_num())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return not isinstance(one, Tensor) and not isinstance(other, Tensor) and bool(one == other)


def _refused(what: str, call: Any, module: nn.Module) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{said(what, call)} changes what {type(module).__name__} computes, and came after the model was made "
        "pack-safe; make it so anew, which tries it: nopad.packed(nopad.unpacked(model))"
    )
