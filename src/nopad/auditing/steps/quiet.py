"""A copy of the user's model, and a PyTorch mode in which a training step runs in float64 and without dropout.

The losses in transformers, and many norms, compute in float32 whatever the model's dtype. Two ways to compute the same
number then differ by rounding, which would hide a small error. Inside `Exact` with ``wide``, casts to narrower floats
give float64 instead, so equal results agree to 1e-12. Dropout does nothing; operations that draw other random numbers
are recorded.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nopad.auditing.failure import inside_model
from nopad.errors import OptionError
from nopad.model.replacing import uncompile
from nopad.model.safety import is_packed, state_of, unpacked

__all__ = ["Exact", "copied", "inner", "let_go", "parameters_of", "untouched"]

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_RANDOM = frozenset(
    (
        *("bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal"),
        *("normal_", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random_"),
        *("randperm", "rrelu_with_noise", "uniform_"),
    )
)
_SPECIAL = ("bernoulli_", "native_dropout", "native_dropout_backward", "_to_copy", "view")
_PROBABILITIES = ("layerdrop", "drop_prob", "encoder_layerdrop", "decoder_layerdrop")


class Exact(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which dropout does nothing and, with `wide`, casts to a narrower float give float64.

    It is a dispatch mode, since a function mode would not act in the backward pass, where checkpointed layers run
    again.

    Attributes:
        wide: whether casts to narrower floats give float64.
        drawn: names of the operations, other than dropout, that drew random numbers.
        casts: the half-precision dtypes to which a tensor was cast, for example by autocast.
    """

    def __init__(self, wide: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wide = wide
        self.drawn: set[str] = set()
        self.casts: set[torch.dtype] = set()
        self._default = torch.get_default_dtype()

    def __enter__(self) -> Any:
        self._default = torch.get_default_dtype()
        if self.wide:
            torch.set_default_dtype(torch.float64)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        torch.set_default_dtype(self._default)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation of torch, without dropout and, if `wide`, without casts to narrower floats."""
        kwargs = kwargs or {}
        kind = _kind_of(function)  # computed once, since a step has many thousands of operations
        name = kind.name
        if kind.special:
            if name == "bernoulli_" and not isinstance(args[1] if len(args) > 1 else 0.5, Tensor):
                # dropout divides by it, giving 1
                return args[0].fill_(args[1] if len(args) > 1 else kwargs.get("p", 0.5))
            if name == "native_dropout":
                return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
            if name == "native_dropout_backward":
                return args[0].clone()
            if name in _RANDOM:
                self.drawn.add(name)
            if name == "_to_copy" and kwargs.get("dtype") in _NARROW[1:]:
                self.casts.add(kwargs["dtype"])
            if name == "view" and any(isinstance(value, torch.dtype) for value in args):
                return function(*args, **kwargs)
            args, kwargs = _without_dropout(kind.dropout_at, args, kwargs)
        if not self.wide:
            return function(*args, **kwargs)
        if kwargs:
            kwargs = {key: _widened(value) for key, value in kwargs.items()}
        found = function(*_all_widened(args, kind.mutable), **kwargs)
        if name == "lift_fresh" and isinstance(found, Tensor) and found.dtype in _NARROW:
            return found.double()  # from torch.tensor(numbers, dtype=...)
        return found


class _Kind(NamedTuple):
    """Facts about one operation of torch, which hold for all its calls.

    Attributes:
        name: its name, without the overload's.
        special: whether `Exact` looks at the name and arguments of its calls, as for dropout, random numbers and casts.
        mutable: whether it changes an argument in place.
        dropout_at: index of its argument `dropout_p`; None: it has none.
    """

    name: str
    special: bool
    mutable: bool
    dropout_at: int | None


@functools.cache
def _kind_of(function: Any) -> _Kind:
    name = function.overloadpacket.__name__
    taken = [argument.name for argument in function._schema.arguments]
    dropout_at = taken.index("dropout_p") if "dropout_p" in taken else None
    special = dropout_at is not None or name in _RANDOM or name in _SPECIAL
    return _Kind(name, special, function._schema.is_mutable, dropout_at)


def copied(model: Any, dtype: torch.dtype | None, *, plain: bool) -> Any:
    """Return a copy of a model in training mode and in `dtype` (None: its own), without gradients or compiled layers.

    In the copy, no layers or paths are dropped at random, and the loss that balances experts is switched off. A `plain`
    copy, for sequences alone, is not pack-safe, and each module has its class's own `forward` even if a trainer
    replaced it.

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
    uncompile(made)
    for module in list(made.modules()):
        module._compiled_call_impl = None
        for name in _PROBABILITIES:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    config: Any = getattr(made, "config", None)
    if getattr(config, "output_router_logits", False):
        config.output_router_logits = False
    if plain and "flash" in str(getattr(config, "_attn_implementation", None)):
        made.set_attn_implementation("sdpa")  # flash kernels support half precision only
    if dtype == torch.float64 and getattr(config, "_experts_implementation", None) not in (None, "eager"):
        made.set_experts_implementation("eager")  # the grouped kernels of transformers do not support float64
    if hasattr(made, "config") and is_packed(made):
        if plain:
            unpacked(made)
        else:
            state_of(made).most = None
    return made


def _forwards(made: Any, memo: dict[int, Any], plain: bool) -> None:
    """If `plain`, remove each `forward` that a trainer put into a module of the copy `made`; else, rebind it.

    A rebound `forward` refers to modules of the copy. `memo` maps the ids of original objects to their copies.
    """
    for module in made.modules():
        own = vars(module).get("forward")
        if own is not None:
            if plain:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = _rebound(own, memo)


def _rebound(value: Any, memo: dict[int, Any], depth: int = 4) -> Any:
    """Return `value` with modules of the copy in place of those of the original model, wherever `value` refers to them.

    `memo` maps the ids of original objects to their copies. References are followed, `depth` levels deep, through
    methods, through closures and default values of functions, and through the functions and arguments of partials. A
    function that may refer to such modules is made anew.
    """

    def followed(each: Any) -> Any:
        return _rebound(each, memo, depth - 1)

    if isinstance(value, types.MethodType):
        owner = memo.get(id(value.__self__), value.__self__)
        return types.MethodType(followed(value.__func__) if depth else value.__func__, owner)
    if isinstance(value, functools.partial) and depth:
        named = {name: followed(each) for name, each in value.keywords.items()}
        return functools.partial(followed(value.func), *map(followed, value.args), **named)
    holds = isinstance(value, types.FunctionType) and (value.__closure__ or value.__defaults__ or value.__kwdefaults__)
    if holds and depth:
        cells = value.__closure__ and tuple(_rebound_cell(cell, followed) for cell in value.__closure__)
        defaults = value.__defaults__ and tuple(map(followed, value.__defaults__))
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, defaults, cells)
        if value.__kwdefaults__:
            made.__kwdefaults__ = {name: followed(each) for name, each in value.__kwdefaults__.items()}
        made.__dict__.update(value.__dict__)
        return made
    return memo.get(id(value), value) if isinstance(value, nn.Module) else value


def _rebound_cell(cell: types.CellType, followed: Callable[[Any], Any]) -> types.CellType:
    try:
        held = cell.cell_contents
    except ValueError:  # an empty cell, of a name that is assigned later
        return types.CellType()
    return types.CellType(followed(held))


@contextmanager
def untouched(model: Any) -> Iterator[None]:
    """Check that a ``with`` block trains only copies of the model; then restore the model's own gradients.

    Raises:
        OptionError: a copy reached parameters of the model itself, for example through a hook that refers to it.
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
            "that was replaced holds it, or the loss calls it and not the model that it is given; mend that"
        )


def let_go(made: Any) -> None:
    """Remove nopad's hooks from a pack-safe copy of a model; they refer to the copy, and would keep it in memory."""
    if hasattr(made, "config") and is_packed(made):
        unpacked(made)


def inner(model: Any) -> Any:
    """Return the module inside the wrappers of (Distributed)DataParallel and torch.compile; PEFT's wrapper stays."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        else:
            return model


def parameters_of(model: Any) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of a model by name."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _without_dropout(at: int | None, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments ``(args, kwargs)`` of an operation of torch with 0 for its `dropout_p`.

    `at` is the index of this argument; None: the operation has none, and its arguments stay.
    """
    if at is None:
        return args, kwargs
    if at < len(args):
        return (*args[:at], 0.0, *args[at + 1 :]), kwargs
    return args, {**kwargs, "dropout_p": 0.0} if "dropout_p" in kwargs else kwargs


def _all_widened(args: tuple[Any, ...], mutable: bool) -> tuple[Any, ...]:
    """Return the arguments of an operation; each that is a float dtype narrower than float64 becomes float64.

    Tensors are cast only if one of them is float64: the narrower float tensors then become float64. In a `mutable`
    operation, which writes to an argument, no tensor is cast.
    """
    double = narrow = False
    for value in args:
        if isinstance(value, Tensor):
            double = double or value.dtype is torch.float64
            narrow = narrow or value.dtype in _NARROW
        elif isinstance(value, torch.dtype):
            args = tuple(map(_widened, args))
    if double and narrow and not mutable:  # e.g. float32 constants
        return tuple(
            value.double() if isinstance(value, Tensor) and value.dtype in _NARROW else value for value in args
        )
    return args


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value
