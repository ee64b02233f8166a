"""`Proven`: the user's own code as it was proven; each packed call checks that it has not changed since.

A proof holds for the code as it was. Later, a method may be replaced, or an attribute that the code reads may change.
So these are compared: the methods that a call runs, the functions and globals that these methods use, and the
attributes and integer buffers that they read in each module. Weights and other buffers may change, since a proof holds
for all their values. Values that the code itself changes in a call, such as a table that it makes longer, may change
too, since a proof allows for that.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from nopad.errors import UnsupportedModelError
from nopad.model.known import class_of
from nopad.model.nested import equal, kept
from nopad.model.own import alike, is_own, is_own_call

__all__ = ["Proven"]

FIRST = ("forward", "__call__", "__getattr__", "__getattribute__")  # methods that a call runs first
STORE, SETTERS = "STORE_ATTR", {"setattr", "__setattr__", "__dict__", "vars", "register_buffer", "_buffers"}
WRITES = {"append", "extend", "insert", "pop", "popitem", "clear", "update", "setdefault", "add", "discard", "remove"}
ITEMS = ("STORE_SUBSCR", "DELETE_SUBSCR")
WRITTEN = (dict, tuple, frozenset, Tensor)  # what `_frozen` makes of values that code can write to
SWITCHES = {"gradient_checkpointing", "_gradient_checkpointing_func", "use_cache"}  # of training; they mix no tokens
DEEPEST = 4  # objects inside objects that are looked into
Held = dict[str, Any]


@dataclass(eq=False)
class Proven:
    """The code for which a proof holds, with the values that it reads.

    Attributes:
        names: names of the attributes and globals that the code reads and does not assign. A string in the code counts
            as a name that it reads, since ``getattr`` reads an attribute by a string.
        written: names of values that the code may change in place, such as ``table`` for ``self.table.append(1)``.
            Values with these names are not compared if they are dicts, lists, tuples, sets, tensors or objects of the
            user's own classes.
        held: for each class, a list of dicts. A dict has the values that the code reads from one module of the class,
            by name. Modules with equal values share a dict.
        settings: the attributes of the model's configuration whose names are in `names`, as ``{name: value}``.
            Attributes that every configuration has are left out, and so are switches of training (`_usual`).
        code: pairs. The first entry is a class or a dict of globals; the second has the values that the code reads from
            it, by name.
        seen: for modules that were found unchanged, the values of all their attributes and buffers. While these stay
            the same, the module is not searched again. A module is left out if the code reads a value from it that can
            be changed in place.
    """

    names: frozenset[str]
    written: frozenset[str] = frozenset()
    held: dict[type, list[Held]] = field(default_factory=dict)
    settings: Held = field(default_factory=dict)
    code: list[tuple[Any, Held]] = field(default_factory=list)
    seen: WeakKeyDictionary[nn.Module, list[Any]] = field(default_factory=WeakKeyDictionary)

    @classmethod
    def of(cls, modules: Sequence[nn.Module], config: Any) -> Proven:
        """Return the `Proven` of the user's own code in the classes of `modules`, as this code is now.

        Base classes of the user's own count too. `config` is the model's configuration.
        """
        kinds = dict.fromkeys(above for one in modules for above in class_of(one).__mro__ if is_own(above))
        run = _run(kinds)
        named = {name for one in _reached(run) for name in _names(one.__code__)}
        stored, written = _stored(run)
        found = cls(frozenset(named - stored), frozenset(written))
        found._read_code(kinds, run)
        found.settings = found._named(config)
        for module in modules:
            held = found._of_module(module)
            known = found.held.setdefault(class_of(module), [])
            if not any(equal(held, one) for one in known):
                known.append(held)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Proven:
        return Proven(self.names, self.written, self.held, self.settings, self.code)

    def __getstate__(self) -> dict[str, Any]:
        # Another process has other objects, of code that it loaded by itself.
        return {"names": self.names, "written": self.written, "held": self.held, "settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
        kinds = dict.fromkeys(above for kind in self.held for above in kind.__mro__ if is_own(above))
        self._read_code(kinds, _run(kinds))

    def check(self, modules: Sequence[nn.Module], config: Any) -> None:
        """Check that the code, and the values that it reads in `modules` and `config`, are as they were proven.

        Raises:
            UnsupportedModelError: something changed; the message names it.
        """
        for place, before in self.code:
            now = vars(place) if isinstance(place, type) else place
            for name, value in before.items():
                if now.get(name) is not value and not equal(_frozen(now.get(name)), value):
                    said = f"{place.__name__}.{name}" if isinstance(place, type) else f"{now.get('__name__')}.{name}"
                    raise _refused(said)
        if not equal(settings := self._named(config), self.settings):
            raise _refused(f"{_first(settings, self.settings)} of {type(config).__name__}")
        for module in modules:
            self._check_module(module)

    def _check_module(self, module: nn.Module) -> None:
        values = [*module.__dict__.values(), *module._buffers.values()]
        if module in self.seen and alike(values, self.seen[module]):
            return
        known, held = self.held.get(class_of(module), []), self._of_module(module)
        if known and not any(equal(held, one) for one in known):
            raise _refused(f"{_first(held, known[0])} of {type(module).__name__}")
        plain = not any(isinstance(one, Tensor) or not _is_plain(one) for one in held.values())
        if plain:  # all else may be written to, by which its identity stays
            self.seen[module] = values

    def _read_code(self, kinds: Mapping[type, Any], run: Sequence[tuple[str, FunctionType]]) -> None:
        names = self.names.union(name for name, _ in run)
        for kind in kinds:
            self.code.append((kind, self._kept({name: vars(kind).get(name) for name in names})))
        files: dict[int, tuple[Any, Held]] = {}
        for one in _reached(run):
            place = one.__globals__
            known = files.setdefault(id(place), (place, {}))[1]
            known |= self._kept({name: place[name] for name in _globals(one.__code__) & place.keys()})
        self.code += files.values()

    def _of_module(self, module: nn.Module) -> Held:
        held = self._named(module)
        for name, one in module._buffers.items():
            if name in self.names and one is not None and not one.is_floating_point() and not one.is_meta:
                held[name] = kept(one).cpu()
        return held

    def _named(self, holder: Any) -> Held:
        held = vars(holder)
        return self._kept({name: held[name] for name in held.keys() & self.names - _usual()})

    def _kept(self, held: Mapping[str, Any]) -> Held:
        found = {name: _frozen(value) for name, value in held.items()}
        return {name: one for name, one in found.items() if name not in self.written or not isinstance(one, WRITTEN)}


@functools.cache
def _usual() -> frozenset[str]:
    """Return the names of attributes that are not compared: libraries set them in every module or configuration."""
    from transformers import PreTrainedConfig

    return frozenset({*vars(nn.Module()), *vars(PreTrainedConfig()), *SWITCHES})


def _run(kinds: Mapping[type, Any]) -> list[tuple[str, FunctionType]]:
    """Return (name, function) for each method that may run when a module of one of the classes `kinds` is called.

    `kinds` has the classes as keys. Only methods that these classes themselves define are returned.
    """
    methods = [(name, call) for kind in kinds for name, one in vars(kind).items() for call in _functions(one)]
    called, waiting = set[str](), set(FIRST)
    while waiting:
        called |= waiting
        inside = (_names(call.__code__) for name, call in methods if name in waiting)
        waiting = {name for names in inside for name in names if name != "__init__"} - called
    return [(name, call) for name, call in methods if name in called]


def _reached(run: Sequence[tuple[str, FunctionType]]) -> Iterator[FunctionType]:
    """Yield the user's own methods in `run`, and the user's own functions that are reached from them by name.

    `run` has (name, function) pairs, as `_run` returns them.
    """
    waiting, seen = [call for _, call in run], set[FunctionType]()
    while waiting:
        one = waiting.pop()
        if one in seen or not is_own_call(one):
            continue
        seen.add(one)
        yield one
        called = [one.__globals__.get(name) for name in _names(one.__code__)]
        waiting += [call for value in called for call in _functions(value)]


def _stored(run: Sequence[tuple[str, FunctionType]]) -> tuple[set[str], set[str]]:
    """Return two sets of names: attributes that the methods in `run` assign, and values that they may change in place.

    A change in place is ``x[0] = 1`` or ``x.append(1)``. `run` has (name, function) pairs. The code is read, not run,
    so both sets may have more names than a call assigns or changes.
    """
    stored, written = set[str](), set[str]()
    for code in (call.__code__ for _, call in run):
        steps, names = list(dis.get_instructions(code)), _names(code)
        if names & WRITES or any(one.opname in ITEMS for one in steps):
            written |= names
        stored |= names if names & SETTERS else {one.argval for one in steps if one.opname == STORE}
    return stored, written


def _functions(value: Any) -> list[FunctionType]:
    names = ("fget", "fset", "__func__", "func", "__wrapped__")
    inside = [getattr(value, name, None) for name in names] if not isinstance(value, type) else []
    return [one for one in (value, *inside) if isinstance(one, FunctionType)]


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """Return the names of globals and attributes that a function's code reads, and all strings in the code.

    Strings in constant tuples and sets count too, and so does the code of functions that are defined in the function.
    """
    read = (one for one in dis.get_instructions(code) if one.opname.startswith("LOAD_") and one.argval in code.co_names)
    found = {one.argval for one in read} | set(_strings(code.co_consts))
    return frozenset(found.union(*(_names(one) for one in code.co_consts if isinstance(one, CodeType))))


def _globals(code: CodeType) -> frozenset[str]:
    """Return the names of globals that a function's code may read; functions that are defined in it count too.

    A variable of a script may have the name of an attribute, and may change. Code that may find globals by a string,
    with ``globals()`` or ``sys.modules``, may read each that it names.
    """
    names = _names(code)
    if not names.isdisjoint(_BY_STRING):
        return names
    read = (one.argval for one in dis.get_instructions(code) if one.opname in _LOADS)
    return frozenset(read).union(*(_globals(one) for one in code.co_consts if isinstance(one, CodeType)))


_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_BY_STRING = ("globals", "vars", "eval", "exec", "modules", "__dict__", "__globals__", "import_module", "__import__")


def _strings(constants: Iterable[Any]) -> Iterator[str]:
    """Yield the strings among a function's constants, also those in tuples and sets, at any depth."""
    for one in constants:
        if isinstance(one, str):
            yield one
        elif isinstance(one, tuple | frozenset):
            yield from _strings(one)


def _frozen(value: Any, depth: int = DEEPEST) -> Any:
    """Return a copy of a value, to find out with `equal` later whether the value has changed.

    Tensors are copied, and sets become frozensets. The following is done `depth` levels deep: lists and tuples become
    tuples, dicts are copied, and an object of the user's own class, or a `SimpleNamespace`, becomes
    ``(class, {attribute: value})``. Deeper values of these kinds, parameters, configurations and all other objects are
    not copied, so a later write to one of them is not found.
    """
    if isinstance(value, Tensor):
        return value if isinstance(value, nn.Parameter) else kept(value)
    if isinstance(value, dict) and depth:
        return {name: _frozen(one, depth - 1) for name, one in value.items()}
    if isinstance(value, list | tuple) and depth:
        return tuple(_frozen(one, depth - 1) for one in value)
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if hasattr(value, "model_type") and hasattr(value, "to_diff_dict"):
        return value  # a configuration; `Proven.settings` is of the model's
    plain = (
        isinstance(value, SimpleNamespace) or type(value).__module__.partition(".")[0] not in sys.stdlib_module_names
    )
    if _is_plain(value) or not depth or not hasattr(value, "__dict__") or not (is_own(type(value)) and plain):
        return value
    return type(value), {name: _frozen(one, depth - 1) for name, one in vars(value).items()}


def _is_plain(value: Any) -> bool:
    immutable = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, FunctionType, type)
    return isinstance(value, immutable)


def _first(now: Held, before: Held) -> str:
    names = (name for name in {**before, **now} if name not in now or name not in before)
    return next(names, None) or next(name for name in now if not equal(now[name], before[name]))


def _refused(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{what} was changed after the model was made pack-safe, so its proof no longer holds; make it so anew: "
        "nopad.packed(nopad.unpacked(model))"
    )
