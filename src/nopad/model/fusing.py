"""`Activations`: inside `fast_linear`, oneDNN computes a linear layer's product together with the activation after it.

An activation by itself reads and writes the layer's output once more: GELU takes half as long as the product before it.
Which layers are followed by an activation is learnt while the model runs. Suppose that the next call of PyTorch after a
layer's product is GELU or SiLU of this product. From then on, the layer's product is computed together with the
activation, and the call of the activation only returns the result.

That is a guess, so it is checked each time. If another call follows the layer, the output is computed again without the
activation. The same happens if something still holds the layer's output when the call after the activation comes (a
hook, or ``act(y) + y``): it would hold the activation's result instead. In both cases, nothing more is guessed for the
layer.

Code that reads the output without a call that can be followed would get wrong values: compiled or scripted functions,
another thread, or `torch._C.DisableTorchFunction`. So nothing is guessed for a model with any compiled or scripted
module, or with code of the user's own (`may_fuse`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nopad.model.own import changes, foreign

__all__ = ["PLAIN", "Activations", "Formula", "may_fuse"]

Formula = tuple[str, str]  # oneDNN's names of an activation and of its approximation
PLAIN: Formula = ("none", "")


def may_fuse(model: nn.Module) -> bool:
    """Return whether `Activations` can follow every call that may read the output of one of the model's layers.

    It can if all code is that of known libraries, and nothing was compiled or scripted. So the result is False if the
    model has classes, hooks or replaced functions of the user's own, or compiled or scripted modules.
    """
    return not any(map(_is_compiled, model.modules())) and not foreign(model) and not changes(model)


def _is_compiled(module: nn.Module) -> bool:
    """Return whether a module, or a function that it holds, was compiled with `torch.compile` or `torch.jit`."""
    if isinstance(module, torch.jit.ScriptModule) or module._compiled_call_impl is not None:
        return True
    held = [value for value in module.__dict__.values() if callable(value)]
    return any(isinstance(one, torch.jit.ScriptFunction) or hasattr(one, "_torchdynamo_orig_callable") for one in held)


@dataclass
class _Product:
    """The output of a layer that was computed together with an activation.

    Attributes:
        layer: id of the layer's weight.
        formula: the activation, by oneDNN's names of it and of its approximation, such as ``("gelu", "tanh")``.
        plain: function that computes the output without the activation.
        out: the output; None: the call of the activation has returned it already.
        ref: weak reference to the output, which shows whether something still holds it.
    """

    layer: int
    formula: Formula
    plain: Callable[[], Tensor]
    out: Tensor | None
    ref: weakref.ref[Tensor]


class Activations:
    """Follows the calls of PyTorch functions in one thread, and chooses the activation to compute with each layer.

    Call `next` before every call of a PyTorch function, `of` before a layer's product is computed and `computed` after
    it, and `close` at the end.

    Attributes:
        learnt: maps the id of a layer's weight to the activation that follows the layer, or to `PLAIN` if none is
            guessed any more. Threads that run the same model may share the dict.
    """

    def __init__(self, learnt: dict[int, Formula]) -> None:
        self.learnt = learnt
        self._last: tuple[int, weakref.ref[Tensor]] | None = None  # the last call was this layer's, with this output
        self._open: _Product | None = None

    def of(self, layer: int) -> Formula:
        """Return the activation with which the product of a layer should be computed; `PLAIN`: none.

        `layer` is the id of the layer's weight. The result is a pair, such as ``("gelu", "tanh")``: oneDNN's names of
        the activation and of its approximation.
        """
        return self.learnt.get(layer, PLAIN)

    def computed(self, layer: int, formula: Formula, out: Tensor, plain: Callable[[], Tensor]) -> Tensor:
        """Record that `out`, the output of a layer, was computed with the activation `formula`, and return `out`.

        If `formula` is `PLAIN`, it was computed without an activation. `layer` is the id of the layer's weight. `plain`
        is a function that computes the output without the activation.
        """
        ref = weakref.ref(out)
        if formula != PLAIN:
            self._open = _Product(layer, formula, plain, out, ref)
        elif layer not in self.learnt:
            self._last = layer, ref
        return out

    def next(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
        """Return the result of the PyTorch call that comes next, or None if the call must be made.

        The result is known if the call is the activation that was computed together with the layer before it. In all
        other cases, an open guess is ended (`close`). If the call is an activation of a layer's output, and `learnt`
        has no entry for this layer yet, the activation is stored there. `function`, `args` and `kwargs` are those of
        the call.
        """
        last, self._last = self._last, None
        if last is not None and args and args[0] is last[1]():
            formula = _formula_of(function, args, kwargs)
            if formula is not None:
                self.learnt.setdefault(last[0], formula)
        product = self._open
        if product is None:
            return None
        out = product.out
        if out is not None and args and args[0] is out and _formula_of(function, args, kwargs) == product.formula:
            product.out = None
            return out.detach()  # another object with the same memory: `ref` tells whether the output itself is held
        self.close()
        return None

    def close(self) -> None:
        """End the guess for the last layer that was computed with an activation; undo it if it was wrong.

        It was wrong if something still holds the layer's output. An output whose activation has not been called yet
        counts as held. The output is then computed again without the activation, in place, and nothing more is guessed
        for the layer.
        """
        product, self._open = self._open, None
        if product is None:
            return
        held: Any = product.ref()
        if held is None:
            return
        self.learnt[product.layer] = PLAIN
        with torch.inference_mode(held.is_inference()), torch.no_grad():
            held.set_(product.plain())  # the activation's result, if there is one, keeps the memory that it has


def _formula_of(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Formula | None:
    """Return the activation that a PyTorch call computes, such as ``("gelu", "tanh")``; None: it is not GELU or SiLU.

    The pair has oneDNN's names of the activation and of its approximation. The result is also None if the input is
    given by name, or if the call has arguments that oneDNN does not support, such as ``inplace=True``.
    """
    if function is nn.functional.gelu and len(args) == 1 and kwargs.keys() <= {"approximate"}:
        approximate = kwargs.get("approximate", "none")
        return ("gelu", approximate) if approximate in ("none", "tanh") else None
    if function is nn.functional.silu and len(args) == 1 and not any(kwargs.values()):
        return "swish", ""
    return None
