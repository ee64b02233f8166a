"""`mark_of`: a hash of values and of all the user's own code that they can reach.

Functions count with their code, defaults, closures and the globals that they name; classes with their methods and
attributes; objects with what they hold. Code of an installed library counts by its name only, since the fingerprint of
a proof has its version or its source file (`nopad.admitting.memory`). If one of the values cannot be hashed (a lock, an
open file), there is no hash.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from nopad.model.hooks import Hook
from nopad.model.known import class_of
from nopad.model.own import own_modules

__all__ = ["NAMES_ONLY", "is_library", "mark_of", "settings_of"]

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), enum.Enum, PurePath)
TORCH = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
CONTAINERS = (list, tuple, dict, set, frozenset, np.ndarray, np.memmap)
WRAPPERS = (staticmethod, classmethod, property, functools.partial, functools.cached_property)
# Fields of a configuration that change nothing in how a model computes.
NAMES_ONLY = (
    *("_name_or_path", "name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"),
    *("id2label", "label2id", "return_dict", "output_hidden_states", "task_specific_params", "_attn_implementation"),
)
UNREAD = (
    "__dict__",
    "__weakref__",
    "__doc__",
    "__annotations__",
    "__slots__",
    "__firstlineno__",
    "__static_attributes__",
)
# Of a module: weights, which are no part of a proof, and what loading a model sets.
PARTS = ("_parameters", "_modules", "training", "name_or_path", "warnings_issued", "generation_config")


def mark_of(*values: Any) -> str | None:
    """Return a SHA-256, in hex, of values and the code that they reach; None: something in them cannot be hashed.

    Of weights (`nn.Parameter`) and tensors on the device "meta", only shape, dtype and class count, not the values.

    >>> from nopad.admitting.marks import mark_of
    >>> mark_of({"a": 1}) == mark_of({"a": 1}), mark_of({"a": 1}) == mark_of({"a": 2}), mark_of(iter([]))
    (True, False, None)
    """
    try:
        marker = _Marker()
        for value in values:
            marker.add(value)
    except _Unknown:
        return None
    return marker.found.hexdigest()


def settings_of(model: nn.Module) -> Iterator[tuple[str, type, dict[str, Any]]]:
    """Yield (name, class, attributes by name) of each of the user's own modules in a model.

    The attributes do not include weights, submodules, the mode (`training`), what nopad sets (such as its hooks), or
    what loading a model sets (such as `name_or_path`).
    """
    for name, module in own_modules(model):
        held = {key: value for key, value in vars(module).items() if key not in PARTS and not _is_nopads(value)}
        yield name, class_of(module), {key: value for key, value in held.items() if not key.startswith("_nopad")}


def is_library(name: str) -> bool:
    """Return whether the Python module called `name` is of the standard library or an installed package.

    An imported module that is compiled, or has no file, counts as installed. If the result is False, the module is the
    user's own, or not loaded. ``__main__`` is always the user's own: a script of any name, a notebook, or what
    ``python -c`` and ``python -m`` run.
    """
    if name == "__main__":
        return False
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("torch", "transformers", "nopad"):
        return True
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is None:
        return getattr(sys.modules.get(name), "__spec__", None) is not None
    # Not by ".py": a file of Python code may have any name, and a loader of its own
    installed = bool({"site-packages", "dist-packages"} & set(path.split(os.sep)))
    return installed or path.endswith(tuple(EXTENSION_SUFFIXES))


def _is_nopads(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(one, Hook) for one in value.values())


class _Unknown(Exception):
    """A value that cannot be hashed."""


class _Marker:
    """Computes a hash: adds values, with all that they hold, to the SHA-256 `found`.

    An object that was added before is not added again: only its number among the added objects is.
    """

    def __init__(self) -> None:
        self.found = hashlib.sha256()
        self.seen: dict[int, tuple[int, Any]] = {}  # the object is kept, so that its id stays its own

    def say(self, *words: Any) -> None:
        for word in words:
            said = repr(word).encode()
            self.found.update(f"{len(said)} ".encode() + said)

    def add(self, value: Any) -> None:
        if isinstance(value, (*PLAIN, *TORCH)):
            self.say(type(value).__name__, value)
            return
        if id(value) in self.seen:
            self.say("again", self.seen[id(value)][0])
            return
        self.seen[id(value)] = len(self.seen), value
        for kinds, add in self._ways():
            if isinstance(value, kinds):
                add(value)
                if isinstance(value, CONTAINERS) and type(value) not in CONTAINERS:  # it may hold more
                    self.add(type(value))
                    self.add(getattr(value, "__dict__", None))
                return
        self._object(value)

    def _ways(self) -> list[tuple[Any, Callable[[Any], None]]]:
        return [
            (Tensor, self._tensor),
            (np.ndarray, self._array),
            (np.generic, lambda one: self.say(one.dtype.str, one.tobytes())),
            (Mapping, self._mapping),
            ((set, frozenset), self._set),
            ((list, tuple), self._all),
            (FunctionType, self._function),
            (CodeType, self._code),
            (MethodType, lambda one: self._all((one.__func__, one.__self__))),
            (WRAPPERS, self._wrapper),
            (ModuleType, lambda one: self.say("module", one.__name__)),
            (type, self._class),
            ((BuiltinFunctionType, GetSetDescriptorType), lambda one: self.say(one.__qualname__)),
        ]

    def _all(self, values: Any) -> None:
        self.say(type(values).__name__, len(values))
        for value in values:
            self.add(value)

    def _array(self, values: np.ndarray[Any, Any]) -> None:
        self.say(values.dtype.str, values.shape)
        if values.dtype.hasobject:  # whose bytes say where the objects are, not what they hold
            self._all(values.ravel().tolist())
        else:
            self.say(values.tobytes())

    def _set(self, values: Any) -> None:
        """Add the values of a set, whose order says nothing: each gets a hash of its own."""
        whole, before = self.found, len(self.seen)
        marks = []
        for value in values:
            self.found = hashlib.sha256()
            self.add(value)
            marks.append(self.found.hexdigest())
            while len(self.seen) > before:
                self.seen.popitem()
        self.found = whole
        self.say(type(values).__name__, sorted(marks))

    def _mapping(self, values: Mapping[Any, Any]) -> None:
        self.say(type(values).__name__, len(values))
        for key, value in list(values.items()):
            self.add(key)
            self.add(value)

    def _tensor(self, value: Tensor) -> None:
        self.say(tuple(value.shape), value.dtype, type(value).__name__)
        if not isinstance(value, nn.Parameter) and not value.is_meta:
            self.found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())

    def _wrapper(self, value: Any) -> None:
        names = ("__func__", "fget", "fset", "func", "args", "keywords")
        self._all([getattr(value, name, None) for name in names])

    def _function(self, value: FunctionType) -> None:
        self.say(value.__module__, value.__qualname__)
        if is_library(value.__module__ or ""):
            return
        self.add(value.__code__)
        self.add(value.__defaults__)
        self.add(value.__kwdefaults__)
        for cell in value.__closure__ or ():
            try:
                inside = cell.cell_contents
            except ValueError:  # not yet filled
                inside = None
            self.add(inside)
        names = sorted(_names(value.__code__))
        for name in names:
            if name in value.__globals__:
                self.say(name)
                self._global(value.__globals__[name], names)

    def _global(self, value: Any, names: list[str]) -> None:
        """Add the value of a global variable.

        If it is a Python module of the user's, its functions, classes and other values whose names are in `names` are
        added too. `names` are the names that the code with the global variable uses.
        """
        self.add(value)
        if isinstance(value, ModuleType) and not is_library(value.__name__):
            for name in names:
                if name in vars(value):
                    self.say(name)
                    self.add(vars(value)[name])

    def _code(self, code: CodeType) -> None:
        self.say(code.co_code, code.co_names, code.co_varnames)
        for constant in code.co_consts:
            if isinstance(constant, frozenset):
                self.say(sorted(map(repr, constant)))
            else:
                self.add(constant)

    def _class(self, kind: type) -> None:
        self.say(kind.__module__, kind.__qualname__)
        if is_library(kind.__module__):
            return
        for base in kind.__mro__[1:]:
            self.add(base)
        for name, value in vars(kind).items():
            if name not in UNREAD and not name.startswith("_abc_"):
                self.say(name)
                self.add(value)

    def _object(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, nn.Module):
            self.add(kind)
            self.add({name: one for name, one in vars(value).items() if name != "training"})
        elif isinstance(value, PreTrainedConfig):
            self.add(kind)
            usual = {name for name in vars(PreTrainedConfig()) if name.startswith("_")}
            self.add({name: one for name, one in vars(value).items() if name not in (*NAMES_ONLY, *usual)})
        elif hasattr(value, "__dict__"):
            self.add(kind)
            self.add(vars(value))
        elif any("__slots__" in vars(above) for above in kind.__mro__):
            self.add(kind)
            names = [name for above in kind.__mro__ for name in vars(above).get("__slots__", ())]
            self.add({name: getattr(value, name, None) for name in names if name != "__weakref__"})
        else:
            raise _Unknown(kind)


def _names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in a function's code, and in the code of functions inside it."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found
