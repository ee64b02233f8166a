"""`Bfloat16Linear`: a linear layer in bfloat16 for inference on CPUs, which computes the activation after it as well.

In eager PyTorch, each call of a linear layer in bfloat16 copies the bias to the result, brings the weights into
oneDNN's order, and multiplies. The activation after the layer reads and writes the result once more. On CPUs with fast
multiplication of bfloat16 (AMX), the work besides the multiplication takes as long as the multiplication. Here, weights
are brought into oneDNN's order once in each scope (`nopad.model.layouts.laid_out`). oneDNN adds the bias and computes
the activation on the float32 sums, before it rounds them to bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from nopad.errors import OptionError
from nopad.model.layouts import Scoped, laid_out
from nopad.model.linear import is_hooked, is_plain_layer
from nopad.model.modes import evaluated
from nopad.model.replacing import names_of_children, replace_modules

__all__ = ["Bfloat16Linear", "formula_of", "fused"]

PROBE = 8  # rows on which a module with a fused activation is compared with the module before
ROUNDING = 2.0**-6  # largest difference there, as a share of the largest value: unfused, results are rounded twice
_PLAIN: Any = {"dtype": torch.float32, "device": "cpu"}  # whatever the defaults are
FORMULAS: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {
    ("gelu", "none"): nn.functional.gelu,
    ("gelu", "tanh"): partial(nn.functional.gelu, approximate="tanh"),
    ("swish", ""): nn.functional.silu,
}  # activations that oneDNN computes together with a matrix product, by its names; its ReLU makes 0 of NaN


class Bfloat16Linear(Scoped, nn.Linear):
    """A linear layer in bfloat16, and the activation after it, if any.

    On a CPU for which oneDNN supports bfloat16, inside the ``with`` block of `nopad.model.fast_linear`, and with
    gradients switched off, it runs on a copy of the weights in oneDNN's order. In all other cases it computes what
    `torch.nn.Linear` and the activation would. Examples of such cases are calls outside the block, with gradients,
    under autocast, in compiled code, on other devices, or on states of another dtype.

    So outside the block, the layer always uses its current weights. Do not change weights inside the block: a weight
    that is changed in place or replaced is copied again, but a change through ``.data`` cannot be noticed.

    >>> import torch
    >>> from nopad.model.bfloat16 import Bfloat16Linear
    >>> plain, gelu, states = torch.nn.Linear(64, 8).bfloat16(), torch.nn.GELU(), torch.randn(5, 64).bfloat16()
    >>> with torch.inference_mode():
    ...     bool(torch.allclose(Bfloat16Linear(plain, gelu)(states), gelu(plain(states)), rtol=0, atol=0.02))
    True
    """

    def __init__(self, plain: nn.Linear, activation: nn.Module | None = None) -> None:
        """Make a layer that shares the parameters of `plain` and computes `activation` after it; None: no activation.

        `activation` is a module for which `formula_of` returns a formula.

        Raises:
            OptionError: there is no formula of `activation`.
        """
        formula = ("none", "") if activation is None else formula_of(activation)
        if formula is None:
            raise OptionError(
                f"{type(activation).__name__} cannot be computed together with a linear layer; call it after the layer "
                "(GELU and SiLU can)"
            )
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self.training = plain.training
        self.activation = activation
        self._formula = formula

    def forward(self, states: Tensor) -> Tensor:
        """Return ``[..., out_features]`` for `states` ``[..., in_features]``, on the same device.

        The result has the dtype of `states`, except under autocast, where it has the dtype that autocast chooses.
        """
        copies = self._copies  # another thread may end the scope meanwhile
        if copies is None or not self._is_fast(states):
            found = nn.functional.linear(states, self.weight, self.bias)
            return found if self.activation is None else self.activation(found)
        return _by_onednn(states, self._packed(copies), self.bias, *self._formula)

    def _is_fast(self, states: Tensor) -> bool:
        return (
            states.device.type == self.weight.device.type == "cpu"
            and states.dtype == self.weight.dtype == torch.bfloat16
            and states.numel() > 0
            and self.weight.numel() > 0
            and not self.weight.is_inference()  # which has no number of its version
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
            and _is_supported()
        )

    def _packed(self, copies: dict[str, tuple[Tensor, Tensor, int, Tensor]]) -> Tensor:
        """Return the weight in oneDNN's order: the copy in `copies` or, if none is of the current weight, a new one.

        A new copy is stored in ``copies["weight"]``, a tuple of the parameter, the detached parameter, its version, and
        the copy.
        """
        weight, known = self.weight, copies.get("weight")
        if (
            known is None
            or known[0] is not weight
            or known[1].data_ptr() != weight.data_ptr()
            or known[2] != weight._version
        ):
            # The weight and its memory are held, so that no other gets their places while they are compared with
            known = weight, weight.detach(), weight._version, _lay_out(weight)
            copies["weight"] = known
        return known[3]


def fused(model: Any) -> Any:
    """Replace plain bfloat16 linear layers inside a model by `Bfloat16Linear`, in place, and return the model.

    A linear layer is plain if its class is `torch.nn.Linear` itself and it has no hooks, other than harmless ones of
    nopad (`is_hooked`). Where possible, the activation after a layer is fused into it: the layer then computes the
    activation as well. This is tried in each module whose class transformers defines, if the module has no such hooks,
    and holds nothing but replaced layers, one activation and perhaps dropout. Its layers are tried one after the other.
    The activation is fused into the first layer with which the module gives the same results as before, up to rounding.
    If there is no such layer, the activation stays a module of its own. A layer that several modules share stays
    shared, unless an activation is fused into it in only some of them.
    """

    def faster(layer: Any) -> Bfloat16Linear | None:
        return Bfloat16Linear(layer) if is_plain_layer(layer) and layer.weight.dtype == torch.bfloat16 else None

    replace_modules(model, faster)
    made: _Fused = {}
    for module in list(model.modules()):
        if type(module).__module__.startswith("transformers.") and not is_hooked(module):
            _fuse_activation(module, made)
    return model


@cache
def _is_supported() -> bool:
    """Return whether oneDNN is available and can multiply bfloat16 matrices on the CPU of this machine."""
    available: Any = torch.backends.mkldnn.is_available
    supported: Any = torch.ops.mkldnn._is_mkldnn_bf16_supported
    return bool(available() and supported())


def _lay_out(weight: Tensor) -> Tensor:
    laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    return laid_out


def _by_onednn(states: Tensor, weight: Tensor, bias: Tensor | None, name: str, formula: str) -> Tensor:
    """Return ``activation(states @ weight.T + bias)``, computed by oneDNN.

    `weight` is in oneDNN's own order. `name` and `formula` are oneDNN's names of the activation and of its
    approximation, such as "gelu" and "tanh"; "none" and "" stand for no activation.
    """
    out: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, name, [], formula)
    return out


def formula_of(activation: nn.Module) -> tuple[str, str] | None:
    """Return oneDNN's names of an activation and of its approximation; None if it is not one of `FORMULAS`.

    The activation is recognised by the values that it returns. Only modules of torch and transformers without
    submodules are tried. The activation `torch.nn.Tanh` gives None, since it is not one of `FORMULAS`:

    >>> from nopad.model.bfloat16 import formula_of
    >>> formula_of(torch.nn.GELU(approximate="tanh")), formula_of(torch.nn.Tanh())
    (('gelu', 'tanh'), None)
    """
    if type(activation).__module__.split(".")[0] not in ("torch", "transformers") or len(list(activation.children())):
        return None
    far = torch.logspace(0, 30, 61, **_PLAIN)  # where an activation may be clipped
    states = torch.cat([torch.linspace(-8, 8, 1025, **_PLAIN), far, -far])
    found = _probed(activation, states)
    for names, formula in FORMULAS.items():
        if found is not None and found.shape == states.shape and torch.allclose(found, formula(states), 1e-6, 1e-6):
            return names
    return None


# Layers with an activation fused into them, by the id of the layer (which is held) and oneDNN's names of the activation
_Fused = dict[tuple[int, tuple[str, str]], tuple[Bfloat16Linear, Bfloat16Linear]]


def _fuse_activation(module: nn.Module, made: _Fused) -> None:
    """Fuse a module's activation into one of its `Bfloat16Linear` layers, in place.

    The layers are tried in turn, until the module's results with the fused activation are the same as before, up to
    rounding. The module stays as it is in three cases: its submodules are not one or more `Bfloat16Linear` layers, one
    activation and perhaps dropout; the activation is not one of `FORMULAS`; or the results differ with every layer.

    `made` holds the fused layers that were made for other modules of the model:
    ``{(id of the layer, formula of the activation): (layer, fused layer)}``. If `made` has a fused layer for this layer
    and activation, that one is used again, so that shared layers stay shared. New fused layers are added to `made`.
    """
    children = names_of_children(module)
    layers = [(names, child) for names, child in children if isinstance(child, Bfloat16Linear)]
    others = [(names, child) for names, child in children if type(child) not in (Bfloat16Linear, nn.Dropout)]
    if not layers or len(others) != 1:
        return
    ((places, activation),) = others
    formula = formula_of(activation)
    if formula is None:
        return
    width = layers[0][1].in_features
    states = torch.randn(PROBE, width, generator=torch.Generator().manual_seed(0), **_PLAIN).bfloat16()
    before = _probed(module, states)
    for names, layer in layers:
        known = made.get((id(layer), formula))
        fused = Bfloat16Linear(layer, activation) if known is None else known[1]
        _put(module, names, fused)
        _put(module, places, nn.Identity())
        if _is_near(_probed(module, states), before):
            made[id(layer), formula] = layer, fused
            return
        _put(module, names, layer)
        _put(module, places, activation)


def _put(module: nn.Module, names: list[str], child: nn.Module) -> None:
    for name in names:
        setattr(module, name, child)


def _is_near(found: Tensor | None, before: Tensor | None) -> bool:
    """Return whether two results have the same shape and values, up to rounding to bfloat16; False if one is None."""
    if found is None or before is None or found.shape != before.shape:
        return False
    return bool((found - before).abs().max() <= ROUNDING * before.abs().max())


def _probed(module: nn.Module, states: Tensor) -> Tensor | None:
    """Return a module's result on `states` in evaluation mode, as float32.

    The result is None if the module raises an error (it may take other arguments), or returns NaN, infinity or
    something other than a tensor.
    """
    try:
        with evaluated(module), laid_out(module), torch.inference_mode():
            found = module(states)
    except Exception:  # it is transformers' own code, given what it may not expect
        return None
    return found.float() if isinstance(found, Tensor) and bool(found.isfinite().all()) else None
