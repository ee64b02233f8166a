"""Replace modules inside a model, in place, under every name that they have."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

__all__ = ["names_of_children", "replace_modules", "uncompile"]


def replace_modules(model: nn.Module, other: Callable[[nn.Module], nn.Module | None]) -> None:
    """Replace each module inside `model` by ``other(module)``, unless that is None.

    `other` is called once for each module. So a module that several modules share, or that one module holds under
    several names, is replaced by the same module everywhere. The model itself is not replaced.

    >>> from torch import nn
    >>> from nopad.model.replacing import replace_modules
    >>> shared = nn.Linear(2, 2)
    >>> model = nn.Sequential(shared, nn.Sequential(shared), nn.ReLU())
    >>> replace_modules(model, lambda module: nn.Identity() if module is shared else None)
    >>> model[0] is model[1][0], model
    (True, Sequential(
      (0): Identity()
      (1): Sequential(
        (0): Identity()
      )
      (2): ReLU()
    ))
    """
    made: dict[int, tuple[nn.Module, nn.Module | None]] = {}  # by id; modules are held, so that no id is used again
    for holder in list(model.modules()):
        for names, child in names_of_children(holder):
            if id(child) not in made:
                made[id(child)] = child, other(child)
            new = made[id(child)][1]
            if new is not None:
                for name in names:
                    setattr(holder, name, new)


def uncompile(model: nn.Module) -> None:
    """Take off the wrappers that `torch.compile` put around modules inside a model, in place.

    The module in a wrapper takes the wrapper's place, under every name. The model itself is not replaced.
    """
    replace_modules(model, lambda module: getattr(module, "_orig_mod", None))


def names_of_children(module: nn.Module) -> list[tuple[list[str], nn.Module]]:
    """Return the modules that a module holds, each once with all its names; `named_children` gives only the first.

    >>> from torch import nn
    >>> from nopad.model.replacing import names_of_children
    >>> act = nn.ReLU()
    >>> [(names, child is act) for names, child in names_of_children(nn.Sequential(act, nn.Tanh(), act))]
    [(['0', '2'], True), (['1'], False)]
    """
    found: dict[int, tuple[list[str], nn.Module]] = {}
    for name, child in module._modules.items():
        if child is not None:
            found.setdefault(id(child), ([], child))[0].append(name)
    return list(found.values())
