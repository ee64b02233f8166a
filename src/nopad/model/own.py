"""Find the user's own code in a model: code that belongs to none of the libraries that nopad knows.

nopad cannot know what such code does. It may be a class, or a change to a library's module: a hook, a replaced forward
method of one module, or a method or function put in the place of transformers' own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

from torch import nn
from torch.nn.modules import module as of_torch

from nopad.model.known import class_of

__all__ = ["changes", "foreign", "is_own", "is_own_call", "of_all_modules", "of_module", "own_modules", "said"]

# Their layers are known to nopad's tables, or give each token what depends on that token alone.
LIBRARIES = (
    *("torch", "transformers", "nopad", "peft", "accelerate", "trl", "optimum"),
    *("bitsandbytes", "torchao", "liger_kernel", "flash_attn", "fla", "mamba_ssm", "causal_conv1d", "kernels"),
)


def is_own(kind: type) -> bool:
    """Return whether a class is the user's own: defined in none of the libraries that nopad knows."""
    return kind.__module__.partition(".")[0] not in LIBRARIES


def own_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) of a model's modules, itself included, whose classes are the user's own."""
    for name, module in model.named_modules():
        if is_own(class_of(module)):
            yield name, module


def foreign(model: Any) -> dict[str, type]:
    """Return the user's own classes among a model's modules, itself included: ``{qualified name: class}``."""
    return {f"{kind.__module__}.{kind.__qualname__}": kind for kind in {class_of(one) for _, one in own_modules(model)}}


def is_own_call(call: Any, libraries: tuple[str, ...] = LIBRARIES) -> bool:
    """Return whether a hook, method or function is the user's own.

    It is, if it or a function that it wraps is defined neither in one of `libraries` nor in Python's standard library.
    """
    call = getattr(call, "__func__", getattr(call, "judged", call))
    if isinstance(call, functools.partial):
        return is_own_call(call.func, libraries)
    if isinstance(call, FunctionType):
        return _is_own_function(call, libraries)
    return not _is_of(libraries, type(call).__module__)


@functools.lru_cache(maxsize=4096)
def _is_own_function(function: Any, libraries: tuple[str, ...]) -> bool:
    # By its globals: `functools.wraps` copies `__module__`
    names = [function.__globals__.get("__name__", "")]
    while isinstance(function := getattr(function, "__wrapped__", None), FunctionType):
        names.append(function.__globals__.get("__name__", ""))
    return not all(_is_of(libraries, name) for name in names)


def _is_of(libraries: tuple[str, ...], name: str) -> bool:
    top = name.partition(".")[0]
    return top in libraries or (top in sys.stdlib_module_names and top != "__main__")


def of_module(module: nn.Module, libraries: tuple[str, ...] = LIBRARIES) -> Iterator[tuple[str, Any]]:
    """Yield ("the hook" or "the forward method", callable) for the user's own code that was put on this module.

    That is code in none of `libraries`.
    """
    if "forward" in module.__dict__ and is_own_call(module.__dict__["forward"], libraries):
        yield "the forward method", module.__dict__["forward"]
    for table in (module._forward_pre_hooks, module._forward_hooks):
        for hook in table.values():
            if is_own_call(hook, libraries):
                yield "the hook", hook


def of_all_modules(kinds: Iterable[Any], libraries: tuple[str, ...] = LIBRARIES) -> Iterator[tuple[str, Any]]:
    """Yield (description, callable) for the user's own hooks on all modules, and replaced forward methods of `kinds`.

    A hook on all modules is one that PyTorch runs for every module. The user's own code is code in none of `libraries`;
    the classes `kinds` are looked at only if they are of a library.
    """
    for table in (of_torch._global_forward_pre_hooks, of_torch._global_forward_hooks):
        yield from (("the hook of all modules", hook) for hook in table.values() if is_own_call(hook, libraries))
    for kind in kinds:
        if not is_own(kind) and is_own_call(kind.forward, libraries):
            yield f"the forward method of {kind.__name__}", kind.forward


def changes(model: nn.Module) -> list[tuple[str, Any]]:
    """Return the user's own code that changes library modules of a model, as (description, callable).

    Such code is a hook, a replaced forward method, or a function that was put into a class of the modules, into the
    file of transformers that defines such a class, or into ``torch.nn.functional``.
    """
    found = [(what, call) for module in model.modules() for what, call in of_module(module)]
    kinds = {type(module) for module in model.modules()}
    found += of_all_modules(kinds)
    classes = {above for kind in kinds for above in kind.__mro__ if above is not object and not is_own(above)}
    for kind in classes:
        found += [(f"{kind.__name__}.{name}", call) for name, call in _functions(vars(kind)) if name != "forward"]
    files = {kind.__module__ for kind in classes if kind.__module__.startswith("transformers.models.")}
    for name in sorted(files | {"torch.nn.functional"}):
        found += [(f"{name}.{one}", call) for one, call in _functions(vars(sys.modules[name]))]
    return found


def _functions(held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in list(held.items()):
        call = getattr(value, "fget", getattr(value, "__func__", value))
        if isinstance(call, FunctionType) and is_own_call(call):
            yield name, call


def said(what: str, call: Any) -> str:
    """Return in words what the code is and its name, such as "the hook (mine.record)"."""
    inner = getattr(call, "func", call)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{what} ({getattr(inner, '__module__', None) or type(inner).__module__}.{name})"
