"""Find the user's own code in a model: code that belongs to none of the libraries that nopad knows.

nopad cannot know what such code does. It may be a class, or a change to a library's module: a hook, a replaced forward
method of one module, or a method or function put in the place of transformers' own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as of_torch

from nopad.errors import UnsupportedModelError
from nopad.model.known import class_of

__all__ = [
    "alike",
    "changes",
    "foreign",
    "is_own",
    "is_own_call",
    "of_all_modules",
    "of_libraries",
    "of_module",
    "own_modules",
    "refuse_scripted",
    "said",
]

# Their layers are known to nopad's tables, or give each token what depends on that token alone.
LIBRARIES = (
    *("torch", "transformers", "nopad", "peft", "accelerate", "trl", "optimum"),
    *("bitsandbytes", "torchao", "liger_kernel", "flash_attn", "fla", "mamba_ssm", "causal_conv1d", "kernels"),
    "typing_extensions",  # whose decorators PyTorch uses
)

ACCELERATE = "_hf_hook"  # the attribute in which a module has its hook of Accelerate
DEEPEST = 3  # functions inside functions that are looked at
_OPERATIONS = {*dir(torch._C._VariableFunctions), *torch.functional.__all__}


def is_own(kind: type) -> bool:
    """Return whether a class is the user's own: defined in none of the libraries that nopad knows."""
    return kind.__module__.partition(".")[0] not in LIBRARIES


def own_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) for each module of a model, itself included, whose class is the user's own."""
    for name, module in model.named_modules():
        if is_own(class_of(module)):
            yield name, module


def foreign(model: Any) -> dict[str, type]:
    """Return the user's own classes among those of a model's modules, itself included: ``{qualified name: class}``."""
    return {f"{kind.__module__}.{kind.__qualname__}": kind for kind in {class_of(one) for _, one in own_modules(model)}}


def is_own_call(call: Any, libraries: tuple[str, ...] = LIBRARIES) -> bool:
    """Return whether a hook, method or function is the user's own.

    It is the user's own if it is defined neither in one of `libraries` (names of top-level packages) nor in Python's
    standard library. It is also the user's own if it contains a function of the user's own: one that it wraps, one that
    it holds in its closure, or, if it is a ``partial``, one that it calls or passes as an argument.
    """
    return any(not _is_of(libraries, name) for name in _names(call, DEEPEST))


def _names(call: Any, depth: int) -> Iterator[str]:
    """Yield the names of the Python modules that define a callable, and those that define the functions inside it.

    Functions inside it are those that it wraps, holds in its closure, or gets as arguments of a ``partial``. They are
    followed to `depth` levels.
    """
    call = getattr(call, "__func__", getattr(call, "judged", call))
    if isinstance(call, FunctionType):
        yield call.__globals__.get("__name__", "")  # not `__module__`, which `functools.wraps` copies
        held = [*map(_inside, call.__closure__ or ()), getattr(call, "__wrapped__", None)]
    elif isinstance(call, functools.partial):
        held = [call.func, *call.args, *call.keywords.values()]
    else:
        yield type(call).__module__
        held = [getattr(call, "__wrapped__", None)]
    if depth:
        for one in held:
            if isinstance(one, (FunctionType, BuiltinFunctionType, MethodType, functools.partial)):
                yield from _names(one, depth - 1)
            elif isinstance(call, functools.partial) and one is call.func:
                yield type(one).__module__


def _inside(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


def _is_of(libraries: tuple[str, ...], name: str) -> bool:
    top = name.partition(".")[0]
    return top in libraries or (top in sys.stdlib_module_names and top != "__main__")


def of_module(module: nn.Module, libraries: tuple[str, ...] = LIBRARIES) -> Iterator[tuple[str, Any]]:
    """Yield (description, callable) for the user's own hooks on a module, and for methods that the user replaced.

    A replaced method is one that was set on this module itself and not in its class. If the module's class is the
    user's own, only its forward method counts as replaced. A description is a word for the callable, such as "the hook"
    or "the forward method". A callable is the user's own if `is_own_call`, with these `libraries`, says so. A hook of
    Accelerate is the user's own if its class is defined outside of `libraries`.
    """
    stock = not is_own(class_of(module))
    for name, value in module.__dict__.items():
        if name == ACCELERATE:
            yield from (("the hook", one) for one in _chained(value) if not _is_of(libraries, type(one).__module__))
            continue
        method = name == "forward" or (stock and callable(value) and not isinstance(value, type | nn.Module))
        if method and is_own_call(value, libraries):
            yield f"the {name} method", value
    for table in (module._forward_pre_hooks, module._forward_hooks):
        for hook in table.values():
            if is_own_call(hook, libraries):
                yield "the hook", hook


def _chained(hook: Any) -> list[Any]:
    """Return a list of the hooks that Accelerate's `hook` runs one after the other, or ``[hook]`` if it runs none."""
    return [one for inner in getattr(hook, "hooks", []) for one in _chained(inner)] or [hook]


def refuse_scripted(model: nn.Module) -> None:
    """Refuse a model with a module that was scripted or traced by `torch.jit`, whose code cannot be read.

    Raises:
        UnsupportedModelError: there is such a module; the message gives its name in the model.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                f"{name or 'the model'} is scripted or traced (torch.jit), so nopad cannot see what it computes; put "
                "the module that it was made of in its place"
            )


def of_all_modules(kinds: Iterable[Any], libraries: tuple[str, ...] = LIBRARIES) -> Iterator[tuple[str, Any]]:
    """Yield (description, callable) for the user's own global hooks, and for forward methods that the user replaced.

    A global hook is one that PyTorch runs before or after the forward method of every module. The forward methods are
    those of the classes `kinds`; classes of the user's own are left out. A description is a word for the callable, such
    as "the hook of all modules". A callable is the user's own if `is_own_call`, with these `libraries`, says so.
    """
    for table in (of_torch._global_forward_pre_hooks, of_torch._global_forward_hooks):
        yield from (("the hook of all modules", hook) for hook in table.values() if is_own_call(hook, libraries))
    for kind in kinds:
        if not is_own(kind) and is_own_call(kind.forward, libraries):
            yield f"the forward method of {kind.__name__}", kind.forward


def of_libraries(kinds: frozenset[type]) -> Iterator[tuple[str, Any]]:
    """Yield (name, function) for each function of the user's own that was put in the place of a library's function.

    Only places from which modules of the classes `kinds` may call functions are searched: these classes, the files
    under ``transformers.models`` that define them, and PyTorch. A place that has not changed since the last search is
    not searched again, so this is fast enough for each call of a model.
    """
    for place in _places(kinds):
        values = list(vars(place).values())
        known = _searched.get(place)
        if known is None or not alike(known[0], values):
            known = _searched[place] = values, list(_functions(place))
        yield from known[1]


_searched: WeakKeyDictionary[Any, tuple[list[Any], list[tuple[str, Any]]]] = WeakKeyDictionary()


def alike(values: list[Any], others: list[Any]) -> bool:
    """Return whether two lists have equal elements in the same order; False if comparing them raises an error."""
    try:
        return values == others  # compares objects by identity first, which takes 10 ns each
    except Exception:  # tensors that are not the same
        return False


@functools.lru_cache(maxsize=256)
def _places(kinds: frozenset[type]) -> list[Any]:
    """Return the classes and Python modules whose functions may be called by modules of the classes `kinds`.

    These are the classes `kinds` and their bases, ``torch``, ``torch.nn.functional``, ``torch.Tensor``, and the files
    under ``transformers.models`` that define these classes. Other files of transformers, such as
    ``transformers.activations``, are left out, and so are classes of the user's own.
    """
    classes = {above for kind in kinds for above in kind.__mro__ if above is not object and not is_own(above)}
    files = {kind.__module__ for kind in classes if kind.__module__.startswith("transformers.models.")}
    return [*classes, *(sys.modules[name] for name in sorted(files)), torch.nn.functional, torch, torch.Tensor]


def changes(model: nn.Module) -> list[tuple[str, Any]]:
    """Return the user's own code that changes what a model's modules compute, as (description, callable) pairs.

    Such code is a hook, or a method or function that was put in the place of another. A function may be replaced in a
    module's class, in the file under ``transformers.models`` that defines the class, or in ``torch``,
    ``torch.Tensor`` or ``torch.nn.functional``. A description is a word for the callable, such as "the hook" or "the
    forward method", or the name of the function that it replaces. The user's own module classes are not in the list.
    """
    found = [(what, call) for module in model.modules() for what, call in of_module(module)]
    kinds = frozenset(type(module) for module in model.modules())
    found += [*of_all_modules(kinds), *of_libraries(kinds)]
    return list({id(call): (what, call) for what, call in reversed(found)}.values())[::-1]  # each once


def _functions(place: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, function) for each of the user's own functions and methods in `place`.

    `place` is a class or a Python module of a library, where such a function has replaced another. In ``torch`` itself,
    only operations such as ``torch.matmul`` are looked at. A name has the place and the function: "torch.matmul".
    """
    for name, value in list(vars(place).items()):
        call = next((getattr(value, one) for one in ("fget", "__func__", "func") if hasattr(value, one)), value)
        if not callable(call) or isinstance(call, type) or not is_own_call(call):
            continue
        if not isinstance(place, type) and name.startswith("__"):
            continue  # what torch.compile puts there
        if place is not torch or name in _OPERATIONS:  # others, such as torch.load, compute nothing of a model
            yield f"{place.__name__}.{name}", call


def said(what: str, call: Any) -> str:
    """Return a description of a callable for messages: `what`, and the name of `call`, as "the hook (mine.record)"."""
    inner = getattr(call, "func", call)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{what} ({getattr(inner, '__module__', None) or type(inner).__module__}.{name})"
