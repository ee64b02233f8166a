"""Check that each attention module of a model lets tokens see what the model's masks let them see at its place.

A model makes its masks from the configuration, and from what its layers say. nopad's attention takes the window and the
causality that the attention module hands on. These differ if layers were exchanged, removed or taken from another
model, or if the configuration was changed. So attention modules and those around them, and the configurations that they
hold, are compared with those of a new model of the same classes and configuration, which is built without weights. What
a new model does not have, and the settings of configurations, must be as they were when the model was made pack-safe.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from nopad.errors import UnsupportedModelError
from nopad.model.attention import silent, slides
from nopad.model.known import class_of, walk
from nopad.model.own import alike, is_own
from nopad.wording import first_line

__all__ = ["Seen", "Windows", "seen_in"]

# Attributes of modules that say what tokens see: sliding_window, is_sliding, layer_type, attention_type, is_causal
_SAYS = re.compile(
    r"slid|window|local|global|layer_type|attention_type|attention_chunk|causal|bidirectional|is_decoder|is_cross"
)
# Settings of configurations that decide these attributes and the masks; some say that every n-th layer differs
_DECIDES = re.compile(
    r"slid|window|local|global|layer_type|attention_type|attention_chunk|layers_block_type|pattern"
    r"|causal|bidirectional|is_decoder|cross_attention"
)
_WHO = re.compile(r"causal|bidirectional|is_decoder|cross_attention")  # the part of a model does not decide by itself
# Settings that transformers' masks read even if the class of a configuration does not have them
_READ = {"is_causal", "sliding_window", "attention_chunk_size", "layer_types", "use_bidirectional_attention"}
_WRAPPERS = re.compile(r"(?:^|\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?![^.])")
_PLAIN = (bool, int, float, str, type(None))
_ANEW = "make it pack-safe anew: nopad.packed(nopad.unpacked(model))"

Seen = dict[str, tuple[dict[str, Any], dict[str, Any]]]


def seen_in(model: nn.Module) -> Seen:
    """Return what a model's modules and their configurations say about what tokens see, by the modules' names.

    Each value is a pair: the module's attributes that say it, and the settings of its configuration that decide it.
    """
    return {_bare(name): (_said(vars(one)), _decisive(vars(_config(one)))) for name, one in _named(model)}


class Windows:
    """What the modules of a model must say about what tokens see, by its configuration as it was when this was made.

    Modules that a new model does not have at the same place (in the user's own modules), and attention modules of the
    user's own classes, must say what they said when the model was made pack-safe.

    Args:
        model: the part of the model that gets nopad's attention.
        attends: those of its modules that look their attention up.
        first: `seen_in` of this part, as it was when the model was made pack-safe.

    Raises:
        UnsupportedModelError: modules may have windows, and no model can be built from the configuration, or a module
            of it has a window and cannot pass it on.
    """

    def __init__(self, model: nn.Module, attends: Iterable[nn.Module], first: Seen) -> None:
        self._model = model
        held = [one.__dict__ for one in walk(model) if hasattr(one.__dict__.get("config"), "__dict__")]
        self._holders = [(one, one["config"]) for one in held]
        configs = {id(config): vars(config) for _, config in self._holders}
        self._settings = [(one, len(one), _decisive(one)) for one in configs.values()]
        ids = {id(one) for one in attends}
        self._changed = _changed(model, ids, first)
        self._wanted = list(_wanted(model, ids, first))

    @property
    def are_current(self) -> bool:
        """Whether the configuration still has the settings with which this was made."""
        return all(held.get("config") is config for held, config in self._holders) and all(
            len(held) == size and alike([held.get(name) for name in by], list(by.values()))
            for held, size, by in self._settings
        )

    def check(self) -> None:
        """Check the modules.

        Raises:
            UnsupportedModelError: a module says something else than the configuration makes a module at its place say,
                or than it said when the model was made pack-safe; or a setting that decides this has changed since.
        """
        kind = type(self._model).__name__
        for held, key, value, name, early in self._wanted:
            now = held.get(key)
            if key == "is_causal" and key not in held:
                continue  # a layer that does not say so is refused by its attention
            if now is not value and not alike([now], [value]):
                raise UnsupportedModelError(
                    f"{name} had {key} = {value!r} when this {kind} was made pack-safe, and has {now!r} now; {_ANEW}"
                    if early
                    else f"{name}, has {key} = {now!r}, and the configuration of this {kind} makes it {value!r} there; "
                    "layers were exchanged or removed, or the configuration was changed: make both agree"
                )
        if self._changed is not None:
            key, before, now = self._changed
            raise UnsupportedModelError(
                f"{key} in the configuration of this {kind} was {before!r} when it was made pack-safe, and is {now!r} "
                f"now, which may change what tokens see; {_ANEW}"
            )


class _Wanted(NamedTuple):
    """What a module, or its configuration, must have at one place in the model.

    Attributes:
        held: the attributes of the module or of its configuration, by name.
        key, value: the name of one of them, and what it must be.
        name: the module's name in the model, and the name of its class.
        early: whether it must be so because it was when the model was made pack-safe.
    """

    held: Mapping[str, Any]
    key: str
    value: Any
    name: str
    early: bool


def _wanted(model: nn.Module, attends: Set[int], first: Seen) -> Iterator[_Wanted]:
    """Yield what the modules that attend or contain such ones must have, at each of their places in the model.

    `attends` are the ids of the modules of `model` that look their attention up; `first` is as in `Windows`.

    Raises:
        UnsupportedModelError: a model cannot be built from the configuration of one in this model, or the module at
            some place has a window and cannot pass it on.
    """
    modules = dict(_named(model))
    ways = {name[:end] for name, one in modules.items() if id(one) in attends for end in _ends(name)}
    held = [one for name in ways for one in (_said(vars(modules[name])), _decisive(vars(_config(modules[name]))))]
    decided = any(value for one in held for value in one.values())  # otherwise all places are alike
    places = _places(model, ways) if decided else {}
    for name in sorted(ways):
        module = modules[name]
        kind, bare = class_of(module), _bare(name)
        if id(module) not in attends and not kind.__module__.startswith("transformers."):
            continue
        place, full = None if is_own(kind) else places.get(bare), f"{name or 'the model'}, a {type(module).__name__}"
        said, settings = _said(vars(module)), _decisive(vars(_config(module)))
        before = first.get(bare, ({}, {}) if decided else (said, settings))
        added = said if id(module) in attends else {}  # modules around attention do not read what a user adds to them
        if place is None:
            yield from (_Wanted(vars(module), key, before[0].get(key), full, True) for key in {**before[0], **added})
            continue
        if id(module) in attends and _is_silent(place):
            raise silent(place)
        # A class of the user's own may make its layers see later tokens, and a proof is of what it made.
        own = any(is_own(class_of(modules[name[:end]])) for end in _ends(name))
        for attributes, now, wanted, early in (
            (vars(module), added, _said(vars(place)), before[0]),
            (vars(_config(module)), settings, _decisive(vars(_config(place))), before[1]),
        ):
            for key in sorted({**wanted, **now}):
                as_first = own and _WHO.search(key) is not None
                yield _Wanted(attributes, key, (early if as_first else wanted).get(key), full, as_first)


def _places(model: nn.Module, ways: Set[str]) -> dict[str, nn.Module]:
    """Return the modules of new models of the classes and configurations in `model`, by their names in `model`.

    A part that is a model of transformers too, and has other windows than the whole gives it, is built by itself: its
    own configuration decides. `ways` are the names of the modules that count.

    Raises:
        UnsupportedModelError: a model cannot be built, and its configuration may give it windows.
    """
    found: dict[str, nn.Module] = {}
    waiting = [(name, one) for name, one in _stock(model) if name in ways]
    while waiting:
        prefix, whole = waiting.pop()
        try:
            places = dict(_named(_like(whole)))
        except UnsupportedModelError:
            if any(_decisive(vars(_config(whole))).values()):
                raise
            continue
        apart: tuple[str, ...] = ()
        for name, module in _named(whole):
            full, bare = f"{prefix}.{name}".strip("."), _bare(name)
            if full not in ways or bare not in places or name.startswith(apart):
                continue
            if name and _buildable(module) is not None and _windows_differ(_config(module), _config(places[bare])):
                waiting.append((full, module))
                apart += (f"{name}.",)
            else:
                found[_bare(full)] = places[bare]
    return found


def _windows_differ(one: Any, other: Any) -> bool:
    """Return whether two configurations give other windows, and are alike in who sees later tokens."""
    differing = {
        key
        for held, against in ((vars(one), vars(other)), (vars(other), vars(one)))
        for key, value in _decisive(held).items()
        if not alike([value], [against.get(key)])
    }
    return bool(differing) and not any(map(_WHO.search, differing))


def _changed(model: nn.Module, attends: Set[int], first: Seen) -> tuple[str, Any, Any] | None:
    """Return (setting, before, now) for a setting that decides what tokens see and is not as in `first`; None: none.

    Models, which make masks, and the modules in `attends` read such settings.
    """
    from transformers import PreTrainedModel

    for name, module in _named(model):
        bare, now = _bare(name), vars(_config(module))
        if bare not in first or not (id(module) in attends or isinstance(module, PreTrainedModel)):
            continue
        before = first[bare][1]
        for key in (*before, *(_READ & now.keys())):
            if not alike([before.get(key)], [now.get(key)]):
                return key, before.get(key), now.get(key)
    return None


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) for each place of a module in a model, outer ones first."""
    yield from model.named_modules(remove_duplicate=False)


def _bare(name: str) -> str:
    """Return the name that a module would have without the wrappers of PyTorch around it and around others."""
    return _WRAPPERS.sub("", name).lstrip(".")


def _ends(name: str) -> list[int]:
    """Return where the names of a module, and of those that contain it, end in its name."""
    return [0, *(at for at, one in enumerate(name) if one == "."), len(name)]


def _is_silent(place: Any) -> bool:
    """Return whether an attention module of a new model says that it has no window where its configuration has one."""
    kinds: Any = getattr(_config(place), "layer_types", None)
    layer = getattr(place, "layer_idx", None)
    return bool(kinds) and layer is not None and kinds[layer : layer + 1] == ["sliding_attention"] and not slides(place)


def _config(module: Any) -> Any:
    """Return the configuration that a module holds, or an object without attributes."""
    config = module.__dict__.get("config")
    return config if hasattr(config, "__dict__") else SimpleNamespace()


def _decisive(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of those of a configuration's attributes that decide windows, by name."""
    return {name: copy.copy(one) for name, one in held.items() if _DECIDES.search(name) and _is_plain(one)}


def _is_plain(value: Any) -> bool:
    """Return whether a value is one that the file of a configuration may have: a number, text, or lists of such."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, (*_PLAIN, list, tuple, dict)) and all(map(_is_plain, inside))


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
    config = copy.copy(model.config)
    vars(config).update({name: _copied(value) for name, value in vars(config).items()})
    try:
        # What is drawn for its weights is no random number of the call in which it is made.
        with _disable_current_modes(), torch.device("meta"):
            made: nn.Module = _buildable(model)(config)
    except Exception as error:
        raise UnsupportedModelError(
            f"no {type(model).__name__} can be built from the configuration of this one ({type(error).__name__}: "
            f"{first_line(error)}), so it does not say which layers have a window: make it agree with the layers"
        ) from error
    return made


def _copied(value: Any) -> Any:
    """Return a copy of a configuration's attribute; one that cannot be copied, such as a lock, decides no windows."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value
