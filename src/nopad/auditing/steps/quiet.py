"""A copy of the user's model, and a mode of torch in which a training step is exact and draws nothing.

Losses of transformers compute in float32 whatever the model's dtype, and so do many norms; two ways to the same number
then differ by roundings that would hide a small error. Inside `Exact` with ``wide`` every cast to a narrower float
gives float64 instead, so that equal is equal to 1e-12. Dropout does nothing; other random numbers are noted.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from nopad.auditing.failure import inside_model
from nopad.errors import OptionError
from nopad.model.safety import is_packed, state_of, unpacked

__all__ = ["Exact", "copied", "inner", "let_go", "parameters_of", "untouched"]

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)
_DROPOUTS = frozenset(
    getattr(place, name)
    for place in (functional, torch)
    for name in dir(place)
    if "dropout" in name and not name.startswith("_") and callable(getattr(place, name)) and name != "native_dropout"
)
_RANDOM = frozenset(
    (
        *("bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal"),
        *("normal_", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random_"),
        *("randperm", "rrelu", "uniform_"),
    )
)
_PROBABILITIES = ("layerdrop", "drop_prob", "encoder_layerdrop", "decoder_layerdrop")
_DROPOUT_AT = 4  # which argument of scaled_dot_product_attention is dropout_p


class Exact(TorchFunctionMode):
    """Inside this mode dropout does nothing and, with `wide`, what would be cast to a narrower float is float64.

    Attributes:
        wide: whether casts give float64.
        drawn: names of the functions that drew random numbers.
    """

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.drawn: set[str] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        kwargs = kwargs or {}
        if function is Tensor.backward:  # a mode is off inside what it runs, and layers are computed again in there
            with self:
                return _backward(*args, **kwargs)
        if function in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if function is functional.scaled_dot_product_attention:
            if len(args) > _DROPOUT_AT:
                args = (*args[:_DROPOUT_AT], 0.0, *args[_DROPOUT_AT + 1 :])
            elif kwargs.get("dropout_p"):
                kwargs = {**kwargs, "dropout_p": 0.0}
        name = getattr(function, "__name__", "")
        if name in _RANDOM:
            self.drawn.add(name)
        if self.wide and function is not Tensor.view:  # a view as another dtype is no cast
            if function in _CASTS:
                function = Tensor.double
            args = tuple(torch.float64 if _narrow(value) else value for value in args)
            kwargs = {name: torch.float64 if _narrow(value) else value for name, value in kwargs.items()}
        return function(*args, **kwargs)


def copied(model: Any, dtype: torch.dtype | None, *, plain: bool) -> Any:
    """Return a copy of a model in training mode, in `dtype` (None: as it is), without gradients or compiled layers.

    `plain`: not pack-safe, and with the classes' own `forward`, whatever a trainer put in its place, so that neither
    takes part in what sequences get alone.

    Raises:
        ModelFailedError: the model cannot be copied or converted.
    """
    given = inner(model)
    with inside_model(f"{type(given).__name__} cannot be copied" + (f" in {dtype}" if dtype else "")):
        memo: dict[int, Any] = {}
        made = copy.deepcopy(given, memo)
        _forwards(made, memo, plain)
        made = made if dtype is None else made.to(dtype)
        made.train()
    for parameter in made.parameters():
        parameter.grad = None
    for module in list(made.modules()):
        module._compiled_call_impl = None
        for name, child in list(module.named_children()):
            if hasattr(child, "_orig_mod"):
                setattr(module, name, child._orig_mod)
        for name in _PROBABILITIES:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    config: Any = getattr(made, "config", None)
    if getattr(config, "output_router_logits", False):
        config.output_router_logits = False
    if dtype == torch.float64 and getattr(config, "_experts_implementation", None) not in (None, "eager"):
        made.set_experts_implementation("eager")  # the grouped kernels of transformers do not support float64
    if hasattr(made, "config") and is_packed(made):
        if plain:
            unpacked(made)
        else:
            state_of(made).most = None
    return made


def _forwards(made: Any, memo: dict[int, Any], plain: bool) -> None:
    """Take out the `forward` that a trainer put into single modules of a copy (`plain`), or bind it to the copy."""
    for module in made.modules():
        own = vars(module).get("forward")
        if own is not None:
            if plain:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = _rebound(own, memo)


def _rebound(value: Any, memo: dict[int, Any], depth: int = 4) -> Any:
    """Return a function whose closure holds modules of the original, or methods of them, with those of the copy."""
    if isinstance(value, types.MethodType):
        owner = memo.get(id(value.__self__), value.__self__)
        return types.MethodType(_rebound(value.__func__, memo, depth - 1) if depth else value.__func__, owner)
    if isinstance(value, functools.partial) and depth:
        arguments = [_rebound(each, memo, depth - 1) for each in value.args]
        return functools.partial(_rebound(value.func, memo, depth - 1), *arguments, **value.keywords)
    if isinstance(value, types.FunctionType) and value.__closure__ and depth:
        cells = tuple(types.CellType(_rebound(cell.cell_contents, memo, depth - 1)) for cell in value.__closure__)
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
        made.__kwdefaults__ = value.__kwdefaults__
        made.__dict__.update(value.__dict__)
        return made
    return memo.get(id(value), value) if isinstance(value, nn.Module) else value


@contextmanager
def untouched(model: Any) -> Iterator[None]:
    """Inside, only copies of the model are trained: its gradients stay as they were.

    Raises:
        OptionError: a copy reached parameters of the model itself, through a hook that holds it, say.
    """
    kept = [(name, value, value.grad) for name, value in inner(model).named_parameters()]
    for _, value, _ in kept:
        value.grad = None
    try:
        yield
        reached = [name for name, value, _ in kept if value.grad is not None]
    finally:
        for _, value, gradient in kept:
            value.grad = gradient
    if reached:
        raise OptionError(
            f"a copy of this {type(inner(model)).__name__} trains the model itself ({reached[0]}): a hook or a forward "
            "that was replaced holds it; audit the model without that"
        )


def let_go(made: Any) -> None:
    """Free a copy: hooks of a pack-safe model refer to it, and it to them."""
    if hasattr(made, "config") and is_packed(made):
        unpacked(made)


def inner(model: Any) -> Any:
    """Return the module inside wrappers of DDP and torch.compile; PEFT's stay, since training calls them."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        else:
            return model


def parameters_of(model: Any) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _backward(
    tensor: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
) -> None:
    """Do what `Tensor.backward` does, which would be dispatched to the mode again."""
    torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


def _narrow(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in _NARROW
