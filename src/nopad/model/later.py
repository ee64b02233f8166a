"""Changes to a model's code after it was made pack-safe, of which nothing is proven.

A hook of one's own that changes nothing may come at any time, as those do that record states or copy them to a device.
One that changes what a module gets or gives could mix tokens, and makes a packed call an error; so do a forward method
and a hook of all modules. Changes that the model had when it was made pack-safe have been tried then
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
    """A hook of one's own that came later, which in packed calls must change nothing."""

    cell: Cell
    judged: Any

    def __call__(self, *args: Any) -> Any:
        """Run the hook, and return what it returns.

        Raises:
            UnsupportedModelError: it returns other arguments or another output in a packed call.
        """
        found = self.judged(*args)
        if found is not None and not _same(found, args) and self.cell.call is not None:
            raise _refused("the hook", self.judged, args[0])
        return found


def watch_changes(modules: Sequence[nn.Module], kinds: Iterable[type], known: Sequence[Any], cell: Cell) -> None:
    """Let hooks of one's own that are not in `known` be `Judged`, before a packed call.

    `modules` are the model's, and `kinds` their classes.

    Raises:
        UnsupportedModelError: another change than a hook of a module is not in `known`.
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
    """Put hooks of one's own back that were `Judged`."""
    for module in modules:
        for table in _tables(module):
            table.update({number: one.judged for number, one in table.items() if isinstance(one, Judged)})


def _tables(module: nn.Module) -> tuple[dict[int, Any], dict[int, Any]]:
    return module._forward_pre_hooks, module._forward_hooks


def _among(call: Any, known: Sequence[Any]) -> bool:
    return any(call is one or call == one for one in known)  # methods are made anew each time they are read


def _same(found: Any, args: tuple[Any, ...]) -> bool:
    """Whether a hook returned what it was given, or a copy; `args` begin with the module.

    It may return the output, all arguments, or the only argument.
    """
    given = args[1:] if len(args) > 2 else args[1]
    single = len(given) == 1 and _equal(found, given[0]) if isinstance(given, tuple) else False
    return single or _equal(found, given) or _equal(found, args[-1])


def _equal(one: Any, other: Any) -> bool:
    """Whether two nested values have the same tensors, or copies of them on any device."""
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
