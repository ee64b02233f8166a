"""Watch for code of the user's own that was added to a model after it was made pack-safe, and so was never tried.

A hook that changes nothing, such as one that records states, may be added at any time. A hook that changes what its
module gets or returns could mix tokens, so it makes a packed call raise an error. Packed calls always raise an error if
a method or library function was replaced later, or if a hook that PyTorch runs for all modules was added later. Changes
that the model had before were tried when it was made pack-safe (`nopad.admitting.changed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from nopad.errors import UnsupportedModelError
from nopad.model.calls import Cell
from nopad.model.hooks import Hook
from nopad.model.nested import equal, kept
from nopad.model.own import alike, of_all_modules, of_libraries, of_module, said

__all__ = ["Watch", "came_before", "check_given", "take_off_judges"]


@dataclass(eq=False)
class Judged:
    """Stands in for a user's hook that was added later; raises an error if the hook changes something in a packed call.

    Attributes:
        judged: the user's hook.
        cells: the states that tell whether a packed call is running: one for each pack-safe model that has the module
            and that never tried the hook. Each has whether it is a hook on that whole model. Such a hook may run after
            nopad's last hook has ended the call.
    """

    judged: Any
    cells: dict[Cell, bool] = field(default_factory=dict)

    def __call__(self, *args: Any) -> Any:
        """Run the user's hook, and return what it returns.

        Raises:
            UnsupportedModelError: in a packed call, the hook returns other arguments or another output than it was
                given, or writes to them; or the compiler traces this hook during a packed call.
        """
        for cell in self.cells:
            cell.refuse_compiling()
        if not any(cell.call is not None or (whole and cell.calls.ended) for cell, whole in self.cells.items()):
            return self.judged(*args)
        before = list(map(kept, args[1:]))
        found = self.judged(*args)
        if not equal(list(args[1:]), before) or (found is not None and not _same(found, before)):
            raise _refused("the hook", self.judged, args[0])
        return found


@dataclass(eq=False)
class Watch:
    """Looks, before each packed call, for the user's own code that was added after the model was made pack-safe.

    Attributes:
        known: the user's own code that the model already had when it was made pack-safe.
        modules: the modules that were searched last.
        held: for each of these modules, the values of its attributes in that search. A module with the same values and
            no hooks is not searched again.
    """

    known: list[Any] = field(default_factory=list)
    modules: Sequence[nn.Module] = ()
    held: list[list[Any]] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        return {"known": self.known, "modules": (), "held": []}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def look(self, modules: Sequence[nn.Module], cell: Cell) -> None:
        """Put a `Judged` in place of each hook that the user added after the model was made pack-safe.

        A `Judged` that another model with the same module has put there judges the calls of this one too. The first of
        `modules` is the whole model. `cell` holds the state that the model's hooks share.

        Raises:
            UnsupportedModelError: the user has since added other code than a hook on a module, such as a replaced
                method; or a hook on the whole model that runs before nopad's.
        """
        kinds = frozenset(map(type, modules))
        for found in (of_all_modules(kinds), of_libraries(kinds)):
            for what, call in found:
                if not self._is_known(call):
                    raise _refused(what, call, modules[0])
        if modules is not self.modules:
            self.modules, self.held = modules, [[] for _ in modules]
        for number, module in enumerate(modules):
            values = list(module.__dict__.values())
            same = alike(values, self.held[number])
            if same and not module._forward_hooks and not module._forward_pre_hooks:
                continue
            for what, call in list(of_module(module)):
                judged = call if isinstance(call, Judged) else Judged(call)
                if cell in judged.cells or self._is_known(judged.judged):
                    continue
                if what != "the hook" or not any(call is one for table in _tables(module) for one in table.values()):
                    raise _refused(what, judged.judged, module)
                judged.cells = {**judged.cells, cell: number == 0}  # replaced as a whole: another thread may read it
                for table in _tables(module):
                    table.update({place: judged for place, one in table.items() if one is call})
            self.held[number] = values
        self._check_first(modules[0], cell)

    def _check_first(self, module: nn.Module, cell: Cell) -> None:
        hooks: Iterable[Any] = module._forward_pre_hooks.values()
        for hook in hooks:
            if isinstance(hook, Hook) and hook.cell is cell:
                return
            if isinstance(hook, Judged) and cell in hook.cells:
                raise _refused("the hook, which runs before nopad's,", hook.judged, module)

    def _is_known(self, call: Any) -> bool:
        known = (one.judged if isinstance(one, Judged) else one for one in self.known)
        return any(call is one or call == one for one in known)  # methods are made anew each time they are read


def check_given(module: nn.Module, call: Any, given: Mapping[str, Any]) -> None:
    """Check that no hook that was added later changed the arguments that nopad's own hook returned for a model.

    `module` is the model, and `call` the packed call that ends. `given` are the arguments by name that the forward
    method got. `call.given` has a copy of those that nopad's hook returned; None: nothing is checked.

    Raises:
        UnsupportedModelError: a hook changed the arguments.
    """
    if call.given is not None and not equal(call.given[1], given):
        hook = next(one for one in module._forward_pre_hooks.values() if isinstance(one, Judged))
        raise _refused("the hook", hook.judged, module)


def came_before(module: nn.Module) -> bool:
    """Return whether a module has a `Judged` (the stand-in for a user's hook) that runs before its forward method.

    The user's hook may change the module's arguments. The `Judged` finds this out, except in the first call after the
    user added the hook. PyTorch lists the hooks of a call before `Watch` can replace the new one, and so runs the
    user's hook itself in this call. If the result is True, the caller must therefore keep a copy of the arguments in
    `call.given`, with which `check_given` compares them at the end of the call.
    """
    return any(isinstance(hook, Judged) for hook in module._forward_pre_hooks.values())


def take_off_judges(modules: Iterable[nn.Module]) -> None:
    """Replace each `Judged` on `modules` by the user's hook that it stands in for."""
    for module in modules:
        for table in _tables(module):
            table.update({number: one.judged for number, one in table.items() if isinstance(one, Judged)})


def _tables(module: nn.Module) -> tuple[dict[int, Any], dict[int, Any]]:
    return module._forward_pre_hooks, module._forward_hooks


def _same(found: Any, given: list[Any]) -> bool:
    """Return whether a hook returned what it was given.

    `found` is what the hook returned: the output, a tuple of all arguments, the pair ``(args, kwargs)``, or the only
    argument. `given` is a copy of what the hook was given, without the module.
    """
    ways = [given[-1], tuple(given)]
    if isinstance(given[0], tuple) and len(given[0]) == 1:
        ways.append(given[0][0])
    return any(equal(found, one) for one in ways)


def _refused(what: str, call: Any, module: nn.Module) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{said(what, call)} changes what {type(module).__name__} computes, and came after the model was made "
        "pack-safe; make it so anew, which tries it: nopad.packed(nopad.unpacked(model))"
    )
