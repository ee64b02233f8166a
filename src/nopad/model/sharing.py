"""Find out whether threads may run one model at the same time.

They may not if a module stores something of a call in an attribute (RecurrentGemma's recurrent blocks do), since a call
in another thread would then read it. The code of transformers' classes is searched for such assignments. A model with
other code than that of transformers, PyTorch and nopad is never shared, since such code may do anything. This includes
code of a tensor's class, which runs in each operation on weights of this class.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from torch import nn
from torch.nn.modules import module as of_torch

from nopad.model.known import class_of
from nopad.model.own import alike, of_all_modules, of_module
from nopad.syntax import parse

__all__ = ["Sharing", "all_modules", "may_be_shared"]

SAFE = ("nopad", "torch", "transformers")
NONE = type(None)  # in place of a weight that a module leaves out, such as a bias
ROPES = ("dynamic", "longrope")  # frequencies that a module changes with the longest sequence of a call
NOTED = "self.config.problem_type"  # what classifiers of transformers note of labels; without labels they note nothing
STORES = ("register_buffer", "register_parameter", "setattr", "__setattr__", "append", "extend", "update")


def may_be_shared(model: nn.Module) -> bool:
    """Return whether several threads may run a model at once, without labels and gradients, in evaluation mode.

    RecurrentGemma may not be shared, since its recurrent blocks store their state in an attribute:

    >>> from transformers import BertConfig, BertModel, RecurrentGemmaConfig, RecurrentGemmaModel
    >>> from nopad.model.sharing import may_be_shared
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    >>> may_be_shared(BertModel(BertConfig(**sizes))), may_be_shared(RecurrentGemmaModel(RecurrentGemmaConfig(**sizes)))
    (True, False)
    """
    modules = list(model.modules())
    if not all(_keeps_nothing(kind) for kind in {class_of(module) for module in modules}):
        return False
    tensors = {kind for module in modules for kind in _kinds_of_tensors(module)} - {NONE}
    if not all(kind.__module__.partition(".")[0] in SAFE for kind in tensors):
        return False
    if any(rope in str(vars(module).get("rope_type", "")) for module in modules for rope in ROPES):
        return False
    changed = (change for module in modules for change in of_module(module, SAFE))
    return not any(changed) and not any(of_all_modules({type(module) for module in modules}, SAFE))


class Sharing:
    """Caches the answer of `may_be_shared` for one model, so that it can be asked before each batch.

    The answer is computed again only if an attribute, hook, forward method or class of weights changed since the last
    call. Asking takes a fifth of the time of `may_be_shared`.

    >>> from transformers import BertConfig, BertModel
    >>> from nopad.model.sharing import Sharing
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = BertModel(BertConfig(**sizes))
    >>> sharing = Sharing(model)
    >>> before = sharing.allowed()
    >>> model.pooler.rope_type = "dynamic"  # a module with frequencies that change with a call
    >>> before, sharing.allowed()
    (True, False)
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: tuple[list[Any], bool] | None = None  # replaced as a whole: threads may call `allowed` at once

    def allowed(self) -> bool:
        """Return whether threads may share the model as it is now: what `may_be_shared` returns."""
        seen: list[Any] = [*of_torch._global_forward_pre_hooks.values(), *of_torch._global_forward_hooks.values()]
        modules = all_modules(self._model)
        for module in modules:
            seen += module.__dict__.values()
            seen += module._forward_pre_hooks.values()
            seen += module._forward_hooks.values()
            if module._parameters or module._buffers:
                seen += _kinds_of_tensors(module)
        kinds: dict[Any, None] = dict.fromkeys(map(type, modules))
        seen += [kind.forward for kind in kinds]
        known = self._known
        if known is None or not alike(seen, known[0]):
            known = self._known = seen, may_be_shared(self._model)
        return known[1]


def _kinds_of_tensors(module: nn.Module) -> Iterator[type]:
    """Return an iterator over the classes of a module's own weights and buffers, in a fixed order."""
    return map(type, (*module._parameters.values(), *module._buffers.values()))


def all_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules of a model, itself included, each once; twice as fast as ``model.modules()``."""
    found, seen = [model], {id(model)}
    for module in found:  # which grows meanwhile
        for child in tuple(module._modules.values()):  # another thread may add one
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found


@lru_cache(maxsize=4096)
def _keeps_nothing(kind: type) -> bool:
    """Return whether the forward method of a module class, and the methods that it calls, store nothing in a module.

    Only the code of transformers' classes is read, and what classifiers note of labels is allowed
    (`config.problem_type`). The result is True for all classes of PyTorch and nopad, and False for all classes of the
    user and of other libraries.
    """
    library = kind.__module__.partition(".")[0]
    if library not in SAFE:
        return False
    return library != "transformers" or not any(map(_stores, _run_methods(kind)))


def _run_methods(kind: type) -> Iterator[ast.AST]:
    """Yield the syntax trees of a class's `forward` method and of the methods that it uses.

    Methods that are not defined in ``transformers.models`` are left out.
    """
    waiting, seen = ["forward"], set[str]()
    while waiting:
        name = waiting.pop()
        method = inspect.unwrap(getattr(kind, name, None) or len)
        if name in seen or not inspect.isfunction(method) or not method.__module__.startswith("transformers.models."):
            continue
        seen.add(name)
        code = parse(textwrap.dedent(inspect.getsource(method)))
        yield code
        waiting += [one.attr for one in ast.walk(code) if isinstance(one, ast.Attribute) and _of_self(one)]


def _stores(code: ast.AST) -> bool:
    for one in ast.walk(code):
        stored = isinstance(one, ast.Attribute | ast.Subscript) and isinstance(one.ctx, ast.Store) and _of_self(one)
        if stored and ast.unparse(one) != NOTED:
            return True
        if isinstance(one, ast.Call):
            called: Any = one.func
            if isinstance(called, ast.Name) and called.id == "setattr":
                return True
            in_place = isinstance(called, ast.Attribute) and called.attr.endswith("_") and called.attr[-2:] != "__"
            if isinstance(called, ast.Attribute) and _of_self(called) and (in_place or called.attr in STORES):
                return True
    return False


def _of_self(node: Any) -> bool:
    """Return whether an expression is `self`, or read from it by attributes and items, such as ``self.layers[0]``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "self"
