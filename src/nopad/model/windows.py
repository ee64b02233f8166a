"""Check that each attention module of a model has the window that the model's masks give to its place.

A model makes its masks from the configuration, and nopad's attention takes the window that the module hands on. These
differ if layers were exchanged, removed or taken from another model, or if the configuration was changed. So the
modules, and the configurations that they hold, are compared with those of a new model of the same classes and
configuration, which is built without weights.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from nopad.errors import UnsupportedModelError
from nopad.model.attention import silent, slides
from nopad.model.known import class_of, walk
from nopad.model.own import is_own
from nopad.wording import first_line

__all__ = ["Windows"]

# Attributes of attention modules that say how far they see: sliding_window, is_sliding, is_local_attention, layer_type
_SAYS = re.compile(r"slid|window|local|layer_type|attention_type")
# Settings of configurations that decide these attributes and the masks; some say that every n-th layer differs
_DECIDES = re.compile(r"slid|window|local|layer_type|attention_type|layers_block_type|pattern|global|bidirectional")
_WRAPPERS = re.compile(r"\b(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")  # in names of modules
_PLAIN = (bool, int, float, str, type(None))


class Windows:
    """The windows that a model's attention modules must have, by its configuration as it was when this was made.

    Args:
        model: the part of the model that gets nopad's attention.
        attends: those of its modules that look their attention up.

    Raises:
        UnsupportedModelError: modules may have windows, and no model can be built from the configuration, or a module
            of it has a window and cannot pass it on.
    """

    def __init__(self, model: nn.Module, attends: Iterable[nn.Module]) -> None:
        self._model = model
        held = [one.__dict__ for one in walk(model) if hasattr(one.__dict__.get("config"), "__dict__")]
        self._holders = [(one, one["config"]) for one in held]
        configs = {id(config): vars(config) for _, config in self._holders}
        self._settings = [(one, len(one), _decisive(one)) for one in configs.values()]
        self._wanted: list[_Wanted] = []
        ours = {id(one): one for one in attends if not is_own(class_of(one))}
        # Without such an attribute or setting, all places are alike.
        decided = any(value is not None for *_, by in self._settings for value in by.values())
        if ours and (decided or any(_said(vars(one)) for one in ours.values())):
            self._wanted = list(_wanted(model, ours))

    @property
    def are_current(self) -> bool:
        """Whether the configuration still has the settings with which this was made."""
        return all(held.get("config") is config for held, config in self._holders) and all(
            len(held) == size and all(held.get(name) == value for name, value in by.items())
            for held, size, by in self._settings
        )

    def check(self) -> None:
        """Check the modules.

        Raises:
            UnsupportedModelError: a module has another window than the configuration gives to its place.
        """
        for held, wanted, name, kind in self._wanted:
            for key, value in wanted.items():
                if held.get(key) != value:
                    raise UnsupportedModelError(
                        f"{name}, a {kind}, has {key} = {held.get(key)!r}, and the configuration of this "
                        f"{type(self._model).__name__} makes it {value!r} there; layers were exchanged or removed, or "
                        "the configuration was changed: make both agree"
                    )


class _Wanted(NamedTuple):
    """What a module, or its configuration, must have at one place in the model.

    Attributes:
        held: the attributes of the module or of its configuration, by name.
        wanted: those of them that decide the window, as they must be.
        name, kind: the module's name in the model, and the name of its class.
    """

    held: Mapping[str, Any]
    wanted: Mapping[str, Any]
    name: str
    kind: str


def _wanted(model: nn.Module, ours: Mapping[int, nn.Module]) -> Iterator[_Wanted]:
    """Yield what each module in `ours` must have, at each of its places in the model.

    `ours` are modules of the model, by their id. Places that a new model does not have are left out.

    Raises:
        UnsupportedModelError: a model cannot be built from the configuration of one in this model, or the module at
            some place has a window and cannot pass it on.
    """
    for prefix, whole in _stock(model):
        places = dict(_like(whole).named_modules(remove_duplicate=False))
        for name, module in whole.named_modules(remove_duplicate=False):
            place = places.get(_WRAPPERS.sub("", name))
            if id(module) not in ours or place is None:
                continue
            if _is_silent(place):
                raise silent(place)
            full, kind = f"{prefix}.{name}".lstrip("."), type(module).__name__
            for find, one, other in ((_said, module, place), (_decisive, _config(module), _config(place))):
                said, wanted = find(vars(one)), find(vars(other))
                if names := sorted(said.keys() | wanted.keys()):
                    yield _Wanted(vars(one), {key: wanted.get(key) for key in names}, full, kind)


def _is_silent(place: Any) -> bool:
    """Return whether an attention module of a new model says that it has no window where its configuration has one."""
    kinds: Any = getattr(_config(place), "layer_types", None)
    layer = getattr(place, "layer_idx", None)
    return bool(kinds) and layer is not None and kinds[layer : layer + 1] == ["sliding_attention"] and not slides(place)


def _config(module: Any) -> Any:
    """Return the configuration that a module holds, or an object without attributes."""
    return module.__dict__.get("config") or SimpleNamespace()


def _decisive(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of those of a configuration's attributes that decide windows, by name."""
    return {name: copy.copy(value) for name, value in held.items() if _DECIDES.search(name)}


def _said(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a module's attributes that say how far it sees, by name; only plain values count."""
    return {name: one for name, one in held.items() if isinstance(one, _PLAIN) and _SAYS.search(name)}


def _stock(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (name, module) for the models of transformers in a model, or itself, that are in no other such one."""
    waiting = [("", model)]
    while waiting:
        name, module = waiting.pop()
        if _buildable(module) is not None:
            yield name, module
        else:
            waiting += [(f"{name}.{key}".lstrip("."), one) for key, one in module._modules.items() if one is not None]


def _buildable(module: nn.Module) -> Any:
    """Return the nearest class of transformers that a model's class is or extends, and that runs; None: there is none.

    The user's own class may be built from more than a configuration. Its attention modules are those of its base class.
    """
    from transformers import PreTrainedModel

    kinds = (kind for kind in class_of(module).__mro__ if issubclass(kind, PreTrainedModel) and not is_own(kind))
    return next((kind for kind in kinds if "forward" in vars(kind)), None)


def _like(model: Any) -> nn.Module:
    """Return a new model of the same class of transformers and configuration, without weights.

    Raises:
        UnsupportedModelError: it cannot be built.
    """
    try:
        with torch.device("meta"):
            made: nn.Module = _buildable(model)(copy.deepcopy(model.config))
    except Exception as error:
        raise UnsupportedModelError(
            f"no {type(model).__name__} can be built from the configuration of this one ({type(error).__name__}: "
            f"{first_line(error)}), so it does not say which layers have a window: make it agree with the layers"
        ) from error
    return made
