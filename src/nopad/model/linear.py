"""`fast_linear`: run linear layers with the faster of two kernels, for inference on CPUs.

PyTorch multiplies float32 matrices with MKL. On AVX-512 CPUs that are not made by Intel, oneDNN with reordered weights
is up to 1.85 times as fast; on CPUs with AVX2 only, MKL is faster. So both kernels are timed on the model's most
frequent layer size, once per process and size, and the result is logged. Parameters and `state_dict` stay unchanged:
the reordered copies take as much memory as the linear layers' weights, and are freed at the end of the ``with`` block.
oneDNN computes GELU and SiLU together with the layer before them (`nopad.model.fusing`). The bfloat16 layers of
`nopad.model.lowered` have their fast kernel inside the block too (`nopad.model.layouts`).

Do not change weights inside the block. A weight that is changed in place is reordered again, but a write through
``.data`` (``weight.data.mul_(2)``) cannot be noticed. A new parameter in a weight's place runs on PyTorch's own kernel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from nopad.model.fusing import PLAIN, Activations, Formula, may_fuse
from nopad.model.layouts import laid_out

__all__ = ["active", "fast_linear", "fastest", "is_alone", "is_hooked", "is_plain_layer", "is_worth_it", "shared"]

log = logging.getLogger("nopad")

WORTH = 1.15  # speed-up below which the copies are not worth their memory
TRIED_TOKENS = 256
_linear = nn.functional.linear
_active: ContextVar[_FastLinear | None] = ContextVar("nopad_fast_linear", default=None)


@contextmanager
def fast_linear(model: nn.Module) -> Iterator[None]:
    """In a ``with`` block, run the model's float32 linear layers on oneDNN's kernel if it is faster than PyTorch's.

    This is for inference on a CPU, and holds in the thread that opens the block. Layers run on PyTorch's own kernel if
    gradients or autocast are enabled, in compiled code, in transforms of `torch.func`, and in the user's own
    `TorchDispatchMode` or `TorchFunctionMode`. Do not train, load or swap the model's weights inside the block, and do
    not hook, compile or replace its modules there. In each block, every weight is reordered when it is first used; for
    the whole model this takes about as long as running a few hundred tokens. Float32 layers stay on PyTorch's kernel in
    these cases: oneDNN is missing, or less than 1.15 times as fast; the model has no layer of the class
    `torch.nn.Linear` itself with an ordinary parameter as weight; or its first parameter is not in float32 on a CPU.

    The block also makes the linear layers of a bfloat16 model faster if `lowered` made this model on a CPU with
    instructions for bfloat16. These layers are faster in all threads. Their weights are reordered too when they are
    first used in a block, and the reordered weights are freed at its end.

    >>> import nopad, torch
    >>> from transformers import BertConfig, BertModel
    >>> from nopad.model import fast_linear
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(BertModel(BertConfig(**sizes)).eval())
    >>> batch = nopad.PackedBatch.from_sequences([[101, 7, 102], [101, 102]])
    >>> with fast_linear(model), torch.inference_mode():
    ...     states = model(**batch).last_hidden_state
    """
    with laid_out(model):
        if not is_worth_it(model):
            yield
            return
        with _FastLinear(model) as mode:
            token = _active.set(mode)
            try:
                yield
            finally:
                _active.reset(token)


def active() -> _FastLinear | None:
    """Return the state of this thread's innermost `fast_linear` block that uses oneDNN's kernel; None: there is none.

    Give this state to `shared` in another thread, so that the block holds there too.
    """
    return _active.get()


def shared(mode: _FastLinear | None) -> AbstractContextManager[Any]:
    """Return a context manager that continues the `fast_linear` block of one thread in another thread.

    `mode` is what `active` returned in the first thread. Linear layers run on the weights that were reordered there.
    If `mode` is None, the context manager does nothing.
    """
    return nullcontext() if mode is None else _FastLinear(mode.model, mode)


def is_worth_it(model: nn.Module) -> bool:
    """Return whether oneDNN is at least 1.15 times as fast as PyTorch's kernel on the model's most frequent layer size.

    This times both kernels if the size is new in this process. The result is False if oneDNN is missing, if the model
    has no layer of the class `torch.nn.Linear` itself with an ordinary parameter as weight, or if the model's first
    parameter is not in float32 on a CPU.
    """
    parameter = next(model.parameters(), None)
    if parameter is None or parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        return False
    sizes = [(m.in_features, m.out_features) for m in model.modules() if type(m) is nn.Linear and _is_plain(m.weight)]
    available: Any = torch.backends.mkldnn.is_available
    if not sizes or not available():
        return False
    return _gain(*max(set(sizes), key=sizes.count)) >= WORTH


class _FastLinear(TorchFunctionMode):
    """The mode of a `fast_linear` block: a model's float32 linear layers run on weights reordered for oneDNN.

    They run on PyTorch's own kernel in these cases: gradients or autocast are enabled; the code is compiled; `is_alone`
    returns False; the weight is not an ordinary parameter that the model had when the block began; the states are not
    in float32; or `torch.nn.functional.linear` gets an argument by name.
    """

    def __init__(self, model: nn.Module, other: _FastLinear | None = None) -> None:
        super().__init__()
        self.model = model
        self._mine: dict[int, Tensor]  # kept alive, so that no new parameter gets one of these ids
        self._laid_out: dict[int, tuple[Tensor, int, Tensor]]
        self._fuses: bool = may_fuse(model) if other is None else other._fuses
        learnt: dict[int, Formula] = {} if other is None else other._activations.learnt
        self._activations: Activations = Activations(learnt)
        if other is None:
            self._mine = {id(one): one for one in model.parameters() if _is_plain(one)}
            self._laid_out = {}
        else:
            self._mine, self._laid_out = other._mine, other._laid_out

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():  # a compiler lays weights out by itself
            return function(*args, **(kwargs or {}))
        done = self._activations.next(function, args, kwargs or {})
        if done is not None:
            return done
        if function is _linear and not kwargs and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu"):
            states, weight = args[0], args[1]
            ours = id(weight) in self._mine and is_alone()
            if ours and weight.dtype == states.dtype == torch.float32:
                return self._multiplied(states, weight, args[2] if len(args) > 2 else None)
        return function(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:
        """Leave the mode.

        If the last layer's output was computed together with an activation, and something still holds this output, the
        output is first computed again without the activation, in place.
        """
        try:
            self._activations.close()
        finally:
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _multiplied(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``states @ weight.T + bias``; if an activation is expected to follow, the result already has it."""
        laid_out = self._packed(weight)
        if not self._fuses:
            return _by_onednn(states, laid_out, bias)
        formula = self._activations.of(id(weight))
        out = _by_onednn(states, laid_out, bias, formula)
        return self._activations.computed(id(weight), formula, out, partial(_by_onednn, states, laid_out, bias))

    def _packed(self, weight: Tensor) -> Tensor:
        """Return a copy of a layer's weight in oneDNN's order.

        This is the stored copy, or a new one if none is stored or the weight has changed since.
        """
        # In-place changes increase `_version`, and new memory has another address, while the old one is held.
        known = self._laid_out.get(id(weight))
        if known is None or known[0].data_ptr() != weight.data_ptr() or known[1] != weight._version:
            known = self._laid_out[id(weight)] = (weight.detach(), weight._version, _lay_out(weight))
        return known[2]


def is_alone() -> bool:
    """Return whether nothing but PyTorch itself sees the operations that are called.

    It is False in a `TorchDispatchMode`, in a transform of `torch.func`, and in a `TorchFunctionMode` other than
    `fast_linear` and ``with torch.device(...)``. Such code may know PyTorch's linear layer, but knows neither oneDNN's
    operations nor its order of weights. While `fast_linear` handles an operation, only modes that were entered before
    it count, since the others have already seen the operation.
    """
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    modes = (torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack()))
    return all(isinstance(mode, _FastLinear | DeviceContext) for mode in modes)


def is_plain_layer(module: nn.Module) -> bool:
    """Return whether a module is of the class `torch.nn.Linear` itself, no subclass, and not hooked (`is_hooked`)."""
    return type(module) is nn.Linear and not is_hooked(module)


def is_hooked(module: nn.Module) -> bool:
    """Return whether a module has hooks for the forward or the backward pass, other than harmless ones of nopad."""
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = (hook for table in tables for hook in getattr(module, table).values())
    return any(not getattr(hook, "harmless", False) for hook in hooks)


def _is_plain(weight: Any) -> bool:
    """Return whether a weight is an ordinary parameter: of the class `torch.nn.Parameter` itself, and not empty.

    Weights of torchao (int8) are of other classes, and have kernels of their own. The result is also False for a weight
    that was made in inference mode: such a tensor does not count its changes in place.
    """
    return type(weight) is nn.Parameter and weight.numel() > 0 and not weight.is_inference()


@cache
def _gain(inputs: int, outputs: int) -> float:
    """Return the time of PyTorch's kernel divided by that of oneDNN's, for a linear layer of this size.

    `inputs` and `outputs` are ``in_features`` and ``out_features``. Each size is measured once per process.
    """
    states, weight = (torch.ones(n, inputs, dtype=torch.float32, device="cpu") for n in (TRIED_TOKENS, outputs))
    with torch.inference_mode():
        laid_out = _lay_out(weight)
        plain, packed = fastest(lambda: _linear(states, weight), lambda: _by_onednn(states, laid_out, None))
    gain = plain / packed
    log.info(
        f"linear layers of {inputs} x {outputs} on this CPU: oneDNN with laid-out weights is {gain:.2f} times as "
        f"fast as PyTorch's own; {'taken for inference' if gain >= WORTH else 'not taken'}"
    )
    return gain


def _lay_out(weight: Tensor) -> Tensor:
    laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    return laid_out


def _by_onednn(states: Tensor, laid_out: Tensor, bias: Tensor | None, formula: Formula = PLAIN) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(states, laid_out, bias, formula[0], [], formula[1])
    return out


def fastest(*ways: Callable[[], Any], turns: int = 9) -> list[float]:
    """Return a list with each function's shortest time in seconds, out of `turns` runs.

    One more run of each comes first and does not count. In each turn, every function runs once, so a machine that is
    busy for a while slows all of them.
    """
    best = [float("inf")] * len(ways)
    for turn in range(turns + 1):
        for which, way in enumerate(ways):
            start = time.perf_counter()
            way()
            if turn:
                best[which] = min(best[which], time.perf_counter() - start)
    return best
